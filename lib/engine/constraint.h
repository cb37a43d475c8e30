/* Answers that must follow a grammar. A constraint is a grammar over bytes, compiled from a JSON
 * schema (or "any JSON object", or a tool call), and run as an automaton whose states are made when
 * they are first met; a state knows for every token of the vocabulary whether the grammar can go on
 * after it. Looking that up walks a trie of the vocabulary's bytes (the lexicon) once per state.
 *
 * Hostile schemas are bounded twice: what a schema may have is counted before anything is made of
 * it, and the work for one token has a budget, in steps and not in time. Beyond either it is
 * CART_EFORMAT: no other try would fare better.
 *
 * What the grammar allows is a subset of what the schema allows: values come in the order in which
 * the schema lists its properties, members that the schema neither names nor forbids come only
 * where the schema has additionalProperties, white space is one space, or a line break and up to 40
 * spaces. Every complete answer is valid.
 *
 * A keyword that is not enforced is refused by name; annotations are ignored. Known: type (also a
 * list), enum, const, properties, required, additionalProperties, minProperties (up to the number
 * of required names, or 1 of a map), maxProperties (of maps), items, prefixItems, minItems,
 * maxItems, minLength, maxLength, format (date, time, date-time, uuid), minimum and maximum (of a
 * number: whole ones), exclusiveMinimum and exclusiveMaximum (of integers), anyOf, oneOf (where the
 * branches differ by types that they state, or by constants), allOf of one, $ref within the
 * document, $defs, definitions.
 *
 * A lexicon is shared by all threads; a constraint belongs to one thread at a time. */
#ifndef CART_ENGINE_CONSTRAINT_H
#define CART_ENGINE_CONSTRAINT_H

#include "base/json.h"
#include "token/tokenizer.h"

struct cart_lexicon;
struct cart_constraint;

/* t is borrowed. */
int cart_lexicon_new(struct cart_lexicon **out, const struct cart_tokenizer *t,
                     struct cart_err *err) CART_MUST_USE;
size_t cart_lexicon_bytes(const struct cart_lexicon *l);
void cart_lexicon_free(struct cart_lexicon *l);

/* CART_EFORMAT: the schema is malformed, too large, or uses a keyword that is not enforced; the
 * message names the limit, or the place ("properties.age.multipleOf") after what. */
int cart_constraint_schema(struct cart_constraint **out, const struct cart_lexicon *l,
                           const json_t *schema, const char *what,
                           struct cart_err *err) CART_MUST_USE;
/* Any JSON object. */
int cart_constraint_object(struct cart_constraint **out, const struct cart_lexicon *l,
                           struct cart_err *err) CART_MUST_USE;

/* Calls of tools: each {"name": NAME, "arguments": ARGUMENTS} between open and close, which may
 * name tokens of the vocabulary that are no plain text (Qwen3: "<tool_call>\n", "\n</tool_call>").
 * tools: array of {name, parameters} or {function: {…}}. only: the one tool that must be called,
 * or NULL: any of them. most: calls in one answer at most, with separator between them; at least
 * one. */
struct cart_constraint_calls {
    const json_t *tools;
    const char *only;
    const char *open, *close, *separator;
    size_t most;
};
int cart_constraint_tools(struct cart_constraint **out, const struct cart_lexicon *l,
                          const struct cart_constraint_calls *calls, const char *what,
                          struct cart_err *err) CART_MUST_USE;
/* Another of the same grammar, with states and a budget of its own, as c was when it was new. */
int cart_constraint_copy(struct cart_constraint **out, const struct cart_constraint *c,
                         struct cart_err *err) CART_MUST_USE;
void cart_constraint_free(struct cart_constraint *c);

/* Where a stream is in the automaton: a small number. Several streams may begin, and be at the same
 * place or others; what is nobody's place any more is forgotten. */
uint32_t cart_constraint_start(const struct cart_constraint *c);

/* mask [(V + 63) / 64]: bit id set where token id may come next; borrowed until the next call.
 * complete: the answer may end here (stop tokens are the caller's to allow). CART_EFORMAT: the
 * schema asks for more than the budget of a token. */
int cart_constraint_mask(struct cart_constraint *c, uint32_t state, const uint64_t **mask,
                         bool *complete, struct cart_err *err) CART_MUST_USE;
/* Moves a stream on: *next is where it is after a token, and state not its place any more; or
 * CART_CONSTRAINT_DEAD where the mask forbids the token, and it stays. */
#define CART_CONSTRAINT_DEAD UINT32_MAX
int cart_constraint_advance(struct cart_constraint *c, uint32_t state, uint32_t id, uint32_t *next,
                            struct cart_err *err) CART_MUST_USE;
/* Nothing can follow: the answer is complete and cannot grow. */
bool cart_constraint_finished(const struct cart_constraint *c, uint32_t state);

/* For tests and for checking text without tokens: another stream, at the state after bytes; the one
 * at state stays. */
int cart_constraint_feed(struct cart_constraint *c, uint32_t state, const char *bytes, size_t n,
                         uint32_t *next, struct cart_err *err) CART_MUST_USE;

#endif
