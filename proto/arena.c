/* Memory for one message: small pieces out of growing chunks, freed together, with a cap that hostile input cannot pass.
 * Invariant: `used` is the sum of all chunk sizes and never exceeds `cap`. */
#include "proto/wire.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_FIRST 4096u
#define CHUNK_LARGE (256u << 10)
#define ALIGN 16u

struct fh_chunk {
	struct fh_chunk *older;
	size_t size, taken; /* bytes behind this head */
};
#define HEAD ((sizeof(struct fh_chunk) + ALIGN - 1) / ALIGN * ALIGN)

void fh_arena_init(struct fh_arena *a, size_t cap)
{
	*a = (struct fh_arena){.cap = cap};
}

void fh_arena_release(struct fh_arena *a)
{
	while (a->chunk) {
		struct fh_chunk *older = a->chunk->older;

		free(a->chunk);
		a->chunk = older;
	}
	a->used = 0;
	a->full = 0;
}

/* A chunk that holds at least `need`; the next one is twice as large until CHUNK_LARGE, as far as the cap allows. */
static struct fh_chunk *chunk_new(struct fh_arena *a, size_t need)
{
	size_t left = a->cap - a->used, want = a->chunk ? 2 * a->chunk->size : CHUNK_FIRST;
	struct fh_chunk *c;

	if (left <= HEAD || need > left - HEAD)
		return NULL;
	if (want > CHUNK_LARGE)
		want = CHUNK_LARGE;
	if (want < need)
		want = need;
	if (want > left - HEAD)
		want = left - HEAD;
	c = malloc(HEAD + want);
	if (!c)
		return NULL;
	*c = (struct fh_chunk){.older = a->chunk, .size = want};
	a->chunk = c;
	a->used += HEAD + want;
	return c;
}

void *fh_arena_alloc(struct fh_arena *a, size_t size)
{
	struct fh_chunk *c = a->chunk;
	void *p;

	if (size > a->cap) {
		a->full = 1;
		return NULL;
	}
	size = (size + ALIGN - 1) / ALIGN * ALIGN;
	if (size == 0)
		size = ALIGN;
	if (!c || c->size - c->taken < size) {
		c = chunk_new(a, size);
		if (!c) {
			a->full = 1;
			return NULL;
		}
	}
	p = (char *)c + HEAD + c->taken;
	c->taken += size;
	return memset(p, 0, size);
}

void *fh_arena_array(struct fh_arena *a, size_t n, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, size, &bytes)) {
		a->full = 1;
		return NULL;
	}
	return fh_arena_alloc(a, bytes);
}

char *fh_arena_strdup(struct fh_arena *a, const char *s)
{
	size_t n;
	char *p;

	if (!s)
		return NULL;
	n = strlen(s) + 1;
	p = fh_arena_alloc(a, n);
	return p ? memcpy(p, s, n) : NULL;
}
