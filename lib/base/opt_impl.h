/* Between base/opt.c (parsing) and base/opt_help.c (words): the whole table of a tool, its own
 * options and the shared ones that it uses, in the order of the usage line. The first four are -h,
 * -q, -v and -V. */
#ifndef CART_BASE_OPT_IMPL_H
#define CART_BASE_OPT_IMPL_H

#include "base/opt.h"

enum { CART_OPT_UNIVERSAL = 4 };

void cart_opt_print_help(const struct cart_tool *tool, const struct cart_opt *table, size_t n);
void cart_opt_print_version(const struct cart_tool *tool);

#endif
