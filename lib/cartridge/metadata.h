/* What a cartridge file says of itself: __metadata__ parsed and matched against a model. Internal
 * to the room. */
#ifndef CART_CARTRIDGE_METADATA_H
#define CART_CARTRIDGE_METADATA_H

#include "cartridge/cartridge.h"

/* Sentence parts joined by "; ", cut where the buffer ends. text may be NULL. */
struct cart_note {
    char *text;
    size_t cap;
};
void cart_note_add(struct cart_note *n, const char *fmt, ...) CART_PRINTF(2, 3);

struct cart_claims {
    bool described; /* there is a cart.version; without it all other fields are zero */
    size_t p, frozen, first_position;
    uint64_t steps;
    enum cart_rope_order rope_order;
    const json_t *metadata; /* borrowed */
};

/* metadata: object of strings. CART_EFORMAT: another version, a required key missing, a value of
 * another form or out of range. */
int cart_claims_parse(struct cart_claims *c, const json_t *metadata, struct cart_note *note,
                      struct cart_err *err) CART_MUST_USE;

/* CART_EFORMAT where the rows are not as many as metadata says. */
int cart_claims_check_rows(const struct cart_claims *c, size_t p, size_t frozen,
                           struct cart_err *err) CART_MUST_USE;

/* CART_EMATCH where the fingerprints are another model's. */
int cart_claims_match(const struct cart_claims *c, const struct cart_model *m,
                      bool allow_other_weights, struct cart_note *note,
                      struct cart_err *err) CART_MUST_USE;

#endif
