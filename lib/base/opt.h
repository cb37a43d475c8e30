/* Command lines. One table per tool drives parsing, -h, and the test that compares -h with the
 * manual's SYNOPSIS. Long names for all options, short ones for the common; no abbreviations;
 * numbers are strict. */
#ifndef CART_BASE_OPT_H
#define CART_BASE_OPT_H

#include "base/err.h"
#include "base/log.h"

enum cart_opt_type {
    CART_OPT_T_FLAG,   /* bool *      : --name sets true, --no-name does not exist */
    CART_OPT_T_STRING, /* const char **, borrowed from argv */
    CART_OPT_T_INPUT,  /* the same, the name of a file to read (or one of the words of arg) */
    CART_OPT_T_OUTPUT, /* the same, the name of a file to write */
    CART_OPT_T_LIST,   /* struct cart_opt_list * : may be given again */
    CART_OPT_T_SIZE,   /* size_t *    : min..max, suffix K M G (powers of 1024) */
    CART_OPT_T_U64,    /* uint64_t *  : min..max */
    CART_OPT_T_REAL,   /* double *    : rmin..rmax, finite */
    CART_OPT_T_ENUM,   /* int *       : choices "a|b|c", value is the index */
    CART_OPT_T_COUNT,  /* int *       : each -v adds one */
};

struct cart_opt_list {
    const char **items; /* items borrowed from argv; the array is owned by the option parser's
                           caller (free) */
    size_t n, cap;
};

struct cart_opt {
    enum cart_opt_type type;
    char short_name;       /* 0 if none */
    const char *long_name; /* NULL ends the table */
    void *value;
    const char *arg;  /* metavariable for help; for ENUM the choices "a|b|c" */
    const char *help; /* one line */
    double min, max;  /* SIZE, U64, REAL */
};

/* clang-format off */
#define CART_OPT_FLAG(s, l, v, h)            {CART_OPT_T_FLAG, s, l, v, NULL, h, 0, 0}
#define CART_OPT_STRING(s, l, v, a, h)       {CART_OPT_T_STRING, s, l, v, a, h, 0, 0}
#define CART_OPT_INPUT(s, l, v, a, h)        {CART_OPT_T_INPUT, s, l, v, a, h, 0, 0}
#define CART_OPT_OUTPUT(s, l, v, a, h)       {CART_OPT_T_OUTPUT, s, l, v, a, h, 0, 0}
#define CART_OPT_LIST(s, l, v, a, h)         {CART_OPT_T_LIST, s, l, v, a, h, 0, 0}
#define CART_OPT_SIZE(s, l, v, lo, hi, a, h) {CART_OPT_T_SIZE, s, l, v, a, h, lo, hi}
#define CART_OPT_U64(s, l, v, lo, hi, a, h)  {CART_OPT_T_U64, s, l, v, a, h, lo, hi}
#define CART_OPT_REAL(s, l, v, lo, hi, a, h) {CART_OPT_T_REAL, s, l, v, a, h, lo, hi}
#define CART_OPT_ENUM(s, l, v, a, h)         {CART_OPT_T_ENUM, s, l, v, a, h, 0, 0}
#define CART_OPT_END                         {CART_OPT_T_FLAG, 0, NULL, NULL, NULL, NULL, 0, 0}
/* clang-format on */

/* A whole number as a SIZE option reads it, for numbers inside other values: digits, then K, M or
 * G. False: it is none, or too large. */
bool cart_opt_whole(const char *text, uint64_t *out);

/* Two numbers inside the value of an option: "A:B" or "A/B", by mark, with 1 <= A <= B <= max. */
int cart_opt_pair(const char *text, char mark, size_t max, size_t *a, size_t *b, const char *option,
                  struct cart_err *err) CART_MUST_USE;

/* Options that every tool has: -h --help, -V --version, -q --quiet, -v --verbose, -o --output FILE,
 * -j --jobs N, --progress MODE, -z --compress LEVEL, --dry-run, -m --model FILE ($CART_MODEL),
 * --kernels auto|blas, --precision f32|bf16. A tool that does not use one of the maskable ones
 * leaves its bit out of uses, and then the option does not exist for it. */
struct cart_common {
    bool help, version, quiet, dry_run;
    int verbose;
    int progress; /* enum cart_progress_mode */
    const char *output;
    const char *model;
    size_t jobs;     /* default: cart_cpu_count() */
    size_t compress; /* 0: none */
    int kernels;     /* enum cart_kernels of the tensor room, whose order the words have */
    int precision;   /* enum cart_precision, likewise */
};

enum {
    CART_USES_OUTPUT = 1,
    CART_USES_JOBS = 2,
    CART_USES_MODEL = 4,
    CART_USES_COMPRESS = 8,
    CART_USES_DRY_RUN = 16,
    CART_USES_PROGRESS = 32,
    CART_USES_KERNELS = 64,
};

struct cart_tool {
    const char *name;             /* "cart-train" */
    const char *summary;          /* one line */
    const char *operands;         /* "[FILE|-]..." or "" */
    const struct cart_opt *table; /* own options, ended by CART_OPT_END */
    unsigned uses;                /* CART_USES_* */
    struct cart_common *common;
};

/* Parses argv into tool's variables, after setting *tool->common to its defaults. Afterwards *first
 * is the index of the first operand: operands may stand anywhere, argv is permuted, "--" ends
 * options. Help and version are printed here, with *done = true: nothing is left to do then.
 *
 * -h prints "usage: NAME [-hqvV] [-m FILE] OWN... SHARED... OPERANDS": own options in the order of
 * the table, each by its short name if it has one, a LIST followed by "...". The SYNOPSIS of the
 * manual is the same words.
 *
 * A file to write (-o, an OUTPUT option) that is also one to read (an operand, standard input, an
 * INPUT or LIST option, the model), that would lie in the directory of a model that is one, or that
 * is to be written twice, is CART_EUSAGE.
 *
 * Also done here, because every tool needs it: cart_log_init, cart_cpu_init, the start event of the
 * trace, SIGPIPE back at its default, a line and status 6 where a mapped file became shorter,
 * standing-in for closed standard descriptors, and, without -j under a make that runs jobs in
 * parallel, taking as many of its tokens as are free (jobserver.h).
 */
int cart_opt_parse(const struct cart_tool *tool, int argc, char **argv, int *first, bool *done,
                   struct cart_err *err) CART_MUST_USE;

/* The end of every main: reports err if code < 0 ("program: message" on stderr), closes standard
 * output and reports a late write error, and returns the exit status. answer is the status to use
 * when code >= 0 (0 or 1). */
int cart_main_end(int code, int answer, const struct cart_err *err);

/* Release string of this build, "0.1.0" or as git describes it; the libraries that it was built
 * with. */
const char *cart_version(void);
const char *cart_version_libraries(void);

#endif
