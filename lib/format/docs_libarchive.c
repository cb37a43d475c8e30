#include "format/docs_libarchive.h"

#include <dlfcn.h>
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cart_libarchive table;
static bool loaded;

static int load(struct cart_err *err)
{
    static const char name[] = "libarchive.so.13";
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    bool whole = library != NULL;

#define LOOK_UP(f) whole = whole && (*(void **)&table.f = dlsym(library, #f)) != NULL;
    CART_LIBARCHIVE(LOOK_UP)
#undef LOOK_UP
    if (whole)
        return 0;
    int r = cart_err_set(err, CART_ESYS, "archives: %s", dlerror());
    if (library)
        dlclose(library);
    return r;
}

int cart_libarchive(const struct cart_libarchive **out, struct cart_err *err)
{
    pthread_mutex_lock(&lock);
    int r = loaded ? 0 : load(err);
    loaded = r == 0;
    pthread_mutex_unlock(&lock);
    *out = &table;
    return r;
}
