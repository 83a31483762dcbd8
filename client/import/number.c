/* Decimal text to double (number.h).
 *
 * Fast path: when the digits fit 2^53 and the power of ten is at most 22, both are exact doubles and one IEEE
 * multiplication or division rounds the exact quotient or product once: that is the correctly rounded value. Everything
 * else (a few volumes with 17 digits) goes to strtod in the C locale, which is correctly rounded in glibc.
 * Any thread. Invariant: the result never depends on the process's locale. */
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "client/import/number.h"

#define EXACT_POWER_MAX 22
#define MANTISSA_DIGITS_MAX 19
#define EXPONENT_MAX 100000 /* larger ones change nothing any more */

static const double power_of_ten[EXACT_POWER_MAX + 1] = {
	1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22
};

static locale_t c_locale;
static pthread_once_t c_locale_once = PTHREAD_ONCE_INIT;

static void make_c_locale(void)
{
	c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

static enum number_result slow_parse(const char *p, size_t len, char point, double *out)
{
	char text[NUMBER_TEXT_MAX + 1];

	if (len > NUMBER_TEXT_MAX)
		return NUMBER_SYNTAX;
	memcpy(text, p, len);
	text[len] = '\0';
	if (point != '.') {
		char *at = memchr(text, point, len);
		if (at)
			*at = '.';
	}
	pthread_once(&c_locale_once, make_c_locale);
	double v = c_locale ? strtod_l(text, NULL, c_locale) : strtod(text, NULL);
	if (!isfinite(v))
		return NUMBER_INFINITE;
	*out = v;
	return NUMBER_OK;
}

static int word_is(const char *p, size_t len, const char *word)
{
	return strlen(word) == len && strncasecmp(p, word, len) == 0;
}

/* Why text that is not a number is none: the message tells people what to change. */
static enum number_result classify(const char *p, size_t len)
{
	static const char *const missing[] = {"nan", "na", "n/a", "null", "none", "-", "nil", "#n/a", NULL};
	static const char *const infinite[] = {"inf", "infinity", NULL};
	const char *q = p;
	size_t n = len, digits = 0, groups = 0;

	if (n && (*q == '+' || *q == '-') && n > 1) {
		q++;
		n--;
	}
	for (int i = 0; missing[i]; i++)
		if (word_is(q, n, missing[i]))
			return NUMBER_NAN;
	for (int i = 0; infinite[i]; i++)
		if (word_is(q, n, infinite[i]))
			return NUMBER_INFINITE;
	for (size_t i = 0; i < n; i++) {
		if (q[i] >= '0' && q[i] <= '9')
			digits++;
		else if (i > 0 && i + 1 < n && (q[i] == ',' || q[i] == ' ' || q[i] == '\'' || q[i] == '_'))
			groups++;
		else if (q[i] != '.')
			return NUMBER_SYNTAX;
	}
	return digits && groups ? NUMBER_THOUSANDS : NUMBER_SYNTAX;
}

enum number_result number_parse(const char *p, size_t len, char point, double *out)
{
	while (len && (*p == ' ' || *p == '\t')) {
		p++;
		len--;
	}
	while (len && (p[len - 1] == ' ' || p[len - 1] == '\t'))
		len--;
	if (!len)
		return NUMBER_EMPTY;

	const char *s = p, *e = p + len;
	int negative = 0, digits = 0, seen = 0, exponent = 0;
	uint64_t mantissa = 0;
	unsigned d;

	if (*s == '-' || *s == '+')
		negative = *s++ == '-';
	/* Up to 19 digits fit a 64-bit mantissa whatever they are; past that the slow path decides. */
	for (; s < e && (d = (unsigned)(*s - '0')) <= 9; s++, seen++) {
		mantissa = mantissa * 10 + d;
		digits += mantissa || digits; /* also when the product wrapped to 0 */
	}
	if (s < e && *s == point) {
		const char *fraction = ++s;
		for (; s < e && (d = (unsigned)(*s - '0')) <= 9; s++) {
			mantissa = mantissa * 10 + d;
			digits += mantissa || digits;
		}
		seen += (int)(s - fraction);
		exponent = -(int)(s - fraction);
	}
	if (!seen || len > NUMBER_TEXT_MAX)
		return classify(p, len);
	if (s < e && (*s | 0x20) == 'e') {
		int sign = 1, x = 0, any = 0;
		s++;
		if (s < e && (*s == '-' || *s == '+'))
			sign = *s++ == '-' ? -1 : 1;
		for (; s < e && (d = (unsigned)(*s - '0')) <= 9; s++, any = 1)
			if (x < EXPONENT_MAX)
				x = x * 10 + (int)d;
		if (!any)
			return NUMBER_SYNTAX;
		exponent += sign * x;
	}
	if (s != e)
		return classify(p, len);
	if (digits > MANTISSA_DIGITS_MAX || mantissa > (UINT64_C(1) << 53) || exponent > EXACT_POWER_MAX ||
	    exponent < -EXACT_POWER_MAX)
		return slow_parse(p, len, point, out);
	double v = (double)mantissa;
	v = exponent < 0 ? v / power_of_ten[-exponent] : v * power_of_ten[exponent];
	*out = negative ? -v : v;
	return NUMBER_OK;
}

const char *number_result_text(enum number_result r)
{
	switch (r) {
	case NUMBER_OK: return "is a number";
	case NUMBER_EMPTY: return "is empty";
	case NUMBER_NAN: return "is a missing value";
	case NUMBER_INFINITE: return "is not finite";
	case NUMBER_THOUSANDS: return "has separators between its digits; write it without them";
	case NUMBER_SYNTAX: break;
	}
	return "is not a number";
}
