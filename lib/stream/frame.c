#include "stream/frame_impl.h"

#include <string.h>

static void put_u32(unsigned char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (unsigned char)(v >> (8 * i));
}

static uint32_t get_u32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

void cart_put_u64(unsigned char *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (unsigned char)(v >> (8 * i));
}

uint64_t cart_get_u64(const unsigned char *p)
{
    return get_u32(p) | (uint64_t)get_u32(p + 4) << 32;
}

void cart_frame_encode(unsigned char out[CART_FRAME_SIZE], const struct cart_frame *f)
{
    memcpy(out, f->type, 4);
    put_u32(out + 4, f->flags); /* u16 flags, u16 zero */
    cart_put_u64(out + 8, f->stored);
    cart_put_u64(out + 16, f->raw);
    put_u32(out + 24, f->crc);
    put_u32(out + 28, cart_crc32(out, 28));
}

bool cart_frame_decode(struct cart_frame *f, const unsigned char in[CART_FRAME_SIZE])
{
    memcpy(f->type, in, 4);
    f->type[4] = '\0';
    f->flags = get_u32(in + 4);
    f->stored = cart_get_u64(in + 8);
    f->raw = cart_get_u64(in + 16);
    f->crc = get_u32(in + 24);
    return get_u32(in + 28) == cart_crc32(in, 28);
}

bool cart_frame_type_ok(const char *type)
{
    bool space = false;

    for (int i = 0; i < 4; i++) {
        bool letter = (type[i] >= 'A' && type[i] <= 'Z') || (type[i] >= '0' && type[i] <= '9');
        if (!(letter && !space) && !(type[i] == ' ' && i > 0))
            return false;
        space = !letter;
    }
    return true;
}
