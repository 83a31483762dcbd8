/* Timestamps of market data files to nanoseconds since 1970-01-01 UTC. Pure functions, any thread. */
#ifndef FH_IMPORT_TIMESTAMP_H
#define FH_IMPORT_TIMESTAMP_H

#include <stddef.h>
#include <stdint.h>

#define NS_PER_SECOND INT64_C(1000000000)
#define NS_PER_DAY (86400 * NS_PER_SECOND)
#define TIMESTAMP_TEXT_MAX 40 /* "YYYY-MM-DDTHH:MM:SS.nnnnnnnnnZ" and room */

enum timestamp_result {
	TIMESTAMP_OK = 0,
	TIMESTAMP_EMPTY,
	TIMESTAMP_SYNTAX,    /* no form that is known */
	TIMESTAMP_NO_DATE,   /* 2023-02-29, 2024-13-01 */
	TIMESTAMP_NO_TIME,   /* 24:30, 12:60 */
	TIMESTAMP_RANGE,     /* outside 1677-09-21 … 2262-04-11 */
	TIMESTAMP_AMBIGUOUS, /* 03/04/2024: day or month first? */
	TIMESTAMP_DAY_MS,    /* a small number: milliseconds of a day without its date */
	TIMESTAMP_PRECISION  /* digits below a nanosecond that are not 0 */
};

struct timestamp {
	int64_t ns;    /* as written; UTC when `zoned` or when the file's zone is UTC */
	int zoned;     /* the text named its offset (Z, +01:00, GMT+1) or is an epoch: no time zone applies */
};

/* `date` names the day of a number of milliseconds (ns since 1970 at its midnight); INT64_MIN when there is none.
 * Forms: ISO 8601 (T or space, fraction to ns, Z or offset), YYYY-MM-DD, YYYY/MM/DD, YYYY.MM.DD, DD.MM.YYYY, each alone
 * or with HH:MM[:SS[.f]]; YYYYMMDD [HH:MM[:SS]], YYYYMMDDHHMMSS; epoch s, ms, us or ns by magnitude. */
enum timestamp_result timestamp_parse(const char *p, size_t len, int64_t date, struct timestamp *out);
/* A date column and a time column. */
enum timestamp_result timestamp_parse_pair(const char *d, size_t dlen, const char *t, size_t tlen, struct timestamp *out);
const char *timestamp_result_text(enum timestamp_result r);

/* "2024-01-02T09:00:00Z" with as many fraction digits (0, 3, 6, 9) as needed. Returns text. */
const char *timestamp_format(int64_t ns, char text[TIMESTAMP_TEXT_MAX]);
/* "1m", "1h", "2d 3h", "90s": a span for people. Returns text. */
const char *span_format(int64_t ns, char text[TIMESTAMP_TEXT_MAX]);
/* Days since 1970-01-01 of a date of the proleptic Gregorian calendar, and back. */
int64_t days_from_civil(int64_t year, unsigned month, unsigned day);
void civil_from_days(int64_t days, int64_t *year, unsigned *month, unsigned *day);

#endif
