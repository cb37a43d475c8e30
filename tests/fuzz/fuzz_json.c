/* JSON: what is accepted has one canonical form, which is read back as the same value. */
#include "base/json.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cart_err err = {0};
    struct cart_buf once = CART_BUF_INIT, twice = CART_BUF_INIT;
    json_t *v, *again;
    char *copy = fuzz_copy(data, n);
    int r = cart_json_parse(&v, copy, n, "input", &err);
    if (r < 0) {
        fuzz_refused(r, &err);
    } else {
        fuzz_need(cart_json_dump(v, &once, &err), &err);
        fuzz_need(cart_json_parse(&again, once.data, once.len, "again", &err), &err);
        fuzz_need(cart_json_dump(again, &twice, &err), &err);
        fuzz_demand(json_equal(v, again), "the same value");
        fuzz_demand(fuzz_same(&once, &twice), "one canonical form");
        json_decref(again);
        json_decref(v);
    }
    cart_buf_release(&once);
    cart_buf_release(&twice);
    free(copy);
    return 0;
}
