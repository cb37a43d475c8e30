/* Directories of the hub: one JSON object whose members stand for the files of a directory (config,
 * generation, tokenizer_config, index; text: chat_template), beside weights and a tokenizer that
 * are as they should be. A directory is refused, or it is a model whose weights are all there. */
#include "base/json.h"
#include "fuzz/fuzz.h"
#include "helper/hub_write.h"
#include "token/chat.h"
#include "token/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A name of index hides the weights' own: model.safetensors is named where there is one. */
static const struct {
    const char *member, *file;
} files[] = {{"config", "config.json"},
             {"generation", "generation_config.json"},
             {"tokenizer_config", "tokenizer_config.json"},
             {"chat_template", "chat_template.jinja"},
             {"index", "model.safetensors.index.json"}};

static char directory[] = "/tmp/fuzz_hub.XXXXXX";
static char names[CART_COUNTOF(files)][64];

static const char *in_directory(const char *name)
{
    static char path[96];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static void remove_directory(void)
{
    static const char *const kept[] = {"tokenizer.json", "model.safetensors", "a.safetensors"};
    for (size_t i = 0; i < CART_COUNTOF(files); i++)
        unlink(in_directory(files[i].file));
    for (size_t i = 0; i < CART_COUNTOF(kept); i++)
        unlink(in_directory(kept[i]));
    rmdir(directory);
}

static void prepare(void)
{
    static const struct hub_form form = {.dtype = -1, .shards = 1};
    fuzz_demand(mkdtemp(directory) != NULL, "a directory");
    atexit(remove_directory);
    hub_write_model(fuzz_model_file(0), directory, &form);
    snprintf(names[0], sizeof names[0], "%s", in_directory("a.safetensors"));
    fuzz_demand(rename(in_directory("model.safetensors"), names[0]) == 0, "a shard");
    for (size_t i = 0; i < CART_COUNTOF(files); i++)
        unlink(in_directory(files[i].file));
}

/* The member as the file's bytes; absent: no file. */
static void lay_out(size_t i, const json_t *v)
{
    struct cart_err err = {0};
    struct cart_buf b = CART_BUF_INIT;
    const char *path = in_directory(files[i].file);
    unlink(path);
    if (!v)
        return;
    if (json_is_string(v))
        fuzz_need(cart_buf_add(&b, json_string_value(v), json_string_length(v), &err), &err);
    else
        fuzz_need(cart_json_dump(v, &b, &err), &err);
    fuzz_demand(symlink(fuzz_file((unsigned)i + 1, b.data, b.len), path) == 0, "a file");
    cart_buf_release(&b);
}

static void walk(const struct cart_model *m)
{
    const struct cart_chat *chat;
    struct cart_err err = {0};
    fuzz_forward(m);
    fuzz_demand(cart_tokenizer_size(cart_model_tokenizer(m)) == m->V, "one token a row");
    int r = cart_model_chat(m, &chat, &err);
    if (r < 0)
        fuzz_refused(r, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cart_err err = {0};
    struct cart_model *m;
    json_t *v;
    if (names[0][0] == '\0')
        prepare();
    char *copy = fuzz_copy(data, n);
    int r = cart_json_parse(&v, copy, n, "input", &err);
    free(copy);
    if (r < 0)
        return 0;
    for (size_t i = 0; i < CART_COUNTOF(files); i++)
        lay_out(i, json_object_get(v, files[i].member));
    json_decref(v);
    if ((r = cart_model_open(&m, directory, NULL, &err)) < 0) {
        fuzz_refused(r, &err);
        return 0;
    }
    walk(m);
    cart_model_close(m);
    return 0;
}
