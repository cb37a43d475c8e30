/* Between base/opt.c (parsing) and base/opt_help.c (words): the whole table of a tool. */
#ifndef CART_BASE_OPT_IMPL_H
#define CART_BASE_OPT_IMPL_H

#include "base/opt.h"

/* Own options and the shared ones that the tool uses, in the order of the usage line; the first
 * four are -h, -q, -v, -V (CART_OPT_UNIVERSAL of them). Caller frees *out. */
int cart_opt_table(const struct cart_tool *tool, struct cart_opt **out, size_t *n,
                   struct cart_err *err) CART_MUST_USE;

enum { CART_OPT_UNIVERSAL = 4 };

void cart_opt_print_help(const struct cart_tool *tool, const struct cart_opt *table, size_t n);
void cart_opt_print_version(const struct cart_tool *tool);

#endif
