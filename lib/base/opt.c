#include "base/opt.h"

#include "base/buf.h"
#include "base/cpu.h"
#include "base/jobserver.h"
#include "base/json.h"
#include "base/opt_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define JOBS_MAX 1024

/* given: the option as it was given, "-k" or "--top-k". */
static int bad_value(const char *given, const char *expected, const char *text,
                     struct cart_err *err)
{
    char shown[128];
    cart_err_escape(shown, sizeof shown, text, strlen(text));
    return cart_err_set(err, CART_EUSAGE, "%s: expected %s, found '%s'", given, expected, shown);
}

static int bad_range(const struct cart_opt *o, const char *given, const char *text,
                     struct cart_err *err)
{
    char expected[128];
    /* A double is not exact there. */
    uint64_t most = o->max < 18446744073709551615.0 ? (uint64_t)o->max : UINT64_MAX;
    /* Letters that are no suffix: say which are. */
    const char *end = text + strspn(text, "0123456789");
    bool letters = end > text && *end != '\0' && strpbrk(end, "0123456789.") == NULL;
    bool suffixed = o->type == CART_OPT_T_SIZE && letters && (end[1] || !strchr("KMG", *end));
    if (o->type == CART_OPT_T_REAL)
        snprintf(expected, sizeof expected, "a number from %.15g to %.15g", o->min, o->max);
    else
        snprintf(expected, sizeof expected, "a whole number from %.0f to %llu%s", o->min,
                 (unsigned long long)most, suffixed ? ", or one with K, M or G behind it" : "");
    return bad_value(given, expected, text, err);
}

/* Digits only, then at most one of the suffixes K, M, G where allowed. False on overflow and
 * anything else. */
static bool parse_whole(const char *s, bool suffix, uint64_t *out)
{
    uint64_t v = 0;
    if (*s < '0' || *s > '9')
        return false;
    for (; *s >= '0' && *s <= '9'; s++)
        if (__builtin_mul_overflow(v, (uint64_t)10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v))
            return false;
    if (suffix && *s) {
        uint64_t unit = *s == 'K' ? 1U << 10 : *s == 'M' ? 1U << 20 : *s == 'G' ? 1U << 30 : 0;
        if (unit == 0 || __builtin_mul_overflow(v, unit, &v))
            return false;
        s++;
    }
    *out = v;
    return *s == '\0';
}

bool cart_opt_whole(const char *text, uint64_t *out)
{
    return parse_whole(text, true, out);
}

int cart_opt_pair(const char *text, char mark, size_t max, size_t *a, size_t *b, const char *option,
                  struct cart_err *err)
{
    unsigned long long v[2] = {0, 0};
    const char *at = text;

    for (int i = 0; i < 2; i++) {
        char *end = NULL;
        if (*at >= '0' && *at <= '9')
            v[i] = strtoull(at, &end, 10);
        if (end == NULL || *end != (i == 0 ? mark : '\0') || v[i] == 0 || v[i] > max)
            return cart_err_set(err, CART_EUSAGE,
                                "%s: expected A%cB with 1 <= A <= B <= %zu, found %s", option, mark,
                                max, text);
        at = end + 1;
    }
    if (v[0] > v[1])
        return cart_err_set(err, CART_EUSAGE, "%s: expected A%cB with A <= B, found %s", option,
                            mark, text);
    *a = (size_t)v[0];
    *b = (size_t)v[1];
    return 0;
}

static int set_whole(const struct cart_opt *o, const char *given, const char *text,
                     struct cart_err *err)
{
    uint64_t v;
    bool size = o->type == CART_OPT_T_SIZE;
    if (!parse_whole(text, size, &v) || (double)v < o->min || (double)v > o->max ||
        (size && v > SIZE_MAX))
        return bad_range(o, given, text, err);
    if (size)
        *(size_t *)o->value = (size_t)v;
    else
        *(uint64_t *)o->value = v;
    return 0;
}

static int set_real(const struct cart_opt *o, const char *given, const char *text,
                    struct cart_err *err)
{
    char *end;
    /* strtod alone would take blanks, hexadecimal, inf and nan. */
    bool plain = *text && text[strspn(text, "0123456789.eE+-")] == '\0';
    double v = plain ? strtod(text, &end) : 0;
    if (!plain || *end || !isfinite(v) || v < o->min || v > o->max)
        return bad_range(o, given, text, err);
    *(double *)o->value = v;
    return 0;
}

static int set_choice(const struct cart_opt *o, const char *given, const char *text,
                      struct cart_err *err)
{
    size_t n = strlen(text);
    int index = 0;
    for (const char *p = o->arg; *p; index++) {
        size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, text, n) == 0) {
            *(int *)o->value = index;
            return 0;
        }
        p += len + (p[len] == '|');
    }
    return bad_value(given, o->arg, text, err);
}

static int add_item(const struct cart_opt *o, const char *text, struct cart_err *err)
{
    struct cart_opt_list *list = o->value;
    int r = cart_array_reserve(&list->items, &list->cap, list->n + 1, sizeof *list->items, err);
    if (r < 0)
        return r;
    list->items[list->n++] = text;
    return 0;
}

static bool takes_value(const struct cart_opt *o)
{
    return o->type != CART_OPT_T_FLAG && o->type != CART_OPT_T_COUNT;
}

/* text is NULL for options without a value. */
static int apply(const struct cart_opt *o, const char *given, const char *text,
                 struct cart_err *err)
{
    if (text && !*text)
        return cart_err_set(err, CART_EUSAGE, "%s: expected %s, found an empty argument", given,
                            o->arg);
    switch (o->type) {
    case CART_OPT_T_FLAG:
        *(bool *)o->value = true;
        return 0;
    case CART_OPT_T_COUNT:
        ++*(int *)o->value;
        return 0;
    case CART_OPT_T_STRING:
    case CART_OPT_T_INPUT:
    case CART_OPT_T_OUTPUT:
        *(const char **)o->value = text;
        return 0;
    case CART_OPT_T_LIST:
        return add_item(o, text, err);
    case CART_OPT_T_SIZE:
    case CART_OPT_T_U64:
        return set_whole(o, given, text, err);
    case CART_OPT_T_REAL:
        return set_real(o, given, text, err);
    case CART_OPT_T_ENUM:
        return set_choice(o, given, text, err);
    }
    return 0;
}

static size_t count_own(const struct cart_opt *own)
{
    size_t n = 0;
    while (own && own[n].long_name)
        n++;
    return n;
}

/* What opt_impl.h says; the caller frees *out. */
static int whole_table(const struct cart_tool *tool, struct cart_opt **out, size_t *n,
                       struct cart_err *err)
{
    struct cart_common *c = tool->common;
    const struct cart_opt universal[CART_OPT_UNIVERSAL] = {
        CART_OPT_FLAG('h', "help", &c->help, "show this help"),
        CART_OPT_FLAG('q', "quiet", &c->quiet, "only errors"),
        {CART_OPT_T_COUNT, 'v', "verbose", &c->verbose, NULL, "say more; twice: for debugging", 0,
         0},
        CART_OPT_FLAG('V', "version", &c->version,
                      "show version, compiler, CPU path and libraries"),
    };
    const struct cart_opt model =
        CART_OPT_INPUT('m', "model", &c->model, "FILE",
                       "model: GGUF, or a directory of SafeTensors ($CART_MODEL)");
    const struct {
        unsigned bit;
        struct cart_opt opt;
    } shared[] = {
        {CART_USES_OUTPUT,
         CART_OPT_OUTPUT('o', "output", &c->output, "FILE",
                         "write FILE, whole or not at all; - is standard output")},
        {CART_USES_COMPRESS,
         CART_OPT_SIZE('z', "compress", &c->compress, 0, 19, "LEVEL", "zstd level, 0 is none")},
        {CART_USES_JOBS,
         CART_OPT_SIZE('j', "jobs", &c->jobs, 1, JOBS_MAX, "N", "threads; never changes a result")},
        {CART_USES_KERNELS,
         CART_OPT_ENUM(0, "kernels", &c->kernels, "auto|blas", "own exact kernels, or OpenBLAS")},
        {CART_USES_KERNELS,
         CART_OPT_ENUM(0, "precision", &c->precision, "f32|bf16",
                       "of products and attention; bf16 is faster where the CPU has it")},
        {CART_USES_PROGRESS, CART_OPT_ENUM(0, "progress", &c->progress, "auto|always|never",
                                           "progress line on standard error")},
        {CART_USES_DRY_RUN,
         CART_OPT_FLAG(0, "dry-run", &c->dry_run, "say what would be done and needed, do nothing")},
    };
    size_t own = count_own(tool->table);
    struct cart_opt *t = malloc((CART_OPT_UNIVERSAL + 1 + own + CART_COUNTOF(shared)) * sizeof *t);
    if (!t)
        return cart_err_memory(err, "options", 0);
    size_t k = CART_OPT_UNIVERSAL;
    memcpy(t, universal, sizeof universal);
    if (tool->uses & CART_USES_MODEL)
        t[k++] = model;
    for (size_t i = 0; i < own; i++)
        t[k++] = tool->table[i];
    for (size_t i = 0; i < CART_COUNTOF(shared); i++)
        if (tool->uses & shared[i].bit)
            t[k++] = shared[i].opt;
    *out = t;
    *n = k;
    return 0;
}

/* The state of one walk over argv. */
struct walk {
    const struct cart_tool *tool;
    struct cart_opt *table;
    size_t n;
    int argc;
    char **argv;
    int at; /* index of the argument being read */
};

static int unknown(const struct walk *w, const char *name, size_t len, struct cart_err *err)
{
    char shown[80];
    const char *meant = len > 2 ? cart_opt_nearest(w->table, w->n, name + 2, len - 2) : NULL;
    cart_err_escape(shown, sizeof shown, name, len);
    if (meant)
        return cart_err_set(err, CART_EUSAGE, "unknown option %s: did you mean --%s? See %s -h",
                            shown, meant, w->tool->name);
    return cart_err_set(err, CART_EUSAGE, "unknown option %s: see %s -h", shown, w->tool->name);
}

/* The value of o: text where it is part of the argument, else the next argument. */
static int take_value(struct walk *w, const struct cart_opt *o, const char *given, const char *text,
                      struct cart_err *err)
{
    if (!text && w->at + 1 >= w->argc)
        return cart_err_set(err, CART_EUSAGE, "%s: expected %s, found nothing", given, o->arg);
    return apply(o, given, text ? text : w->argv[++w->at], err);
}

/* --name, --name=VALUE, --name VALUE. */
static int take_long(struct walk *w, struct cart_err *err)
{
    const char *arg = w->argv[w->at];
    const char *eq = strchr(arg, '=');
    size_t len = eq ? (size_t)(eq - arg) - 2 : strlen(arg) - 2;
    const struct cart_opt *o = NULL;
    char given[80];
    for (size_t i = 0; i < w->n && !o; i++)
        if (strlen(w->table[i].long_name) == len &&
            memcmp(w->table[i].long_name, arg + 2, len) == 0)
            o = &w->table[i];
    if (!o)
        return unknown(w, arg, len + 2, err);
    snprintf(given, sizeof given, "--%s", o->long_name);
    if (takes_value(o))
        return take_value(w, o, given, eq ? eq + 1 : NULL, err);
    return eq ? cart_err_set(err, CART_EUSAGE, "%s: takes no value", given)
              : apply(o, given, NULL, err);
}

/* -a, -ab for options without values, -aVALUE, -a VALUE. */
static int take_short(struct walk *w, struct cart_err *err)
{
    const char *arg = w->argv[w->at];
    for (const char *p = arg + 1; *p; p++) {
        const struct cart_opt *o = NULL;
        const char given[3] = {'-', *p, '\0'};
        for (size_t i = 0; i < w->n && !o; i++)
            if (w->table[i].short_name == *p)
                o = &w->table[i];
        if (!o)
            return unknown(w, given, 2, err);
        if (takes_value(o))
            return take_value(w, o, given, p[1] ? p + 1 : NULL, err);
        int r = apply(o, given, NULL, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Reads options and moves operands behind them, both in their order; stops at help and version. */
static int walk_arguments(struct walk *w, int *first, struct cart_err *err)
{
    struct cart_common *c = w->tool->common;
    char **operands = malloc((size_t)(w->argc + 1) * sizeof *operands);
    if (!operands)
        return cart_err_memory(err, "arguments", 0);
    int r = 0;
    int options = 1;
    int n = 0;
    for (w->at = 1; w->at < w->argc && r >= 0 && !c->help && !c->version; w->at++) {
        char *arg = w->argv[w->at];
        if (strcmp(arg, "--") == 0) {
            for (int i = w->at + 1; i < w->argc; i++)
                operands[n++] = w->argv[i];
            w->argv[options++] = arg;
            break;
        }
        if (arg[0] != '-' || arg[1] == '\0') {
            operands[n++] = arg;
            if (!*arg && w->tool->operands && strstr(w->tool->operands, "FILE"))
                r = cart_err_set(err, CART_EUSAGE,
                                 "expected the name of a file, found an empty one");
            continue;
        }
        int from = w->at;
        r = arg[1] == '-' ? take_long(w, err) : take_short(w, err);
        for (int i = from; i <= w->at; i++)
            w->argv[options++] = w->argv[i];
    }
    if (r >= 0 && !c->help && !c->version) {
        memcpy(w->argv + options, operands, (size_t)n * sizeof *operands);
        *first = options;
    }
    free(operands);
    return r;
}

/* A closed standard descriptor would be given to the next file that is opened, and words would land
 * in data. These stand-ins fail when used the wrong way round, as the closed descriptor would. */
static void fill_standard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            int got = open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
            (void)got; /* the lowest free number, which is fd */
        }
}

static void trace_start(int argc, char **argv, size_t jobs)
{
    const char *path = getenv("CART_TRACE");
    if (!path || !*path)
        return;
    struct cart_buf text = CART_BUF_INIT;
    json_t *args = json_array();
    for (int i = 0; i < argc; i++) {
        char shown[4096];
        json_array_append_new(
            args, json_string(cart_err_escape(shown, sizeof shown, argv[i], strlen(argv[i]))));
    }
    json_t *fields = json_pack("{s:o, s:s, s:s, s:I}", "argv", args, "version", cart_version(),
                               "cpu", cart_cpu_path_name(), "jobs", (json_int_t)jobs);
    if (fields && cart_json_dump(fields, &text, NULL) == 0)
        cart_trace("start", text.data);
    json_decref(fields);
    cart_buf_release(&text);
}

static int finish(const struct cart_tool *tool, bool *done, const struct walk *w,
                  struct cart_err *err)
{
    struct cart_common *c = tool->common;
    if (c->help) {
        cart_opt_print_help(tool, w->table, w->n);
        *done = true;
        return 0;
    }
    int r = cart_cpu_init(err);
    if (r < 0)
        return r;
    if (c->version) {
        cart_opt_print_version(tool);
        *done = true;
        return 0;
    }
    if (c->quiet && c->verbose > 0)
        return cart_err_set(err, CART_EUSAGE, "--quiet and --verbose exclude each other");
    if (c->quiet && c->dry_run)
        return cart_err_set(err, CART_EUSAGE, "--quiet and --dry-run: nothing would be said");
    cart_log_init(tool->name, c->quiet ? -1 : c->verbose);
    const char *model = getenv("CART_MODEL");
    if (!c->model && model && *model && (tool->uses & CART_USES_MODEL))
        c->model = model;
    if ((tool->uses & CART_USES_MODEL) && !(c->model && *c->model))
        return cart_err_set(err, CART_EUSAGE, "expected a model: give -m FILE or set CART_MODEL");
    if (c->jobs == 0) {
        size_t cpus = cart_cpu_count();
        c->jobs = tool->uses & CART_USES_JOBS
                      ? cart_jobserver_acquire(cpus < JOBS_MAX ? cpus : JOBS_MAX)
                      : 1;
    }
    return 0;
}

int cart_opt_parse(const struct cart_tool *tool, int argc, char **argv, int *first, bool *done,
                   struct cart_err *err)
{
    struct walk w = {.tool = tool, .argc = argc, .argv = argv};
    *tool->common = (struct cart_common){0};
    *done = false;
    *first = argc;
    cart_log_init(tool->name, 0);
    fill_standard_descriptors();
    /* A parent that ignores SIGPIPE would turn the end of `| head` into an error message. */
    signal(SIGPIPE, SIG_DFL);
    cart_log_short_maps();
#ifdef SIGXFSZ
    /* A file that may not grow is a failed write with its message, not a death. */
    signal(SIGXFSZ, SIG_IGN);
#endif
    int r = cart_trace_check(err);
    if (r == 0)
        r = whole_table(tool, &w.table, &w.n, err);
    if (r < 0)
        return r;
    r = walk_arguments(&w, first, err);
    if (r >= 0)
        r = finish(tool, done, &w, err);
    if (r >= 0 && !*done)
        r = cart_opt_check_files(w.table, w.n, argv + *first, (size_t)(argc - *first), err);
    free(w.table);
    if (r >= 0 && !*done)
        trace_start(argc, argv, tool->common->jobs);
    return r;
}

int cart_main_end(int code, int answer, const struct cart_err *err)
{
    int status = code < 0 ? cart_err_status(code) : answer;
    if (code < 0)
        cart_log(CART_LOG_ERROR, "%s",
                 err && err->msg[0] ? err->msg : "failed for an unknown reason");
    /* A full disk may show only now. */
    bool failed = ferror(stdout) != 0;
    errno = 0;
    if ((fclose(stdout) != 0 || failed) && code >= 0) {
        char why[128] = "";
        if (errno == 0 || strerror_r(errno, why, sizeof why) != 0)
            snprintf(why, sizeof why, "an earlier error");
        cart_log(CART_LOG_ERROR, "standard output: writing: %s", why);
        status = cart_err_status(CART_ESYS);
    }
    char fields[64];
    snprintf(fields, sizeof fields, "{\"status\":%d}", status);
    cart_trace("exit", fields);
    return status;
}
