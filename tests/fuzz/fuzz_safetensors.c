/* safetensors images: what is accepted can be read whole, built again, and listed with its values
 * and packed back without loss. */
#include "fuzz/fuzz.h"
#include "stream/listing.h"
#include "stream/safetensors.h"

#include <stdlib.h>
#include <string.h>

#define LISTED_MAX ((size_t)4096) /* bytes: longer images are not listed, to keep the pace */

/* The same tensors and metadata, written by us. */
static void rebuild(const struct cart_st *st)
{
    struct cart_err err = {0};
    struct cart_buf b = CART_BUF_INIT;
    struct cart_st again;
    fuzz_need(cart_st_build(&b, st->tensors, st->n, st->metadata, &err), &err);
    fuzz_need(cart_st_parse(&again, b.data, b.len, "again", &err), &err);
    fuzz_demand(again.n == st->n && json_equal(again.metadata, st->metadata), "the same header");
    for (size_t i = 0; i < st->n; i++) {
        const struct cart_st_tensor *a = &st->tensors[i], *t = cart_st_find(&again, a->name);
        fuzz_demand(t && t->dtype == a->dtype && t->rank == a->rank && t->bytes == a->bytes &&
                        memcmp(t->shape, a->shape, a->rank * sizeof *a->shape) == 0 &&
                        (a->bytes == 0 || memcmp(t->data, a->data, a->bytes) == 0),
                    "the same tensor");
    }
    cart_st_release(&again);
    cart_buf_release(&b);
}

static void list_and_pack(const void *image, size_t n)
{
    struct cart_err err = {0};
    struct cart_buf lines = CART_BUF_INIT, packed = CART_BUF_INIT;
    struct cart_jsonl *l;
    const char *record;
    json_t *head;
    int r = cart_listing_safetensors(image, n, "image", true, fuzz_output(0), "lines", &err);
    fuzz_need(r, &err);
    fuzz_contents(0, &lines);
    fuzz_need(cart_jsonl_open(&l, fuzz_file(0, lines.data, lines.len), &err), &err);
    fuzz_demand(cart_jsonl_next(l, &head, &record, &err) == 1 && strcmp(record, "safetensors") == 0,
                "a first line");
    fuzz_need(cart_listing_pack_safetensors(l, head, fuzz_output(1), "packed", &err), &err);
    json_decref(head);
    cart_jsonl_close(l);
    fuzz_contents(1, &packed);
    fuzz_demand(packed.len == n && memcmp(packed.data, image, n) == 0, "the listed image");
    cart_buf_release(&packed);
    cart_buf_release(&lines);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cart_err err = {0};
    struct cart_st st;
    void *copy = fuzz_copy(data, n);
    int r = cart_st_parse(&st, copy, n, "input", &err);
    if (r < 0) {
        fuzz_refused(r, &err);
    } else {
        for (size_t i = 0; i < st.n; i++)
            fuzz_demand(cart_st_find(&st, st.tensors[i].name) == &st.tensors[i],
                        "a tensor to be found by its name");
        rebuild(&st);
        cart_st_release(&st);
        if (n <= LISTED_MAX)
            list_and_pack(copy, n);
    }
    free(copy);
    return 0;
}
