#define _GNU_SOURCE /* memfd_create */
#include "fuzz/fuzz.h"

#include "base/io.h"
#include "helper/gguf_write.h"
#include "model/forward.h"
#include "model/head.h"
#include "tensor/attention.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void fuzz_demand(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "fuzz: expected %s\n", what);
    abort();
}

bool fuzz_same(const struct cart_buf *a, const struct cart_buf *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

void fuzz_need(int r, const struct cart_err *err)
{
    if (r >= 0)
        return;
    fprintf(stderr, "fuzz: expected success, found: %s\n", err->msg);
    abort();
}

void fuzz_refused(int r, const struct cart_err *err)
{
    fuzz_demand(r < 0 && r >= CART_EAGAIN && r == err->code, "one of our codes");
    fuzz_demand(err->msg[0] != '\0', "a message");
    fuzz_demand(cart_utf8_valid(err->msg, strlen(err->msg)), "a message in UTF-8");
    for (const char *p = err->msg; *p; p++)
        fuzz_demand((unsigned char)*p >= 0x20 && *p != 0x7f,
                    "a message without control characters");
}

void *fuzz_copy(const uint8_t *data, size_t n)
{
    void *copy = malloc(n ? n : 1);
    fuzz_demand(copy != NULL, "memory");
    if (n > 0)
        memcpy(copy, data, n);
    return copy;
}

struct slot {
    int fd; /* 0: not made yet */
    char path[32];
};
static struct slot slots[FUZZ_SLOTS];

int fuzz_output(unsigned slot)
{
    struct slot *s = &slots[slot];
    if (s->fd == 0) {
        s->fd = memfd_create("fuzz", MFD_CLOEXEC);
        fuzz_demand(s->fd > 0, "memfd_create");
        snprintf(s->path, sizeof s->path, "/proc/self/fd/%d", s->fd);
    }
    fuzz_demand(ftruncate(s->fd, 0) == 0 && lseek(s->fd, 0, SEEK_SET) == 0, "an empty file");
    return s->fd;
}

const char *fuzz_file(unsigned slot, const void *data, size_t n)
{
    struct cart_err err = {0};
    int fd = fuzz_output(slot);
    if (n > 0)
        fuzz_need(cart_io_write(fd, data, n, "fuzz", &err), &err);
    fuzz_demand(lseek(fd, 0, SEEK_SET) == 0, "a file at its start");
    return slots[slot].path;
}

void fuzz_contents(unsigned slot, struct cart_buf *b)
{
    struct cart_err err = {0};
    fuzz_need(cart_io_slurp(slots[slot].path, (size_t)1 << 28, b, &err), &err);
}

const char *fuzz_model_file(unsigned slot)
{
    static const struct gguf_shape shape = {"llama", 1,   32,    2,        1,    16, 32,
                                            272,     512, 10000, CART_F32, true, 1};
    const char *path = fuzz_file(slot, NULL, 0);
    gguf_write_model(path, &shape);
    return path;
}

const struct cart_model *fuzz_model(void)
{
    static struct cart_model *model;
    static const struct cart_model_options chatml = {.profile = "chatml"};
    struct cart_err err = {0};
    if (!model) {
        fuzz_need(cart_model_open(&model, fuzz_model_file(0), &chatml, &err), &err);
        slots[0].fd = 0; /* the mapping's file may not change under the model */
    }
    return model;
}

static void touch(const struct cart_matrix *w)
{
    static volatile float sink;
    const unsigned char *p = w->data;
    sink += (float)(p[0] + p[w->row_bytes * w->N - 1]);
}

static void forward(const struct cart_model *m, int dtype, struct cart_pool *pool)
{
    static const uint32_t id;
    struct cart_err err = {0};
    struct cart_workspace *ws;
    struct cart_kv_tail tail;
    float *hidden = calloc(m->D, sizeof *hidden), *logits = calloc(m->V, sizeof *logits);
    fuzz_demand(hidden && logits, "memory");
    fuzz_need(cart_workspace_new(&ws, m, 1, &err), &err);
    fuzz_need(cart_kv_tail_init(&tail, m, dtype, 0, 1, &err), &err);
    const struct cart_span span = {.ids = &id, .T = 1, .kv = {.tail = &tail}, .n_want = 1};
    fuzz_need(cart_forward(m, ws, &span, 1, hidden, pool, &err), &err);
    cart_head_logits(m, hidden, 1, logits, pool);
    cart_kv_tail_release(&tail);
    cart_workspace_free(ws);
    free(hidden);
    free(logits);
}

void fuzz_forward(const struct cart_model *m)
{
    static struct cart_pool *pool;
    struct cart_err err = {0};
    if (!pool)
        fuzz_need(cart_pool_new(&pool, 1, &err), &err);
    touch(&m->embed);
    touch(&m->head);
    for (size_t l = 0; l < m->L; l++) {
        const struct cart_layer *y = &m->layers[l];
        const struct cart_matrix *all[] = {&y->wq,     &y->wk,   &y->wv,    &y->wo,
                                           &y->w_gate, &y->w_up, &y->w_down};
        for (size_t i = 0; i < CART_COUNTOF(all); i++)
            touch(all[i]);
        fuzz_demand(y->H % y->HK == 0 && y->DH > 0 && y->DH <= CART_ATTN_HEAD_MAX && y->F > 0,
                    "heads that fit each other and the kernels");
    }
    forward(m, CART_F32, pool);
    forward(m, CART_F16, pool);
}
