/* Any message as JSON or YAML by its descriptor; see text.h for the mapping.
 *
 * Recursion follows the types of fh.proto, which has no recursive ones. Strings come from messages that wire.c checked,
 * so they are UTF-8; control characters are escaped. Pure functions on the caller's FILE, any thread. */
#include "proto/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct printer {
	FILE *f;
	int yaml;
};

void fh_print_quoted(FILE *f, const char *s)
{
	fputc('"', f);
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c == '"' || c == '\\')
			fprintf(f, "\\%c", c);
		else if (c == '\n')
			fputs("\\n", f);
		else if (c == '\t')
			fputs("\\t", f);
		else if (c < 0x20 || c == 0x7f)
			fprintf(f, "\\u%04x", c);
		else
			fputc(c, f);
	}
	fputc('"', f);
}

/* Whether YAML readers take the word as it stands for a text: letters first, and none of their special words. */
static int plain_word(const char *s)
{
	static const char *const special[] = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", "nan", "inf"};
	static const char chars[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/ ";
	size_t n = strlen(s);

	if (n == 0 || n > 200 || !((s[0] >= 'A' && s[0] <= 'Z') || (s[0] >= 'a' && s[0] <= 'z') || s[0] == '/'))
		return 0;
	if (strspn(s, chars) != n || s[n - 1] == ' ')
		return 0;
	for (size_t i = 0; i < sizeof special / sizeof special[0]; i++)
		if (!strcasecmp(s, special[i]))
			return 0;
	return 1;
}

int fh_print_yaml_word(FILE *f, const char *s, int text)
{
	if (!text || plain_word(s)) {
		fputs(s, f);
		return (int)strlen(s);
	}
	fh_print_quoted(f, s);
	return (int)strlen(s) + 2;
}

static void put_string(const struct printer *p, const char *s)
{
	if (p->yaml)
		fh_print_yaml_word(p->f, s, 1);
	else
		fh_print_quoted(p->f, s);
}

static void put_real(const struct printer *p, double x, int is_float)
{
	char text[40];

	if (!isfinite(x)) {
		if (p->yaml)
			fputs(isnan(x) ? ".nan" : x > 0 ? ".inf" : "-.inf", p->f);
		else
			fputs(isnan(x) ? "\"NaN\"" : x > 0 ? "\"Infinity\"" : "\"-Infinity\"", p->f);
		return;
	}
	if (is_float) {
		snprintf(text, sizeof text, "%.6g", x);
		if (strtof(text, NULL) != (float)x)
			snprintf(text, sizeof text, "%.9g", x);
	} else {
		snprintf(text, sizeof text, "%.15g", x);
		if (strtod(text, NULL) != x)
			snprintf(text, sizeof text, "%.17g", x);
	}
	fputs(text, p->f);
}

static void put_bytes(const struct printer *p, const ProtobufCBinaryData *b)
{
	static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

	fputc('"', p->f);
	for (size_t i = 0; i < b->len; i += 3) {
		size_t left = b->len - i;
		uint32_t x = (uint32_t)b->data[i] << 16 | (left > 1 ? (uint32_t)b->data[i + 1] << 8 : 0) |
			     (left > 2 ? b->data[i + 2] : 0u);

		fputc(digit[x >> 18], p->f);
		fputc(digit[x >> 12 & 63], p->f);
		fputc(left > 1 ? digit[x >> 6 & 63] : '=', p->f);
		fputc(left > 2 ? digit[x & 63] : '=', p->f);
	}
	fputc('"', p->f);
}

static void put_enum(const struct printer *p, const ProtobufCEnumDescriptor *d, int number)
{
	const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value(d, number);

	if (v)
		put_string(p, v->name);
	else
		fprintf(p->f, "%d", number);
}

/* One value that is no message. */
static void put_scalar(const struct printer *p, const ProtobufCFieldDescriptor *f, const void *at)
{
	const char *quote = p->yaml ? "" : "\"";

	switch (f->type) {
	case PROTOBUF_C_TYPE_INT32: case PROTOBUF_C_TYPE_SINT32: case PROTOBUF_C_TYPE_SFIXED32:
		fprintf(p->f, "%" PRId32, *(const int32_t *)at);
		return;
	case PROTOBUF_C_TYPE_UINT32: case PROTOBUF_C_TYPE_FIXED32: fprintf(p->f, "%" PRIu32, *(const uint32_t *)at); return;
	case PROTOBUF_C_TYPE_INT64: case PROTOBUF_C_TYPE_SINT64: case PROTOBUF_C_TYPE_SFIXED64:
		fprintf(p->f, "%s%" PRId64 "%s", quote, *(const int64_t *)at, quote);
		return;
	case PROTOBUF_C_TYPE_UINT64: case PROTOBUF_C_TYPE_FIXED64:
		fprintf(p->f, "%s%" PRIu64 "%s", quote, *(const uint64_t *)at, quote);
		return;
	case PROTOBUF_C_TYPE_FLOAT: put_real(p, *(const float *)at, 1); return;
	case PROTOBUF_C_TYPE_DOUBLE: put_real(p, *(const double *)at, 0); return;
	case PROTOBUF_C_TYPE_BOOL: fputs(*(const protobuf_c_boolean *)at ? "true" : "false", p->f); return;
	case PROTOBUF_C_TYPE_ENUM: put_enum(p, f->descriptor, *(const int *)at); return;
	case PROTOBUF_C_TYPE_STRING: put_string(p, *(char *const *)at ? *(char *const *)at : ""); return;
	case PROTOBUF_C_TYPE_BYTES: put_bytes(p, at); return;
	case PROTOBUF_C_TYPE_MESSAGE: return; /* no scalar: its fields are put one by one */
	}
}

static size_t element_size(ProtobufCType t)
{
	switch (t) {
	case PROTOBUF_C_TYPE_INT32: case PROTOBUF_C_TYPE_SINT32: case PROTOBUF_C_TYPE_SFIXED32: case PROTOBUF_C_TYPE_UINT32:
	case PROTOBUF_C_TYPE_FIXED32: case PROTOBUF_C_TYPE_FLOAT: return 4;
	case PROTOBUF_C_TYPE_BOOL: return sizeof(protobuf_c_boolean);
	case PROTOBUF_C_TYPE_ENUM: return sizeof(int);
	case PROTOBUF_C_TYPE_BYTES: return sizeof(ProtobufCBinaryData);
	default: return 8; /* 64-bit numbers, pointers */
	}
}

static int present(const ProtobufCMessage *m, const ProtobufCFieldDescriptor *f)
{
	const char *at = (const char *)m + f->offset, *quantifier = (const char *)m + f->quantifier_offset;

	if (f->label == PROTOBUF_C_LABEL_REPEATED)
		return *(const size_t *)quantifier > 0;
	if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF && *(const uint32_t *)quantifier != f->id)
		return 0;
	if (f->type == PROTOBUF_C_TYPE_MESSAGE || f->type == PROTOBUF_C_TYPE_STRING)
		return *(void *const *)at != NULL;
	return f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF || *(const protobuf_c_boolean *)quantifier;
}

static int is_empty(const ProtobufCMessage *m)
{
	for (unsigned i = 0; i < m->descriptor->n_fields; i++)
		if (present(m, m->descriptor->fields + i))
			return 0;
	return 1;
}

static void put_json(const struct printer *p, const ProtobufCMessage *m, int depth, int version);

static void put_json_field(const struct printer *p, const ProtobufCMessage *m, const ProtobufCFieldDescriptor *f, int depth)
{
	const char *at = (const char *)m + f->offset;
	size_t n;

	if (f->label != PROTOBUF_C_LABEL_REPEATED) {
		if (f->type == PROTOBUF_C_TYPE_MESSAGE)
			put_json(p, *(ProtobufCMessage *const *)at, depth + 1, 0);
		else
			put_scalar(p, f, at);
		return;
	}
	n = *(const size_t *)((const char *)m + f->quantifier_offset);
	at = *(const char *const *)at;
	fputc('[', p->f);
	for (size_t i = 0; i < n; i++) {
		fputs(i ? ", " : "", p->f);
		if (f->type == PROTOBUF_C_TYPE_MESSAGE)
			put_json(p, ((ProtobufCMessage *const *)at)[i], depth + 1, 0);
		else
			put_scalar(p, f, at + i * element_size(f->type));
	}
	fputc(']', p->f);
}

static void put_json(const struct printer *p, const ProtobufCMessage *m, int depth, int version)
{
	const char *between = "\n";

	if (is_empty(m) && !version) {
		fputs("{}", p->f);
		return;
	}
	fputc('{', p->f);
	if (version) {
		fprintf(p->f, "\n%*s\"schema_version\": %d", 2 * (depth + 1), "", FH_SCHEMA_VERSION);
		between = ",\n";
	}
	for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
		const ProtobufCFieldDescriptor *f = m->descriptor->fields + i;

		if (!present(m, f))
			continue;
		fprintf(p->f, "%s%*s\"%s\": ", between, 2 * (depth + 1), "", f->name);
		put_json_field(p, m, f, depth);
		between = ",\n";
	}
	fprintf(p->f, "\n%*s}", 2 * depth, "");
}

/* Lines of a mapping at `depth`; the first one is not indented when it follows "- ". */
static void put_yaml(const struct printer *p, const ProtobufCMessage *m, int depth, int after_dash);

static void put_yaml_list(const struct printer *p, const ProtobufCFieldDescriptor *f, const char *at, size_t n, int depth)
{
	if (f->type != PROTOBUF_C_TYPE_MESSAGE) {
		fputs(" [", p->f);
		for (size_t i = 0; i < n; i++) {
			fputs(i ? ", " : "", p->f);
			if (f->type == PROTOBUF_C_TYPE_STRING)
				fh_print_quoted(p->f, ((char *const *)at)[i]);
			else
				put_scalar(p, f, at + i * element_size(f->type));
		}
		fputs("]\n", p->f);
		return;
	}
	fputc('\n', p->f);
	for (size_t i = 0; i < n; i++) {
		const ProtobufCMessage *m = ((ProtobufCMessage *const *)at)[i];

		fprintf(p->f, "%*s- ", 2 * depth, "");
		if (is_empty(m))
			fputs("{}\n", p->f);
		else
			put_yaml(p, m, depth + 1, 1);
	}
}

static void put_yaml(const struct printer *p, const ProtobufCMessage *m, int depth, int after_dash)
{
	for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
		const ProtobufCFieldDescriptor *f = m->descriptor->fields + i;
		const char *at = (const char *)m + f->offset;

		if (!present(m, f))
			continue;
		fprintf(p->f, "%*s%s:", after_dash ? 0 : 2 * depth, "", f->name);
		after_dash = 0;
		if (f->label == PROTOBUF_C_LABEL_REPEATED) {
			put_yaml_list(p, f, *(const char *const *)at, *(const size_t *)((const char *)m + f->quantifier_offset),
				      depth + 1);
		} else if (f->type != PROTOBUF_C_TYPE_MESSAGE) {
			fputc(' ', p->f);
			put_scalar(p, f, at);
			fputc('\n', p->f);
		} else if (is_empty(*(ProtobufCMessage *const *)at)) {
			fputs(" {}\n", p->f);
		} else {
			fputc('\n', p->f);
			put_yaml(p, *(ProtobufCMessage *const *)at, depth + 1, 0);
		}
	}
}

static int written(FILE *f, struct fh_status *st)
{
	return fflush(f) || ferror(f) ? fh_fail(st, FH_IO, "cannot write the output") : 0;
}

int fh_print_json(FILE *f, const ProtobufCMessage *m, int version, struct fh_status *st)
{
	struct printer p = {f, 0};

	put_json(&p, m, 0, version);
	fputc('\n', f);
	return written(f, st);
}

int fh_print_yaml(FILE *f, const ProtobufCMessage *m, int version, struct fh_status *st)
{
	struct printer p = {f, 1};

	if (version)
		fprintf(f, "schema_version: %d\n", FH_SCHEMA_VERSION);
	else if (is_empty(m))
		fputs("{}\n", f);
	put_yaml(&p, m, 0, 0);
	return written(f, st);
}
