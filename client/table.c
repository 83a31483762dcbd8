/* Aligned columns and CSV; see table.h. Invariant: the cells of complete rows come first, in reading order. */
#include "client/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define CELL_MAX 512
#define GAP 2

void table_init(struct table *t, const char *const *heads, const char *align)
{
	memset(t, 0, sizeof *t);
	for (; heads[t->columns] && t->columns < TABLE_COLUMNS_MAX; t->columns++) {
		t->head[t->columns] = heads[t->columns];
		t->align[t->columns] = align[t->columns] == 'r' ? 'r' : 'l';
	}
}

void table_release(struct table *t)
{
	for (int i = 0; i < t->n_cells; i++)
		free(t->cell[i]);
	free(t->cell);
	t->cell = NULL;
	t->n_cells = t->cap = 0;
}

void table_add(struct table *t, const char *fmt, ...)
{
	char text[CELL_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (t->n_cells == t->cap) {
		int cap = t->cap ? 2 * t->cap : 64;
		char **more = realloc(t->cell, (size_t)cap * sizeof *more);

		if (!more) {
			t->failed = 1;
			return;
		}
		t->cell = more;
		t->cap = cap;
	}
	for (char *p = text; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
	t->cell[t->n_cells] = strdup(text);
	if (t->cell[t->n_cells])
		t->n_cells++;
	else
		t->failed = 1;
}

/* Characters, not bytes: what UTF-8 continues is not counted. */
static int width(const char *s)
{
	int n = 0;

	for (; *s; s++)
		n += ((unsigned char)*s & 0xc0) != 0x80;
	return n;
}

static void print_row(const struct table *t, const char *const *row, const int *w, FILE *f)
{
	for (int i = 0; i < t->columns; i++) {
		const char *text = row[i];
		int pad = w[i] - width(text);

		if (t->align[i] == 'r')
			fprintf(f, "%*s%s", pad, "", text);
		else if (i + 1 < t->columns)
			fprintf(f, "%s%*s", text, pad, "");
		else
			fputs(text, f); /* no blanks at the end of a line */
		if (i + 1 < t->columns)
			fprintf(f, "%*s", GAP, "");
	}
	fputc('\n', f);
}

void table_print(const struct table *t, FILE *f)
{
	int w[TABLE_COLUMNS_MAX] = {0};

	if (t->columns == 0)
		return;
	for (int i = 0; i < t->columns; i++)
		w[i] = width(t->head[i]);
	for (int i = 0; i < t->n_cells; i++)
		if (width(t->cell[i]) > w[i % t->columns])
			w[i % t->columns] = width(t->cell[i]);
	print_row(t, t->head, w, f);
	for (int i = 0; i + t->columns <= t->n_cells; i += t->columns)
		print_row(t, (const char *const *)t->cell + i, w, f);
	if (t->failed)
		fputs("(out of memory: rows are missing)\n", f);
}

static void csv_cell(const char *s, int lower, FILE *f)
{
	int quote = strpbrk(s, ",\"\r\n") != NULL;

	if (quote)
		fputc('"', f);
	for (; *s; s++) {
		if (*s == '"')
			fputc('"', f);
		fputc(lower && *s >= 'A' && *s <= 'Z' ? *s - 'A' + 'a' : *s, f);
	}
	if (quote)
		fputc('"', f);
}

void table_print_csv(const struct table *t, FILE *f)
{
	for (int i = 0; i < t->columns; i++) {
		fputs(i ? "," : "", f);
		csv_cell(t->head[i], 1, f);
	}
	fputc('\n', f);
	for (int row = 0; row + t->columns <= t->n_cells; row += t->columns)
		for (int i = 0; i < t->columns; i++) {
			csv_cell(t->cell[row + i], 0, f);
			fputc(i + 1 < t->columns ? ',' : '\n', f);
		}
}
