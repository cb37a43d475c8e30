/* The learning rate of each optimizer step: a linear warm-up that reaches lr at step `warmup`, then
 * constant, or half a cosine down to CART_SCHEDULE_FLOOR of lr at step `total`. Steps count from 1.
 */
#ifndef CART_STUDY_SCHEDULE_H
#define CART_STUDY_SCHEDULE_H

#include "base/attr.h"

#define CART_SCHEDULE_FLOOR 0.1

enum cart_schedule_kind { CART_SCHEDULE_COSINE, CART_SCHEDULE_CONSTANT };

struct cart_schedule {
    enum cart_schedule_kind kind;
    double lr;
    uint64_t warmup, total;
};

double cart_schedule_lr(const struct cart_schedule *s, uint64_t step);
const char *cart_schedule_name(enum cart_schedule_kind kind);

#endif
