/* Work whose time is worth knowing, done with a model as the tools do it: for the benches. What a
 * workload needs (rows, a tape) is made at its first run and kept, so that every later run is one
 * from the middle of a long job. For programs that may end when something fails: it prints and
 * exits.
 *
 *   prefill T                  T tokens at once, logits of the last
 *   decode B DEPTH             a step of B streams, each with DEPTH rows of its own
 *   shared B P                 a step of B streams behind the same P rows
 *   decode-f16, shared-f16     the same with rows of 16 bits
 *   cartridge B P              the same behind a cartridge's rows, which lie as in its file
 *   teacher B T R              B conversations of T tokens, the 20 likeliest of the last R rows
 *                              each
 *   train B T P R              forward and backward of B conversations of T tokens behind P rows, R
 *                              supervised rows each, with 8 target entries
 *   recompute B T P R          the same, each layer run again on the way back
 *
 * Ids are workload_id(0), workload_id(1), ...; stream and conversation b begin with workload_id(b).
 * The rows behind which is trained are those of the first P ids. */
#ifndef CART_TEST_WORKLOAD_H
#define CART_TEST_WORKLOAD_H

#include "model/model.h"

enum { WORKLOAD_STEPS = 16, WORKLOAD_TOPK = 20, WORKLOAD_ENTRIES = 8 };
enum { WORKLOAD_KEPT = 16 }; /* the most different ones of one struct workloads */

struct workload_run {
    double seconds; /* of one step: the median of WORKLOAD_STEPS where many are decoded; of the CPU
                       where the pool has one thread */
    double tokens;  /* of one step */
    double flop;    /* of all products, as if every row went through every layer, and of
                       visible keys; a recomputed layer counts once */
    double bytes;   /* weights and rows read where that may be the limit, else 0 */
    double rows;    /* bytes of keys and values held */
    double value;   /* to compare with another program: prefill: the largest logit; teacher: mean
                       log-probability of the likeliest; train: the loss, per row; else 0 */
};

struct workloads;

void workloads_open(struct workloads **out, const char *path, struct cart_pool *pool);
void workloads_close(struct workloads *w);
const struct cart_model *workloads_model(const struct workloads *w);

/* text as above; workload_known tells whether it is, workload_forms what it may be, in one line. */
extern const char workload_forms[];
bool workload_known(const char *text);
void workload(struct workloads *w, const char *text, struct workload_run *out);

uint32_t workload_id(size_t i);

/* Anonymous memory of this process now, in bytes: what the mapped weights are not. */
double workload_anonymous(void);

/* Multiplications of one token in all matrices but the head. */
double workload_linear(const struct cart_model *m);

/* Orders t [n]; returns its median. */
double workload_median(double *t, size_t n);

#endif
