/* Untrusted protobuf bytes against a descriptor, before anything is allocated.
 *
 * Walks the wire format once: tags, wire types, lengths, nesting; strings are UTF-8 without NUL and not too long; with
 * `strict` an enum has a number that the descriptor knows and that is not UNSPECIFIED. Unknown fields are skipped.
 * Recursion is bounded by FH_WIRE_DEPTH_MAX. Pure functions, any thread. */
#include "proto/wire.h"

#include <stdio.h>
#include <string.h>

enum wire_type { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_LEN = 2, WIRE_32 = 5 };

struct span { const uint8_t *p, *end; };

struct walk {
	int strict, depth;
	char path[FH_FIELD_MAX];
	struct fh_status *st;
};

/* 0, or -1 when the bytes end or the number has more than 64 bits. */
static int take_varint(struct span *s, uint64_t *out)
{
	uint64_t x = 0;

	for (int shift = 0; shift < 70; shift += 7) {
		uint8_t b;

		if (s->p == s->end)
			return -1;
		b = *s->p++;
		if (shift == 63 && b > 1)
			return -1;
		x |= (uint64_t)(b & 0x7f) << shift;
		if (!(b & 0x80)) {
			*out = x;
			return 0;
		}
	}
	return -1;
}

/* A field's tag and its value: `varint` for WIRE_VARINT, else `body`. 0 or -1. Groups (3, 4) are refused. */
static int take_field(struct span *s, uint32_t *number, enum wire_type *type, uint64_t *varint, struct span *body)
{
	uint64_t tag, len = 0;

	if (take_varint(s, &tag) || tag >> 3 == 0 || tag >> 3 > 0x1fffffff)
		return -1;
	*number = (uint32_t)(tag >> 3);
	*type = (enum wire_type)(tag & 7);
	switch (*type) {
	case WIRE_VARINT: return take_varint(s, varint);
	case WIRE_64: len = 8; break;
	case WIRE_32: len = 4; break;
	case WIRE_LEN:
		if (take_varint(s, &len))
			return -1;
		break;
	default: return -1;
	}
	if (len > (uint64_t)(s->end - s->p))
		return -1;
	*body = (struct span){s->p, s->p + len};
	s->p += len;
	return 0;
}

static enum wire_type wire_type_of(ProtobufCType t)
{
	switch (t) {
	case PROTOBUF_C_TYPE_SFIXED32: case PROTOBUF_C_TYPE_FIXED32: case PROTOBUF_C_TYPE_FLOAT: return WIRE_32;
	case PROTOBUF_C_TYPE_SFIXED64: case PROTOBUF_C_TYPE_FIXED64: case PROTOBUF_C_TYPE_DOUBLE: return WIRE_64;
	case PROTOBUF_C_TYPE_STRING: case PROTOBUF_C_TYPE_BYTES: case PROTOBUF_C_TYPE_MESSAGE: return WIRE_LEN;
	default: return WIRE_VARINT;
	}
}

static int corrupt(const struct walk *w, const char *what)
{
	return fh_fail_field(w->st, FH_CORRUPT, w->path, "damaged message: %s", what);
}

static int check_enum(const struct walk *w, const ProtobufCEnumDescriptor *d, uint64_t raw)
{
	int number = (int32_t)raw;
	const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value(d, number);

	if (!w->strict)
		return 0;
	if (!v || strstr(v->name, "UNSPECIFIED"))
		return fh_fail_field(w->st, FH_INVALID, w->path, "%d is no %s", number, d->short_name);
	return 0;
}

static int check_string(const struct walk *w, struct span s)
{
	if (s.end - s.p > FH_STRING_MAX)
		return fh_fail_field(w->st, FH_INVALID, w->path, "a text of %td bytes, at most %d are allowed", s.end - s.p,
				     FH_STRING_MAX);
	if (!fh_utf8_ok(s.p, (size_t)(s.end - s.p)))
		return fh_fail_field(w->st, FH_INVALID, w->path, "not UTF-8 text without NUL bytes");
	return 0;
}

/* A packed list: whole elements, and every enum number known. */
static int check_packed(const struct walk *w, const ProtobufCFieldDescriptor *f, struct span s)
{
	enum wire_type type = wire_type_of(f->type);
	uint64_t x;
	int rc;

	if (type == WIRE_64 || type == WIRE_32)
		return (s.end - s.p) % (type == WIRE_64 ? 8 : 4) ? corrupt(w, "half an element in a list") : 0;
	while (s.p < s.end) {
		if (take_varint(&s, &x))
			return corrupt(w, "a cut number in a list");
		rc = f->type == PROTOBUF_C_TYPE_ENUM ? check_enum(w, f->descriptor, x) : 0;
		if (rc)
			return rc;
	}
	return 0;
}

static int check_fields(struct walk *w, const ProtobufCMessageDescriptor *d, struct span s);

static int check_value(struct walk *w, const ProtobufCFieldDescriptor *f, enum wire_type type, uint64_t x, struct span body)
{
	enum wire_type want = wire_type_of(f->type);
	int rc;

	if (type == WIRE_LEN && want != WIRE_LEN && f->label == PROTOBUF_C_LABEL_REPEATED)
		return check_packed(w, f, body);
	if (type != want)
		return corrupt(w, "a value of another type");
	switch (f->type) {
	case PROTOBUF_C_TYPE_ENUM: return check_enum(w, f->descriptor, x);
	case PROTOBUF_C_TYPE_STRING: return check_string(w, body);
	case PROTOBUF_C_TYPE_MESSAGE:
		if (++w->depth > FH_WIRE_DEPTH_MAX)
			return corrupt(w, "nested too deep");
		rc = check_fields(w, f->descriptor, body);
		w->depth--;
		return rc;
	default: return 0;
	}
}

static int check_fields(struct walk *w, const ProtobufCMessageDescriptor *d, struct span s)
{
	size_t at = strlen(w->path);

	while (s.p < s.end) {
		const ProtobufCFieldDescriptor *f;
		struct span body = {NULL, NULL};
		enum wire_type type;
		uint32_t number;
		uint64_t x = 0;
		int rc;

		if (take_field(&s, &number, &type, &x, &body))
			return corrupt(w, "its bytes are cut or no protobuf");
		f = protobuf_c_message_descriptor_get_field(d, number);
		if (!f)
			continue;
		snprintf(w->path + at, sizeof w->path - at, "%s%s", at ? "." : "", f->name);
		rc = check_value(w, f, type, x, body);
		if (rc)
			return rc;
		w->path[at] = 0;
	}
	return 0;
}

int fh_message_check(const ProtobufCMessageDescriptor *d, const void *data, size_t len, int strict, struct fh_status *st)
{
	struct walk w = {.strict = strict, .st = st};
	const uint8_t *p = data;

	return check_fields(&w, d, (struct span){p, p + len});
}

#define FIELD_MAGIC 1u      /* the same numbers in Request and Reply */
#define FIELD_PROTOCOL 2u
#define FIELD_REQUEST_ID 3u
#define FIELD_TOKEN 4u        /* of Request; in Reply the error has this number */
#define FIELD_CALL_FIRST 10u

int fh_peek(const void *data, size_t len, struct fh_peek *out, struct fh_status *st)
{
	const uint8_t *p = data;
	struct span s = {p, p + len};

	memset(out, 0, sizeof *out);
	while (s.p < s.end) {
		struct span body = {NULL, NULL};
		enum wire_type type;
		uint32_t number;
		uint64_t x = 0;
		size_t n;

		if (take_field(&s, &number, &type, &x, &body))
			return fh_fail(st, FH_CORRUPT, "damaged message: its bytes are cut or no protobuf");
		n = (size_t)(body.end - body.p);
		if (number == FIELD_MAGIC && type == WIRE_VARINT) {
			out->magic = (uint32_t)x;
		} else if (number == FIELD_PROTOCOL && type == WIRE_VARINT) {
			out->protocol = (uint32_t)x;
		} else if (number == FIELD_REQUEST_ID && type == WIRE_LEN && n < sizeof out->request_id) {
			memset(out->request_id, 0, sizeof out->request_id);
			if (n)
				memcpy(out->request_id, body.p, n);
			if (!fh_name_ok(out->request_id))
				out->request_id[0] = 0;
		} else if (number == FIELD_TOKEN && type == WIRE_LEN) {
			out->token = (const char *)body.p;
			out->token_len = n;
		} else if (number >= FIELD_CALL_FIRST && type == WIRE_LEN) {
			out->call = number;
		}
	}
	return 0;
}
