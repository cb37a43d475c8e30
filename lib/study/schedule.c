#include "study/schedule.h"

#include "tensor/mathf.h"

#define PI 3.14159265358979323846

double cart_schedule_lr(const struct cart_schedule *s, uint64_t step)
{
    if (step < s->warmup)
        return s->lr * (double)step / (double)s->warmup;
    if (s->kind == CART_SCHEDULE_CONSTANT || s->total <= s->warmup)
        return s->lr;
    double sine, cosine, done = (double)(step - s->warmup) / (double)(s->total - s->warmup);
    cart_sincos(PI * (done < 1.0 ? done : 1.0), &sine, &cosine);
    return s->lr * (CART_SCHEDULE_FLOOR + (1.0 - CART_SCHEDULE_FLOOR) * 0.5 * (1.0 + cosine));
}

const char *cart_schedule_name(enum cart_schedule_kind kind)
{
    return kind == CART_SCHEDULE_COSINE ? "cosine" : "constant";
}
