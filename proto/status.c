/* Result codes and their texts; see status.h. Pure functions, any thread. */
#include "proto/status.h"

#include <stdio.h>
#include <string.h>

static void fill(struct fh_status *st, int code, const char *field, const char *fmt, va_list ap)
{
	if (!st)
		return;
	st->code = code;
	snprintf(st->field, sizeof st->field, "%s", field);
	vsnprintf(st->text, sizeof st->text, fmt, ap);
}

int (fh_fail)(struct fh_status *st, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fill(st, code, "", fmt, ap);
	va_end(ap);
	return code;
}

int (fh_fail_field)(struct fh_status *st, int code, const char *field, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fill(st, code, field, fmt, ap);
	va_end(ap);
	return code;
}

int fh_prefix(struct fh_status *st, const char *fmt, ...)
{
	char old[FH_TEXT_MAX], head[FH_TEXT_MAX];
	va_list ap;

	if (!st)
		return FH_INTERNAL;
	memcpy(old, st->text, sizeof old);
	va_start(ap, fmt);
	vsnprintf(head, sizeof head, fmt, ap);
	va_end(ap);
	if (snprintf(st->text, sizeof st->text, "%s: %s", head, old) < 0)
		st->text[0] = 0;
	return st->code;
}

const char *fh_code_name(int code)
{
	static const char *const name[] = {
		"ok", "invalid", "not found", "denied", "conflict", "exhausted", "unavailable", "version mismatch",
		"deadline passed", "unimplemented", "corrupt", "input/output error", "device error", "device lost",
		"diverged", "interrupted", "outcome unknown", "internal error",
	};
	int i = -code;

	return i >= 0 && i < (int)(sizeof name / sizeof name[0]) ? name[i] : "unknown code";
}
