/* cart-view: looks into, checks, converts and joins every file of the family. Reads streams,
 * safetensors images (cartridges among them) and GGUF files, told apart by content; writes JSON
 * Lines, or with --pack, --cat and --dtype the binary forms. */
#include "base/input.h"
#include "base/opt.h"
#include "cartridge/convert.h"
#include "cartridge/summary.h"
#include "format/gguf.h"
#include "model/listing.h"
#include "model/model.h"
#include "stream/join.h"
#include "stream/listing.h"
#include "stream/summary.h"
#include "study/train_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct options {
    struct cart_common common;
    bool summary, pack, check, cat, data, gaps;
    int dtype; /* index into the choices, -1: none */
};

static int check_rows(const struct cart_input *in, struct cart_err *err)
{
    struct cart_st st;
    int r = cart_st_parse(&st, in->bytes, in->size, in->name, err);

    if (r < 0)
        return r;
    if (cart_rows_present(&st))
        r = cart_rows_check(&st, in->name, err);
    else if (cart_train_state_is(&st))
        r = cart_train_state_check(&st, in->name, err);
    cart_st_release(&st);
    return r;
}

/* A GGUF file with a vocabulary says that it is a model, and is whole only if it can be one. */
static int check_model(const struct cart_input *in, const struct cart_gguf *g, struct cart_err *err)
{
    struct cart_model *m;
    int r;

    if (cart_gguf_find(g, "tokenizer.ggml.tokens") == NULL)
        return 0;
    if (in->map.data == NULL)
        return cart_err_set(err, CART_EUSAGE,
                            "%s: a model is checked as a file, not through a pipe", in->name);
    if ((r = cart_model_open(&m, in->name, NULL, err)) < 0)
        return r;
    cart_model_close(m);
    return 0;
}

/* Lists in on fd, or only checks it where fd < 0. */
static int view(const struct cart_input *in, bool data, int fd, const char *out,
                struct cart_err *err)
{
    struct cart_stream_reader *reader;
    struct cart_gguf *g;
    int r;

    switch (in->kind) {
    case CART_SNIFF_STREAM:
        if (data)
            return cart_err_set(err, CART_EUSAGE, "%s: --data: a stream is always listed whole",
                                in->name);
        r = cart_stream_open_ahead(&reader, in->fd, in->name, in->ahead, in->n_ahead, NULL, err);
        if (r < 0)
            return r;
        r = cart_listing_stream(reader, fd, out, err);
        cart_stream_close(reader);
        return r;
    case CART_SNIFF_GGUF:
        if ((r = cart_gguf_parse(&g, in->bytes, in->size, in->name, err)) < 0)
            return r;
        r = fd < 0 ? check_model(in, g, err) : cart_model_listing(g, data, fd, out, err);
        cart_gguf_close(g);
        return r;
    default:
        if (fd < 0)
            return check_rows(in, err);
        return cart_listing_safetensors(in->bytes, in->size, in->name, data, fd, out, err);
    }
}

/* The fingerprints of a model that lies in a file, as those of what was made with it are shown. */
static int summarise_fingerprints(const struct cart_input *in, struct cart_buf *lines,
                                  struct cart_err *err)
{
    struct cart_err why = {0};
    struct cart_model *m = NULL;
    json_t *fp;
    int r;

    if (in->map.data == NULL)
        return 0;
    if ((r = cart_model_open(&m, in->name, NULL, &why)) < 0)
        return r == CART_ESYS ? cart_err_set(err, r, "%s", why.msg) : 0;
    fp = cart_fingerprints_json(&m->fp);
    r = fp ? cart_summary_model(lines, fp, "", err) : cart_err_memory(err, "fingerprints", 0);
    json_decref(fp);
    cart_model_close(m);
    return r;
}

/* The few lines for people. */
static int summarise(const struct cart_input *in, struct cart_buf *lines, struct cart_err *err)
{
    struct cart_stream_reader *reader;
    struct cart_gguf *g;
    struct cart_st st;
    int r;

    switch (in->kind) {
    case CART_SNIFF_STREAM:
        r = cart_stream_open_ahead(&reader, in->fd, in->name, in->ahead, in->n_ahead, NULL, err);
        if (r == 0) {
            r = cart_summary_stream(lines, reader, err);
            cart_stream_close(reader);
        }
        return r;
    case CART_SNIFF_GGUF:
        if ((r = cart_gguf_parse(&g, in->bytes, in->size, in->name, err)) == 0) {
            if ((r = cart_model_summary(lines, g, in->name, err)) == 0)
                r = summarise_fingerprints(in, lines, err);
            cart_gguf_close(g);
        }
        return r;
    default:
        if ((r = cart_st_parse(&st, in->bytes, in->size, in->name, err)) == 0) {
            r = cart_rows_summary(lines, &st, in->name, err);
            cart_st_release(&st);
        }
        return r;
    }
}

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* A directory is a model in SafeTensors. */
static int summarise_directory(const char *path, struct cart_buf *lines, struct cart_err *err)
{
    struct cart_model *m;
    int r = cart_model_open(&m, path, NULL, err);

    if (r == 0) {
        r = cart_model_summary_open(lines, m, err);
        cart_model_close(m);
    }
    return r;
}

/* Of a stage that is not through, which the name tells, what is there is no mistake. */
static int unfinished(const char *path, int r, struct cart_err *err)
{
    size_t n = strlen(path);

    if (r != CART_ETRUNC || n < 5 || strcmp(path + n - 5, ".part") != 0)
        return r;
    struct cart_err why = *err;
    return cart_err_set(err, r, "%s (unfinished: the stage goes on from it with --resume)",
                        why.msg);
}

static int list_file(const struct options *o, const char *path, int fd, const char *out,
                     struct cart_err *err)
{
    struct cart_buf lines = CART_BUF_INIT;
    struct cart_input in = {.fd = -1};
    int r;

    if (o->summary && is_directory(path))
        r = summarise_directory(path, &lines, err);
    else if ((r = cart_input_open(&in, path, err)) == 0)
        r = o->summary ? summarise(&in, &lines, err) : view(&in, o->data, fd, out, err);
    if (r == 0 && lines.len > 0)
        r = cart_io_write(fd, lines.data, lines.len, out, err);
    cart_input_release(&in);
    cart_buf_release(&lines);
    return unfinished(path, r, err);
}

/* Each is listed; the error is that of the first bad one, and of the others only said. */
static int list_all(const struct options *o, const char *const *paths, size_t n, int fd,
                    const char *out, struct cart_err *err)
{
    int first = 0;

    for (size_t i = 0; i < n; i++) {
        struct cart_err why = {0};
        int r = list_file(o, paths[i], fd, out, &why);
        if (r < 0 && first < 0)
            cart_log(CART_LOG_ERROR, "%s", why.msg);
        else if (r < 0)
            first = cart_err_set(err, r, "%s", why.msg);
        /* Of a file that can be read it is the output's failure, or memory's: the next has it
         * too. */
        if (r == CART_ESYS && access(paths[i], R_OK) == 0)
            break;
    }
    return first;
}

static int check_file(const char *path, struct cart_err *err)
{
    struct cart_input in;
    int r = cart_input_open(&in, path, err);

    if (r == 0)
        r = view(&in, false, -1, "", err);
    if (r == 0)
        cart_log(CART_LOG_INFO, "%s: whole and consistent: %s", in.name, cart_sniff_name(in.kind));
    cart_input_release(&in);
    return unfinished(path, r, err);
}

/* A directory is a model, or nothing that has a verdict. */
static int check_directory(const char *path, struct cart_err *err)
{
    struct cart_model *m = NULL;
    int r = cart_model_open(&m, path, NULL, err);

    if (r == 0)
        cart_log(CART_LOG_INFO, "%s: whole and consistent: the directory of a model", path);
    cart_model_close(m);
    return r;
}

/* Each gets its verdict; the exit status is that of the first bad one. */
static int check_all(const char *const *paths, size_t n)
{
    int first = 0;

    for (size_t i = 0; i < n; i++) {
        struct cart_err err = {0};
        int r =
            is_directory(paths[i]) ? check_directory(paths[i], &err) : check_file(paths[i], &err);

        if (r < 0)
            cart_log(CART_LOG_ERROR, "%s", err.msg);
        first = first != 0 ? first : r;
    }
    return cart_err_status(first);
}

static int pack(const struct options *o, const char *path, int fd, const char *out,
                struct cart_err *err)
{
    const char *name = strcmp(path, "-") == 0 ? "standard input" : path;
    struct cart_jsonl *lines;
    json_t *head = NULL;
    const char *record;
    int r;

    if ((r = cart_jsonl_open(&lines, path, err)) < 0)
        return r;
    if ((r = cart_jsonl_next(lines, &head, &record, err)) == 0)
        r = cart_err_set(err, CART_ETRUNC, "%s: expected a listing, found nothing", name);
    else if (r > 0 && strcmp(record, "head") == 0)
        r = cart_listing_pack(lines, head, fd, out, (int)o->common.compress, err);
    else if (r > 0 && strcmp(record, "safetensors") == 0 && o->common.compress != 0)
        r = cart_err_set(err, CART_EUSAGE, "--compress: a safetensors file is never compressed");
    else if (r > 0 && strcmp(record, "safetensors") == 0)
        r = cart_listing_pack_safetensors(lines, head, fd, out, err);
    else if (r > 0)
        r = cart_err_set(err, CART_EFORMAT,
                         "%s: record: expected head or safetensors in the first line",
                         cart_jsonl_where(lines));
    if (r > 0)
        cart_log(CART_LOG_WARNING,
                 "%s: the listing states other counts or another digest than what was packed: it "
                 "was edited",
                 name);
    json_decref(head);
    cart_jsonl_close(lines);
    return r > 0 ? 0 : r;
}

static int convert(const struct options *o, const char *path, int fd, const char *out,
                   struct cart_err *err)
{
    static const enum cart_st_dtype dtypes[] = {CART_ST_F16, CART_ST_BF16, CART_ST_F32};
    struct cart_input in;
    struct cart_st st;
    int r = cart_input_open(&in, path, err);

    if (r == 0 && in.kind != CART_SNIFF_SAFETENSORS)
        r = cart_err_set(err, CART_EFORMAT, "%s: expected a cartridge, found %s", in.name,
                         cart_sniff_name(in.kind));
    if (r == 0 && (r = cart_st_parse(&st, in.bytes, in.size, in.name, err)) == 0) {
        r = cart_rows_convert(&st, dtypes[o->dtype], fd, out, in.name, err);
        cart_st_release(&st);
    }
    cart_input_release(&in);
    return r;
}

static int check_options(const struct options *o, size_t n, struct cart_err *err)
{
    static const char *const names[] = {"--summary", "--pack", "--check", "--cat", "--dtype"};
    const bool given[] = {o->summary, o->pack, o->check, o->cat, o->dtype >= 0};
    const char *first = NULL;

    for (size_t i = 0; i < CART_COUNTOF(names); i++) {
        if (given[i] && first)
            return cart_err_set(err, CART_EUSAGE, "%s and %s: expected one of them", first,
                                names[i]);
        first = given[i] ? names[i] : first;
    }
    if (o->data && first)
        return cart_err_set(err, CART_EUSAGE, "--data: only for a listing");
    if (o->gaps && !o->cat)
        return cart_err_set(err, CART_EUSAGE, "--allow-gaps: only with --cat");
    if (o->common.compress != 0 && !o->pack && !o->cat)
        return cart_err_set(err, CART_EUSAGE, "--compress: only with --pack or --cat");
    if (o->check && o->common.output != NULL)
        return cart_err_set(err, CART_EUSAGE, "--output: --check writes nothing");
    if ((o->pack || o->dtype >= 0) && n > 1)
        return cart_err_set(err, CART_EUSAGE, "expected one file, found %zu", n);
    if (n == 0 && isatty(STDIN_FILENO))
        return cart_err_set(err, CART_EUSAGE,
                            "nothing to read: name a file, or - for this terminal");
    return 0;
}

static int run(const struct options *o, const char *const *paths, size_t n, struct cart_err *err)
{
    bool text = !o->pack && !o->cat && o->dtype < 0;
    struct cart_output out;
    const char *name = o->common.output != NULL ? o->common.output : "standard output";
    int r;

    if ((r = cart_output_open(&out, o->common.output, text, err)) < 0)
        return r;
    if (o->pack)
        r = pack(o, paths[0], out.fd, name, err);
    else if (o->cat)
        r = cart_stream_join(paths, n, out.fd, name, (int)o->common.compress, o->gaps, err);
    else if (o->dtype >= 0)
        r = convert(o, paths[0], out.fd, name, err);
    else
        r = list_all(o, paths, n, out.fd, name, err);
    if (r > 0)
        cart_log(CART_LOG_WARNING, "%s: not the whole run: its HEAD says which shard", name);
    if (r >= 0)
        r = cart_output_commit(&out, err);
    else
        cart_output_abandon(&out);
    if (r == 0)
        cart_log_wrote(o->common.output, "%zu file%s read", n, CART_S(n));
    return r;
}

int main(int argc, char **argv)
{
    static const char *const standard[] = {"-"};
    struct options o = {.dtype = -1};
    struct cart_err err = {0};
    bool done = false;
    int first, r;
    const struct cart_opt table[] = {
        CART_OPT_FLAG(0, "summary", &o.summary, "say in a few lines what it is"),
        CART_OPT_FLAG(0, "pack", &o.pack, "make a stream or safetensors file of its listing"),
        CART_OPT_FLAG(0, "check", &o.check, "verdict only: exit 0 if whole and consistent, else 3"),
        CART_OPT_FLAG(0, "cat", &o.cat, "join the streams of one run's shards"),
        CART_OPT_FLAG(0, "allow-gaps", &o.gaps,
                      "with --cat: conversations may be missing between two files"),
        CART_OPT_ENUM(0, "dtype", &o.dtype, "f16|bf16|f32", "convert a cartridge's rows"),
        CART_OPT_FLAG(0, "data", &o.data, "list the values of tensors, and arrays whole"),
        CART_OPT_END,
    };
    const struct cart_tool tool = {"cart-view",
                                   "look into, check, convert and join streams and artifacts",
                                   "[FILE|-]...",
                                   table,
                                   CART_USES_OUTPUT | CART_USES_COMPRESS,
                                   &o.common};

    if ((r = cart_opt_parse(&tool, argc, argv, &first, &done, &err)) < 0 || done)
        return cart_main_end(r, 0, &err);
    size_t n = (size_t)(argc - first);
    const char *const *paths = n > 0 ? (const char *const *)&argv[first] : standard;
    if ((r = check_options(&o, n, &err)) < 0)
        return cart_main_end(r, 0, &err);
    n = n > 0 ? n : 1;
    if (o.check)
        return cart_main_end(0, check_all(paths, n), &err);
    return cart_main_end(run(&o, paths, n, &err), 0, &err);
}
