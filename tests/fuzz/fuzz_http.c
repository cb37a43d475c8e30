/* The gate before libmicrohttpd: what it lets in and refuses does not depend on how the bytes
 * arrive, and what it lets in are whole headers, whole lines and bodies. The first byte cuts the
 * rest. */
#include "fuzz/fuzz.h"
#include "serve/gate.h"

#include <string.h>

#define BODY_MAX ((size_t)1000)

/* Feeds data [n], step bytes more each time, and returns how much was let in. */
static size_t feed(struct cart_gate *g, const char *data, size_t n, size_t step)
{
    size_t passed = 0;

    *g = (struct cart_gate){.at = CART_GATE_HEADER};
    for (size_t have = step < n ? step : n;; have = have + step < n ? have + step : n) {
        int64_t k = 1;
        while (k > 0 && passed < have) {
            k = cart_gate_next(g, data + passed, have - passed, BODY_MAX);
            fuzz_demand(k >= -1 && (k >= 0) == (g->status == 0), "a verdict with its status");
            if (k > 0)
                passed = (uint64_t)k > n - passed ? n : passed + (size_t)k;
        }
        if (k < 0 || have == n || passed == n)
            return passed;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cart_gate whole;
    struct cart_gate pieces;

    if (n < 2)
        return 0;
    const char *text = (const char *)data + 1;
    size_t in = feed(&whole, text, n - 1, n - 1);
    size_t cut = feed(&pieces, text, n - 1, 1 + data[0] % 64);
    fuzz_demand((whole.status == 0) == (pieces.status == 0), "the same verdict in pieces");
    /* Whole, the first line of a chunked body refuses its header too. */
    fuzz_demand(whole.status == 0 ? in == cut : in <= cut, "as much let in");
    if (whole.status == 0)
        fuzz_demand(whole.at == pieces.at, "the same place");
    else
        fuzz_demand(whole.status >= 400 && whole.reason != NULL && strlen(whole.reason) < 200,
                    "a reason that fits an answer");
    return 0;
}
