/* A table in memory, printed with aligned columns or as CSV. Cells are copied. */
#ifndef FH_CLIENT_TABLE_H
#define FH_CLIENT_TABLE_H

#include <stdio.h>

#define TABLE_COLUMNS_MAX 64

struct table {
	int columns, n_cells, cap;
	const char *head[TABLE_COLUMNS_MAX]; /* kept, not copied */
	char align[TABLE_COLUMNS_MAX];       /* 'l' or 'r' */
	char **cell;
	int failed;                          /* out of memory: printing says so */
};

/* heads: "ID", "NAME", … ended by NULL; align: one letter a column ("rlr"). */
void table_init(struct table *t, const char *const *heads, const char *align);
void table_release(struct table *t);
/* The next cell, row by row. */
void table_add(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void table_print(const struct table *t, FILE *f);
void table_print_csv(const struct table *t, FILE *f); /* heads in lower case; quotes where needed */

#endif
