/* A time zone of the system's database (zone.h; the file form is RFC 8536).
 *
 * The file's transitions are read into two arrays, and the rule at its end (a POSIX TZ string) is written out as further
 * transitions up to RULE_YEAR_LAST, so that a lookup is one binary search. Any thread reads.
 * Invariant: at[] is strictly increasing and offset[i] holds from at[i] on; before at[0] first_offset holds. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/import/timestamp.h"
#include "client/import/zone.h"
#include "proto/status.h"

#define ZONE_DIR "/usr/share/zoneinfo"
#define ZONE_FILE_MAX (1u << 20)
#define ZONE_NAME_MAX 64
#define HEADER 44
#define RULE_YEAR_LAST 2261
#define TRANSITIONS_MAX 8192
#define DAY INT64_C(86400)

struct zone {
	int64_t at[TRANSITIONS_MAX]; /* seconds UTC */
	int32_t offset[TRANSITIONS_MAX]; /* local - UTC, seconds */
	int n;
	int32_t first_offset;
};

struct rule { int month, week, day, julian; int32_t second; }; /* julian: day of the year instead, from 1, no 29 February */

static int32_t be32(const unsigned char *p)
{
	return (int32_t)((uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]);
}

static int64_t be64(const unsigned char *p)
{
	return (int64_t)((uint64_t)(uint32_t)be32(p) << 32 | (uint32_t)be32(p + 4));
}

static void add(struct zone *z, int64_t at, int32_t offset)
{
	if (z->n < TRANSITIONS_MAX && (!z->n || at > z->at[z->n - 1])) {
		z->at[z->n] = at;
		z->offset[z->n++] = offset;
	}
}

/* ---- the rule at the end: "CET-1CEST,M3.5.0,M10.5.0/3" */

static int number(const char **p, int *out)
{
	int v = 0, any = 0;

	for (; **p >= '0' && **p <= '9' && v < 10000; (*p)++, any = 1)
		v = v * 10 + (**p - '0');
	*out = v;
	return any;
}

/* [+-]h[:m[:s]] in seconds. */
static int clock_text(const char **p, int32_t *out)
{
	int sign = **p == '-' ? -1 : 1, h, m = 0, s = 0;

	*p += **p == '-' || **p == '+';
	if (!number(p, &h))
		return 0;
	if (**p == ':' && (*p)++ && !number(p, &m))
		return 0;
	if (**p == ':' && (*p)++ && !number(p, &s))
		return 0;
	*out = sign * (h * 3600 + m * 60 + s);
	return 1;
}

static int skip_name(const char **p)
{
	const char *from = *p;

	if (**p == '<') {
		*p += strcspn(*p, ">");
		if (**p != '>')
			return 0;
		(*p)++;
	} else {
		while ((**p >= 'A' && **p <= 'Z') || (**p >= 'a' && **p <= 'z'))
			(*p)++;
	}
	return *p > from;
}

static int rule_text(const char **p, struct rule *r)
{
	memset(r, 0, sizeof *r);
	r->second = 2 * 3600;
	if (**p == 'M') {
		(*p)++;
		if (!number(p, &r->month) || *(*p)++ != '.' || !number(p, &r->week) || *(*p)++ != '.' || !number(p, &r->day))
			return 0;
		if (r->month < 1 || r->month > 12 || r->week < 1 || r->week > 5 || r->day > 6)
			return 0;
	} else {
		*p += **p == 'J';
		if (!number(p, &r->julian) || r->julian < 1)
			return 0;
	}
	if (**p == '/') {
		(*p)++;
		return clock_text(p, &r->second);
	}
	return 1;
}

/* Local second (as if UTC) of the rule in a year. */
static int64_t rule_second(const struct rule *r, int year)
{
	int64_t day;

	if (r->julian) {
		int leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
		day = days_from_civil(year, 1, 1) + r->julian - 1 + (leap && r->julian >= 60);
	} else {
		day = days_from_civil(year, (unsigned)r->month, 1);
		int weekday = (int)(((day + 4) % 7 + 7) % 7); /* 1970-01-01 was a Thursday */
		day += (r->day - weekday + 7) % 7 + (r->week - 1) * 7;
		int64_t next = r->month == 12 ? days_from_civil(year + 1, 1, 1) : days_from_civil(year, (unsigned)r->month + 1, 1);
		day -= day >= next ? 7 : 0;
	}
	return day * DAY + r->second;
}

static void expand_rule(struct zone *z, const char *p)
{
	int32_t std, dst;
	struct rule begin, end;
	int64_t year;
	unsigned month, day;

	if (!skip_name(&p) || !clock_text(&p, &std))
		return;
	std = -std;
	if (!z->n)
		z->first_offset = std;
	if (!skip_name(&p))
		return;
	dst = std + 3600;
	if (*p != ',' && clock_text(&p, &dst))
		dst = -dst;
	if (*p++ != ',' || !rule_text(&p, &begin) || *p++ != ',' || !rule_text(&p, &end))
		return;
	civil_from_days(z->n ? z->at[z->n - 1] / DAY : 0, &year, &month, &day);
	for (int y = (int)year; y <= RULE_YEAR_LAST; y++) {
		int64_t b = rule_second(&begin, y) - std, e = rule_second(&end, y) - dst;
		add(z, b < e ? b : e, b < e ? dst : std);
		add(z, b < e ? e : b, b < e ? std : dst);
	}
}

/* ---- the file */

struct counts { size_t isut, isstd, leap, times, types, chars; };

static int header(const unsigned char *p, const unsigned char *e, struct counts *c)
{
	if (e - p < HEADER || memcmp(p, "TZif", 4))
		return 0;
	size_t v[6];
	for (int i = 0; i < 6; i++) {
		v[i] = (uint32_t)be32(p + 20 + 4 * i);
		if (v[i] > ZONE_FILE_MAX)
			return 0;
	}
	*c = (struct counts){v[0], v[1], v[2], v[3], v[4], v[5]};
	return 1;
}

static size_t body(const struct counts *c, size_t time_size)
{
	return c->times * (time_size + 1) + c->types * 6 + c->chars + c->leap * (time_size + 4) + c->isstd + c->isut;
}

static int parse(struct zone *z, const unsigned char *p, size_t size)
{
	const unsigned char *e = p + size;
	struct counts c;

	if (!header(p, e, &c) || p[4] < '2' || (size_t)(e - p) < HEADER + body(&c, 4))
		return 0;
	p += HEADER + body(&c, 4);
	if (!header(p, e, &c) || (size_t)(e - p) < HEADER + body(&c, 8) || !c.types)
		return 0;
	const unsigned char *times = p + HEADER, *index = times + c.times * 8, *types = index + c.times;
	const unsigned char *foot = p + HEADER + body(&c, 8);
	z->first_offset = be32(types);
	for (size_t i = 0; i < c.times; i++) {
		if (index[i] >= c.types)
			return 0;
		add(z, be64(times + 8 * i), be32(types + 6 * index[i]));
	}
	if (foot + 1 < e && *foot == '\n') {
		const unsigned char *nl = memchr(foot + 1, '\n', (size_t)(e - foot - 1));
		char rule[128];
		size_t n = nl ? (size_t)(nl - foot - 1) : 0;
		if (n && n < sizeof rule) {
			memcpy(rule, foot + 1, n);
			rule[n] = '\0';
			expand_rule(z, rule);
		}
	}
	return 1;
}

static int name_is_safe(const char *name)
{
	size_t n = strlen(name);

	return n && n < ZONE_NAME_MAX && name[0] != '/' && name[0] != '.' && !strstr(name, "..") &&
	       strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/_+-") == n;
}

int zone_open(const char *name, struct zone **out, struct fh_status *st)
{
	char path[sizeof ZONE_DIR + ZONE_NAME_MAX + 2];

	if (!name_is_safe(name))
		return fh_fail_field(st, FH_INVALID, "--tz", "'%.40s' is no time zone name; write it like Europe/Berlin", name);
	snprintf(path, sizeof path, "%s/%s", ZONE_DIR, name);
	FILE *f = fopen(path, "rb");
	if (!f)
		return fh_fail_field(st, FH_NOT_FOUND, "--tz", "time zone '%s' is not known here (%s: %s)", name, path, strerror(errno));
	unsigned char *buf = malloc(ZONE_FILE_MAX);
	struct zone *z = calloc(1, sizeof *z);
	size_t n = buf ? fread(buf, 1, ZONE_FILE_MAX, f) : 0;
	int ok = z && buf && parse(z, buf, n), memory = z && buf;
	fclose(f);
	free(buf);
	if (!ok) {
		free(z);
		return memory ? fh_fail_field(st, FH_CORRUPT, "--tz", "%s is no time zone file", path)
			      : fh_fail(st, FH_EXHAUSTED, "no memory for a time zone");
	}
	*out = z;
	return 0;
}

static int64_t offset_at(const struct zone *z, int64_t utc)
{
	int lo = 0, hi = z->n; /* first transition after utc */

	while (lo < hi) {
		int mid = lo + (hi - lo) / 2;
		if (z->at[mid] <= utc)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo ? z->offset[lo - 1] : z->first_offset;
}

enum zone_result zone_utc(const struct zone *z, int64_t local_ns, enum zone_fold fold, int64_t *utc_ns)
{
	int64_t s = local_ns / NS_PER_SECOND - (local_ns % NS_PER_SECOND < 0);
	/* No zone changes twice within two days, so these are the only offsets that can hold. */
	int64_t before = offset_at(z, s - DAY), after = offset_at(z, s + DAY), take;
	int fits_before = offset_at(z, s - before) == before, fits_after = offset_at(z, s - after) == after;

	if (!fits_before && !fits_after)
		return ZONE_GAP;
	if (fits_before && fits_after && before != after) {
		if (fold == ZONE_REFUSE)
			return ZONE_AMBIGUOUS;
		int64_t early = before > after ? before : after; /* the larger offset is the earlier moment */
		take = fold == ZONE_FIRST ? early : before + after - early;
	} else {
		take = fits_before ? before : after;
	}
	*utc_ns = local_ns - take * NS_PER_SECOND;
	return ZONE_OK;
}

void zone_close(struct zone *z)
{
	free(z);
}
