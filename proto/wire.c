/* Messages in and out of bytes; see wire.h for the order of the checks. Pure functions, any thread. */
#include "proto/wire.h"

#include <string.h>

_Static_assert(FH_INTERNAL == -(int)FH__V1__ERROR_CODE__INTERNAL_ERROR, "status.h and fh.proto number errors alike");
_Static_assert(FH_UNKNOWN == -(int)FH__V1__ERROR_CODE__OUTCOME_UNKNOWN, "status.h and fh.proto number errors alike");

static size_t request_max(uint32_t call)
{
	return call == FH__V1__REQUEST__CALL_UPLOAD_CHUNK || call == FH__V1__REQUEST__CALL_ACT ? FH_WIRE_DATA_MAX
											       : FH_WIRE_MAX;
}

static size_t reply_max(uint32_t result)
{
	switch (result) {
	case FH__V1__REPLY__RESULT_JOBS: case FH__V1__REPLY__RESULT_METRICS: case FH__V1__REPLY__RESULT_EVALUATE:
	case FH__V1__REPLY__RESULT_ACT: case FH__V1__REPLY__RESULT_CHECKPOINTS: case FH__V1__REPLY__RESULT_CHECKPOINT_DATA:
	case FH__V1__REPLY__RESULT_DATASETS: case FH__V1__REPLY__RESULT_BARS: case FH__V1__REPLY__RESULT_OPERATION:
		return FH_WIRE_DATA_MAX;
	default: return FH_WIRE_MAX;
	}
}

static void *arena_take(void *arena, size_t size)
{
	return fh_arena_alloc(arena, size);
}

static void arena_keep(void *arena, void *p)
{
	(void)arena;
	(void)p;
}

static int too_large(size_t len, size_t max, struct fh_status *st)
{
	return fh_fail(st, FH_EXHAUSTED, "a message of %zu bytes, at most %zu are allowed here", len, max);
}

int fh_message_unpack(const ProtobufCMessageDescriptor *d, const void *data, size_t len, int strict, struct fh_arena *a,
		      ProtobufCMessage **out, struct fh_status *st)
{
	ProtobufCAllocator allocator = {arena_take, arena_keep, a};
	ProtobufCMessage *m;
	int rc;

	*a = (struct fh_arena){0};
	if (len > FH_WIRE_DATA_MAX)
		return too_large(len, FH_WIRE_DATA_MAX, st);
	rc = fh_message_check(d, data, len, strict, st);
	if (rc)
		return rc;
	fh_arena_init(a, FH_UNPACK_FLOOR + (size_t)FH_UNPACK_FACTOR * len);
	m = protobuf_c_message_unpack(d, &allocator, len, data);
	if (!m) {
		rc = a->full ? fh_fail(st, FH_EXHAUSTED, "a message of %zu bytes unpacks to more than %zu", len, a->cap)
			     : fh_fail(st, FH_CORRUPT, "damaged message");
		fh_arena_release(a);
		return rc;
	}
	*out = m;
	return 0;
}

/* Envelope checks that need no allocation. */
static int check_envelope(const struct fh_peek *k, size_t len, size_t max, const char *what, struct fh_status *st)
{
	if (k->magic != FH_MAGIC)
		return fh_fail(st, FH_CORRUPT, "not an fhd %s (magic 0x%08x)", what, (unsigned)k->magic);
	if (k->protocol != FH_PROTOCOL)
		return fh_fail(st, FH_VERSION, "the %s speaks protocol %u, this program speaks %u", what,
			       (unsigned)k->protocol, FH_PROTOCOL);
	if (len > max)
		return too_large(len, max, st);
	return 0;
}

int fh_request_unpack(const void *data, size_t len, struct fh_arena *a, Fh__V1__Request **out, struct fh_status *st)
{
	Fh__V1__Request *r;
	struct fh_peek k;
	int rc;

	*a = (struct fh_arena){0};
	if (len > FH_WIRE_DATA_MAX)
		return too_large(len, FH_WIRE_DATA_MAX, st);
	rc = fh_peek(data, len, &k, st);
	if (rc == 0)
		rc = check_envelope(&k, len, request_max(k.call), "request", st);
	if (rc)
		return rc;
	if (k.call == 0)
		return fh_fail(st, FH_INVALID, "the request has no call");
	if (!protobuf_c_message_descriptor_get_field(&fh__v1__request__descriptor, k.call))
		return fh_fail(st, FH_UNIMPLEMENTED, "call number %u is unknown here", (unsigned)k.call);
	rc = fh_message_unpack(&fh__v1__request__descriptor, data, len, 1, a, (ProtobufCMessage **)&r, st);
	if (rc)
		return rc;
	rc = r->request_id ? fh_name_check("request_id", r->request_id, st) : 0;
	if (rc) {
		fh_arena_release(a);
		return rc;
	}
	*out = r;
	return 0;
}

int fh_reply_unpack(const void *data, size_t len, struct fh_arena *a, Fh__V1__Reply **out, struct fh_status *st)
{
	struct fh_peek k;
	int rc;

	*a = (struct fh_arena){0};
	if (len > FH_WIRE_DATA_MAX)
		return too_large(len, FH_WIRE_DATA_MAX, st);
	rc = fh_peek(data, len, &k, st);
	if (rc == 0)
		rc = check_envelope(&k, len, reply_max(k.call), "reply", st);
	return rc ? rc : fh_message_unpack(&fh__v1__reply__descriptor, data, len, 0, a, (ProtobufCMessage **)out, st);
}

int fh_pack_size(const ProtobufCMessage *m, size_t *size, struct fh_status *st)
{
	size_t max = FH_WIRE_DATA_MAX, n = protobuf_c_message_get_packed_size(m);

	if (m->descriptor == &fh__v1__request__descriptor)
		max = request_max(((const Fh__V1__Request *)m)->call_case);
	else if (m->descriptor == &fh__v1__reply__descriptor)
		max = reply_max(((const Fh__V1__Reply *)m)->result_case);
	if (n > max)
		return too_large(n, max, st);
	*size = n;
	return 0;
}

size_t fh_pack(const ProtobufCMessage *m, void *buf)
{
	return protobuf_c_message_pack(m, buf);
}

void fh_request_init(Fh__V1__Request *r)
{
	fh__v1__request__init(r);
	r->has_magic = 1;
	r->magic = FH_MAGIC;
	r->has_protocol = 1;
	r->protocol = FH_PROTOCOL;
}

void fh_reply_init(Fh__V1__Reply *r, const char *request_id)
{
	fh__v1__reply__init(r);
	r->has_magic = 1;
	r->magic = FH_MAGIC;
	r->has_protocol = 1;
	r->protocol = FH_PROTOCOL;
	r->request_id = (char *)request_id;
}

void fh_error_from_status(Fh__V1__Error *e, const struct fh_status *st)
{
	fh__v1__error__init(e);
	e->has_code = 1;
	e->code = (Fh__V1__ErrorCode)-st->code;
	e->field = (char *)(st->field[0] ? st->field : NULL);
	e->text = (char *)st->text;
}

int fh_error_to_status(const Fh__V1__Error *e, struct fh_status *st)
{
	int code = e->has_code && e->code >= FH__V1__ERROR_CODE__INVALID && e->code <= FH__V1__ERROR_CODE__INTERNAL_ERROR
			   ? -(int)e->code : FH_INTERNAL;

	return fh_fail_field(st, code, e->field ? e->field : "", "%s",
			     e->text && *e->text ? e->text : fh_code_name(code));
}
