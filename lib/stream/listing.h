/* What cart-view prints and packs. A whole stream as JSON Lines and back, without loss:
 * {"record":"head",...}, one line a record (the text twins of kinds.h),
 * {"record":"end","records":N,"bytes":N,"digest":"<hex>"}. A skippable record of unknown type is
 * {"record":"skippable","type":"ABCD","hex":"..."}.
 *
 * A safetensors image: {"record":"safetensors","metadata":{...},"tensors":N}, a line
 * {"record":"tensor","name","dtype","shape", "min","max","finite"} each in data order,
 * {"record":"end","tensors":N}. With their values the tensors have "data", and an image whose
 * header is not the canonical one has it as "header" in the first line: then the listing is the
 * image without loss too. */
#ifndef CART_STREAM_LISTING_H
#define CART_STREAM_LISTING_H

#include "stream/jsonl.h"
#include "stream/stream.h"

/* Lists r from its HEAD to its END on fd; out names fd in messages. Every rule of cart-stream(5) is
 * checked on the way, those between records too. fd < 0: checks only. */
int cart_listing_stream(struct cart_stream_reader *r, int fd, const char *out,
                        struct cart_err *err) CART_MUST_USE;

/* head: the first line's object (its "record" was "head"). Packs it and the lines that follow into
 * a stream on fd; level as for cart_stream_create. A missing end line is CART_ETRUNC. Returns 1
 * where the end line states other counts or another digest than what was packed (the lines were
 * edited), else 0. */
int cart_listing_pack(struct cart_jsonl *l, json_t *head, int fd, const char *out, int level,
                      struct cart_err *err) CART_MUST_USE;

/* Lists the image [size], 8-byte aligned. fd < 0: checks only. */
int cart_listing_safetensors(const void *bytes, size_t size, const char *what, bool data, int fd,
                             const char *out, struct cart_err *err) CART_MUST_USE;
/* head: the first line's object (its "record" was "safetensors"). Writes the image that was listed
 * with its data; a "header" that contradicts the other lines is CART_EFORMAT. Returns 1 where the
 * first or the end line states another number of tensors, else 0. */
int cart_listing_pack_safetensors(struct cart_jsonl *l, json_t *head, int fd, const char *out,
                                  struct cart_err *err) CART_MUST_USE;

#endif
