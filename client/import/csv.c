/* Lines and fields of delimited text (csv.h).
 *
 * block[begin, end) are the bytes not yet handed out. When no line end is left in it, the rest moves to the front and the
 * block is filled up, so every line is contiguous and every byte is copied once. NUL bytes and quotes are searched for once
 * a block; the plain split has neither. One thread. Invariant: text points into the block and text_end[0] may be written
 * (the line end, or the spare byte after the block). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/import/csv.h"
#include "client/import/source.h"
#include "proto/status.h"

#define CSV_BLOCK (4u * CSV_LINE_MAX)
#define SHOWN 40
#define FIELDS_FOR_BARS 5 /* time, open, high, low, close */

int csv_open(struct csv_reader *r, struct source *source, struct fh_status *st)
{
	memset(r, 0, sizeof *r);
	r->block = malloc(CSV_BLOCK + CSV_SPARE);
	if (!r->block)
		return fh_fail(st, FH_EXHAUSTED, "no memory for a block of the file");
	memset(r->block + CSV_BLOCK, 0, CSV_SPARE);
	r->source = source;
	r->delimiter = ',';
	r->terminator = '\n';
	return 0;
}

void csv_close(struct csv_reader *r)
{
	free(r->block);
	r->block = NULL;
}

int csv_refill(struct csv_reader *r, struct fh_status *st)
{
	memmove(r->block, r->block + r->begin, r->end - r->begin);
	r->end -= r->begin;
	r->begin = 0;
	r->has_nul = memchr(r->block, '\0', r->end) != NULL;
	r->has_quote = memchr(r->block, '"', r->end) != NULL;
	while (!r->eof && r->end < CSV_BLOCK) {
		size_t got;
		int rc = source_read(r->source, r->block + r->end, CSV_BLOCK - r->end, &got, st);
		if (rc)
			return rc;
		r->has_nul |= memchr(r->block + r->end, '\0', got) != NULL;
		r->has_quote |= memchr(r->block + r->end, '"', got) != NULL;
		r->end += got;
		r->eof = got == 0;
	}
	return 0;
}

/* The first block decides the line end: CR when it has no LF at all. */
int csv_start(struct csv_reader *r, char *first, struct fh_status *st)
{
	if (r->started)
		return 0;
	int rc = csv_refill(r, st);

	if (!rc)
		rc = source_foreign(r->block, r->end, st);
	if (rc)
		return rc;
	r->started = 1;
	if (r->end >= 3 && !memcmp(r->block, "\xef\xbb\xbf", 3))
		r->begin = 3;
	if (!memchr(r->block, '\n', r->end) && memchr(r->block, '\r', r->end))
		r->terminator = '\r';
	size_t i = r->begin;
	while (i < r->end && (r->block[i] == ' ' || r->block[i] == '\t' || r->block[i] == '\r' || r->block[i] == '\n'))
		i++;
	*first = i < r->end ? r->block[i] : '\0';
	return 0;
}

/* Sets text to the next line, blank or not: 1, 0 at the end. */
static int next_line(struct csv_reader *r, struct fh_status *st)
{
	char *nl = memchr(r->block + r->begin, r->terminator, r->end - r->begin);

	if (!nl && !r->eof) {
		int rc = csv_refill(r, st);
		if (rc)
			return rc;
		nl = memchr(r->block + r->begin, r->terminator, r->end - r->begin);
	}
	if (!nl && r->begin == r->end)
		return 0;
	r->line++;
	r->text = r->block + r->begin;
	r->text_end = nl ? nl : r->block + r->end;
	if ((size_t)(r->text_end - r->text) > CSV_LINE_MAX)
		return fh_fail(st, FH_INVALID, ":%lld: the line is longer than %u bytes: this is no bar file", (long long)r->line,
			       CSV_LINE_MAX);
	r->begin = nl ? (size_t)(nl + 1 - r->block) : r->end;
	if (r->text_end > r->text && r->text_end[-1] == '\r')
		r->text_end--;
	return 1;
}

static int blank(const char *p, const char *e)
{
	while (p < e && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n'))
		p++;
	return p == e;
}

int csv_line(struct csv_reader *r, struct fh_status *st)
{
	char first;
	int rc = csv_start(r, &first, st);

	while (!rc && (rc = next_line(r, st)) > 0) {
		if (r->has_nul && memchr(r->text, '\0', (size_t)(r->text_end - r->text)))
			return fh_fail(st, FH_INVALID, ":%lld: there is a NUL byte: this is no text file", (long long)r->line);
		if (r->text < r->text_end && ((unsigned char)*r->text > ' ' || !blank(r->text, r->text_end)))
			return 1;
		rc = 0;
	}
	return rc;
}

static int too_many(const struct csv_reader *r, struct fh_status *st)
{
	return fh_fail(st, FH_INVALID, ":%lld: the line has more than %d fields", (long long)r->line, CSV_FIELDS_MAX);
}

/* "a ""b""" in place: what it means is never longer than what it is. Returns the byte after the closing quote. */
static char *unquote(char *p, char *e, struct csv_field *f)
{
	char *to = p + 1;

	f->p = to;
	for (p++; p < e; p++) {
		if (*p == '"' && (p + 1 == e || p[1] != '"')) {
			f->len = (size_t)(to - f->p);
			return p + 1;
		}
		p += *p == '"';
		*to++ = *p;
	}
	return NULL;
}

static int split_quoted(struct csv_reader *r, struct fh_status *st)
{
	char *p = r->text, *e = r->text_end;
	int n = 0;

	for (;;) {
		if (n == CSV_FIELDS_MAX)
			return too_many(r, st);
		while (p < e && *p == ' ' && r->delimiter != ' ')
			p++;
		if (p < e && *p == '"') {
			p = unquote(p, e, &r->field[n]);
			if (!p)
				return fh_fail(st, FH_INVALID, ":%lld: field %d: a quote is not closed", (long long)r->line, n + 1);
			while (p < e && *p == ' ')
				p++;
			if (p < e && *p != r->delimiter)
				return fh_fail(st, FH_INVALID, ":%lld: field %d: text after a closing quote", (long long)r->line,
					       n + 1);
		} else {
			char *d = memchr(p, r->delimiter, (size_t)(e - p));
			d = d ? d : e;
			r->field[n] = (struct csv_field){p, (size_t)(d - p)};
			p = d;
		}
		n++;
		if (p == e)
			break;
		p++;
	}
	r->fields = n;
	return 0;
}

int csv_split(struct csv_reader *r, struct fh_status *st)
{
	const char *p = r->text, *e = r->text_end, d = r->delimiter;
	int n = 0;

	if (r->has_quote && memchr(r->text, '"', (size_t)(r->text_end - r->text)))
		return split_quoted(r, st);
	for (const char *from = p;; p++) {
		if (p < e && *p != d)
			continue;
		if (n == CSV_FIELDS_MAX)
			return too_many(r, st);
		r->field[n].p = from;
		r->field[n++].len = (size_t)(p - from);
		if (p == e)
			break;
		from = p + 1;
	}
	r->fields = n;
	return 0;
}

char csv_sniff(const struct csv_reader *r)
{
	static const char candidate[] = ";\t|";

	for (const char *c = candidate; *c; c++) {
		int fields = 1;
		for (const char *p = r->text; p < r->text_end; p++)
			fields += *p == *c;
		if (fields >= FIELDS_FOR_BARS)
			return *c;
	}
	return ',';
}

const char *csv_peek(const struct csv_reader *r, size_t *n)
{
	*n = (size_t)(r->block + r->end - r->text);
	return r->text;
}

int csv_name_file(struct fh_status *st, const char *path)
{
	char text[FH_TEXT_MAX];

	if (!st)
		return 0;
	snprintf(text, sizeof text, "%.200s%s%.300s", strcmp(path, "-") ? path : "standard input", st->text[0] == ':' ? "" : ": ", st->text);
	memcpy(st->text, text, sizeof text);
	return st->code;
}

const char *csv_show(struct csv_field f, char text[CSV_SHOWN_MAX])
{
	size_t n = f.len < SHOWN ? f.len : SHOWN, i;

	for (i = 0; i < n; i++)
		text[i] = f.p[i] >= ' ' && f.p[i] <= '~' ? f.p[i] : '?';
	if (f.len > SHOWN)
		memcpy(text + SHOWN - 3, "...", 3);
	text[i] = '\0';
	return text;
}
