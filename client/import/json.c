/* JSON arrays of arrays (json.h).
 *
 * Not a JSON reader: it takes an array of flat arrays of numbers and strings without escapes and refuses the rest. An inner
 * array is found by its closing bracket, so it is contiguous in the block like a line of text. One thread.
 * Invariant: begin stands after an inner array or after the outer bracket. */
#include <string.h>

#include "client/import/json.h"
#include "proto/status.h"

static int space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* The next byte that is no space, at begin; 0 at the end of the file. */
static int skip(struct csv_reader *r, char *c, struct fh_status *st)
{
	for (;;) {
		while (r->begin < r->end && space(r->block[r->begin]))
			r->begin++;
		if (r->begin < r->end || r->eof)
			break;
		int rc = csv_refill(r, st);
		if (rc)
			return rc;
	}
	*c = r->begin < r->end ? r->block[r->begin] : '\0';
	return 0;
}

static int refuse(const struct csv_reader *r, const char *why, struct fh_status *st)
{
	return fh_fail(st, FH_INVALID, ":%lld: that row of the JSON array %s", (long long)r->line, why);
}

/* p..e: what stands between the brackets. */
static int split(struct csv_reader *r, const char *p, const char *e, struct fh_status *st)
{
	r->fields = 0;
	for (;;) {
		const char *comma = memchr(p, ',', (size_t)(e - p)), *q = comma ? comma : e;
		struct csv_field f = {p, (size_t)(q - p)};
		while (f.len && space(*f.p)) {
			f.p++;
			f.len--;
		}
		while (f.len && space(f.p[f.len - 1]))
			f.len--;
		if (f.len >= 2 && f.p[0] == '"' && f.p[f.len - 1] == '"') {
			f.p++;
			f.len -= 2;
		}
		if (memchr(f.p, '"', f.len) || memchr(f.p, '\\', f.len) || memchr(f.p, '[', f.len) || memchr(f.p, '{', f.len))
			return refuse(r, "is no flat array of numbers", st);
		if (r->fields == CSV_FIELDS_MAX)
			return refuse(r, "has too many fields", st);
		r->field[r->fields++] = f;
		if (!comma)
			return 1;
		p = comma + 1;
	}
}

int json_row(struct csv_reader *r, struct fh_status *st)
{
	char c = '\0';
	int rc = skip(r, &c, st);

	if (rc)
		return rc;
	if (r->flat && r->line > 0)
		return c == '\0' ? 0 : refuse(r, "has something after it", st);
	if (r->line > 0 && c == ',') {
		r->begin++;
		rc = skip(r, &c, st);
	} else if (r->line > 0 && c == '[') {
		return refuse(r, "is not followed by a comma", st);
	}
	if (rc)
		return rc;
	if (c == ']')
		return 0;
	r->line++;
	if (c == '\0')
		return refuse(r, "is missing: the file is cut short", st);
	if (c != '[')
		return refuse(r, "is no array", st);
	char *close = memchr(r->block + r->begin, ']', r->end - r->begin);
	if (!close && !r->eof) {
		rc = csv_refill(r, st);
		if (rc)
			return rc;
		close = memchr(r->block + r->begin, ']', r->end - r->begin);
	}
	if (!close)
		return refuse(r, "does not end", st);
	const char *p = r->block + r->begin + 1;
	r->begin = (size_t)(close + 1 - r->block);
	return split(r, p, close, st);
}

int json_begin(struct csv_reader *r, int flat, struct fh_status *st)
{
	char c = '\0';
	int rc = skip(r, &c, st);

	if (rc)
		return rc;
	r->begin++; /* the outer '[' */
	rc = skip(r, &c, st);
	if (!rc && flat && r->begin && c != '[' && c != ']') {
		r->block[--r->begin] = '['; /* over a space or the bracket itself */
		r->flat = 1;
	}
	return rc ? rc : json_row(r, st);
}
