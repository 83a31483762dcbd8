/* JobSpec, struct fh_spec and text; see spec.h. The key table says what exists, the descriptors say where it is in the
 * message: tests/unit/proto_spec.c holds the two against each other. Pure functions, any thread. */
#include "proto/spec.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_PART_MAX 32   /* bytes of one component of a key */
#define VALUE_TEXT_MAX 320 /* %.17g of any double, any name */
#define DISTANCE_MAX 64    /* bytes compared of each word */
#define PAIR_MAX 256       /* bytes of one --set argument */

/* The message that holds the leaf of `path` and the leaf's field. With `a` missing messages on the way are made. */
struct place { char *message; const ProtobufCFieldDescriptor *field; };

/* 1 found, 0 a message on the way is absent, negative: no such field or out of memory. */
static int find_place(ProtobufCMessage *root, const char *path, struct fh_arena *a, struct place *out)
{
	const ProtobufCMessageDescriptor *d = root->descriptor;
	char *at = (char *)root;

	for (;;) {
		char part[PATH_PART_MAX];
		size_t n = strcspn(path, ".");
		const ProtobufCFieldDescriptor *f;
		void **slot;

		if (n >= sizeof part)
			return FH_INTERNAL;
		memcpy(part, path, n);
		part[n] = 0;
		f = protobuf_c_message_descriptor_get_field_by_name(d, part);
		if (!f)
			return FH_INTERNAL;
		if (!path[n]) {
			*out = (struct place){at, f};
			return 1;
		}
		if (f->type != PROTOBUF_C_TYPE_MESSAGE)
			return FH_INTERNAL;
		slot = (void **)(at + f->offset);
		d = f->descriptor;
		if (!*slot) {
			if (!a)
				return 0;
			*slot = fh_arena_alloc(a, d->sizeof_message);
			if (!*slot)
				return FH_EXHAUSTED;
			d->message_init(*slot);
		}
		at = *slot;
		path += n + 1;
	}
}

void fh_real_text(double x, char *text, size_t size)
{
	snprintf(text, size, "%.15g", x);
	if (strtod(text, NULL) != x)
		snprintf(text, size, "%.17g", x);
}

static const char *choice_word(const struct spec_key *k, int value)
{
	for (const struct spec_choice *c = k->choice; c->word; c++)
		if (c->value == value)
			return c->word;
	return NULL;
}

/* The leaf's value as the text that spec_set() takes. 1, 0 when absent, or FH_INVALID. */
static int leaf_text(const struct spec_key *k, const struct place *at, char text[VALUE_TEXT_MAX], struct fh_status *st)
{
	const char *value = at->message + at->field->offset;
	int number;

	if (k->type == SPEC_NAME) {
		const char *s = *(char *const *)value;

		if (!s)
			return 0;
		snprintf(text, VALUE_TEXT_MAX, "%s", s);
		return 1;
	}
	if (!*(const protobuf_c_boolean *)(at->message + at->field->quantifier_offset))
		return 0;
	if (k->type == SPEC_INT) {
		snprintf(text, VALUE_TEXT_MAX, "%lld", (long long)*(const int64_t *)value);
	} else if (k->type == SPEC_REAL) {
		fh_real_text(*(const double *)value, text, VALUE_TEXT_MAX);
	} else {
		number = *(const int *)value;
		if (!choice_word(k, number))
			return fh_fail_field(st, FH_INVALID, k->path, "%s is number %d, which this version does not know",
					     k->path, number);
		snprintf(text, VALUE_TEXT_MAX, "%s", choice_word(k, number));
	}
	return 1;
}

static int refuse_unknown(const ProtobufCMessage *m, const char *section, struct fh_status *st)
{
	if (m->n_unknown_fields == 0)
		return 0;
	return fh_fail_field(st, FH_INVALID, section,
			     "%s%sfield number %u is unknown here: the sender is of another version", section,
			     *section ? ": " : "", (unsigned)m->unknown_fields[0].tag);
}

/* Fields that this build does not know, at the top and in each section. */
static int refuse_unknown_fields(const ProtobufCMessage *m, struct fh_status *st)
{
	const ProtobufCMessageDescriptor *d = m->descriptor;
	int rc = refuse_unknown(m, "", st);

	for (unsigned i = 0; rc == 0 && i < d->n_fields; i++) {
		const ProtobufCFieldDescriptor *f = d->fields + i;
		const ProtobufCMessage *sub;

		if (f->type != PROTOBUF_C_TYPE_MESSAGE)
			continue;
		sub = *(ProtobufCMessage *const *)((const char *)m + f->offset);
		rc = sub ? refuse_unknown(sub, f->name, st) : 0;
	}
	return rc;
}

int fh_spec_from_message(const Fh__V1__JobSpec *m, struct fh_spec *out, struct fh_status *st)
{
	struct fh_spec spec;
	int n, rc = 0;
	const struct spec_key *key = spec_keys(&n);

	spec_defaults(&spec);
	if (m)
		rc = refuse_unknown_fields(&m->base, st);
	for (int i = 0; m && rc == 0 && i < n; i++) {
		char text[VALUE_TEXT_MAX];
		struct place at;

		rc = find_place((ProtobufCMessage *)&m->base, key[i].path, NULL, &at);
		if (rc < 0)
			return fh_fail_field(st, rc, key[i].path, "%s is not in the wire format", key[i].path);
		if (rc > 0)
			rc = leaf_text(key + i, &at, text, st);
		if (rc > 0)
			rc = spec_set(&spec, key + i, text, st);
	}
	if (rc == 0)
		rc = spec_check(&spec, st);
	if (rc == 0)
		*out = spec;
	return rc;
}

static int put_leaf(const struct fh_spec *spec, const struct spec_key *k, const struct place *at, struct fh_arena *a)
{
	const char *from = (const char *)spec + k->offset;
	char *to = at->message + at->field->offset;

	if (k->type == SPEC_NAME) {
		char *s = fh_arena_strdup(a, from);

		*(char **)to = s;
		return s ? 0 : FH_EXHAUSTED;
	}
	*(protobuf_c_boolean *)(at->message + at->field->quantifier_offset) = 1;
	if (k->type == SPEC_ENUM)
		memcpy(to, from, sizeof(int));
	else
		memcpy(to, from, 8); /* int64_t or double */
	return 0;
}

int fh_spec_to_message(const struct fh_spec *spec, struct fh_arena *a, Fh__V1__JobSpec **out, struct fh_status *st)
{
	int n, rc = 0;
	const struct spec_key *key = spec_keys(&n);
	Fh__V1__JobSpec *m = fh_arena_alloc(a, sizeof *m);

	if (!m)
		return fh_fail(st, FH_EXHAUSTED, "no memory for a specification");
	fh__v1__job_spec__init(m);
	for (int i = 0; i < n; i++) {
		struct place at;

		/* An empty name is an absent one. */
		if (key[i].type == SPEC_NAME && !*((const char *)spec + key[i].offset))
			continue;
		rc = find_place(&m->base, key[i].path, a, &at);
		if (rc > 0)
			rc = put_leaf(spec, key + i, &at, a);
		if (rc < 0)
			return fh_fail_field(st, rc, key[i].path, "%s: %s", key[i].path,
					     rc == FH_EXHAUSTED ? "no memory for the specification" : "not in the wire format");
	}
	*out = m;
	return 0;
}

/* The word of `k` that is meant by `text` in any case, or by fh.proto's name of the number (PRECISION_AUTO), so that
 * what -o json prints can be fed back; else `text` itself. */
static const char *enum_word(const struct spec_key *k, const char *text)
{
	Fh__V1__JobSpec root = FH__V1__JOB_SPEC__INIT;
	const ProtobufCEnumDescriptor *d;
	struct fh_arena a;
	struct place at;
	const char *word = NULL;

	for (const struct spec_choice *c = k->choice; c->word; c++)
		if (!strcasecmp(c->word, text))
			return c->word;
	fh_arena_init(&a, FH_UNPACK_FLOOR);
	if (find_place(&root.base, k->path, &a, &at) == 1 && at.field->type == PROTOBUF_C_TYPE_ENUM) {
		d = at.field->descriptor;
		for (unsigned i = 0; !word && i < d->n_values; i++)
			if (!strcasecmp(d->values[i].name, text))
				word = choice_word(k, d->values[i].value);
	}
	fh_arena_release(&a);
	return word ? word : text;
}

int fh_unknown_key(const char *path, const char *nearest, struct fh_status *st)
{
	char shown[FH_FIELD_MAX];
	size_t i = 0;

	for (; i < sizeof shown - 1 && path[i]; i++)
		shown[i] = (unsigned char)path[i] < 0x20 || path[i] == 0x7f || (unsigned char)path[i] >= 0x80 ? '?' : path[i];
	shown[i] = 0;
	if (nearest)
		return fh_fail_field(st, FH_INVALID, shown, "unknown key %s, did you mean %s?", shown, nearest);
	return fh_fail_field(st, FH_INVALID, shown, "unknown key %s", shown);
}

int fh_spec_set(struct fh_spec *spec, const char *path, const char *text, struct fh_status *st)
{
	const struct spec_key *k = spec_key_find(path);

	if (!k)
		return fh_unknown_key(path, fh_spec_nearest(path), st);
	return spec_set(spec, k, k->type == SPEC_ENUM ? enum_word(k, text) : text, st);
}

int fh_spec_set_pair(struct fh_spec *spec, const char *pair, struct fh_status *st)
{
	char copy[PAIR_MAX];
	char *eq;

	if (strlen(pair) >= sizeof copy)
		return fh_fail(st, FH_INVALID, "--set takes KEY=VALUE of at most %d bytes", PAIR_MAX - 1);
	strcpy(copy, pair);
	eq = strchr(copy, '=');
	if (!eq || eq == copy)
		return fh_fail(st, FH_INVALID, "--set %s: KEY=VALUE is needed, for example learn.lr=3e-4", copy);
	*eq = 0;
	return fh_spec_set(spec, copy, eq + 1, st);
}

static int min3(int a, int b, int c)
{
	int m = a < b ? a : b;

	return m < c ? m : c;
}

int fh_edit_distance(const char *a, const char *b)
{
	int row[3][DISTANCE_MAX + 1];
	int n = (int)strnlen(a, DISTANCE_MAX), m = (int)strnlen(b, DISTANCE_MAX);
	int *before = row[0], *last = row[1], *now = row[2], *t;

	for (int j = 0; j <= m; j++) {
		last[j] = j;
		before[j] = 0;
	}
	for (int i = 1; i <= n; i++) {
		now[0] = i;
		for (int j = 1; j <= m; j++) {
			int ca = tolower((unsigned char)a[i - 1]), cb = tolower((unsigned char)b[j - 1]);

			now[j] = min3(last[j] + 1, now[j - 1] + 1, last[j - 1] + (ca != cb));
			if (i > 1 && j > 1 && ca == tolower((unsigned char)b[j - 2]) &&
			    cb == tolower((unsigned char)a[i - 2]) && before[j - 2] + 1 < now[j])
				now[j] = before[j - 2] + 1;
		}
		t = before;
		before = last;
		last = now;
		now = t;
	}
	return last[m];
}

static const char *leaf_of(const char *path)
{
	const char *dot = strrchr(path, '.');

	return dot ? dot + 1 : path;
}

const char *fh_spec_nearest(const char *path)
{
	int n, best = 1 << 20;
	const struct spec_key *key = spec_keys(&n);
	const char *found = NULL;
	size_t len = strlen(path);

	for (int i = 0; i < n; i++) {
		int whole = fh_edit_distance(path, key[i].path);
		/* The right word in the wrong section, or without one, is a near miss as well. */
		int leaf = fh_edit_distance(leaf_of(path), leaf_of(key[i].path)) + 1;
		int d = whole < leaf ? whole : leaf;

		if (d < best) {
			best = d;
			found = key[i].path;
		}
	}
	return best <= (len < 9 ? 3 : (int)len / 3) ? found : NULL;
}

const struct spec_key *fh_spec_difference(const struct fh_spec *a, const struct fh_spec *b)
{
	int n;
	const struct spec_key *key = spec_keys(&n);

	for (int i = 0; i < n; i++) {
		char x[VALUE_TEXT_MAX], y[VALUE_TEXT_MAX];

		spec_get(a, key + i, x, sizeof x);
		spec_get(b, key + i, y, sizeof y);
		if (strcmp(x, y))
			return key + i;
	}
	return NULL;
}
