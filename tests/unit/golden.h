/* Shared by the C tests: golden files by name, their tensors and settings, and the error measures of the tolerances.
 *
 * Golden files lie in tests/golden/ of the source tree; the tests run anywhere below its root. A file or tensor that is
 * missing fails the test at once. */
#ifndef FH_TESTS_GOLDEN_H
#define FH_TESTS_GOLDEN_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "gpu/safetensors.h"
#include "proto/status.h"

#define GOLDEN_UP_MAX 8 /* directories between the working directory and the source root */
#define GOLDEN_UNUSED __attribute__((unused))

/* "tests/golden/env.safetensors" -> a path that opens from here, in a static buffer. */
GOLDEN_UNUSED static const char *source_path(const char *relative)
{
	static char path[4096];
	size_t up = 0;

	for (int i = 0; i < GOLDEN_UP_MAX; i++, up += 3) {
		snprintf(path + up, sizeof(path) - up, "%s", relative);
		if (!access(path, R_OK))
			return path;
		memcpy(path + up, "../", 4);
	}
	fail_msg("%s not found: run the tests inside the source tree", relative);
	return NULL;
}

/* name without directory and suffix: golden_open("env"). Close with st_close(). */
GOLDEN_UNUSED static struct st_file *golden_open(const char *name)
{
	struct fh_status st = FH_STATUS_INIT;
	struct st_file *f = NULL;
	char relative[256];

	snprintf(relative, sizeof(relative), "tests/golden/%s.safetensors", name);
	if (st_open(source_path(relative), &f, &st))
		fail_msg("%s", st.text);
	return f;
}

GOLDEN_UNUSED static const void *golden_data(const struct st_file *f, const char *name, enum st_dtype dtype, int64_t *n)
{
	const struct st_tensor *t = st_find(f, name);

	if (!t)
		fail_msg("golden tensor %s is missing", name);
	if (t->dtype != dtype)
		fail_msg("golden tensor %s is %s, not %s", name, st_dtype_name(t->dtype), st_dtype_name(dtype));
	if (n)
		*n = (int64_t)(t->bytes / st_dtype_size(dtype));
	return t->data;
}

/* *n (may be NULL) gets the number of elements. The data belongs to f. */
GOLDEN_UNUSED static const float *golden_f32(const struct st_file *f, const char *name, int64_t *n)
{
	return golden_data(f, name, ST_F32, n);
}

GOLDEN_UNUSED static const double *golden_f64(const struct st_file *f, const char *name, int64_t *n)
{
	return golden_data(f, name, ST_F64, n);
}

GOLDEN_UNUSED static const int32_t *golden_i32(const struct st_file *f, const char *name, int64_t *n)
{
	return golden_data(f, name, ST_I32, n);
}

GOLDEN_UNUSED static const uint32_t *golden_u32(const struct st_file *f, const char *name, int64_t *n)
{
	return golden_data(f, name, ST_U32, n);
}

GOLDEN_UNUSED static const int64_t *golden_i64(const struct st_file *f, const char *name, int64_t *n)
{
	return golden_data(f, name, ST_I64, n);
}

/* An F32 or F64 tensor widened to a fresh array of double; free() it. */
GOLDEN_UNUSED static double *golden_double(const struct st_file *f, const char *name, int64_t *n)
{
	const struct st_tensor *t = st_find(f, name);
	double *out;
	int64_t count;

	if (!t || (t->dtype != ST_F32 && t->dtype != ST_F64))
		fail_msg("golden tensor %s is missing or not F32/F64", name);
	count = (int64_t)(t->bytes / st_dtype_size(t->dtype));
	out = malloc(sizeof(double) * (size_t)(count + 1));
	assert_non_null(out);
	for (int64_t i = 0; i < count; i++)
		out[i] = t->dtype == ST_F32 ? ((const float *)t->data)[i] : ((const double *)t->data)[i];
	if (n)
		*n = count;
	return out;
}

GOLDEN_UNUSED static const char *golden_meta(const struct st_file *f, const char *key)
{
	const char *v = st_meta(f, key);

	if (!v)
		fail_msg("golden metadata %s is missing", key);
	return v;
}

GOLDEN_UNUSED static double golden_real(const struct st_file *f, const char *key)
{
	return strtod(golden_meta(f, key), NULL);
}

GOLDEN_UNUSED static int64_t golden_int(const struct st_file *f, const char *key)
{
	return strtoll(golden_meta(f, key), NULL, 10);
}

/* ---------------------------------------------------------------- error measures */

/* ||out - ref|| / ||ref||, or ||out|| where the reference is zero. NaN anywhere gives NaN, which fails `<=`. */
GOLDEN_UNUSED static double relative_error(const double *out, const double *ref, int64_t n)
{
	double diff = 0.0, size = 0.0;

	for (int64_t i = 0; i < n; i++) {
		diff += (out[i] - ref[i]) * (out[i] - ref[i]);
		size += ref[i] * ref[i];
	}
	return size > 0.0 ? sqrt(diff / size) : sqrt(diff);
}

GOLDEN_UNUSED static double relative_error_f32(const float *out, const double *ref, int64_t n)
{
	double diff = 0.0, size = 0.0;

	for (int64_t i = 0; i < n; i++) {
		diff += (out[i] - ref[i]) * (out[i] - ref[i]);
		size += ref[i] * ref[i];
	}
	return size > 0.0 ? sqrt(diff / size) : sqrt(diff);
}

/* Largest |out - ref| over the largest |ref| of one column of [n, columns]; absolute where the column is zero. */
GOLDEN_UNUSED static double column_error(const double *out, const double *ref, int64_t n, int64_t columns, int64_t c)
{
	double diff = 0.0, size = 0.0;

	for (int64_t i = c; i < n * columns; i += columns) {
		double d = fabs(out[i] - ref[i]);

		diff = d > diff || d != d ? d : diff;
		size = fabs(ref[i]) > size ? fabs(ref[i]) : size;
	}
	return size > 0.0 ? diff / size : diff;
}

/* Asserts value <= limit with both numbers in the message; NaN fails. */
#define assert_within(value, limit, what) \
	do { \
		double v_ = (value), l_ = (limit); \
		if (!(v_ <= l_)) \
			fail_msg("%s: %.3g is above %.3g", (what), v_, l_); \
	} while (0)

#endif
