/* What may be a name, an id, a label, a text: one definition for client and daemon. Pure functions, any thread. */
#include "proto/wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define NAME_LENGTH_MAX 64
#define SHOWN_MAX 80 /* bytes of a wrong value that an error text repeats */

static int name_char(unsigned char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
	       c == '-';
}

int fh_name_ok(const char *s)
{
	size_t n = strnlen(s, NAME_LENGTH_MAX + 1);

	if (n == 0 || n > NAME_LENGTH_MAX || !strcmp(s, ".") || !strcmp(s, ".."))
		return 0;
	for (size_t i = 0; i < n; i++)
		if (!name_char((unsigned char)s[i]))
			return 0;
	return 1;
}

int fh_id_parse(const char *s, uint64_t *id)
{
	unsigned long long x;
	size_t n = strnlen(s, 21);

	if (n == 0 || n > 20 || strspn(s, "0123456789") != n)
		return 0;
	errno = 0;
	x = strtoull(s, NULL, 10);
	if (errno || x == 0)
		return 0;
	*id = x;
	return 1;
}

/* Length of the well-formed sequence at s (1..4), or 0. */
static size_t utf8_length(const unsigned char *s, size_t left)
{
	static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
	size_t n = s[0] < 0x80 ? 1 : (s[0] & 0xe0) == 0xc0 ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : (s[0] & 0xf8) == 0xf0 ? 4 : 0;
	uint32_t x;

	if (n <= 1)
		return n && s[0] ? 1 : 0;
	if (n > left)
		return 0;
	x = s[0] & (0x7fu >> n);
	for (size_t i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		x = x << 6 | (s[i] & 0x3f);
	}
	return x < least[n] || x > 0x10ffff || (x >= 0xd800 && x <= 0xdfff) ? 0 : n;
}

int fh_utf8_ok(const void *text, size_t len)
{
	const unsigned char *s = text;

	for (size_t i = 0, n; i < len; i += n) {
		n = utf8_length(s + i, len - i);
		if (n == 0)
			return 0;
	}
	return 1;
}

/* Repeats a wrong value in a message: cut, and without bytes that would upset a terminal. */
static const char *shown(const char *s, char buf[SHOWN_MAX + 4])
{
	size_t n = 0;

	for (; n < SHOWN_MAX && s[n]; n++)
		buf[n] = (unsigned char)s[n] < 0x20 || s[n] == 0x7f || (unsigned char)s[n] >= 0x80 ? '?' : s[n];
	memcpy(buf + n, s[n] ? "..." : "", s[n] ? 4 : 1);
	return buf;
}

int fh_name_check(const char *field, const char *s, struct fh_status *st)
{
	char buf[SHOWN_MAX + 4];

	if (!s || !*s)
		return fh_fail_field(st, FH_INVALID, field, "a name is missing");
	if (!fh_name_ok(s))
		return fh_fail_field(st, FH_INVALID, field,
				     "'%s' is not a name: 1 to 64 letters, digits, dots, dashes or underscores",
				     shown(s, buf));
	return 0;
}

int fh_job_name_check(const char *field, const char *s, struct fh_status *st)
{
	int rc = fh_name_check(field, s, st);

	if (rc == 0 && strspn(s, "0123456789") == strlen(s))
		return fh_fail_field(st, FH_INVALID, field, "'%s' has digits only, which would be an id: add a letter", s);
	return rc;
}

int fh_job_ref_check(const char *field, const char *s, struct fh_status *st)
{
	return fh_name_check(field, s, st);
}

static int label_value_ok(const char *s)
{
	size_t n = strnlen(s, FH_LABEL_VALUE_MAX + 1);

	if (n > FH_LABEL_VALUE_MAX || !fh_utf8_ok(s, n))
		return 0;
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
			return 0;
	return 1;
}

int fh_labels_check(Fh__V1__Label *const *label, size_t n, struct fh_status *st)
{
	char field[FH_FIELD_MAX];
	int rc;

	if (n > FH_LABELS_MAX)
		return fh_fail_field(st, FH_INVALID, "labels", "%zu labels, at most %d are allowed", n, FH_LABELS_MAX);
	for (size_t i = 0; i < n; i++) {
		rc = fh_name_check("labels", label[i]->key, st);
		if (rc)
			return rc;
		snprintf(field, sizeof field, "labels.%s", label[i]->key);
		if (!label_value_ok(label[i]->value ? label[i]->value : ""))
			return fh_fail_field(st, FH_INVALID, field,
					     "not a label value: at most %d bytes of text without control characters",
					     FH_LABEL_VALUE_MAX);
		for (size_t j = 0; j < i; j++)
			if (!strcmp(label[j]->key, label[i]->key))
				return fh_fail_field(st, FH_INVALID, field, "the label is given twice");
	}
	return 0;
}

void fh_request_id_new(char id[FH_REQUEST_ID_SIZE])
{
	static const char digit[] = "0123456789abcdef";
	unsigned char raw[(FH_REQUEST_ID_SIZE - 1) / 2];

	if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw) {
		/* No entropy source: time and process id still tell two clients apart. */
		struct timespec t;
		uint64_t x[2];

		clock_gettime(CLOCK_REALTIME, &t);
		x[0] = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
		x[1] = (uint64_t)getpid() << 32 | (uint32_t)(uintptr_t)id;
		memcpy(raw, x, sizeof raw);
	}
	for (size_t i = 0; i < sizeof raw; i++) {
		id[2 * i] = digit[raw[i] >> 4];
		id[2 * i + 1] = digit[raw[i] & 15];
	}
	id[FH_REQUEST_ID_SIZE - 1] = 0;
}
