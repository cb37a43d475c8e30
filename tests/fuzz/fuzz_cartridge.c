/* Cartridges and optimizer files, each opened for a model that they may or may not be of. */
#include "cartridge/cartridge.h"
#include "fuzz/fuzz.h"
#include "study/train_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void walk(const struct cart_cartridge *c, const struct cart_model *m)
{
    size_t rows = 0, width = cart_layer_kv_width(&m->layers[0]);
    for (size_t i = 0; i < c->n_parts; i++) {
        const struct cart_kv_part *part = &c->parts[i];
        rows += part->rows;
        for (size_t r = 0; c->dtype == CART_F32 && r < part->rows; r++) {
            const float *k = (const float *)part->layers[0].k + r * part->layers[0].stride,
                        *v = (const float *)part->layers[0].v + r * part->layers[0].stride;
            for (size_t x = 0; x < width; x++)
                fuzz_demand(isfinite(k[x]) && isfinite(v[x]), "finite rows");
        }
    }
    fuzz_demand(rows == c->p && c->frozen <= c->p && c->p > 0, "p rows");
    int64_t sum = 0;
    for (size_t i = 0; i < c->n_draft; i++)
        sum |= c->draft[i];
    fuzz_demand(sum >= 0, "ids");
}

static void resume(const char *path, const struct cart_model *m)
{
    static struct cart_trainable t;
    static json_t *identity;
    struct cart_err err = {0};
    struct cart_train_state s = {0};
    if (!identity) {
        identity = json_object();
        fuzz_need(cart_trainable_init(&t, m, 12, 1, &err), &err);
    }
    int r = cart_train_state_load(path, &t, &s, identity, &err);
    if (r < 0)
        fuzz_refused(r, &err);
    cart_buf_release(&s.metrics);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const struct cart_model *m = fuzz_model();
    const struct cart_cartridge_options o = {.allow_other_weights = true};
    struct cart_err err = {0};
    struct cart_cartridge *c;
    char warning[256];
    const char *path = fuzz_file(0, data, n);
    int r = cart_cartridge_open(&c, m, path, &o, warning, sizeof warning, &err);
    if (r < 0) {
        fuzz_refused(r, &err);
    } else {
        walk(c, m);
        cart_cartridge_close(c);
    }
    resume(path, m);
    return 0;
}
