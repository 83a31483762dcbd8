/* Bars to longer bars (resample.h).
 *
 * One pass in place: the long bar being made is never ahead of the bar being read. One thread.
 * Invariant: [from, to) is the session of the last bar looked at. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/import/resample.h"
#include "client/import/timestamp.h"
#include "proto/status.h"

#define HOUR_NS (3600 * NS_PER_SECOND)
#define UNITS_MAX 86400 /* of the number in front of the unit */

static int parse_length(const char *text, int64_t *ns)
{
	char *end;
	long n = text[0] >= '0' && text[0] <= '9' ? strtol(text, &end, 10) : 0;

	if (n < 1 || n > UNITS_MAX || !*end || end[1])
		return -1;
	switch (*end) {
	case 's':
		*ns = n * NS_PER_SECOND;
		break;
	case 'm':
		*ns = n * 60 * NS_PER_SECOND;
		break;
	case 'h':
		*ns = n * HOUR_NS;
		break;
	case 'd':
		*ns = n * NS_PER_DAY;
		break;
	default:
		return -1;
	}
	return *ns <= NS_PER_DAY ? 0 : -1;
}

static int parse_clock(const char *text, int64_t *ns, const char **rest)
{
	int hour, minute, used = 0;

	if (sscanf(text, "%2d:%2d%n", &hour, &minute, &used) != 2 || hour < 0 || hour > 23 || minute < 0 || minute > 59)
		return -1;
	*ns = (hour * 60 + minute) * 60 * NS_PER_SECOND;
	*rest = text + used;
	if (**rest && **rest != ' ')
		return -1;
	while (**rest == ' ')
		++*rest;
	return 0;
}

int resample_parse(const char *bar, const char *session, const char *tz, struct resample *out, struct fh_status *st)
{
	struct resample r = {0};
	const char *zone = "";

	if (session && !bar)
		return fh_fail_field(st, FH_INVALID, "--session", "it says where bars of --bar begin; there is no --bar");
	if (bar && parse_length(bar, &r.bar_ns))
		return fh_fail_field(st, FH_INVALID, "--bar", "'%.40s' is no length up to a day: 30s, 5m, 1h, 1d", bar);
	if (session && parse_clock(session, &r.start_ns, &zone))
		return fh_fail_field(st, FH_INVALID, "--session", "'%.40s' is no time of day: \"17:00\" or \"17:00 America/Chicago\"", session);
	zone = *zone ? zone : tz;
	if (bar && zone) {
		int rc = zone_open(zone, &r.zone, st);
		if (rc)
			return rc;
	}
	*out = r;
	return 0;
}

/* When the session of a day begins. A begin that the clock jumps over is moved behind the jump, one that it shows twice is
 * the first. */
static int64_t session_begin(const struct resample *r, int64_t day)
{
	int64_t local = day * NS_PER_DAY + r->start_ns, utc = local;

	if (r->zone && zone_utc(r->zone, local, ZONE_FIRST, &utc) == ZONE_GAP)
		zone_utc(r->zone, local + HOUR_NS, ZONE_FIRST, &utc);
	return utc;
}

/* The session that holds `ts`. No clock is a whole day away from UTC. */
static void find_session(const struct resample *r, int64_t ts, int64_t *from, int64_t *to)
{
	int64_t at = ts - r->start_ns, day = at / NS_PER_DAY - (at % NS_PER_DAY < 0) + 1;

	*to = session_begin(r, day + 1);
	while ((*from = session_begin(r, day)) > ts) {
		*to = *from;
		day--;
	}
}

static void join(struct bars *b, int64_t to, int64_t i)
{
	double *high = &b->value[1][to], *low = &b->value[2][to];

	*high = b->value[1][i] > *high ? b->value[1][i] : *high;
	*low = b->value[2][i] < *low ? b->value[2][i] : *low;
	b->value[3][to] = b->value[3][i];
	b->value[4][to] += b->value[4][i];
}

static int check_length(const struct resample *r, const struct bars *b, struct fh_status *st)
{
	char a[TIMESTAMP_TEXT_MAX], c[TIMESTAMP_TEXT_MAX];
	int64_t least = INT64_MAX;

	for (int64_t i = 1; i < b->count; i++)
		least = b->ts[i] - b->ts[i - 1] < least ? b->ts[i] - b->ts[i - 1] : least;
	if (b->count < 2 || least <= r->bar_ns)
		return 0;
	return fh_fail_field(st, FH_INVALID, "--bar", "the bars are %s apart and more: they cannot make bars of %s", span_format(least, a),
			     span_format(r->bar_ns, c));
}

int resample_bars(const struct resample *r, struct bars *b, struct fh_status *st)
{
	int64_t from = 0, to = 0, made = 0, begin = 0;
	int rc = r->bar_ns ? check_length(r, b, st) : 0;

	if (rc || !r->bar_ns)
		return rc;
	for (int64_t i = 0; i < b->count; i++) {
		if (!made || b->ts[i] < from || b->ts[i] >= to)
			find_session(r, b->ts[i], &from, &to);
		int64_t n = r->bar_ns == NS_PER_DAY ? 0 : (b->ts[i] - from) / r->bar_ns, at = from + n * r->bar_ns;
		int roll = b->contract_of && i && b->contract_of[i] != b->contract_of[i - 1];
		if (made && at == begin && !roll) {
			join(b, made - 1, i);
			continue;
		}
		b->ts[made] = made && at == begin ? b->ts[i] : at; /* a new contract inside the long bar begins one of its own */
		begin = at;
		if (b->contract_of)
			b->contract_of[made] = b->contract_of[i];
		for (int k = 0; k < 5; k++)
			b->value[k][made] = b->value[k][i];
		made++;
	}
	b->count = made;
	return 0;
}

void resample_release(struct resample *r)
{
	zone_close(r->zone);
	r->zone = NULL;
}
