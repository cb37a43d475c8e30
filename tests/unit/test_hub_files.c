/* The files of a hub directory have greatest sizes, beyond which they are not looked into. */
#include "base/io.h"
#include "helper/hub_write.h"
#include "helper/vocab.h"
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void need(int r, const struct cart_err *err)
{
    if (r < 0)
        fail_msg("%s", err->msg);
}

static void spill(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void test_greatest_sizes(void **state)
{
    static const struct hub_form form = {-1, 2, false, false, false};
    static const struct {
        const char *file;
        size_t most;
    } files[] = {{"config.json", (size_t)4 << 20},
                 {"generation_config.json", (size_t)4 << 20},
                 {"chat_template.jinja", (size_t)1 << 20},
                 {"tokenizer_config.json", (size_t)32 << 20},
                 {"model.safetensors.index.json", (size_t)64 << 20},
                 {"tokenizer.json", (size_t)256 << 20}};
    struct cart_err err = {0};
    char folder[] = "/tmp/cart-hub-files-XXXXXX", dir[64], path[200], part[80];
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(dir, sizeof dir, "%s/model", folder);
    hub_write_model(test_root("tests/golden/tiny/llama_tied.gguf"), dir, &form);
    for (size_t i = 0; i < CART_COUNTOF(files); i++) {
        struct cart_buf whole = CART_BUF_INIT;
        struct cart_model *m = NULL;
        snprintf(path, sizeof path, "%s/%s", dir, files[i].file);
        bool there = access(path, F_OK) == 0;
        if (there)
            need(cart_io_slurp(path, SIZE_MAX, &whole, &err), &err);
        else
            spill(path, "", 0);
        for (size_t more = 0; more < 2; more++) {
            /* What is filled in is NUL, and no JSON. */
            assert_int_equal(truncate(path, (off_t)(files[i].most + more)), 0);
            snprintf(part, sizeof part, "expected at most %zu bytes, found %zu", files[i].most,
                     files[i].most + more);
            err.msg[0] = '\0';
            int r = cart_model_open(&m, dir, NULL, &err);
            if (more ? r != CART_EFORMAT || !strstr(err.msg, part)
                     : strstr(err.msg, "expected at most") != NULL)
                fail_msg("%s: %zu bytes more than its most: %d: %s", files[i].file, more, r,
                         err.msg);
            cart_model_close(m);
            m = NULL;
        }
        if (there)
            spill(path, whole.data, whole.len);
        else
            unlink(path);
        cart_buf_release(&whole);
    }
    snprintf(path, sizeof path, "rm -rf '%s'", folder);
    assert_int_equal(system(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_greatest_sizes)};

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
