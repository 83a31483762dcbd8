/* Timestamps of market data files (timestamp.h).
 *
 * A cursor walks the text once: the number of leading digits and the character after them decide the form. Any thread.
 * Invariant: a text is read one way only; where two readings exist (03/04/2024) it is refused. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "client/import/timestamp.h"

/* An epoch number counts seconds below 1e11 (year 5138), milliseconds below 1e14, microseconds below 1e17. */
#define EPOCH_MS_FROM INT64_C(100000000000)
#define EPOCH_US_FROM INT64_C(100000000000000)
#define EPOCH_NS_FROM INT64_C(100000000000000000)
#define MS_PER_DAY 86400000
#define FRACTION_DIGITS 9
#define OFFSET_HOURS_MAX 15

struct cursor { const char *p, *e; };

int64_t days_from_civil(int64_t year, unsigned month, unsigned day)
{
	/* The year begins in March, so that the leap day is its last; 400 years are 146,097 days. */
	year -= month <= 2;
	int64_t era = (year >= 0 ? year : year - 399) / 400;
	unsigned yoe = (unsigned)(year - era * 400);
	unsigned doy = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
	unsigned doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
	return era * 146097 + (int64_t)doe - 719468;
}

void civil_from_days(int64_t days, int64_t *year, unsigned *month, unsigned *day)
{
	days += 719468;
	int64_t era = (days >= 0 ? days : days - 146096) / 146097;
	unsigned doe = (unsigned)(days - era * 146097);
	unsigned yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
	unsigned doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
	unsigned mp = (5 * doy + 2) / 153;
	*day = doy - (153 * mp + 2) / 5 + 1;
	*month = mp < 10 ? mp + 3 : mp - 9;
	*year = (int64_t)yoe + era * 400 + (*month <= 2);
}

static int is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static void trim(struct cursor *c)
{
	while (c->p < c->e && (*c->p == ' ' || *c->p == '\t'))
		c->p++;
	while (c->p < c->e && (c->e[-1] == ' ' || c->e[-1] == '\t'))
		c->e--;
}

static size_t count_digits(const struct cursor *c)
{
	size_t n = 0;
	while (c->p + n < c->e && is_digit(c->p[n]))
		n++;
	return n;
}

/* Exactly n digits, or -1. */
static int take(struct cursor *c, int n)
{
	int v = 0;

	if (c->e - c->p < n)
		return -1;
	for (int i = 0; i < n; i++) {
		if (!is_digit(c->p[i]))
			return -1;
		v = v * 10 + (c->p[i] - '0');
	}
	c->p += n;
	return v;
}

static int take_char(struct cursor *c, char want)
{
	if (c->p >= c->e || *c->p != want)
		return 0;
	c->p++;
	return 1;
}

static enum timestamp_result day_ns(int year, int month, int day, int64_t *days)
{
	static const unsigned char length[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};

	if (month < 1 || month > 12 || day < 1)
		return TIMESTAMP_NO_DATE;
	int leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
	if (day > length[month - 1] + (month == 2 && leap))
		return TIMESTAMP_NO_DATE;
	*days = days_from_civil(year, (unsigned)month, (unsigned)day);
	return TIMESTAMP_OK;
}

/* The digits after a decimal point, as ns. */
static enum timestamp_result take_fraction(struct cursor *c, int64_t *ns)
{
	size_t n = count_digits(c);
	int64_t v = 0;

	if (!n)
		return TIMESTAMP_SYNTAX;
	for (size_t i = 0; i < n || i < FRACTION_DIGITS; i++) {
		int d = i < n ? c->p[i] - '0' : 0;
		if (i < FRACTION_DIGITS)
			v = v * 10 + d;
		else if (d)
			return TIMESTAMP_PRECISION;
	}
	c->p += n;
	*ns = v;
	return TIMESTAMP_OK;
}

/* Z, UTC, GMT, +01, +0100, +01:00, GMT+0100 at the end of the text. */
static enum timestamp_result take_zone(struct cursor *c, int64_t *offset_ns, int *zoned)
{
	while (take_char(c, ' '))
		;
	if (c->p == c->e)
		return TIMESTAMP_OK;
	if (c->e - c->p == 1 && (*c->p == 'Z' || *c->p == 'z')) {
		c->p++;
		*zoned = 1;
		return TIMESTAMP_OK;
	}
	if (c->e - c->p >= 3 && (!strncasecmp(c->p, "UTC", 3) || !strncasecmp(c->p, "GMT", 3))) {
		c->p += 3;
		*zoned = 1;
		if (c->p == c->e)
			return TIMESTAMP_OK;
	}
	int sign = take_char(c, '+') ? 1 : take_char(c, '-') ? -1 : 0;
	int hours = sign ? take(c, 2) : -1, minutes = 0;
	if (hours < 0)
		return TIMESTAMP_SYNTAX;
	if (c->p < c->e) {
		take_char(c, ':');
		minutes = take(c, 2);
	}
	if (minutes < 0 || c->p != c->e)
		return TIMESTAMP_SYNTAX;
	if (hours > OFFSET_HOURS_MAX || minutes > 59)
		return TIMESTAMP_NO_TIME;
	*offset_ns = sign * (hours * 3600 + minutes * 60) * NS_PER_SECOND;
	*zoned = 1;
	return TIMESTAMP_OK;
}

/* HH:MM[:SS[.f]] or HHMM[SS], then the zone. `h` has one or two digits. */
static enum timestamp_result take_time(struct cursor *c, int64_t *ns, int64_t *offset_ns, int *zoned)
{
	size_t n = count_digits(c);
	int colon = n <= 2;
	int h = n == 1 ? take(c, 1) : take(c, 2), s = 0;
	int64_t fraction = 0;

	if (h < 0 || (colon && !take_char(c, ':')) || (!colon && n != 4 && n != 6))
		return TIMESTAMP_SYNTAX;
	int m = take(c, 2);
	if (m < 0)
		return TIMESTAMP_SYNTAX;
	if (colon ? take_char(c, ':') : n == 6) {
		s = take(c, 2);
		if (s < 0)
			return TIMESTAMP_SYNTAX;
		if (take_char(c, '.') || take_char(c, ',')) {
			enum timestamp_result r = take_fraction(c, &fraction);
			if (r)
				return r;
		}
	}
	if (h > 23 || m > 59 || s > 59)
		return TIMESTAMP_NO_TIME;
	*ns = (h * 3600 + m * 60 + s) * NS_PER_SECOND + fraction;
	return take_zone(c, offset_ns, zoned);
}

/* The date at the cursor; TIMESTAMP_SYNTAX when there is none of a known form. */
static enum timestamp_result take_date(struct cursor *c, int64_t *days)
{
	size_t n = count_digits(c);
	char sep = c->p + n < c->e ? c->p[n] : '\0';

	if (n == 8 || n == 14) {
		int y = take(c, 4), m = take(c, 2), d = take(c, 2);
		return day_ns(y, m, d, days);
	}
	if (n == 4 && (sep == '-' || sep == '/' || sep == '.')) {
		int y = take(c, 4);
		c->p++;
		int m = count_digits(c) == 1 ? take(c, 1) : take(c, 2);
		if (m < 0 || !take_char(c, sep))
			return TIMESTAMP_SYNTAX;
		int d = count_digits(c) == 1 ? take(c, 1) : take(c, 2);
		return d < 0 || (c->p < c->e && is_digit(*c->p)) ? TIMESTAMP_SYNTAX : day_ns(y, m, d, days);
	}
	if ((n == 1 || n == 2) && (sep == '.' || sep == '/' || sep == '-')) {
		int d = take(c, (int)n);
		c->p++;
		int m = count_digits(c) == 1 ? take(c, 1) : take(c, 2);
		if (m < 0 || !take_char(c, sep) || count_digits(c) != 4)
			return TIMESTAMP_SYNTAX;
		int y = take(c, 4);
		if (sep != '.')
			return TIMESTAMP_AMBIGUOUS;
		return day_ns(y, m, d, days);
	}
	return TIMESTAMP_SYNTAX;
}

static enum timestamp_result combine(int64_t days, int64_t ns, int64_t offset, struct timestamp *out)
{
	int64_t v;

	if (__builtin_mul_overflow(days, NS_PER_DAY, &v) || __builtin_add_overflow(v, ns, &v) ||
	    __builtin_sub_overflow(v, offset, &v))
		return TIMESTAMP_RANGE;
	out->ns = v;
	return TIMESTAMP_OK;
}

/* [-]digits[.digits], the unit by magnitude. */
static enum timestamp_result parse_epoch(struct cursor c, int64_t date, struct timestamp *out)
{
	int negative = take_char(&c, '-');
	size_t n = count_digits(&c);
	int64_t v = 0, unit = NS_PER_SECOND, fraction = 0;

	if (!n)
		return TIMESTAMP_SYNTAX;
	for (size_t i = 0; i < n; i++)
		if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, c.p[i] - '0', &v))
			return TIMESTAMP_RANGE;
	c.p += n;
	if (take_char(&c, '.')) {
		enum timestamp_result r = take_fraction(&c, &fraction);
		if (r)
			return r;
	}
	if (c.p != c.e)
		return TIMESTAMP_SYNTAX;
	if (date != INT64_MIN) {
		if (v >= MS_PER_DAY || negative)
			return TIMESTAMP_NO_TIME;
		out->ns = date + v * 1000000 + fraction / 1000;
		out->zoned = 0;
		return TIMESTAMP_OK;
	}
	if (v < MS_PER_DAY)
		return TIMESTAMP_DAY_MS;
	if (v >= EPOCH_NS_FROM)
		unit = 1;
	else if (v >= EPOCH_US_FROM)
		unit = 1000;
	else if (v >= EPOCH_MS_FROM)
		unit = 1000000;
	if (fraction % (NS_PER_SECOND / unit))
		return TIMESTAMP_PRECISION;
	if (__builtin_mul_overflow(v, unit, &v) || __builtin_add_overflow(v, fraction / (NS_PER_SECOND / unit), &v))
		return TIMESTAMP_RANGE;
	out->ns = negative ? -v : v;
	out->zoned = 1;
	return TIMESTAMP_OK;
}

enum timestamp_result timestamp_parse(const char *p, size_t len, int64_t date, struct timestamp *out)
{
	struct cursor c = {p, p + len};
	struct timestamp t = {0, 0};
	int64_t days, ns = 0, offset = 0;

	trim(&c);
	if (c.p == c.e)
		return TIMESTAMP_EMPTY;
	size_t n = count_digits(&c);
	int whole = c.p + n == c.e;
	int compact = (n == 8 || (n == 14 && whole)) && (c.p[0] == '1' || c.p[0] == '2') && date == INT64_MIN;
	enum timestamp_result r;
	if (!compact && (whole || *c.p == '-' || (n > 4 && c.p[n] == '.'))) {
		r = parse_epoch(c, date, &t);
	} else {
		r = take_date(&c, &days);
		if (!r && c.p < c.e && !(whole && n == 14) && !take_char(&c, 'T') && !take_char(&c, ' ') && !take_char(&c, 't'))
			r = TIMESTAMP_SYNTAX;
		while (!r && take_char(&c, ' '))
			;
		if (!r && c.p < c.e)
			r = take_time(&c, &ns, &offset, &t.zoned);
		if (!r)
			r = combine(days, ns, offset, &t);
		if (whole && n == 8 && (r == TIMESTAMP_NO_DATE || r == TIMESTAMP_RANGE))
			r = TIMESTAMP_DAY_MS; /* 10800000 is 03:00, no date */
	}
	if (!r)
		*out = t;
	return r;
}

enum timestamp_result timestamp_parse_pair(const char *d, size_t dlen, const char *t, size_t tlen, struct timestamp *out)
{
	struct cursor dc = {d, d + dlen}, tc = {t, t + tlen};
	struct timestamp v = {0, 0};
	int64_t days, ns, offset = 0;

	trim(&dc);
	trim(&tc);
	if (dc.p == dc.e || tc.p == tc.e)
		return TIMESTAMP_EMPTY;
	enum timestamp_result r = take_date(&dc, &days);
	if (!r && dc.p != dc.e)
		r = TIMESTAMP_SYNTAX;
	if (!r)
		r = take_time(&tc, &ns, &offset, &v.zoned);
	if (!r)
		r = combine(days, ns, offset, &v);
	if (!r)
		*out = v;
	return r;
}

const char *timestamp_result_text(enum timestamp_result r)
{
	switch (r) {
	case TIMESTAMP_OK: return "is a time";
	case TIMESTAMP_EMPTY: return "is empty";
	case TIMESTAMP_NO_DATE: return "is no date of the calendar";
	case TIMESTAMP_NO_TIME: return "is no time of the day";
	case TIMESTAMP_RANGE: return "is outside the years 1678 to 2261";
	case TIMESTAMP_AMBIGUOUS: return "may have day or month first; write YYYY-MM-DD";
	case TIMESTAMP_DAY_MS: return "looks like milliseconds of a day; name the day with --date";
	case TIMESTAMP_PRECISION: return "has digits below a nanosecond";
	case TIMESTAMP_SYNTAX: break;
	}
	return "is no known form of time";
}

const char *timestamp_format(int64_t ns, char text[TIMESTAMP_TEXT_MAX])
{
	int64_t days = ns / NS_PER_DAY - (ns % NS_PER_DAY < 0), rest = ns % NS_PER_DAY, year;
	unsigned month, day;

	rest += rest < 0 ? NS_PER_DAY : 0;
	civil_from_days(days, &year, &month, &day);
	int s = (int)(rest / NS_PER_SECOND), f = (int)(rest % NS_PER_SECOND);
	int n = snprintf(text, TIMESTAMP_TEXT_MAX, "%04d-%02u-%02uT%02d:%02d:%02d", (int)year, month, day, s / 3600,
			 s / 60 % 60, s % 60);
	char *at = text + n;
	size_t room = TIMESTAMP_TEXT_MAX - (size_t)n;
	if (!f)
		snprintf(at, room, "Z");
	else if (f % 1000000 == 0)
		snprintf(at, room, ".%03dZ", f / 1000000);
	else if (f % 1000 == 0)
		snprintf(at, room, ".%06dZ", f / 1000);
	else
		snprintf(at, room, ".%09dZ", f);
	return text;
}

const char *span_format(int64_t ns, char text[TIMESTAMP_TEXT_MAX])
{
	int64_t s = ns / NS_PER_SECOND;
	int n = 0;
	static const struct { int64_t seconds; const char *unit; } step[] = {{86400, "d"}, {3600, "h"}, {60, "m"}, {1, "s"}};

	if (ns % NS_PER_SECOND || ns < NS_PER_SECOND) {
		snprintf(text, TIMESTAMP_TEXT_MAX, "%.9gs", (double)ns / (double)NS_PER_SECOND);
		return text;
	}
	for (int i = 0; i < 4; i++) {
		int64_t k = s / step[i].seconds;
		s -= k * step[i].seconds;
		if (k)
			n += snprintf(text + n, TIMESTAMP_TEXT_MAX - (size_t)n, "%s%lld%s", n ? " " : "", (long long)k, step[i].unit);
	}
	return text;
}
