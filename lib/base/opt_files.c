#include "base/io.h"
#include "base/opt_impl.h"
#include "base/sniff.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether text is one of the words of a|b|FILE, the last of which stands for a file. */
static bool is_word(const char *words, const char *text)
{
    size_t n = strlen(text);
    for (const char *end; (end = strchr(words, '|')) != NULL; words = end + 1)
        if ((size_t)(end - words) == n && memcmp(words, text, n) == 0)
            return true;
    return false;
}

static bool is_standard(const char *path)
{
    return !path || strcmp(path, "-") == 0;
}

/* The error: the file of label, which out names (NULL: standard output), is that of what, an
 * option, and in, a file's name or what it is. */
static int refuse(const char *label, const char *out, const char *what, const char *in,
                  struct cart_err *err)
{
    char name[96] = "standard output";
    if (out)
        snprintf(name, sizeof name, "%s %.60s", label, out);
    return cart_err_set(err, CART_EUSAGE, "%s: the same file as %s%s", name, what, in);
}

/* One option or operand against the file that out names, the value of label; in NULL or "-":
 * standard input. */
static int check_one(const char *label, const char *out, const char *in, const char *what,
                     struct cart_err *err)
{
    out = is_standard(out) ? NULL : out;
    if (!cart_io_same_file(out ? out : "/dev/stdout", is_standard(in) ? "/dev/stdin" : in))
        return 0;
    return is_standard(in) ? refuse(label, out, "", "standard input", err)
                           : refuse(label, out, what, in, err);
}

/* The same of another output. */
static int check_output(const char *label, const char *out, const char *other, const char *what,
                        struct cart_err *err)
{
    if (!cart_io_same_output(out, other))
        return 0;
    return other ? refuse(label, out, what, other, err)
                 : refuse(label, out, "", "standard output", err);
}

/* As the reader of models sees it: the content tells, not the name. */
static bool is_json(const char *path)
{
    unsigned char bytes[CART_SNIFF_BYTES];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return false;
    int n = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? cart_sniff_read(fd, bytes, path, NULL) : 0;
    close(fd);
    return n > 0 && cart_sniff(bytes, (size_t)n) == CART_SNIFF_JSON;
}

/* A model may be a directory of files, or a file of JSON in it: none of them is written. */
static int check_model(const char *label, const char *out, const char *model, struct cart_err *err)
{
    char inside[4096];
    snprintf(inside, sizeof inside, "%s%s", model, is_json(model) ? "" : "/.");
    if (is_standard(out) || cart_io_is_direct(out) || !cart_io_beside(out, inside))
        return 0;
    return cart_err_set(err, CART_EUSAGE, "%s %.60s: in the directory of --model %s", label, out,
                        model);
}

/* Without its option only the result itself goes to standard output. */
static bool is_written(const struct cart_opt *o)
{
    return o->type == CART_OPT_T_OUTPUT &&
           (*(const char **)o->value || strcmp(o->long_name, "output") == 0);
}

/* What an option reads, or writes where that counts too, against the file of label. */
static int check_option(const char *label, const char *out, const struct cart_opt *other,
                        bool written, struct cart_err *err)
{
    char what[64];
    snprintf(what, sizeof what, "--%s ", other->long_name);
    if (other->type == CART_OPT_T_LIST) {
        const struct cart_opt_list *list = other->value;
        for (size_t i = 0; i < list->n; i++) {
            int r = check_one(label, out, list->items[i], what, err);
            if (r < 0)
                return r;
        }
        return 0;
    }
    if (written && is_written(other))
        return check_output(label, out, *(const char **)other->value, what, err);
    const char *text = other->type == CART_OPT_T_INPUT ? *(const char **)other->value : NULL;
    bool file = text && !is_word(other->arg, text);
    int r = file ? check_one(label, out, text, what, err) : 0;
    return r == 0 && file && strcmp(other->long_name, "model") == 0
               ? check_model(label, out, text, err)
               : r;
}

/* Of an operand or a value of a list that is a directory, all files in it may be read. */
static int check_within(const char *path, const char *dir, struct cart_err *err)
{
    return cart_io_within(path, dir)
               ? cart_err_set(err, CART_EUSAGE, "CART_TRACE %.60s: in %s, which is read", path, dir)
               : 0;
}

/* What a stage may keep beside the result that out names. */
static int check_meanwhile(const char *path, const char *out, struct cart_err *err)
{
    static const char *const ends[] = {".part", ".optimizer.safetensors"};
    struct cart_buf name = CART_BUF_INIT;
    int r = 0;
    for (size_t i = 0; i < CART_COUNTOF(ends) && !cart_io_is_direct(out) && r == 0; i++) {
        cart_buf_reset(&name);
        if ((r = cart_io_companion(&name, out, ends[i], err)) == 0 &&
            cart_io_same_file(path, name.data))
            r = cart_err_set(err, CART_EUSAGE,
                             "CART_TRACE %.60s: is the name of a file that is kept meanwhile",
                             path);
    }
    cart_buf_release(&name);
    return r;
}

static int check_trace_option(const char *path, const struct cart_opt *o, struct cart_err *err)
{
    const struct cart_opt_list *list = o->type == CART_OPT_T_LIST ? o->value : NULL;
    int r = check_option("CART_TRACE", path, o, true, err);
    for (size_t i = 0; list && i < list->n && r == 0; i++)
        r = check_within(path, list->items[i], err);
    if (r == 0 && is_written(o))
        r = check_meanwhile(path, *(const char **)o->value, err);
    return r;
}

/* Events are appended as soon as the command line is read; where that is refused, none is. */
static int check_trace(const char *path, const struct cart_opt *table, size_t n,
                       char *const *operands, size_t n_operands, struct cart_err *err)
{
    int r = n_operands == 0 ? check_one("CART_TRACE", path, NULL, "", err) : 0;
    bool has_output = false;
    for (size_t i = 0; i < n_operands && r == 0; i++)
        if ((r = check_one("CART_TRACE", path, operands[i], "", err)) == 0)
            r = check_within(path, operands[i], err);
    for (size_t i = 0; i < n && r == 0; i++) {
        r = check_trace_option(path, &table[i], err);
        has_output = has_output || strcmp(table[i].long_name, "output") == 0;
    }
    /* A tool without -o says its answer there. */
    if (r == 0 && !has_output)
        r = check_output("CART_TRACE", path, NULL, "", err);
    if (r < 0)
        unsetenv("CART_TRACE");
    return r;
}

int cart_opt_check_files(const struct cart_opt *table, size_t n, char *const *operands,
                         size_t n_operands, struct cart_err *err)
{
    const char *trace = getenv("CART_TRACE");
    char label[80];
    int r = 0;
    for (size_t k = 0; k < n && r == 0; k++) {
        const struct cart_opt *o = &table[k];
        if (!is_written(o))
            continue;
        const char *out = *(const char **)o->value;
        snprintf(label, sizeof label, "--%s", o->long_name);
        if (n_operands == 0)
            r = check_one(label, out, NULL, "", err);
        for (size_t i = 0; i < n_operands && r == 0; i++)
            r = check_one(label, out, operands[i], "", err);
        for (size_t i = 0; i < n && r == 0; i++)
            r = check_option(label, out, &table[i], i > k, err);
    }
    if (r == 0 && trace && *trace)
        r = check_trace(trace, table, n, operands, n_operands, err);
    return r;
}
