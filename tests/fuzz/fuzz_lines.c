/* JSON Lines to a stream or a safetensors image (cart-view --pack): what packs is whole, its
 * records well-formed. What they are to each other is for cart-view --check to judge. */
#include "fuzz/fuzz.h"
#include "stream/kinds.h"
#include "stream/listing.h"

#include <string.h>
#include <unistd.h>

static void check_stream(void)
{
    struct cart_err err = {0};
    struct cart_buf packed = CART_BUF_INIT;
    struct cart_stream_reader *r;
    struct cart_record rec;
    struct cart_payload p;
    fuzz_contents(1, &packed);
    fuzz_need(cart_stream_open(&r, fuzz_file(1, packed.data, packed.len), NULL, &err), &err);
    const struct cart_kind *kind = cart_kind_find(cart_stream_kind(r));
    int e;
    while ((e = cart_stream_read(r, &rec, &err)) == 1) {
        fuzz_need(cart_payload_parse(&p, kind, &rec, "packed", &err), &err);
        fuzz_need(cart_payload_check(&p, &rec, "packed", &err), &err);
        cart_payload_release(&p);
    }
    fuzz_need(e, &err);
    cart_stream_close(r);
    cart_buf_release(&packed);
}

static void check_image(void)
{
    struct cart_err err = {0};
    struct cart_buf packed = CART_BUF_INIT;
    fuzz_contents(1, &packed);
    fuzz_need(cart_listing_safetensors(packed.data, packed.len, "packed", false, -1, "lines", &err),
              &err);
    cart_buf_release(&packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cart_err err = {0};
    struct cart_jsonl *l;
    const char *record;
    json_t *head = NULL;
    int r = cart_jsonl_open(&l, fuzz_file(0, data, n), &err);
    if (r < 0) {
        fuzz_refused(r, &err);
        return 0;
    }
    r = cart_jsonl_next(l, &head, &record, &err);
    if (r == 1) {
        bool image = strcmp(record, "safetensors") == 0;
        r = image ? cart_listing_pack_safetensors(l, head, fuzz_output(1), "packed", &err)
                  : cart_listing_pack(l, head, fuzz_output(1), "packed", 0, &err);
        json_decref(head);
        if (r >= 0 && image)
            check_image();
        else if (r >= 0)
            check_stream();
    }
    if (r < 0)
        fuzz_refused(r, &err);
    cart_jsonl_close(l);
    return 0;
}
