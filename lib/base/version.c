/* Compiled with -DCART_VERSION and -DCART_LIBRARIES by the build, and again only when one of them
 * changes. */
#include "base/opt.h"

const char *cart_version(void)
{
    return CART_VERSION;
}

const char *cart_version_libraries(void)
{
    return CART_LIBRARIES;
}
