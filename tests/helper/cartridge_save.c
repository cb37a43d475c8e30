#include "helper/cartridge_save.h"

#include "base/io.h"

int test_cartridge_save(const char *path, const struct cart_model *m,
                        const struct cart_kv_part *parts, size_t n_parts, size_t frozen,
                        const json_t *metadata, const int64_t *draft, size_t n_draft,
                        struct cart_err *err)
{
    struct cart_output out;
    int r = cart_output_open(&out, path, false, err);
    if (r < 0)
        return r;
    if ((r = cart_cartridge_write(out.fd, path, m, parts, n_parts, frozen, metadata, draft, n_draft,
                                  err)) == 0)
        return cart_output_commit(&out, err);
    cart_output_abandon(&out);
    return r;
}
