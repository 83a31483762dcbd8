/* From untrusted bytes to messages and back: sizes, memory, versions, texts and enums are checked here, once.
 *
 * The bytes are walked by the descriptors before anything is allocated: wire types, UTF-8, no NUL in strings, known
 * enum numbers (requests), a bound on nesting. Only then protobuf-c unpacks, into an arena with a cap. Pure functions
 * on the caller's memory, any thread. */
#ifndef FH_PROTO_WIRE_H
#define FH_PROTO_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include "proto/fh.pb-c.h"
#include "proto/status.h"

#define FH_MAGIC 0x46484431u          /* "FHD1" */
#define FH_PROTOCOL 1u                /* major version of fh.proto: must be equal on both sides */
#define FH_VERSION_TEXT "0.1.0"

#define FH_WIRE_MAX (1u << 20)        /* bytes of a message, except those that carry data */
#define FH_WIRE_DATA_MAX (16u << 20)  /* of UploadChunk and Act, and of the replies with bars, rows, files, samples */
#define FH_WIRE_DEPTH_MAX 16          /* nesting of messages */
#define FH_UNPACK_FLOOR (256u << 10)  /* memory for one unpacked message: this much … */
#define FH_UNPACK_FACTOR 16u          /* … and so many bytes per byte on the wire */
#define FH_STRING_MAX 4096            /* bytes of any one string field */
#define FH_LABELS_MAX 32              /* labels of one job */
#define FH_LABEL_VALUE_MAX 128        /* bytes */

/* ---- memory: many small pieces, freed together, never more than `cap` bytes in all */
struct fh_chunk;
struct fh_arena {
	size_t cap, used;        /* bytes asked of the system */
	struct fh_chunk *chunk;  /* newest first */
	int full;                /* an allocation did not fit */
};
void fh_arena_init(struct fh_arena *a, size_t cap);  /* allocates nothing yet */
void fh_arena_release(struct fh_arena *a);           /* also fine on zeroed memory; the arena is empty again */
void *fh_arena_alloc(struct fh_arena *a, size_t size);              /* zeroed, 16-byte aligned; NULL at the cap */
void *fh_arena_array(struct fh_arena *a, size_t n, size_t size);    /* the same with an overflow check */
char *fh_arena_strdup(struct fh_arena *a, const char *s);           /* NULL for NULL */

/* ---- texts */
int fh_name_ok(const char *s);                    /* [A-Za-z0-9._-]{1,64}, not "." or ".." */
int fh_id_parse(const char *s, uint64_t *id);     /* 1: decimal digits only, a number >= 1 */
int fh_utf8_ok(const void *s, size_t len);        /* well-formed, no NUL, no surrogates, nothing above U+10FFFF */
/* FH_INVALID naming `field` and the value unless fh_name_ok(s); NULL is missing. */
int fh_name_check(const char *field, const char *s, struct fh_status *st);
/* The name of a job: the same, and not digits only (those are ids). */
int fh_job_name_check(const char *field, const char *s, struct fh_status *st);
/* A name or an id, as requests say which job they mean. */
int fh_job_ref_check(const char *field, const char *s, struct fh_status *st);
/* Number, keys (names, none twice) and values (UTF-8 without control characters) of labels. */
int fh_labels_check(Fh__V1__Label *const *label, size_t n, struct fh_status *st);
#define FH_REQUEST_ID_SIZE 33
void fh_request_id_new(char id[FH_REQUEST_ID_SIZE]); /* 32 random hexadecimal digits */

/* ---- what can be said of a message without unpacking it: for replies to a request that is refused */
struct fh_peek {
	uint32_t magic, protocol;
	uint32_t call;            /* field number of the call (request) or result (reply), 0 when there is none */
	char request_id[65];      /* "" when absent or not a name */
	const char *token;        /* into the message, not terminated; NULL when absent */
	size_t token_len;
};
/* FH_CORRUPT when the outermost level is no protobuf; what was read until there is in *out all the same. */
int fh_peek(const void *data, size_t len, struct fh_peek *out, struct fh_status *st);

/* ---- unpack: everything above; the message lives in `a` (initialised here with the cap for its size).
 * FH_CORRUPT not our bytes, FH_VERSION other protocol (both numbers in the text), FH_EXHAUSTED too large,
 * FH_INVALID a value (field names it), FH_UNIMPLEMENTED no call that this build knows. */
int fh_request_unpack(const void *data, size_t len, struct fh_arena *a, Fh__V1__Request **out, struct fh_status *st);
int fh_reply_unpack(const void *data, size_t len, struct fh_arena *a, Fh__V1__Reply **out, struct fh_status *st);
/* Any message without envelope (an Event, a stored Job): same checks, no magic. `strict` refuses unknown enum numbers. */
int fh_message_unpack(const ProtobufCMessageDescriptor *d, const void *data, size_t len, int strict, struct fh_arena *a,
		      ProtobufCMessage **out, struct fh_status *st);

/* The walk alone: FH_CORRUPT or FH_INVALID with the dotted path in `field`. */
int fh_message_check(const ProtobufCMessageDescriptor *d, const void *data, size_t len, int strict,
		     struct fh_status *st);

/* ---- pack: fh_pack_size() checks the limit for the kind of message (FH_EXHAUSTED), fh_pack() writes that many bytes. */
int fh_pack_size(const ProtobufCMessage *m, size_t *size, struct fh_status *st);
size_t fh_pack(const ProtobufCMessage *m, void *buf);

/* ---- replies */
void fh_request_init(Fh__V1__Request *r);                          /* magic and protocol set */
void fh_reply_init(Fh__V1__Reply *r, const char *request_id);      /* the id is kept, not copied */
/* Points at st's texts: st must outlive e. */
void fh_error_from_status(Fh__V1__Error *e, const struct fh_status *st);
/* Fills st from the error and returns its code; FH_INTERNAL for a code that is none. */
int fh_error_to_status(const Fh__V1__Error *e, struct fh_status *st);

#endif
