/* What parquet.c needs of Arrow's C++ library, as plain C. One thread. Nothing throws through it. */
#ifndef FH_IMPORT_ARROW_SHIM_H
#define FH_IMPORT_ARROW_SHIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHIM_COLUMNS 8 /* as many as enum column has */
#define SHIM_ERROR_MAX 300

enum shim_time { SHIM_NS, SHIM_NUMBER, SHIM_TEXT, SHIM_MISSING, SHIM_RANGE };
enum shim_result { SHIM_OK, SHIM_STOPPED /* by a callback */, SHIM_ERROR /* text in `error` */ };

struct shim_row {
	int64_t row;               /* from 1 */
	enum shim_time kind;
	int64_t time;              /* SHIM_NS, SHIM_NUMBER */
	const char *text;          /* SHIM_TEXT */
	size_t text_len;
	double value[5];           /* open, high, low, close, volume; NaN when missing */
	const char *symbol;        /* NULL without such a column */
	size_t symbol_len;
};

struct shim_reader {
	/* Sets at[] (SHIM_COLUMNS of them, numbered as enum column) to places in name[], -1 none. Non-zero stops. */
	int (*columns)(void *arg, const char *const *name, int n, int *at);
	int (*row)(void *arg, const struct shim_row *r);
	/* After each batch. */
	int (*progress)(void *arg, int64_t rows, int64_t of);
	void *arg;
};

enum shim_result shim_read(const char *path, const struct shim_reader *r, char error[SHIM_ERROR_MAX]);
/* volume, symbol NULL: no such column. */
enum shim_result shim_write(const char *path, int64_t bars, const int64_t *ts, const double *const value[4], const double *volume,
			    const char *(*symbol)(const void *arg, int64_t bar), const void *arg, char error[SHIM_ERROR_MAX]);

#ifdef __cplusplus
}
#endif

#endif
