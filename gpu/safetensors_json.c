/* Tokens of a safetensors header: the few forms of JSON that the format knows, nothing deeper, so nothing recurses.
 *
 * Owns nothing; strings are handed out in fresh memory. Any thread. Invariant: `at` never passes `end`, whatever the
 * bytes are. */
#include <stdlib.h>
#include <string.h>

#include "gpu/safetensors_json.h"
#include "proto/status.h"

int st_json_utf8_valid(const unsigned char *s, const unsigned char *end)
{
	while (s < end) {
		int n = *s < 0x80 ? 0 : *s >= 0xC2 && *s < 0xE0 ? 1 : *s >= 0xE0 && *s < 0xF0 ? 2 : *s >= 0xF0 && *s < 0xF5 ? 3 : -1;
		unsigned lead = *s++;

		if (n < 0 || end - s < n)
			return 0;
		if ((lead == 0xE0 && *s < 0xA0) || (lead == 0xED && *s >= 0xA0) || (lead == 0xF0 && *s < 0x90) ||
		    (lead == 0xF4 && *s >= 0x90))
			return 0; /* overlong, surrogate, beyond U+10FFFF */
		for (; n; n--)
			if ((*s++ & 0xC0) != 0x80)
				return 0;
	}
	return 1;
}

int st_json_bad(struct st_json *j, const char *what)
{
	return fh_fail(j->st, FH_CORRUPT, "safetensors header: %s at byte %zu", what, (size_t)(j->at - j->start));
}

void st_json_space(struct st_json *j)
{
	while (j->at < j->end && (*j->at == ' ' || *j->at == '\n' || *j->at == '\r' || *j->at == '\t'))
		j->at++;
}

/* 1 and past it when the next token is `c`. */
int st_json_take(struct st_json *j, char c)
{
	st_json_space(j);
	if (j->at < j->end && *j->at == (unsigned char)c) {
		j->at++;
		return 1;
	}
	return 0;
}

int st_json_expect(struct st_json *j, char c)
{
	char what[16] = "'?' expected";

	if (st_json_take(j, c))
		return 0;
	what[1] = c;
	return st_json_bad(j, what);
}

static int hex4(const unsigned char *p)
{
	int v = 0;

	for (int i = 0; i < 4; i++) {
		int c = p[i];
		int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 :
			c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
		if (d < 0)
			return -1;
		v = v * 16 + d;
	}
	return v;
}

static size_t utf8_put(char *out, unsigned v)
{
	if (v < 0x80) {
		out[0] = (char)v;
		return 1;
	}
	if (v < 0x800) {
		out[0] = (char)(0xC0 | v >> 6);
		out[1] = (char)(0x80 | (v & 63));
		return 2;
	}
	if (v < 0x10000) {
		out[0] = (char)(0xE0 | v >> 12);
		out[1] = (char)(0x80 | (v >> 6 & 63));
		out[2] = (char)(0x80 | (v & 63));
		return 3;
	}
	out[0] = (char)(0xF0 | v >> 18);
	out[1] = (char)(0x80 | (v >> 12 & 63));
	out[2] = (char)(0x80 | (v >> 6 & 63));
	out[3] = (char)(0x80 | (v & 63));
	return 4;
}

/* \uXXXX, with its low half when it is a surrogate pair. at stands behind the 'u'. 0 is refused: C strings. */
static int st_json_unicode(struct st_json *j, unsigned *out)
{
	int hi = j->end - j->at >= 4 ? hex4(j->at) : -1, lo;

	if (hi <= 0 || (hi >= 0xDC00 && hi < 0xE000))
		return st_json_bad(j, "bad \\u escape");
	j->at += 4;
	*out = (unsigned)hi;
	if (hi < 0xD800 || hi >= 0xDC00)
		return 0;
	lo = j->end - j->at >= 6 && j->at[0] == '\\' && j->at[1] == 'u' ? hex4(j->at + 2) : -1;
	if (lo < 0xDC00 || lo >= 0xE000)
		return st_json_bad(j, "lone surrogate");
	j->at += 6;
	*out = 0x10000u + ((unsigned)(hi - 0xD800) << 10) + (unsigned)(lo - 0xDC00);
	return 0;
}

/* A string into fresh memory; it never gets longer than its source. */
int st_json_string(struct st_json *j, char **out)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	const unsigned char *close;
	char *s, *w;
	int rc = st_json_expect(j, '"');

	if (rc)
		return rc;
	for (close = j->at; close < j->end && *close != '"'; close++)
		close += *close == '\\';
	if (close >= j->end)
		return st_json_bad(j, "string without an end");
	w = s = malloc((size_t)(close - j->at) + 1);
	if (!s)
		return fh_fail(j->st, FH_EXHAUSTED, "safetensors header: out of memory");
	while (!rc && *j->at != '"') {
		unsigned c = *j->at++;
		const char *e;

		if (c < 0x20) {
			rc = st_json_bad(j, "control character in a string");
		} else if (c != '\\') {
			*w++ = (char)c;
		} else if (*j->at == 'u') {
			j->at++;
			rc = st_json_unicode(j, &c);
			if (!rc)
				w += utf8_put(w, c);
		} else {
			e = *j->at ? strchr(from, *j->at) : NULL;
			if (e)
				*w++ = to[e - from];
			else
				rc = st_json_bad(j, "bad escape");
			j->at++;
		}
	}
	if (rc) {
		free(s);
		return rc;
	}
	j->at++;
	*w = 0;
	*out = s;
	return 0;
}

static int st_json_count(struct st_json *j, int64_t *out)
{
	int64_t v = 0;

	st_json_space(j);
	if (j->at >= j->end || *j->at < '0' || *j->at > '9')
		return st_json_bad(j, "whole number expected");
	while (j->at < j->end && *j->at >= '0' && *j->at <= '9')
		if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *j->at++ - '0', &v))
			return st_json_bad(j, "number too large");
	*out = v;
	return 0;
}

/* "[1, 2, 3]" of at most `max` whole numbers. */
int st_json_counts(struct st_json *j, int64_t *out, int max, int *n, const char *too_many)
{
	int rc = st_json_expect(j, '[');

	*n = 0;
	if (rc || st_json_take(j, ']'))
		return rc;
	do {
		if (*n == max)
			return st_json_bad(j, too_many);
		rc = st_json_count(j, &out[(*n)++]);
	} while (!rc && st_json_take(j, ','));
	return rc ? rc : st_json_expect(j, ']');
}
