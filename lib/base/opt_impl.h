/* Between base/opt.c (parsing), base/opt_files.c (what is read and written) and base/opt_help.c
 * (words): the whole table of a tool, its own options and the shared ones that it uses, in the
 * order of the usage line. The first four are -h, -q, -v and -V. */
#ifndef CART_BASE_OPT_IMPL_H
#define CART_BASE_OPT_IMPL_H

#include "base/opt.h"

enum { CART_OPT_UNIVERSAL = 4 };

/* After parsing: whether a file would be written that is read too, or written twice. table [n],
 * operands [n_operands]. */
int cart_opt_check_files(const struct cart_opt *table, size_t n, char *const *operands,
                         size_t n_operands, struct cart_err *err) CART_MUST_USE;

/* The long name in the table that a mistyped name [len], without its dashes, most likely meant: at
 * most two letters from it, and a third of it, or what it begins. NULL: none is near. */
const char *cart_opt_nearest(const struct cart_opt *table, size_t n, const char *name, size_t len);

void cart_opt_print_help(const struct cart_tool *tool, const struct cart_opt *table, size_t n);
void cart_opt_print_version(const struct cart_tool *tool);

#endif
