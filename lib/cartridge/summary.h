/* A cartridge, or any safetensors file, in a few lines for people. */
#ifndef CART_CARTRIDGE_SUMMARY_H
#define CART_CARTRIDGE_SUMMARY_H

#include "stream/safetensors.h"

/* Appends the lines; a file with rows is checked as cart_rows_check does. what names it. */
int cart_rows_summary(struct cart_buf *out, const struct cart_st *st, const char *what,
                      struct cart_err *err) CART_MUST_USE;

#endif
