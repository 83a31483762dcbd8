/* Timestamps of bar files: every known form to the nanosecond, invalid dates refused, zones right at their changes. */
#include <time.h>

#include "client/import/timestamp.h"
#include "client/import/zone.h"
#include "tests/unit/golden.h"

#define SEC(s) ((s) * NS_PER_SECOND)

static void forms(void **arg)
{
	static const struct { const char *text; int64_t ns; int zoned; } row[] = {
		{"2024-01-02T09:00:00Z", SEC(1704186000), 1}, {"2024-01-02T09:00:00", SEC(1704186000), 0},
		{"2024-01-02 09:00:00", SEC(1704186000), 0}, {"2024-01-02 09:00", SEC(1704186000), 0},
		{" 2024-01-02T09:00Z ", SEC(1704186000), 1}, {"2024-01-02T10:00:00+01:00", SEC(1704186000), 1},
		{"2024-01-02T03:30:00-0530", SEC(1704186000), 1}, {"2024-01-02 08:00:00-01", SEC(1704186000), 1},
		{"2024-01-02 09:00:00+00:00", SEC(1704186000), 1}, {"2024-01-02 09:00:00 UTC", SEC(1704186000), 1},
		{"02.01.2024 10:00:00.000 GMT+0100", SEC(1704186000), 1}, {"2024-01-02", SEC(1704153600), 0},
		{"2024/01/02", SEC(1704153600), 0}, {"2024.01.02", SEC(1704153600), 0}, {"2024.01.02 09:00", SEC(1704186000), 0},
		{"2024-1-2 9:00", SEC(1704186000), 0}, {"02.01.2024", SEC(1704153600), 0}, {"2.1.2024 9:00", SEC(1704186000), 0},
		{"02.01.2024 09:00:00", SEC(1704186000), 0}, {"02.01.2024 09:00:00.250", SEC(1704186000) + 250000000, 0},
		{"20240102", SEC(1704153600), 0}, {"20240102 09:00", SEC(1704186000), 0}, {"20240102 09:00:00", SEC(1704186000), 0},
		{"20240102 090000", SEC(1704186000), 0}, {"20240102T0900", SEC(1704186000), 0}, {"20240102090000", SEC(1704186000), 0},
		{"2024-01-02 09:00:00.123456", SEC(1704186000) + 123456000, 0}, {"2024-01-02T09:00:00.123456789Z", SEC(1704186000) + 123456789, 1},
		{"2024-01-02 09:00:00,5", SEC(1704186000) + 500000000, 0}, {"2024-01-02 09:00:00.1234567890", SEC(1704186000) + 123456789, 0},
		{"1704186000", SEC(1704186000), 1}, {"1704186000000", SEC(1704186000), 1}, {"1704186000000000", SEC(1704186000), 1},
		{"1704186000000000000", SEC(1704186000), 1}, {"1704186000.25", SEC(1704186000) + 250000000, 1},
		{"1704186000000.5", SEC(1704186000) + 500000, 1}, {"-1000000000", -SEC(1000000000), 1},
		{"99999999999", 99999999999, 1}, /* replaced below: beyond 2262 in seconds */
		{"1969-12-31T23:59:59.999999999Z", -1, 1}, {"1678-01-01", SEC(-9214560000), 0}, {"2262-04-11T23:47:16.854775807Z", INT64_MAX, 1},
		{"2000-02-29", SEC(951782400), 0}, {"2024-02-29", SEC(1709164800), 0}
	};

	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		struct timestamp t = {7, 7};
		enum timestamp_result r = timestamp_parse(row[i].text, strlen(row[i].text), INT64_MIN, &t);
		if (!strcmp(row[i].text, "99999999999")) {
			assert_int_equal(r, TIMESTAMP_RANGE);
			continue;
		}
		if (r || t.ns != row[i].ns || t.zoned != row[i].zoned)
			fail_msg("'%s' %s: %lld, zoned %d", row[i].text, timestamp_result_text(r), (long long)t.ns, t.zoned);
	}
}

static void refusals(void **arg)
{
	static const struct { const char *text; enum timestamp_result want; } row[] = {
		{"", TIMESTAMP_EMPTY}, {"  ", TIMESTAMP_EMPTY}, {"yesterday", TIMESTAMP_SYNTAX}, {"2023-02-29", TIMESTAMP_NO_DATE},
		{"1900-02-29", TIMESTAMP_NO_DATE}, {"2100-02-29", TIMESTAMP_NO_DATE}, {"2024-02-30", TIMESTAMP_NO_DATE},
		{"2024-04-31", TIMESTAMP_NO_DATE}, {"2024-13-01", TIMESTAMP_NO_DATE}, {"2024-00-10", TIMESTAMP_NO_DATE},
		{"2024-01-00", TIMESTAMP_NO_DATE}, {"32.01.2024", TIMESTAMP_NO_DATE}, {"01.13.2024", TIMESTAMP_NO_DATE},
		{"2024-01-02 24:00", TIMESTAMP_NO_TIME}, {"2024-01-02 12:60", TIMESTAMP_NO_TIME}, {"2024-01-02 12:00:60", TIMESTAMP_NO_TIME},
		{"2024-01-02T09:00:00+16:00", TIMESTAMP_NO_TIME}, {"03/04/2024", TIMESTAMP_AMBIGUOUS}, {"12/31/2024 09:00", TIMESTAMP_AMBIGUOUS},
		{"31-12-2024", TIMESTAMP_AMBIGUOUS}, {"2024-01-02T09:00:00X", TIMESTAMP_SYNTAX}, {"2024-01-02x", TIMESTAMP_SYNTAX},
		{"2024-01-02T", TIMESTAMP_OK}, {"2024-01", TIMESTAMP_SYNTAX}, {"2024-01-02 09", TIMESTAMP_SYNTAX},
		{"2024-01-02 09:00:00.", TIMESTAMP_SYNTAX}, {"2024-01-02T09:00:00+1", TIMESTAMP_SYNTAX}, {"79200000", TIMESTAMP_DAY_MS},
		{"10800000", TIMESTAMP_DAY_MS}, {"0", TIMESTAMP_DAY_MS}, {"99999999999999999999", TIMESTAMP_RANGE},
		{"9223372036854775808", TIMESTAMP_RANGE}, {"2263-01-01", TIMESTAMP_RANGE}, {"1600-01-01", TIMESTAMP_RANGE},
		{"1704186000.1234567891", TIMESTAMP_PRECISION}, {"1704186000000.1234567", TIMESTAMP_PRECISION},
		{"2024-01-02 09:00:00.1234567891", TIMESTAMP_PRECISION}, {"0x1234", TIMESTAMP_SYNTAX}, {"1.7e9", TIMESTAMP_SYNTAX},
		{"NaT", TIMESTAMP_SYNTAX}, {"--5", TIMESTAMP_SYNTAX}, {"2024-01-02T09:00:00\xc3", TIMESTAMP_SYNTAX}
	};

	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		struct timestamp t = {7, 7};
		enum timestamp_result r = timestamp_parse(row[i].text, strlen(row[i].text), INT64_MIN, &t);
		if (r != row[i].want)
			fail_msg("'%s' %s, and not: %s", row[i].text, timestamp_result_text(r), timestamp_result_text(row[i].want));
		assert_true(!r || t.ns == 7);
	}
}

static void milliseconds_of_a_day(void **arg)
{
	struct timestamp t;
	int64_t day = SEC(1704153600);

	assert_int_equal(timestamp_parse("0", 1, day, &t), TIMESTAMP_OK);
	assert_true(t.ns == day);
	assert_int_equal(timestamp_parse("79200000", 8, day, &t), TIMESTAMP_OK);
	assert_true(t.ns == day + SEC(79200));
	assert_int_equal(timestamp_parse("86400000", 8, day, &t), TIMESTAMP_NO_TIME);
}

static void date_and_time_of_day(void **arg)
{
	struct timestamp t;

	assert_int_equal(timestamp_parse_pair("2024-01-02", 10, "09:00:00", 8, &t), TIMESTAMP_OK);
	assert_true(t.ns == SEC(1704186000) && !t.zoned);
	assert_int_equal(timestamp_parse_pair("20240102", 8, "0900", 4, &t), TIMESTAMP_OK);
	assert_true(t.ns == SEC(1704186000));
	assert_int_equal(timestamp_parse_pair("2024.01.02", 10, "09:00", 5, &t), TIMESTAMP_OK);
	assert_int_equal(timestamp_parse_pair("2024-01-02", 10, "", 0, &t), TIMESTAMP_EMPTY);
	assert_int_equal(timestamp_parse_pair("2024-01-02", 10, "3602.00", 7, &t), TIMESTAMP_NO_TIME);
	assert_int_equal(timestamp_parse_pair("2024-01-02", 10, "1202.00", 7, &t), TIMESTAMP_SYNTAX);
	assert_int_equal(timestamp_parse_pair("2024-01-02 09:00", 16, "09:00", 5, &t), TIMESTAMP_SYNTAX);
}

/* Every day of three centuries against the C library's calendar, and back through text. */
static void calendar_agrees_with_the_c_library(void **arg)
{
	char text[TIMESTAMP_TEXT_MAX];

	for (int64_t d = days_from_civil(1800, 1, 1); d <= days_from_civil(2200, 1, 1); d++) {
		time_t s = (time_t)(d * 86400);
		struct tm tm;
		int64_t year;
		unsigned month, day;
		gmtime_r(&s, &tm);
		civil_from_days(d, &year, &month, &day);
		assert_true(year == tm.tm_year + 1900 && month == (unsigned)tm.tm_mon + 1 && day == (unsigned)tm.tm_mday);
		assert_true(days_from_civil(year, month, day) == d);
		struct timestamp t;
		int64_t ns = d * NS_PER_DAY + (d * 7919 % 86400) * NS_PER_SECOND + (d % 3 ? d % 3 * 1001 : 0);
		timestamp_format(ns, text);
		assert_int_equal(timestamp_parse(text, strlen(text), INT64_MIN, &t), TIMESTAMP_OK);
		assert_true(t.ns == ns);
	}
	assert_string_equal(timestamp_format(INT64_MIN, text), "1677-09-21T00:12:43.145224192Z");
	assert_string_equal(timestamp_format(INT64_MAX, text), "2262-04-11T23:47:16.854775807Z");
}

static int64_t at(const char *text)
{
	struct timestamp t;

	assert_int_equal(timestamp_parse(text, strlen(text), INT64_MIN, &t), TIMESTAMP_OK);
	return t.ns;
}

static void zones_at_their_changes(void **arg)
{
	static const struct { const char *zone, *local; enum zone_fold fold; enum zone_result want; const char *utc; } row[] = {
		{"Europe/Berlin", "2024-01-15 12:00", ZONE_REFUSE, ZONE_OK, "2024-01-15 11:00"},
		{"Europe/Berlin", "2024-07-15 12:00", ZONE_REFUSE, ZONE_OK, "2024-07-15 10:00"},
		{"Europe/Berlin", "2024-03-31 01:59", ZONE_REFUSE, ZONE_OK, "2024-03-31 00:59"},
		{"Europe/Berlin", "2024-03-31 02:00", ZONE_REFUSE, ZONE_GAP, NULL},
		{"Europe/Berlin", "2024-03-31 02:59", ZONE_FIRST, ZONE_GAP, NULL},
		{"Europe/Berlin", "2024-03-31 03:00", ZONE_REFUSE, ZONE_OK, "2024-03-31 01:00"},
		{"Europe/Berlin", "2024-10-27 01:59", ZONE_REFUSE, ZONE_OK, "2024-10-26 23:59"},
		{"Europe/Berlin", "2024-10-27 02:30", ZONE_REFUSE, ZONE_AMBIGUOUS, NULL},
		{"Europe/Berlin", "2024-10-27 02:30", ZONE_FIRST, ZONE_OK, "2024-10-27 00:30"},
		{"Europe/Berlin", "2024-10-27 02:30", ZONE_SECOND, ZONE_OK, "2024-10-27 01:30"},
		{"Europe/Berlin", "2024-10-27 03:00", ZONE_REFUSE, ZONE_OK, "2024-10-27 02:00"},
		{"America/New_York", "2006-04-02 02:30", ZONE_REFUSE, ZONE_GAP, NULL}, /* rules of before 2007 */
		{"America/New_York", "2021-03-14 03:00", ZONE_REFUSE, ZONE_OK, "2021-03-14 07:00"},
		{"America/Chicago", "2055-07-01 08:30", ZONE_REFUSE, ZONE_OK, "2055-07-01 13:30"}, /* from the rule, not the table */
		{"America/Chicago", "2055-11-07 01:30", ZONE_SECOND, ZONE_OK, "2055-11-07 07:30"},
		{"Australia/Sydney", "2050-01-15 12:00", ZONE_REFUSE, ZONE_OK, "2050-01-15 01:00"}, /* summer over the new year */
		{"Asia/Tokyo", "2024-06-01 09:00", ZONE_REFUSE, ZONE_OK, "2024-06-01 00:00"},
		{"Asia/Kolkata", "2024-06-01 09:15", ZONE_REFUSE, ZONE_OK, "2024-06-01 03:45"},
		{"UTC", "2024-06-01 09:15", ZONE_REFUSE, ZONE_OK, "2024-06-01 09:15"}
	};

	if (access("/usr/share/zoneinfo/Europe/Berlin", R_OK))
		skip(); /* no tzdata on this machine */
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		struct fh_status st = FH_STATUS_INIT;
		struct zone *z;
		int64_t utc = 0;
		assert_int_equal(zone_open(row[i].zone, &z, &st), 0);
		enum zone_result r = zone_utc(z, at(row[i].local), row[i].fold, &utc);
		if (r != row[i].want || (r == ZONE_OK && utc != at(row[i].utc)))
			fail_msg("%s %s: result %d, %lld", row[i].zone, row[i].local, (int)r, (long long)utc);
		zone_close(z);
	}
}

/* The C library's own zones, hour by hour over thirty years. */
static void zones_agree_with_the_c_library(void **arg)
{
	static const char *const name[] = {"Europe/London", "America/New_York", "Asia/Tehran", "Australia/Lord_Howe"};

	if (access("/usr/share/zoneinfo/Europe/London", R_OK))
		skip();
	for (size_t k = 0; k < sizeof name / sizeof *name; k++) {
		struct fh_status st = FH_STATUS_INIT;
		struct zone *z;
		setenv("TZ", name[k], 1);
		tzset();
		assert_int_equal(zone_open(name[k], &z, &st), 0);
		for (time_t s = 946684800; s < 946684800 + 31LL * 365 * 86400; s += 1800) {
			struct tm tm;
			localtime_r(&s, &tm);
			int64_t local = (days_from_civil(tm.tm_year + 1900, (unsigned)tm.tm_mon + 1, (unsigned)tm.tm_mday) * 86400 +
					 tm.tm_hour * 3600 + tm.tm_min * 60 + tm.tm_sec) * NS_PER_SECOND;
			int64_t first = 0, second = 0;
			assert_int_equal(zone_utc(z, local, ZONE_FIRST, &first), ZONE_OK);
			assert_int_equal(zone_utc(z, local, ZONE_SECOND, &second), ZONE_OK);
			if (first != s * NS_PER_SECOND && second != s * NS_PER_SECOND)
				fail_msg("%s: %lld", name[k], (long long)s);
		}
		zone_close(z);
	}
	unsetenv("TZ");
	tzset();
}

static void zone_names_are_no_paths(void **arg)
{
	static const char *const bad[] = {"", "/etc/passwd", "../../../etc/passwd", "Europe/../../x", "a b", "Europe/Berlin;x", "."};
	struct zone *z = NULL;

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct fh_status st = FH_STATUS_INIT;
		assert_int_equal(zone_open(bad[i], &z, &st), FH_INVALID);
		assert_string_equal(st.field, "--tz");
	}
	assert_int_equal(zone_open("Mars/Olympus", &z, NULL), FH_NOT_FOUND);
	assert_null(z);
}

static void spans_for_people(void **arg)
{
	char text[TIMESTAMP_TEXT_MAX];

	assert_string_equal(span_format(60 * NS_PER_SECOND, text), "1m");
	assert_string_equal(span_format(49 * 3600 * NS_PER_SECOND, text), "2d 1h");
	assert_string_equal(span_format(90 * NS_PER_SECOND, text), "1m 30s");
	assert_string_equal(span_format(500000000, text), "0.5s");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(forms), cmocka_unit_test(refusals), cmocka_unit_test(milliseconds_of_a_day),
		cmocka_unit_test(date_and_time_of_day), cmocka_unit_test(calendar_agrees_with_the_c_library),
		cmocka_unit_test(zones_at_their_changes), cmocka_unit_test(zones_agree_with_the_c_library),
		cmocka_unit_test(zone_names_are_no_paths), cmocka_unit_test(spans_for_people)
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
