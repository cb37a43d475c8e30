/* Training a cartridge: distillation of a target stream into rows behind a frozen model. Begins
 * while the stream still arrives; the cartridge appears only after END and the last step. The
 * result is a function of the stream, the model and the options marked * below: not of threads,
 * CPU, packing, recompute, saves, or of how often the run was stopped. */
#ifndef CART_STUDY_TRAIN_H
#define CART_STUDY_TRAIN_H

#include "model/head.h"
#include "study/init.h"
#include "study/schedule.h"

#define CART_TRAIN_MAX_STEPS 1e9

struct cart_train_options {
    struct cart_init_options init;    /* * p, init, frozen, seed (also of the shuffles) */
    enum cart_schedule_kind schedule; /* * */
    double lr;                        /* * */
    uint64_t warmup;                  /* * steps; UINT64_MAX: a twentieth of all, at most 50 */
    uint64_t steps;                   /* * 0: as many as `epochs` give */
    double epochs;   /* * passes over the training conversations; unused where steps is given */
    size_t accum;    /* * conversations a step */
    bool token_norm; /* * loss averaged per supervised token, not per retained entry */
    bool draft;      /* * embed the corpus's tokens */
    bool recompute, pack;
    size_t max_tokens;   /* of one forward */
    uint64_t save_every; /* steps; 0: only when stopped; UINT64_MAX: 20, or 0 without a file */
    uint64_t eval_every; /* * steps (it shows in the metrics); 0: before and after alone */
    bool resume, dry_run;
    const char *output;  /* NULL or "-": standard output; no state is saved then */
    const char *metrics; /* NULL: none */
    const char *spool_dir;
};

/* Of one step, or of an evaluation of the held-out conversations. */
struct cart_train_report {
    uint64_t step, steps; /* steps done, and in all */
    double lr;            /* of the step; 0 for an evaluation */
    double loss;          /* as optimized: per entry or per token */
    double kl, top1; /* per supervised token: KL to the teacher, share of agreeing first tokens */
    size_t tokens;   /* supervised */
    size_t conversations;
};

struct cart_train_plan {          /* what is known before the first step */
    uint64_t steps, warmup, done; /* done: steps of an earlier run */
    size_t p, frozen, held_out, planned;
    size_t corpus_bytes, eval_bytes; /* the documents; evaluating held-out conversations */
    size_t row_bytes, state_bytes, tape_bytes,
        spool_bytes;                   /* tape, spool: 0 until measured (dry run) */
    double step_seconds, eval_seconds; /* of a calibration (dry run) */
    double share;                      /* as cart_lap_end has it (study/estimate.h) */
};

struct cart_train_watch {
    void *ctx;
    void (*plan)(void *ctx, const struct cart_train_plan *plan);
    void (*step)(void *ctx, const struct cart_train_report *report);
    void (*evaluation)(void *ctx, const struct cart_train_report *report);
    void (*notice)(void *ctx, const char *text); /* a warning for people */
    /* The run ends early: --resume goes on after step from the file path. */
    void (*saved)(void *ctx, uint64_t step, const char *path);
};

/* input: the target stream, or "-". CART_EAGAIN: a signal asked to stop (cart_interrupted) and the
 * state is saved. CART_EFORMAT also where a loss or gradient is not finite: the conversation and
 * step are named and the last good state is kept. CART_EMATCH: --resume with another stream, model
 * or option (named). */
int cart_train_run(const struct cart_model *m, const char *input,
                   const struct cart_train_options *opt, const struct cart_train_watch *watch,
                   struct cart_pool *pool, struct cart_err *err) CART_MUST_USE;

#endif
