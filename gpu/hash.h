/* Streaming SHA-256 to hex, for data sets and files. One object belongs to one thread at a time. */
#ifndef FH_GPU_HASH_H
#define FH_GPU_HASH_H

#include <stddef.h>

#define HASH_HEX_SIZE 65 /* 64 digits and the terminator */

struct fh_status;
struct hash;

int hash_new(struct hash **out, struct fh_status *st); /* FH_EXHAUSTED */
void hash_add(struct hash *h, const void *data, size_t bytes);
/* Writes the digest and frees h. */
void hash_finish(struct hash *h, char hex[HASH_HEX_SIZE]);
void hash_free(struct hash *h); /* without a digest; NULL is fine */
/* One buffer at once. */
int hash_bytes(const void *data, size_t bytes, char hex[HASH_HEX_SIZE], struct fh_status *st);
/* A whole file. FH_NOT_FOUND, FH_IO. */
int hash_file(const char *path, char hex[HASH_HEX_SIZE], struct fh_status *st);

#endif
