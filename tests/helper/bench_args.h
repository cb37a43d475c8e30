/* Arguments of the measuring programs, met as the tools meet theirs: what is wrong is said in one
 * line on standard error ("PROGRAM: ARGUMENT: expected X, found Y"), with status 2, before anything
 * is begun. For programs: the functions print and exit. Texts are borrowed from argv.
 *
 *     struct bench_args a = bench_args(argc, argv, usage);
 *     for (const char *o; (o = bench_args_option(&a)) != NULL;)
 *         if (strcmp(o, "-r") == 0)
 *             repeats = bench_whole(o, bench_args_value(&a), 1, 99);
 *         else
 *             bench_args_unknown(&a);
 *     const char *path = bench_args_operand(&a);
 *     bench_args_end(&a); */
#ifndef CART_TESTS_HELPER_BENCH_ARGS_H
#define CART_TESTS_HELPER_BENCH_ARGS_H

#include "base/attr.h"

#include <stddef.h>
#include <stdio.h>

struct bench_args {
    int argc, at; /* at: the next argument */
    char **argv;
    const char *option; /* the last */
};

/* usage is the whole text of -h, printed here, with status 0, if -h or --help stands before "--".
 */
struct bench_args bench_args(int argc, char **argv, const char *usage);

/* The next option, a word that begins with - or +; NULL where the operands begin, also behind
 * "--". A program without options doesn't ask: its operands may begin so. */
const char *bench_args_option(struct bench_args *a);
const char *bench_args_value(struct bench_args *a); /* of the last option */
_Noreturn void bench_args_unknown(const struct bench_args *a);

const char *bench_args_operand(struct bench_args *a); /* the next, or NULL */
void bench_args_end(const struct bench_args *a);      /* refuses one more */

/* text, the value of what, as a whole number in decimal digits. */
size_t bench_whole(const char *what, const char *text, size_t least, size_t most);

/* The index of text among names [n]. */
size_t bench_word(const char *what, const char *text, const char *const *names, size_t n);

/* "PROGRAM: " and the message on standard error, then the end with status. */
_Noreturn void bench_die(int status, const char *fmt, ...) CART_PRINTF(2, 3);

/* Where things are, found by the program's own path, BUILD/bench/PROGRAM, whatever the working
 * directory: BUILD/bin/NAME, which must be there; ROOT/NAME of the tree, for which BUILD must be
 * its build/MODE. Both in memory that stays. */
const char *bench_tool(const char *name);
const char *bench_tree(const char *name);

/* CART_MODEL, which must be readable, or the demo model; NULL, said on the stream note, if that was
 * not fetched. */
const char *bench_model_file(FILE *note);

#endif
