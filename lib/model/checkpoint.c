#include "model/checkpoint.h"

#include "base/io.h"
#include "stream/safetensors.h"
#include "tensor/dtype.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct cart_checkpoint_shard {
    struct cart_map map;
    struct cart_st st;
    char *path;
};

struct cart_checkpoint_file {
    char *path;
    int fd; /* of the file, whatever has its name later */
    struct stat st;
};

/* Before a file is mapped: what is written afterwards shows. Without O_NONBLOCK a FIFO would wait
 * for a writer before it could be refused. */
static int note_file(struct cart_checkpoint *c, const char *path, struct cart_err *err)
{
    struct cart_checkpoint_file *f = &c->files[c->n_files];
    f->path = strdup(path);
    if (!f->path)
        return cart_err_memory(err, path, 0);
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    c->n_files++;
    return f->fd >= 0 && fstat(f->fd, &f->st) == 0 ? 0 : cart_err_sys(err, "%s", path);
}

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

int cart_checkpoint_unchanged(const struct cart_checkpoint *c, const char **touched,
                              struct cart_err *err)
{
    *touched = NULL;
    for (size_t i = 0; i < c->n_files; i++) {
        const struct cart_checkpoint_file *f = &c->files[i];
        struct stat now;
        if (fstat(f->fd, &now) != 0 || now.st_size != f->st.st_size ||
            !same_time(now.st_mtim, f->st.st_mtim))
            return cart_err_set(err, CART_EAGAIN, "%s: changed while it was used", f->path);
        if (!same_time(now.st_ctim, f->st.st_ctim))
            *touched = f->path;
    }
    return 0;
}

static int describe(struct cart_gguf_tensor *out, const struct cart_st_tensor *t, const char *path,
                    struct cart_err *err)
{
    static const int types[] = {
        [CART_ST_F32] = CART_F32, [CART_ST_F16] = CART_F16, [CART_ST_BF16] = CART_BF16};
    char shown[80];
    cart_err_escape(shown, sizeof shown, t->name, strlen(t->name));
    if (t->dtype != CART_ST_F32 && t->dtype != CART_ST_F16 && t->dtype != CART_ST_BF16)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: tensor %s: type %s is not supported: expected F32, F16 or BF16",
                            path, shown, cart_st_dtype_name(t->dtype));
    if (t->rank < 1 || t->rank > 2 || t->bytes == 0)
        return cart_err_set(err, CART_EFORMAT,
                            "%s: tensor %s: expected one or two dimensions above 0, found %zu",
                            path, shown, t->rank);
    *out = (struct cart_gguf_tensor){.name = {t->name, strlen(t->name)},
                                     .type = types[t->dtype],
                                     .n_dims = (unsigned)t->rank,
                                     .dims = {t->shape[t->rank - 1], 1, 1, 1},
                                     .data = t->data,
                                     .bytes = t->bytes};
    if (t->rank == 2)
        out->dims[1] = t->shape[0];
    return 0;
}

/* The index must name this shard for this tensor, so that no tensor can be in two. */
static int check_index(const struct cart_hub *h, const char *name, size_t shard, const char *path,
                       struct cart_err *err)
{
    char shown[80], file[80];
    const char *named = json_string_value(json_object_get(h->index, name));
    if (!h->index || (named && strcmp(named, h->shards[shard]) == 0))
        return 0;
    cart_err_escape(shown, sizeof shown, name, strlen(name));
    if (!named)
        return cart_err_set(err, CART_EFORMAT, "%s: tensor %s: not in the index", path, shown);
    return cart_err_set(err, CART_EFORMAT, "%s: tensor %s: the index has it in %s", path, shown,
                        cart_err_escape(file, sizeof file, named, strlen(named)));
}

static int open_shard(struct cart_checkpoint *c, size_t i, struct cart_err *err)
{
    struct cart_checkpoint_shard *s = &c->shards[i];
    s->path = cart_hub_path(c->hub, c->hub->shards[i]);
    if (!s->path)
        return cart_err_memory(err, c->hub->shards[i], 0);
    int r = note_file(c, s->path, err);
    if (r == 0)
        r = cart_map_open(&s->map, s->path, err);
    if (r == 0)
        r = cart_st_parse(&s->st, s->map.data, s->map.size, s->path, err);
    if (r < 0)
        return r;
    c->n += s->st.n;
    if (c->n > CART_GGUF_MAX_TENSORS)
        return cart_err_set(err, CART_EFORMAT, "%s: expected at most %zu tensors in all shards",
                            s->path, CART_GGUF_MAX_TENSORS);
    for (size_t k = 0; r == 0 && k < s->st.n; k++)
        r = check_index(c->hub, s->st.tensors[k].name, i, s->path, err);
    return r;
}

static int compare_tensors(const void *pa, const void *pb)
{
    const struct cart_gguf_tensor *a = pa, *b = pb;
    return strcmp(a->name.data, b->name.data);
}

/* Every tensor of the index must have come: names are unique by now, so counting would tell, but
 * not which one is missing. */
static int check_complete(const struct cart_checkpoint *c, struct cart_err *err)
{
    const char *name;
    json_t *shard;
    char shown[80];
    json_object_foreach(c->hub->index, name, shard)
        if (!cart_checkpoint_find(c, name))
            return cart_err_set(err, CART_EFORMAT,
                                "%s: %s: tensor %s: the index has it here, the file lacks it",
                                c->hub->dir, json_string_value(shard),
                                cart_err_escape(shown, sizeof shown, name, strlen(name)));
    return 0;
}

static int open_hub(struct cart_checkpoint *c, const char *path, struct cart_err *err)
{
    int r = cart_hub_open(&c->hub, path, err);
    if (r < 0)
        return r;
    c->shards = calloc(c->hub->n_shards, sizeof *c->shards);
    c->files = calloc(c->hub->n_shards, sizeof *c->files);
    if (!c->shards || !c->files)
        return cart_err_memory(err, path, c->hub->n_shards * sizeof *c->shards);
    for (size_t i = 0; r == 0 && i < c->hub->n_shards; i++)
        r = open_shard(c, i, err);
    if (r == 0 && !(c->list = calloc(c->n + 1, sizeof *c->list)))
        r = cart_err_memory(err, "tensor table", c->n * sizeof *c->list);
    size_t n = 0;
    for (size_t i = 0; r == 0 && i < c->hub->n_shards; i++)
        for (size_t k = 0; r == 0 && k < c->shards[i].st.n; k++)
            r = describe(&c->list[n++], &c->shards[i].st.tensors[k], c->shards[i].path, err);
    if (r < 0)
        return r;
    qsort(c->list, n, sizeof *c->list, compare_tensors);
    return check_complete(c, err);
}

int cart_checkpoint_open(struct cart_checkpoint *c, const char *path, struct cart_err *err)
{
    struct cart_checkpoint made = {.gguf = NULL};
    int r;
    if (cart_hub_is(path)) {
        r = open_hub(&made, path, err);
    } else {
        made.files = calloc(1, sizeof *made.files);
        r = made.files ? note_file(&made, path, err) : cart_err_memory(err, path, 0);
        if (r == 0 && (r = cart_gguf_open(&made.gguf, path, err)) == 0)
            made.n = cart_gguf_n_tensors(made.gguf);
    }
    if (r < 0)
        cart_checkpoint_close(&made);
    else
        *c = made;
    return r;
}

void cart_checkpoint_close(struct cart_checkpoint *c)
{
    for (size_t i = 0; c->shards && i < c->hub->n_shards; i++) {
        cart_st_release(&c->shards[i].st);
        cart_map_release(&c->shards[i].map);
        free(c->shards[i].path);
    }
    for (size_t i = 0; i < c->n_files; i++) {
        if (c->files[i].fd >= 0)
            close(c->files[i].fd);
        free(c->files[i].path);
    }
    free(c->files);
    free(c->shards);
    free(c->list);
    cart_hub_close(c->hub);
    cart_gguf_close(c->gguf);
    *c = (struct cart_checkpoint){.gguf = NULL};
}

const struct cart_gguf_tensor *cart_checkpoint_tensors(const struct cart_checkpoint *c)
{
    return c->hub ? c->list : c->n > 0 ? cart_gguf_tensor_at(c->gguf, 0) : NULL;
}

const struct cart_gguf_tensor *cart_checkpoint_find(const struct cart_checkpoint *c,
                                                    const char *name)
{
    struct cart_gguf_tensor probe = {.name = {name, strlen(name)}};
    if (c->gguf)
        return cart_gguf_tensor(c->gguf, name);
    return c->n > 0 ? bsearch(&probe, c->list, c->n, sizeof *c->list, compare_tensors) : NULL;
}
