/* What a request or a scheduler costs: constraints are kept to, each choice with a budget of its
 * own, and what is said of memory is what it takes. */
#include "helper/serving.h"

#include "engine/automaton_impl.h"
#include "engine/pages.h"
#include "model/forward.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define PROMPT ((size_t)30)

static void greedy_request(struct cart_serve_request *q, uint32_t *prompt, uint64_t seed)
{
    *q = (struct cart_serve_request)CART_SERVE_REQUEST;
    for (size_t i = 0; i < PROMPT; i++)
        prompt[i] = test_pick(seed, (uint32_t)i, 300);
    q->prompt = prompt;
    q->n_prompt = PROMPT;
    q->temperature = 0;
    q->max_tokens = 20;
    q->ignore_stop = true;
    q->stack = test_stack(0);
}

/* Every answer is JSON, at any temperature, of every choice. */
static void constraints_hold(void **state)
{
    (void)state;
    struct cart_scheduler_options o = {4, 8, 0, 0, 64, 8, CART_F32};
    struct cart_scheduler *s = test_scheduler_start(&o);
    struct cart_err err = {0};
    json_t *schema = NULL;
    static const char text[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[\"xy\",7]},"
        "\"b\":{\"type\":\"boolean\"}},\"required\":[\"a\",\"b\"],\"additionalProperties\":false}";

    test_need(cart_json_parse(&schema, text, strlen(text), "schema", &err), &err);
    for (size_t i = 0; i < 12; i++) {
        struct cart_serve_request q;
        struct client c;
        uint32_t prompt[PROMPT];
        greedy_request(&q, prompt, i);
        q.temperature = i % 3;
        q.seed = i;
        q.n = 1 + i % 3;
        q.max_tokens = 400;
        q.ignore_stop = false;
        test_need(cart_constraint_schema(&q.constraint, cart_scheduler_lexicon(s), schema, "schema",
                                         &err),
                  &err);
        test_ask(s, &c, &q);
        for (size_t k = 0; k < q.n; k++) {
            struct cart_buf b = CART_BUF_INIT;
            json_t *v = NULL;
            assert_int_equal(c.got[k].finish, CART_SERVE_STOP);
            test_need(cart_tokenizer_decode(cart_model_tokenizer(test_serving.model), c.got[k].ids,
                                            c.got[k].n, false, &b, &err),
                      &err);
            test_need(cart_json_parse(&v, b.data, b.len, "answer", &err), &err);
            assert_true(json_is_boolean(json_object_get(v, "b")));
            assert_int_equal(json_object_size(v), 2);
            json_decref(v);
            cart_buf_release(&b);
        }
        cart_stack_release(q.stack);
    }
    json_decref(schema);
    cart_scheduler_free(s);
}

/* A choice whose schema asks for too much says nothing of the others, whichever run together. */
static void choices_have_budgets_of_their_own(void **state)
{
    (void)state;
    for (size_t slots = 1; slots <= 4; slots += 3) {
        struct cart_scheduler_options o = {slots, 8, 0, 0, 64, 8, CART_F32};
        struct cart_scheduler *s = test_scheduler_start(&o);
        struct cart_serve_request q;
        struct client c;
        struct cart_err err = {0};
        uint32_t prompt[PROMPT];
        json_t *schema = json_pack("{s:[s,i]}", "enum", "xy", 7);
        greedy_request(&q, prompt, 3);
        q.n = 3;
        test_need(cart_constraint_schema(&q.constraint, cart_scheduler_lexicon(s), schema, "schema",
                                         &err),
                  &err);
        q.constraint->left = 10;
        test_ask(s, &c, &q);
        assert_int_equal(c.got[0].finish, CART_SERVE_FAILED);
        assert_int_equal(c.got[1].finish, CART_SERVE_STOP);
        assert_int_equal(c.got[2].finish, CART_SERVE_STOP);
        json_decref(schema);
        cart_stack_release(q.stack);
        cart_scheduler_free(s);
    }
}

/* What is said of memory is the sum of its parts, each of which counts; more than there can be is
 * an error. */
static void memory_is_the_sum_of_its_parts(void **state)
{
    (void)state;
    const struct cart_model *m = test_serving.model;
    struct cart_scheduler_options o = CART_SCHEDULER_OPTIONS;
    struct cart_err err = {0};
    struct cart_lexicon *l;
    size_t one, three;
    size_t R = o.slots + 2 * o.draft_max,
           pages = o.slots * m->context / CART_PAGE_ROWS + 1 + o.slots;

    assert_int_equal(cart_lexicon_new(&l, cart_model_tokenizer(m), &err), 0);
    assert_true(cart_lexicon_bytes(l) > 4 * m->V);
    assert_int_equal(cart_scheduler_bytes(&one, m, &o, 1, &err), 0);
    assert_int_equal(cart_scheduler_bytes(&three, m, &o, 3, &err), 0);
    assert_in_range(three - one, 2 * 16 * m->V, 2 * 16 * m->V + 512);
    size_t sum = cart_pages_bytes(m, o.kv, pages, 256) +
                 cart_workspace_bytes(m, CART_ENGINE_PIECE) + 4 * R * (m->V + 2 * m->D) +
                 4 * 256 * m->D + 16 * m->V + cart_lexicon_bytes(l);
    assert_in_range(one, sum, sum + 16384);
    cart_lexicon_free(l);
    o.slots = 2;
    o.kv_rows = SIZE_MAX / 2;
    assert_int_equal(cart_scheduler_bytes(&one, m, &o, 1, &err), CART_ESYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constraints_hold),
        cmocka_unit_test(choices_have_budgets_of_their_own),
        cmocka_unit_test(memory_is_the_sum_of_its_parts),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, test_serving_setup, test_serving_teardown);
}
