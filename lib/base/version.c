/* Compiled with -DCART_VERSION by the build, and again only when the release string changes. */
#include "base/opt.h"

const char *cart_version(void)
{
    return CART_VERSION;
}
