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

/* One option or operand against the file that out names, the value of label; in NULL or "-":
 * standard input. */
static int check_one(const char *label, const char *out, const char *in, const char *what,
                     struct cart_err *err)
{
    if (!cart_io_same_file(is_standard(out) ? "/dev/stdout" : out,
                           is_standard(in) ? "/dev/stdin" : in))
        return 0;
    char name[96] = "standard output";
    if (!is_standard(out))
        snprintf(name, sizeof name, "%s %.60s", label, out);
    if (is_standard(in))
        return cart_err_set(err, CART_EUSAGE, "%s: the same file as standard input", name);
    return cart_err_set(err, CART_EUSAGE, "%s: the same file as %s%s", name, what, in);
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
    bool in = other->type == CART_OPT_T_INPUT;
    const char *text =
        in || (other->type == CART_OPT_T_OUTPUT && written) ? *(const char **)other->value : NULL;
    bool file = text && !(in ? is_word(other->arg, text) : is_standard(text));
    int r = file ? check_one(label, out, text, what, err) : 0;
    return r == 0 && file && strcmp(other->long_name, "model") == 0
               ? check_model(label, out, text, err)
               : r;
}

/* Without its option only the result itself goes to standard output. */
static bool is_written(const struct cart_opt *o)
{
    return o->type == CART_OPT_T_OUTPUT &&
           (*(const char **)o->value || strcmp(o->long_name, "output") == 0);
}

/* Events are appended as soon as the command line is read; where that is refused, none is. */
static int check_trace(const char *path, const struct cart_opt *table, size_t n,
                       char *const *operands, size_t n_operands, struct cart_err *err)
{
    int r = n_operands == 0 ? check_one("CART_TRACE", path, NULL, "", err) : 0;
    for (size_t i = 0; i < n_operands && r == 0; i++)
        r = check_one("CART_TRACE", path, operands[i], "", err);
    for (size_t i = 0; i < n && r == 0; i++) {
        r = check_option("CART_TRACE", path, &table[i], true, err);
        if (r == 0 && is_written(&table[i]) && is_standard(*(const char **)table[i].value) &&
            cart_io_same_file(path, "/dev/stdout"))
            r = cart_err_set(err, CART_EUSAGE, "CART_TRACE %.60s: the same file as standard output",
                             path);
    }
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
