/* Decimal text to double, correctly rounded, whatever the locale. Pure functions, any thread. */
#ifndef FH_IMPORT_NUMBER_H
#define FH_IMPORT_NUMBER_H

#include <stddef.h>
#include <stdint.h>

enum number_result {
	NUMBER_OK = 0,
	NUMBER_EMPTY,     /* nothing there */
	NUMBER_NAN,       /* nan, na, null, none, n/a: a missing value spelt out */
	NUMBER_INFINITE,  /* inf, infinity, or too large for a double */
	NUMBER_THOUSANDS, /* digits grouped by commas, spaces, apostrophes or underscores */
	NUMBER_SYNTAX     /* anything else */
};

#define NUMBER_TEXT_MAX 400 /* longest text that is read as a number */

/* [+-]digits[.digits][e[+-]digits] with spaces around it, `point` in the place of the dot ('.' or ','). *out is the
 * double nearest to the decimal value (ties to even) and is written on NUMBER_OK only. */
enum number_result number_parse(const char *p, size_t len, char point, double *out);
/* "is empty", "is not a number", … for messages. */
const char *number_result_text(enum number_result r);

#endif
