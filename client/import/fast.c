/* Plain rows of delimited text (fast.h).
 *
 * A plain row has times like 2024-01-02 09:00:00 (T or blank, Z or not) or an epoch of 10, 13, 16 or 19 digits, and numbers of digits with
 * at most one point, 15 digits in all: mantissa and power of ten are exact doubles then and one division rounds once, as in
 * number.c. Eight digits are looked at in one word. Pure functions, any thread.
 * Invariant: no byte at or after `end` is looked at beyond the FAST_SPARE bytes that the caller guarantees there. */
#include <string.h>

#include "client/import/fast.h"
#include "client/import/timestamp.h"

#define DIGITS_MAX 15

void fast_init(struct fast *f, const struct columns *c, char delimiter)
{
	memset(f, 0, sizeof *f);
	f->delimiter = delimiter;
	f->fields = c->fields;
	if (c->fields > FAST_FIELDS_MAX || c->at[COLUMN_CLOCK] >= 0 || c->at[COLUMN_SYMBOL] >= 0 || c->flat)
		return;
	memset(f->role, -1, sizeof f->role);
	f->role[c->at[COLUMN_TIME]] = 0;
	for (int k = COLUMN_OPEN; k <= COLUMN_VOLUME; k++)
		if (c->at[k] >= 0)
			f->role[c->at[k]] = 1 + k - COLUMN_OPEN;
	f->on = 1;
}

/* How many of the eight bytes are digits before the first that is none. */
static inline unsigned leading_digits(uint64_t w)
{
	uint64_t x = w ^ UINT64_C(0x3030303030303030);
	uint64_t bad = (((x & UINT64_C(0x7f7f7f7f7f7f7f7f)) + UINT64_C(0x7676767676767676)) | x) & UINT64_C(0x8080808080808080);

	return bad ? (unsigned)__builtin_ctzll(bad) >> 3 : 8;
}

/* The number that the first n (1 to 8) bytes spell: they are moved to the end, zeros in front, and added up in pairs. */
static inline uint64_t digits_value(uint64_t w, unsigned n)
{
	w = (w - UINT64_C(0x3030303030303030)) << (64 - 8 * n);
	w = w * 10 + (w >> 8);
	return (((w & UINT64_C(0x000000ff000000ff)) * UINT64_C(0x000f424000000064)) +
		(((w >> 16) & UINT64_C(0x000000ff000000ff)) * UINT64_C(0x0000271000000001))) >> 32;
}

static const uint64_t whole_power[9] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
static const double power[16] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};

/* Up to 16 digits at *p. */
static inline unsigned take_digits(const char **p, uint64_t *value)
{
	uint64_t w;
	unsigned n, all;

	memcpy(&w, *p, 8);
	all = n = leading_digits(w);
	if (n)
		*value = *value * whole_power[n] + digits_value(w, n);
	if (n == 8) {
		memcpy(&w, *p + 8, 8);
		n = leading_digits(w);
		if (n)
			*value = *value * whole_power[n] + digits_value(w, n);
		all += n;
	}
	*p += all;
	return all;
}

/* NULL: no plain number. Stands behind it otherwise. */
static inline const char *take_number(const char *p, double *out)
{
	uint64_t m = 0;
	int negative = *p == '-';
	unsigned whole, part = 0;

	p += negative;
	whole = take_digits(&p, &m);
	if (!whole || whole > DIGITS_MAX)
		return NULL;
	if (*p == '.') {
		p++;
		part = take_digits(&p, &m);
		if (whole + part > DIGITS_MAX)
			return NULL;
	}
	double v = (double)(int64_t)m;
	v = part ? v / power[part] : v;
	*out = negative ? -v : v;
	return p;
}

static inline int two(const char *p)
{
	unsigned a = (unsigned)(p[0] - '0'), b = (unsigned)(p[1] - '0');
	return a > 9 || b > 9 ? 99 : (int)(a * 10 + b);
}

static const char *take_epoch(const char *p, int64_t *ns)
{
	const char *from = p;
	uint64_t v = 0, w = 0;

	if (*p < '1' || *p > '8')
		return NULL;
	take_digits(&p, &v);
	if (p - from == 16) {
		unsigned more = take_digits(&p, &w);
		if (more > 3)
			return NULL;
		v = v * whole_power[more] + w;
	}
	switch (p - from) {
	case 10:
		*ns = (int64_t)v * NS_PER_SECOND;
		return p;
	case 13:
		*ns = (int64_t)v * 1000000;
		return p;
	case 16:
		*ns = (int64_t)v * 1000;
		return p;
	case 19:
		*ns = (int64_t)v;
		return p;
	default:
		return NULL;
	}
}

static inline const char *take_time(struct fast *f, const char *p, int64_t *ns)
{
	if (p[4] != '-')
		return take_epoch(p, ns);
	if (memcmp(f->day_text, p, 10) != 0) {
		struct timestamp t;
		if (timestamp_parse(p, 10, INT64_MIN, &t) || t.zoned)
			return NULL;
		memcpy(f->day_text, p, 10);
		f->day_ns = t.ns;
	}
	int hour = two(p + 11), minute = two(p + 14), second = two(p + 17);
	if ((p[10] != ' ' && p[10] != 'T') || p[13] != ':' || p[16] != ':' || hour > 23 || minute > 59 || second > 59)
		return NULL;
	*ns = f->day_ns + (hour * 3600 + minute * 60 + second) * NS_PER_SECOND;
	return p + 19 + (p[19] == 'Z');
}

/* One row: the byte after its line feed, or NULL. */
static inline const char *take_row(struct fast *f, const char *p, int64_t *ts, double v[6])
{
	v[5] = 0;
	for (int i = 0; i < f->fields; i++) {
		int role = f->role[i];
		if (role > 0)
			p = take_number(p, &v[role]);
		else if (!role)
			p = take_time(f, p, ts);
		else
			while (*p != f->delimiter && *p != '\n' && *p != '\r')
				p++;
		if (!p)
			return NULL;
		if (i + 1 < f->fields && *p++ != f->delimiter)
			return NULL;
	}
	p += *p == '\r';
	return *p == '\n' ? p + 1 : NULL;
}

const char *fast_take(struct fast *f, const char *p, const char *end, int64_t last, struct fast_rows *out)
{
	double v[6] = {0};
	int64_t ts = 0, n = out->count;

	while (p < end && n < out->room) {
		const char *next = take_row(f, p, &ts, v);
		if (!next || next > end || ts <= last)
			break;
		double top = v[1] > v[4] ? v[1] : v[4], bottom = v[1] < v[4] ? v[1] : v[4];
		if (!(v[2] >= top && v[3] <= bottom && v[5] >= 0))
			break;
		out->ts[n] = last = ts;
		for (int k = 0; k < 5; k++)
			out->value[k][n] = v[k + 1];
		n++;
		p = next;
	}
	out->count = n;
	return p;
}
