/* Lines and fields of delimited text, in one pass over big blocks.
 *
 * Line ends LF, CRLF or CR alone, a UTF-8 byte order mark, blank lines and a missing last line end are all fine. A field may
 * be quoted ("a ""b"" c") but not span lines. One thread owns a reader; fields point into its block and live until the
 * next call. */
#ifndef FH_IMPORT_CSV_H
#define FH_IMPORT_CSV_H

#include <stddef.h>
#include <stdint.h>

struct fh_status;
struct source;

#define CSV_LINE_MAX (1u << 20)  /* bytes */
#define CSV_FIELDS_MAX 1024
#define CSV_SPARE 64             /* bytes behind the block that a reader of words may look at */
#define CSV_SHOWN_MAX 44         /* bytes of a field in a message, with the terminator */

struct csv_field { const char *p; size_t len; };

struct csv_reader {
	int64_t line;      /* number of the current line, from 1; blank lines count */
	int fields;
	struct csv_field field[CSV_FIELDS_MAX];
	char delimiter;    /* set before csv_split() */
	/* private to csv.c and json.c */
	struct source *source;
	char *block, terminator;
	size_t begin, end;
	char *text, *text_end; /* the current line without its end */
	int eof, has_nul, has_quote, started, flat; /* flat: json.c, one row is the whole file */
};

/* Borrows the source. FH_EXHAUSTED. */
int csv_open(struct csv_reader *r, struct source *source, struct fh_status *st);
/* Reads the first block: *first is its first byte that is no space, 0 for an empty file. Nothing is taken. */
int csv_start(struct csv_reader *r, char *first, struct fh_status *st);
/* More bytes after [begin, end) of the block, which may move: for a reader of another form on the same block. */
int csv_refill(struct csv_reader *r, struct fh_status *st);
/* The next line that is not blank: 1, 0 at the end, or negative (FH_INVALID: too long, a NUL byte; what the source says). */
int csv_line(struct csv_reader *r, struct fh_status *st);
/* Splits the current line. FH_INVALID: too many fields, an open quote. */
int csv_split(struct csv_reader *r, struct fh_status *st);
/* The delimiter of the current line: ; tab or | when it splits it into five fields or more, else a comma. */
char csv_sniff(const struct csv_reader *r);
/* The bytes of the block from the current line's start on: a look ahead, `*n` of them. */
const char *csv_peek(const struct csv_reader *r, size_t *n);
/* A field as it may stand in a message: at most 40 bytes, control and non-ASCII bytes as '?'. Returns text. */
const char *csv_show(struct csv_field f, char text[CSV_SHOWN_MAX]);
/* Texts about one line begin with ":LINE: ". Puts the file's name in front of any text: "bars.csv:3: …". Returns st's code. */
int csv_name_file(struct fh_status *st, const char *path);
void csv_close(struct csv_reader *r);

#endif
