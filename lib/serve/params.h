/* Fields of a request's body, read strictly: a wrong type or range is a fault that names the field;
 * null and absence mean the default. Internal to the room. */
#ifndef CART_SERVE_PARAMS_H
#define CART_SERVE_PARAMS_H

#include "base/json.h"
#include "serve/exchange.h"
#include "serve/stops.h"
#include "serve/wire.h"

/* What is wrong with a request. Functions that find it return false. */
struct cart_fault {
    unsigned status;
    const char *code;
    char param[128]; /* "" for none */
    char message[768];
    char members[192]; /* further members of the error object, "" for none */
    unsigned retry_after;
};

bool cart_fault_set(struct cart_fault *f, unsigned status, const char *code, const char *param,
                    const char *fmt, ...) CART_PRINTF(5, 6); /* always false */
bool cart_fault_value(struct cart_fault *f, const char *param, const char *fmt, ...)
    CART_PRINTF(3, 4); /* 400 invalid_value */
/* The same, with ", found ..." behind the text; v as cart_json_found has it. */
bool cart_fault_found(struct cart_fault *f, const char *param, const json_t *v, const char *fmt,
                      ...) CART_PRINTF(4, 5);
bool cart_fault_memory(struct cart_fault *f);
void cart_fault_send(const struct cart_fault *f, struct cart_exchange *x);
/* The end of a plain route: answers 200 with the JSON in w where ok and all of it fitted memory,
 * else with the fault. Releases w. */
void cart_fault_or_reply(struct cart_exchange *x, bool ok, struct cart_wire *w,
                         struct cart_fault *f);

/* 404: no model (or, with param "cartridges", no cartridge) is called that; the message says which
 * there are, and which may have been meant. */
bool cart_fault_unknown(struct cart_fault *f, struct cart_serve *s, const char *param,
                        const char *wanted);

/* 503: the cartridge's file was written over in place since it was opened. */
bool cart_fault_changed(struct cart_fault *f, const char *cartridge);

/* The body as an object; the caller owns it. */
bool cart_params_body(struct cart_exchange *x, json_t **out, struct cart_fault *f);

/* Each leaves *out as it is where the field is absent or null. */
bool cart_param_bool(const json_t *o, const char *key, bool *out, struct cart_fault *f);
bool cart_param_size(const json_t *o, const char *key, size_t lo, size_t hi, size_t *out,
                     struct cart_fault *f);
bool cart_param_string(const json_t *o, const char *key, const char **out,
                       struct cart_fault *f); /* borrowed */
/* The field where it is there and not null, else NULL. */
const json_t *cart_param(const json_t *o, const char *key);

/* Which rows a request stands behind. */
struct cart_selection {
    char model[CART_MODEL_ID_MAX]; /* as it is reported: BASE or BASE:NAME, which are there */
    const char *how;               /* "request", "model" or "default" */
    struct cart_stack *stack;      /* one hold, the caller's; NULL: the bare model */
};
bool cart_params_select(struct cart_serve *s, const json_t *o, struct cart_selection *sel,
                        struct cart_fault *f);
/* [{"id":…,"rows":…},…] into w, the names into x->cartridges. */
struct cart_wire;
void cart_selection_write(const struct cart_selection *sel, struct cart_wire *w);
void cart_selection_label(const struct cart_selection *sel, struct cart_exchange *x);

/* What chat and completions share. */
struct cart_sampling_params {
    bool stream, include_usage;
    size_t n, max_tokens;
    bool has_max;
    struct cart_stops stops; /* of stop_text */
    char *stop_text;         /* owned */
    struct cart_bias *bias;  /* [adjust.n_bias], owned */
    double temperature, top_p, min_p;
    size_t top_k;
    uint64_t seed;
    struct cart_adjust adjust;
    bool ignore_stop;
};
bool cart_params_sampling(struct cart_serve *s, const json_t *o, struct cart_sampling_params *p,
                          struct cart_fault *f);
void cart_params_release(struct cart_sampling_params *p);
void cart_params_apply(const struct cart_sampling_params *p, struct cart_serve_request *r);

/* Fields beyond known, which ends with NULL: the log names each once, but one that is a slip from a
 * known name is a fault, for what it asks for would be left out without a word. */
bool cart_params_unknown(struct cart_serve *s, const json_t *o, const char *const *known,
                         struct cart_fault *f);

/* Why the scheduler refused. */
bool cart_fault_refused(struct cart_fault *f, struct cart_serve *s, enum cart_refusal why,
                        const struct cart_err *err, size_t n_prompt, size_t rows);

#endif
