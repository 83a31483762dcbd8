/* SHA-256 through libcrypto, which uses the processor's own instructions.
 *
 * Owns one digest context per object. A failure inside libcrypto is remembered and gives an empty digest, which
 * equals no hash: callers compare, so a broken library can only refuse, never accept. The plain functions and not those of
 * its providers: they bring half a megabyte of tables along that fhctl would relocate at every start. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <errno.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/hash.h"
#include "proto/status.h"

#define FILE_CHUNK (1 << 16)

struct hash { SHA256_CTX ctx; int failed; };

int hash_new(struct hash **out, struct fh_status *st)
{
	struct hash *h = calloc(1, sizeof(*h));

	if (!h || !SHA256_Init(&h->ctx)) {
		hash_free(h);
		return fh_fail(st, FH_EXHAUSTED, "cannot start SHA-256: out of memory");
	}
	*out = h;
	return 0;
}

void hash_add(struct hash *h, const void *data, size_t bytes)
{
	if (bytes && !SHA256_Update(&h->ctx, data, bytes))
		h->failed = 1;
}

void hash_finish(struct hash *h, char hex[HASH_HEX_SIZE])
{
	unsigned char digest[SHA256_DIGEST_LENGTH];

	hex[0] = 0;
	if (!h->failed && SHA256_Final(digest, &h->ctx))
		for (unsigned i = 0; i < sizeof(digest); i++)
			snprintf(hex + 2 * i, 3, "%02x", digest[i]);
	hash_free(h);
}

void hash_free(struct hash *h)
{
	free(h);
}

int hash_bytes(const void *data, size_t bytes, char hex[HASH_HEX_SIZE], struct fh_status *st)
{
	struct hash *h = NULL;
	int rc = hash_new(&h, st);

	if (rc)
		return rc;
	hash_add(h, data, bytes);
	hash_finish(h, hex);
	return 0;
}

int hash_file(const char *path, char hex[HASH_HEX_SIZE], struct fh_status *st)
{
	static _Thread_local unsigned char chunk[FILE_CHUNK];
	FILE *f = fopen(path, "rbe");
	struct hash *h = NULL;
	size_t n;
	int rc;

	if (!f)
		return fh_fail(st, errno == ENOENT ? FH_NOT_FOUND : FH_IO, "%s: %s", path, strerror(errno));
	rc = hash_new(&h, st);
	if (!rc) {
		while ((n = fread(chunk, 1, sizeof(chunk), f)))
			hash_add(h, chunk, n);
		if (ferror(f)) {
			rc = fh_fail(st, FH_IO, "%s: cannot read", path);
			hash_free(h);
		} else {
			hash_finish(h, hex);
		}
	}
	fclose(f);
	return rc;
}
