#include "base/io.h"
#include "base/opt_impl.h"
#include "base/sniff.h"

#include <fcntl.h>
#include <stdio.h>
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

/* One option or operand against the file that out names; in NULL or "-": standard input. */
static int check_one(const struct cart_opt *o, const char *out, const char *in, const char *what,
                     struct cart_err *err)
{
    if (!cart_io_same_file(is_standard(out) ? "/dev/stdout" : out,
                           is_standard(in) ? "/dev/stdin" : in))
        return 0;
    char name[96] = "standard output";
    if (!is_standard(out))
        snprintf(name, sizeof name, "--%s %.60s", o->long_name, out);
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
static int check_model(const struct cart_opt *o, const char *out, const char *model,
                       struct cart_err *err)
{
    char inside[4096];
    snprintf(inside, sizeof inside, "%s%s", model, is_json(model) ? "" : "/.");
    if (is_standard(out) || cart_io_is_direct(out) || !cart_io_beside(out, inside))
        return 0;
    return cart_err_set(err, CART_EUSAGE, "--%s %.60s: in the directory of --model %s",
                        o->long_name, out, model);
}

/* What option other reads or writes, against the file of o. */
static int check_option(const struct cart_opt *o, const char *out, const struct cart_opt *other,
                        struct cart_err *err)
{
    char what[64];
    snprintf(what, sizeof what, "--%s ", other->long_name);
    if (other->type == CART_OPT_T_LIST) {
        const struct cart_opt_list *list = other->value;
        for (size_t i = 0; i < list->n; i++) {
            int r = check_one(o, out, list->items[i], what, err);
            if (r < 0)
                return r;
        }
        return 0;
    }
    bool in = other->type == CART_OPT_T_INPUT;
    const char *text =
        in || (other->type == CART_OPT_T_OUTPUT && other > o) ? *(const char **)other->value : NULL;
    bool file = text && !(in ? is_word(other->arg, text) : is_standard(text));
    int r = file ? check_one(o, out, text, what, err) : 0;
    return r == 0 && file && strcmp(other->long_name, "model") == 0 ? check_model(o, out, text, err)
                                                                    : r;
}

int cart_opt_check_files(const struct cart_opt *table, size_t n, char *const *operands,
                         size_t n_operands, struct cart_err *err)
{
    int r = 0;
    for (size_t k = 0; k < n && r == 0; k++) {
        const struct cart_opt *o = &table[k];
        if (o->type != CART_OPT_T_OUTPUT)
            continue;
        const char *out = *(const char **)o->value;
        /* Without its option only the result itself goes to standard output. */
        if (!out && strcmp(o->long_name, "output") != 0)
            continue;
        if (n_operands == 0)
            r = check_one(o, out, NULL, "", err);
        for (size_t i = 0; i < n_operands && r == 0; i++)
            r = check_one(o, out, operands[i], "", err);
        for (size_t i = 0; i < n && r == 0; i++)
            r = check_option(o, out, &table[i], err);
    }
    return r;
}
