/* Decimal text to double: the nearest double for every text, whatever the locale; anything else is refused by kind. */
#include <locale.h>

#include "client/import/number.h"
#include "tests/unit/golden.h"

static uint64_t state = 88172645463325252ULL;

static uint64_t draw(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static uint64_t bits(double v)
{
	uint64_t u;
	memcpy(&u, &v, sizeof u);
	return u;
}

/* strtod is correctly rounded in the C library here; the parser must give the same bits. */
static void check(const char *text)
{
	double v = 0, want = strtod(text, NULL);
	enum number_result r = number_parse(text, strlen(text), '.', &v);

	if (!isfinite(want)) {
		assert_int_equal(r, NUMBER_INFINITE);
		return;
	}
	if (r != NUMBER_OK || bits(v) != bits(want))
		fail_msg("'%s': %.17g (%s) and not %.17g", text, v, number_result_text(r), want);
}

static void any_double_comes_back_from_17_digits(void **arg)
{
	char text[64];

	for (int i = 0; i < 300000; i++) {
		uint64_t u = draw();
		double v;
		memcpy(&v, &u, sizeof v);
		if (!isfinite(v))
			continue;
		snprintf(text, sizeof text, "%.17g", v);
		check(text);
		double back;
		assert_int_equal(number_parse(text, strlen(text), '.', &back), NUMBER_OK);
		assert_true(bits(back) == bits(v));
	}
}

static void prices_and_volumes_of_every_shape(void **arg)
{
	char text[128];

	for (int i = 0; i < 400000; i++) {
		int whole = (int)(draw() % 19), frac = (int)(draw() % 12), n = 0;
		if (draw() % 3 == 0)
			text[n++] = draw() % 2 ? '-' : '+';
		for (int k = 0; k <= whole; k++)
			text[n++] = (char)('0' + draw() % 10);
		if (frac)
			text[n++] = '.';
		for (int k = 0; k < frac; k++)
			text[n++] = (char)('0' + draw() % 10);
		if (draw() % 5 == 0)
			n += snprintf(text + n, sizeof text - (size_t)n, "e%d", (int)(draw() % 80) - 40);
		text[n] = '\0';
		check(text);
	}
}

static void halfway_cases_and_long_ones(void **arg)
{
	static const char *const text[] = {
		"9007199254740993", "9007199254740992.5", "9007199254740991.4999999", "0.1", "1e22", "1e23", "123456789012345678e-22",
		"18446744073709551616", "18446744073709551616000000000000000000000", "36893488147419103232.5", "0.000000000000000000000001",
		"00000000000000000000000000000001.5", "1.00000000000000000000000000000000000000000000000001", "2.2250738585072011e-308",
		"4.9e-324", "2e-324", "1.7976931348623157e308", "1.7976931348623159e308", "1e-400", "-0", "-0.0", "5e-1", ".5", "5.", "1E5",
		"163000000000.12345", "0.30000000000000004", "1e+05", "340282346638528859811704183484516925440"
	};
	char digits[300];

	for (size_t i = 0; i < sizeof text / sizeof *text; i++)
		check(text[i]);
	for (int n = 15; n < 290; n++) {
		memset(digits, '7', (size_t)n);
		digits[n] = '\0';
		check(digits);
		digits[n / 2] = '.';
		check(digits);
	}
}

static void what_is_no_number_is_refused_by_kind(void **arg)
{
	static const struct { const char *text; enum number_result want; } row[] = {
		{"", NUMBER_EMPTY}, {"   ", NUMBER_EMPTY}, {"nan", NUMBER_NAN}, {"NaN", NUMBER_NAN}, {"-nan", NUMBER_NAN}, {"NULL", NUMBER_NAN},
		{"N/A", NUMBER_NAN}, {"-", NUMBER_NAN}, {"inf", NUMBER_INFINITE}, {"-Infinity", NUMBER_INFINITE}, {"1e999", NUMBER_INFINITE},
		{"1,234.5", NUMBER_THOUSANDS}, {"1 234", NUMBER_THOUSANDS}, {"1'234", NUMBER_THOUSANDS}, {"1_000", NUMBER_THOUSANDS},
		{"abc", NUMBER_SYNTAX}, {"0x10", NUMBER_SYNTAX}, {"1.2.3", NUMBER_SYNTAX}, {"1e", NUMBER_SYNTAX}, {"1e+", NUMBER_SYNTAX},
		{"--1", NUMBER_SYNTAX}, {"1-", NUMBER_SYNTAX}, {"+", NUMBER_SYNTAX}, {".", NUMBER_SYNTAX}, {"e5", NUMBER_SYNTAX},
		{"$5", NUMBER_SYNTAX}, {"5 USD", NUMBER_SYNTAX}, {"1\xc2\xa0" "000", NUMBER_SYNTAX}, {"\xff\xfe", NUMBER_SYNTAX}
	};

	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		double v = 42;
		enum number_result r = number_parse(row[i].text, strlen(row[i].text), '.', &v);
		if (r != row[i].want || v != 42)
			fail_msg("'%s' %s", row[i].text, number_result_text(r));
	}
}

static void spaces_and_the_other_point(void **arg)
{
	double v;

	assert_int_equal(number_parse("  1.5\t", 6, '.', &v), NUMBER_OK);
	assert_true(v == 1.5);
	assert_int_equal(number_parse("1,25", 4, ',', &v), NUMBER_OK);
	assert_true(v == 1.25);
	assert_int_equal(number_parse("1,2345678901234567890123", 24, ',', &v), NUMBER_OK);
	assert_true(v == 1.2345678901234567890123);
	assert_int_equal(number_parse("1.25", 4, ',', &v), NUMBER_SYNTAX);
	assert_int_equal(number_parse("1.5\0", 4, '.', &v), NUMBER_SYNTAX); /* a NUL is no end */
}

/* 17 digits take the slow path; a locale with a decimal comma must not reach it. */
static void locale_changes_nothing(void **arg)
{
	static const char *const name[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "C.UTF-8"};
	double v;

	for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
		if (!setlocale(LC_ALL, name[i]))
			continue;
		assert_int_equal(number_parse("1.2345678901234567890123", 24, '.', &v), NUMBER_OK);
		assert_true(v == 1.2345678901234567890123);
		setlocale(LC_ALL, "C");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_double_comes_back_from_17_digits), cmocka_unit_test(prices_and_volumes_of_every_shape),
		cmocka_unit_test(halfway_cases_and_long_ones), cmocka_unit_test(what_is_no_number_is_refused_by_kind),
		cmocka_unit_test(spaces_and_the_other_point), cmocka_unit_test(locale_changes_nothing)
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
