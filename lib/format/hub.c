#include "format/hub.h"

#include "base/io.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Limits in bytes; the largest real files are a tenth of these. */
#define MAX_CONFIG ((size_t)4 << 20)
#define MAX_TOKENIZER_CONFIG ((size_t)32 << 20)
#define MAX_TEMPLATE ((size_t)1 << 20)
#define MAX_INDEX ((size_t)64 << 20)
#define MAX_TOKENIZER ((size_t)256 << 20)

static const char weights_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

/* A file of at most limit bytes, mapped. */
static int map_file(struct cart_map *map, const char *path, size_t limit, struct cart_err *err)
{
    struct cart_map m = {NULL, 0};
    struct stat st;
    int r = cart_map_open(&m, path, err);
    if (r < 0 && lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && stat(path, &st) < 0 &&
        errno == ENOENT)
        r = cart_err_set(err, r, "%s: a symbolic link to a file that is not there", path);
    if (r == 0 && m.size > limit) {
        r = cart_err_set(err, CART_EFORMAT, "%s: expected at most %zu bytes, found %zu", path,
                         limit, m.size);
        cart_map_release(&m);
    }
    if (r == 0)
        *map = m;
    return r;
}

static int parse_file(json_t **out, const char *path, size_t limit, struct cart_err *err)
{
    struct cart_map map = {NULL, 0};
    json_t *v = NULL;
    int r = map_file(&map, path, limit, err);
    if (r < 0)
        return r;
    r = cart_json_parse(&v, (const char *)map.data, map.size, path, err);
    cart_map_release(&map);
    if (r == 0 && !json_is_object(v)) {
        json_decref(v);
        r = cart_err_set(err, CART_EFORMAT, "%s: expected an object", path);
    }
    if (r == 0)
        *out = v;
    return r;
}

/* A link to nothing is there, and cannot be read: such as it is, a download was cut short. */
static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 || errno != ENOENT;
}

char *cart_hub_path(const struct cart_hub *h, const char *name)
{
    return cart_io_join(h->dir, name);
}

bool cart_hub_is(const char *path)
{
    struct stat st;
    struct cart_map map = {NULL, 0};
    bool json = false;
    if (stat(path, &st) < 0)
        return false;
    if (S_ISDIR(st.st_mode))
        return true;
    if (!S_ISREG(st.st_mode) || cart_map_open(&map, path, NULL) < 0)
        return false;
    for (size_t i = 0; i < map.size && i < 64; i++) {
        if (memchr(" \t\r\n", map.data[i], 4))
            continue;
        json = map.data[i] == '{';
        break;
    }
    cart_map_release(&map);
    return json;
}

/* A file that may be absent; its value is an object. */
static int parse_optional(const struct cart_hub *h, const char *name, size_t limit, json_t **out,
                          struct cart_err *err)
{
    char *path = cart_hub_path(h, name);
    int r = 0;
    if (!path)
        return cart_err_memory(err, name, 0);
    if (exists(path))
        r = parse_file(out, path, limit, err);
    free(path);
    return r;
}

static int read_template(struct cart_hub *h, struct cart_err *err)
{
    struct cart_map map = {NULL, 0};
    char *path = cart_hub_path(h, "chat_template.jinja");
    int r = 0;
    if (!path)
        return cart_err_memory(err, "chat_template.jinja", 0);
    if (exists(path) && (r = map_file(&map, path, MAX_TEMPLATE, err)) == 0) {
        r = cart_buf_add(&h->template_text, map.data ? map.data : (const void *)"", map.size, err);
        cart_map_release(&map);
    }
    free(path);
    return r;
}

/* A name that stays in its directory and shows what it is: messages name the file by it. */
static bool plain_name(const char *name)
{
    static const char ending[] = ".safetensors";
    char shown[256];
    size_t n = strlen(name);
    return n > sizeof ending - 1 && n < sizeof shown && name[0] != '.' && !strchr(name, '/') &&
           !strchr(name, '\\') && strcmp(name + n - (sizeof ending - 1), ending) == 0 &&
           strcmp(cart_err_escape(shown, sizeof shown, name, n), name) == 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int add_shard(struct cart_hub *h, const char *name, struct cart_err *err)
{
    if (h->n_shards > 0 && strcmp(h->shards[h->n_shards - 1], name) == 0)
        return 0;
    if (h->n_shards == CART_HUB_MAX_SHARDS)
        return cart_err_set(err, CART_EFORMAT, "%s: weight_map: expected at most %d shards", h->dir,
                            CART_HUB_MAX_SHARDS);
    char *copy = strdup(name);
    if (!copy)
        return cart_err_memory(err, name, 0);
    h->shards[h->n_shards++] = copy;
    return 0;
}

/* The distinct names of the index. */
static int list_shards(struct cart_hub *h, const char *path, struct cart_err *err)
{
    size_t n = json_object_size(h->index), i = 0;
    const char **names = calloc(n + 1, sizeof *names);
    const char *key;
    json_t *v;
    int r = names ? 0 : cart_err_memory(err, path, n * sizeof *names);
    json_object_foreach(h->index, key, v) {
        char shown[80], file[80];
        const char *name = json_string_value(v);
        cart_err_escape(shown, sizeof shown, key, strlen(key));
        if (r == 0 && (!name || strlen(name) != json_string_length(v) || !plain_name(name)))
            r = cart_err_set(
                err, CART_EFORMAT,
                "%s: weight_map: tensor %s: expected the name of a .safetensors file "
                "beside the index, found '%s'",
                path, shown,
                cart_err_escape(file, sizeof file, name ? name : "", json_string_length(v)));
        if (r == 0)
            names[i++] = name;
    }
    if (r == 0 && n == 0)
        r = cart_err_set(err, CART_EFORMAT, "%s: weight_map: no tensors", path);
    if (r == 0) {
        qsort(names, n, sizeof *names, compare_names);
        h->shards = calloc(n < CART_HUB_MAX_SHARDS ? n : CART_HUB_MAX_SHARDS, sizeof *h->shards);
        r = h->shards ? 0 : cart_err_memory(err, path, 0);
    }
    for (i = 0; r == 0 && i < n; i++)
        r = add_shard(h, names[i], err);
    free(names);
    return r;
}

static int take_index(struct cart_hub *h, const json_t *root, const char *path,
                      struct cart_err *err)
{
    json_t *map = NULL;
    int r = cart_json_object(root, "weight_map", &map, path, err);
    if (r < 0)
        return r;
    h->index = json_incref(map);
    return list_shards(h, path, err);
}

/* One file of weights goes before an index, as in the hub's own library. */
static int find_weights(struct cart_hub *h, struct cart_err *err)
{
    char *whole = cart_hub_path(h, weights_name), *index = cart_hub_path(h, index_name);
    json_t *root = NULL;
    int r = whole && index ? 0 : cart_err_memory(err, h->dir, 0);
    if (r == 0 && exists(whole)) {
        h->shards = calloc(1, sizeof *h->shards);
        r = h->shards ? add_shard(h, weights_name, err) : cart_err_memory(err, h->dir, 0);
    } else if (r == 0 && exists(index)) {
        r = parse_file(&root, index, MAX_INDEX, err);
        if (r == 0)
            r = take_index(h, root, index, err);
        json_decref(root);
    } else if (r == 0) {
        r = cart_err_set(err, CART_EFORMAT, "%s: expected %s or %s, found neither", h->dir,
                         weights_name, index_name);
    }
    free(whole);
    free(index);
    return r;
}

/* dir, and the root of the named file where path is one: its directory is the model's. */
static int take_path(struct cart_hub *h, const char *path, json_t **root, struct cart_err *err)
{
    struct stat st;
    size_t n = strlen(path);
    bool file = stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
    if (file) {
        const char *slash = strrchr(path, '/');
        n = slash ? (size_t)(slash - path) + 1 : 0;
    }
    while (n > 1 && path[n - 1] == '/')
        n--;
    h->dir = n > 0 ? strndup(path, n) : strdup(".");
    if (!h->dir)
        return cart_err_memory(err, path, n);
    return file ? parse_file(root, path, MAX_INDEX, err) : 0;
}

static int open_files(struct cart_hub *h, const char *path, struct cart_err *err)
{
    json_t *root = NULL;
    int r = take_path(h, path, &root, err);
    bool index = json_object_get(root, "weight_map") != NULL;
    if (r == 0) {
        h->config_path = root && !index ? strdup(path) : cart_hub_path(h, "config.json");
        r = h->config_path ? 0 : cart_err_memory(err, path, 0);
    }
    if (r == 0 && !(root && !index) && !exists(h->config_path))
        r = cart_err_set(err, CART_EFORMAT,
                         "%s: expected a GGUF file, or a directory with config.json and "
                         "SafeTensors, found no config.json",
                         h->dir);
    if (r == 0 && root && !index && !json_object_get(root, "model_type"))
        r = cart_err_set(err, CART_EFORMAT,
                         "%s: expected a GGUF file, or the directory of a model or its "
                         "config.json, found JSON without model_type",
                         path);
    if (r == 0 && root && !index)
        h->config = json_incref(root);
    else if (r == 0)
        r = parse_file(&h->config, h->config_path, MAX_CONFIG, err);
    if (r == 0)
        r = index ? take_index(h, root, path, err) : find_weights(h, err);
    json_decref(root);
    if (r == 0)
        r = parse_optional(h, "generation_config.json", MAX_CONFIG, &h->generation, err);
    if (r == 0)
        r = parse_optional(h, "tokenizer_config.json", MAX_TOKENIZER_CONFIG, &h->tokenizer_config,
                           err);
    return r < 0 ? r : read_template(h, err);
}

int cart_hub_open(struct cart_hub **out, const char *path, struct cart_err *err)
{
    struct cart_hub *h = calloc(1, sizeof *h);
    if (!h)
        return cart_err_memory(err, path, sizeof *h);
    int r = open_files(h, path, err);
    if (r < 0) {
        cart_hub_close(h);
        return r;
    }
    *out = h;
    return 0;
}

void cart_hub_close(struct cart_hub *h)
{
    if (!h)
        return;
    for (size_t i = 0; i < h->n_shards; i++)
        free(h->shards[i]);
    free(h->shards);
    json_decref(h->config);
    json_decref(h->generation);
    json_decref(h->tokenizer_config);
    json_decref(h->index);
    cart_buf_release(&h->template_text);
    free(h->config_path);
    free(h->dir);
    free(h);
}

int cart_hub_tokenizer(const struct cart_hub *h, json_t **out, struct cart_err *err)
{
    char *path = cart_hub_path(h, "tokenizer.json");
    int r = path ? parse_file(out, path, MAX_TOKENIZER, err)
                 : cart_err_memory(err, "tokenizer.json", 0);
    free(path);
    return r;
}
