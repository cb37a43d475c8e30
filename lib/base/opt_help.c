#include "base/opt_impl.h"

#include "base/buf.h"
#include "base/cpu.h"
#include "base/spelling.h"

#include <stdio.h>
#include <string.h>

#define HELP_WIDTH 80
#define HELP_COLUMN 26

const char *cart_opt_nearest(const struct cart_opt *table, size_t n, const char *name, size_t len)
{
    const char *nearest = NULL;
    size_t least = len / 3 < 2 ? len / 3 + 1 : 3; /* only what is nearer */
    for (size_t i = 0; i < n; i++) {
        const char *known = table[i].long_name;
        size_t d = cart_spelling_distance(name, len, known, least - 1);
        if (d > 1 && len >= 3 && strncmp(known, name, len) == 0)
            d = 1;
        if (d < least) {
            least = d;
            nearest = known;
        }
    }
    return nearest;
}

/* Prints one bracketed word group, on a new line where it would cross the right margin. */
static void put_group(const char *group, size_t indent, size_t *column)
{
    size_t n = strlen(group);
    if (*column + 1 + n > HELP_WIDTH && *column > indent) {
        printf("\n%*s", (int)indent, "");
        *column = indent;
    }
    *column += (size_t)printf(" %s", group);
}

static void put_usage(const struct cart_tool *tool, const struct cart_opt *table, size_t n)
{
    char group[256];
    size_t column = (size_t)printf("usage: %s", tool->name);
    size_t indent = column;
    put_group("[-hqvV]", indent, &column);
    for (size_t i = CART_OPT_UNIVERSAL; i < n; i++) {
        const struct cart_opt *o = &table[i];
        char name[64];
        if (o->short_name)
            snprintf(name, sizeof name, "-%c", o->short_name);
        else
            snprintf(name, sizeof name, "--%s", o->long_name);
        snprintf(group, sizeof group, "[%s%s%s]%s", name, o->arg ? " " : "", o->arg ? o->arg : "",
                 o->type == CART_OPT_T_LIST ? "..." : "");
        put_group(group, indent, &column);
    }
    if (tool->operands && *tool->operands)
        put_group(tool->operands, indent, &column);
    printf("\n");
}

void cart_opt_print_help(const struct cart_tool *tool, const struct cart_opt *table, size_t n)
{
    put_usage(tool, table, n);
    printf("\n%s: %s\n\n", tool->name, tool->summary);
    for (size_t i = 0; i < n; i++) {
        const struct cart_opt *o = &table[i];
        int used;
        if (o->short_name)
            used = printf("  -%c, --%s", o->short_name, o->long_name);
        else
            used = printf("      --%s", o->long_name);
        if (o->arg)
            used += printf(" %s", o->arg);
        if (used + 1 > HELP_COLUMN) {
            printf("\n");
            used = 0;
        }
        printf("%*s %s\n", HELP_COLUMN - used, "", o->help);
    }
    printf("\nExit status and terms: cart(7). Everything else: %s(1).\n", tool->name);
}

void cart_opt_print_version(const struct cart_tool *tool)
{
    printf("%s %s\n", tool->name, cart_version());
#if defined(__clang__)
    printf("compiler: clang %s\n", __clang_version__);
#else
    printf("compiler: gcc %s\n", __VERSION__);
#endif
    printf("cpu: %s%s%s\n", cart_cpu_path_name(), cart_cpu_has_fma() ? "" : " without fma",
           cart_cpu_has_bf16() ? " with bf16" : "");
    printf("libraries: %s\n", cart_version_libraries());
}
