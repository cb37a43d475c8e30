#include "helper/rotation.h"

#include "model/forward.h"
#include "tensor/attention.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PLACES = 40 };

static void need(int r, const struct cart_err *err)
{
    if (r >= 0)
        return;
    printf("Bail out! %s\n", err->msg);
    exit(99);
}

/* turned and plain [DH]: one head's keys at a place and at place 0. */
static bool turned_by(const struct cart_model *m, const float *turned, const float *plain,
                      size_t place, double base, double scale)
{
    size_t n = m->rope.n_rot, half = n / 2;
    bool side_by_side = m->rope.order == CART_ROPE_INTERLEAVED;
    for (size_t j = 0; j < half; j++) {
        size_t a = side_by_side ? 2 * j : j, b = side_by_side ? 2 * j + 1 : j + half;
        double angle = (double)place * scale * pow(base, -2.0 * (double)j / (double)n);
        double x = (double)plain[a], y = (double)plain[b], most = 1e-5 * (fabs(x) + fabs(y));
        if (fabs((double)turned[a] - (x * cos(angle) - y * sin(angle))) > most ||
            fabs((double)turned[b] - (x * sin(angle) + y * cos(angle))) > most)
            return printf("# place %zu, pair %zu: not turned by %g\n", place, j, angle) < 0;
    }
    return true;
}

bool test_rotation(const struct cart_model *m, double base, double scale, struct cart_pool *pool)
{
    struct cart_err err = {0};
    struct cart_workspace *ws = NULL;
    struct cart_kv_tail tail;
    struct cart_kv_part part;
    struct cart_kv_layer *layers = calloc(m->L, sizeof *layers);
    size_t width = cart_layer_kv_width(&m->layers[0]);
    float *hidden = calloc(PLACES * m->D, sizeof *hidden), *rows = calloc(3 * width, sizeof *rows);
    uint32_t ids[PLACES];
    for (size_t i = 0; i < PLACES; i++)
        ids[i] = 7;
    need(cart_workspace_new(&ws, m, PLACES, &err), &err);
    need(cart_kv_tail_init(&tail, m, CART_F32, 0, PLACES, &err), &err);
    const struct cart_span span = {
        .ids = ids, .T = PLACES, .kv = {.tail = &tail}, .n_want = PLACES};
    need(cart_forward(m, ws, &span, 1, hidden, pool, &err), &err);
    cart_kv_part_of_tail(&part, layers, m, &tail, 0, PLACES);
    cart_kv_part_row(&part, m, 0, 0, rows, rows + 2 * width);
    bool same = true;
    for (size_t p = 1; same && p < PLACES; p++) {
        cart_kv_part_row(&part, m, 0, p, rows + width, rows + 2 * width);
        for (size_t h = 0; same && h < m->layers[0].HK; h++)
            same = turned_by(m, rows + width + h * m->layers[0].DH, rows + h * m->layers[0].DH, p,
                             base, scale);
    }
    cart_kv_tail_release(&tail);
    cart_workspace_free(ws);
    free(layers);
    free(hidden);
    free(rows);
    return same;
}
