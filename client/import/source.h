/* Bytes of a market data file: plain, gzip, zstd, one member of a zip archive, or standard input.
 *
 * The kind is found from the first bytes, never from the name. One thread owns a source. Memory is bounded whatever the
 * compressed stream unpacks to: the reader asks for blocks. */
#ifndef FH_IMPORT_SOURCE_H
#define FH_IMPORT_SOURCE_H

#include <stddef.h>
#include <stdint.h>

struct fh_status;
struct source;

/* path "-" is standard input. `member` names a file inside a zip archive (NULL: the only one). FH_IO, FH_NOT_FOUND,
 * FH_INVALID (a form that is not read here, several members), FH_CORRUPT. */
int source_open(const char *path, const char *member, struct source **out, struct fh_status *st);
/* FH_INVALID when bytes start like a form that is no text, and says which. */
int source_foreign(const void *p, size_t n, struct fh_status *st);
/* The first bytes that source_read() will deliver, up to SOURCE_PEEK of them (fewer: that is all there is). Before the
 * first read only. */
#define SOURCE_PEEK 16
int source_peek(struct source *s, const void **p, size_t *n, struct fh_status *st);
/* Up to `want` bytes; *got = 0 at the end only. FH_IO, FH_CORRUPT (a compressed stream that is damaged or cut). */
int source_read(struct source *s, char *buf, size_t want, size_t *got, struct fh_status *st);
/* Bytes of the file, 0 when unknown, and how many of them were read: for a progress bar. */
uint64_t source_bytes(const struct source *s);
uint64_t source_bytes_read(const struct source *s);
/* "gzip", "zstd", "zip", "plain". Static storage. */
const char *source_kind(const struct source *s);
void source_close(struct source *s); /* NULL is fine */

#endif
