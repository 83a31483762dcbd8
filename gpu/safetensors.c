/* The safetensors format, reading half: a mapped file, its header understood and checked.
 *
 * Owns the mapping and the tables of tensors and metadata. Any thread, one at a time per object. Invariant: once
 * st_open() has returned 0, the tensors tile the data section without gap or overlap, every pointer lies inside the
 * file and is aligned to its element, and every name is unique, valid UTF-8 and free of NUL. The writing half is
 * safetensors_write.c, the tokens of the header are read by safetensors_json.c. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu/safetensors.h"
#include "gpu/safetensors_json.h"
#include "proto/status.h"

struct st_pair { char *key, *value; };

struct st_file {
	const unsigned char *base;
	size_t bytes;
	int mapped;
	struct st_tensor *tensor; /* in file order */
	int tensors, tensor_cap;
	int *by_name;             /* indices into tensor, sorted by name */
	struct st_pair *meta;     /* sorted by key */
	int metas, meta_cap;
};

static const struct { const char *word; enum st_dtype dtype; size_t size; } dtype_table[] = {
	{"U8", ST_U8, 1}, {"I32", ST_I32, 4}, {"U32", ST_U32, 4}, {"I64", ST_I64, 8}, {"U64", ST_U64, 8},
	{"BF16", ST_BF16, 2}, {"F32", ST_F32, 4}, {"F64", ST_F64, 8},
};
#define DTYPES (sizeof(dtype_table) / sizeof(dtype_table[0]))

size_t st_dtype_size(enum st_dtype d)
{
	for (size_t i = 0; i < DTYPES; i++)
		if (dtype_table[i].dtype == d)
			return dtype_table[i].size;
	return 0;
}

const char *st_dtype_name(enum st_dtype d)
{
	for (size_t i = 0; i < DTYPES; i++)
		if (dtype_table[i].dtype == d)
			return dtype_table[i].word;
	return "?";
}

/* ---------------------------------------------------------------- what the header says */

static int grow(void **array, int used, int *cap, int max, size_t size, const char *what, struct fh_status *st)
{
	int want = *cap ? *cap * 2 : 32;
	void *p;

	if (used < *cap)
		return 0;
	if (used >= max)
		return fh_fail(st, FH_CORRUPT, "safetensors header: more than %d %s", max, what);
	p = realloc(*array, (size_t)want * size);
	if (!p)
		return fh_fail(st, FH_EXHAUSTED, "safetensors header: out of memory");
	*array = p;
	*cap = want;
	return 0;
}

static int parse_meta(struct st_file *f, struct st_json *j)
{
	int rc = st_json_expect(j, '{');

	if (rc || st_json_take(j, '}'))
		return rc;
	do {
		struct st_pair pair = {NULL, NULL};

		rc = grow((void **)&f->meta, f->metas, &f->meta_cap, ST_META_MAX, sizeof(*f->meta), "metadata entries", j->st);
		if (!rc)
			rc = st_json_string(j, &pair.key);
		if (!rc)
			rc = st_json_expect(j, ':');
		if (!rc)
			rc = st_json_string(j, &pair.value);
		if (rc) {
			free(pair.key);
			return rc;
		}
		f->meta[f->metas++] = pair;
	} while (st_json_take(j, ','));
	return st_json_expect(j, '}');
}

static int parse_dtype(struct st_json *j, struct st_tensor *t)
{
	char *word = NULL;
	int rc = st_json_string(j, &word);

	if (rc)
		return rc;
	for (size_t i = 0; i < DTYPES; i++)
		if (!strcmp(word, dtype_table[i].word))
			t->dtype = dtype_table[i].dtype;
	if (!t->dtype)
		rc = fh_fail(j->st, FH_CORRUPT, "tensor %s: element type %.16s is not supported", t->name, word);
	free(word);
	return rc;
}

/* {"dtype": …, "shape": […], "data_offsets": [begin, end]}, each exactly once. */
static int parse_tensor(struct st_json *j, struct st_tensor *t, int64_t offset[2])
{
	enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4, ALL = 7 };
	int seen = 0, n, rc = st_json_expect(j, '{');

	while (!rc) {
		char *key = NULL;
		int bit;

		rc = st_json_string(j, &key);
		if (rc)
			return rc;
		bit = !strcmp(key, "dtype") ? DTYPE : !strcmp(key, "shape") ? SHAPE : !strcmp(key, "data_offsets") ? OFFSETS : 0;
		free(key);
		if (!bit || seen & bit)
			return st_json_bad(j, "unknown or repeated key of a tensor");
		seen |= bit;
		rc = st_json_expect(j, ':');
		if (!rc && bit == DTYPE)
			rc = parse_dtype(j, t);
		else if (!rc && bit == SHAPE)
			rc = st_json_counts(j, t->dim, ST_RANK_MAX, &t->rank, "too many dimensions");
		else if (!rc)
			rc = st_json_counts(j, offset, 2, &n, "more than two offsets");
		if (!rc && bit == OFFSETS && n != 2)
			rc = st_json_bad(j, "two offsets expected");
		if (!rc && !st_json_take(j, ','))
			break;
	}
	if (!rc)
		rc = st_json_expect(j, '}');
	if (!rc && seen != ALL)
		rc = st_json_bad(j, "tensor without dtype, shape or data_offsets");
	return rc;
}

static int tensor_bytes(const struct st_tensor *t, size_t *out)
{
	size_t n = st_dtype_size(t->dtype);

	for (int i = 0; i < t->rank; i++)
		if (t->dim[i] < 0 || __builtin_mul_overflow(n, (size_t)t->dim[i], &n))
			return -1;
	*out = n;
	return 0;
}

static int add_tensor(struct st_file *f, struct st_json *j, const char *name, size_t data_bytes)
{
	struct st_tensor t = {.rank = 0};
	int64_t offset[2] = {0, 0};
	int rc, cap = f->tensor_cap;

	if (strlen(name) >= sizeof(t.name) || !*name)
		return fh_fail(j->st, FH_CORRUPT, "tensor name of %zu bytes; 1 to %zu are allowed", strlen(name), sizeof(t.name) - 1);
	strcpy(t.name, name);
	rc = parse_tensor(j, &t, offset);
	if (rc)
		return rc;
	if (tensor_bytes(&t, &t.bytes))
		return fh_fail(j->st, FH_CORRUPT, "tensor %s: its shape is too large", t.name);
	if (offset[0] > offset[1] || (uint64_t)offset[1] > data_bytes)
		return fh_fail(j->st, FH_CORRUPT, "tensor %s: offsets %lld to %lld in a data section of %zu bytes", t.name,
			       (long long)offset[0], (long long)offset[1], data_bytes);
	if (t.bytes != (size_t)(offset[1] - offset[0]))
		return fh_fail(j->st, FH_CORRUPT, "tensor %s: its shape needs %zu bytes, its offsets give %lld", t.name, t.bytes,
			       (long long)(offset[1] - offset[0]));
	rc = grow((void **)&f->tensor, f->tensors, &cap, ST_TENSORS_MAX, sizeof(*f->tensor), "tensors", j->st);
	if (rc)
		return rc;
	f->tensor_cap = cap;
	t.data = f->base + (f->bytes - data_bytes) + offset[0];
	f->tensor[f->tensors++] = t;
	return 0;
}

static int parse_header(struct st_file *f, struct st_json *j, size_t data_bytes)
{
	int rc = st_json_expect(j, '{'), meta_seen = 0;

	if (!rc && !st_json_take(j, '}')) {
		do {
			char *name = NULL;

			rc = st_json_string(j, &name);
			if (!rc)
				rc = st_json_expect(j, ':');
			if (!rc && !strcmp(name, "__metadata__"))
				rc = meta_seen++ ? st_json_bad(j, "second __metadata__") : parse_meta(f, j);
			else if (!rc)
				rc = add_tensor(f, j, name, data_bytes);
			free(name);
		} while (!rc && st_json_take(j, ','));
		if (!rc)
			rc = st_json_expect(j, '}');
	}
	st_json_space(j);
	if (!rc && j->at != j->end)
		rc = st_json_bad(j, "text behind the header");
	return rc;
}

/* ---------------------------------------------------------------- tables */

static int by_place(const void *a, const void *b)
{
	const struct st_tensor *x = a, *y = b;

	if (x->data != y->data)
		return (const char *)x->data < (const char *)y->data ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty tensors first: they share a place */
}

static int by_key(const void *a, const void *b)
{
	return strcmp(((const struct st_pair *)a)->key, ((const struct st_pair *)b)->key);
}

static int by_name(const void *a, const void *b, void *tensor)
{
	const struct st_tensor *t = tensor;

	return strcmp(t[*(const int *)a].name, t[*(const int *)b].name);
}

/* Sorts, then refuses gaps, overlaps, unaligned tensors and duplicate names. */
static int index_tables(struct st_file *f, size_t data_bytes, struct fh_status *st)
{
	const unsigned char *at = f->base + (f->bytes - data_bytes);

	if (f->tensors)
		qsort(f->tensor, (size_t)f->tensors, sizeof(*f->tensor), by_place);
	for (int i = 0; i < f->tensors; i++) {
		const struct st_tensor *t = &f->tensor[i];

		if (t->data != at)
			return fh_fail(st, FH_CORRUPT, "tensor %s: %s its neighbour", t->name,
				       (const unsigned char *)t->data < at ? "overlaps" : "leaves a gap to");
		if ((uintptr_t)t->data % st_dtype_size(t->dtype))
			return fh_fail(st, FH_CORRUPT, "tensor %s: its data is not aligned to its elements", t->name);
		at += t->bytes;
	}
	if (at != f->base + f->bytes)
		return fh_fail(st, FH_CORRUPT, "%zu bytes behind the last tensor", (size_t)(f->base + f->bytes - at));
	f->by_name = malloc(sizeof(int) * (size_t)(f->tensors + 1));
	if (!f->by_name)
		return fh_fail(st, FH_EXHAUSTED, "safetensors header: out of memory");
	for (int i = 0; i < f->tensors; i++)
		f->by_name[i] = i;
	qsort_r(f->by_name, (size_t)f->tensors, sizeof(int), by_name, f->tensor);
	for (int i = 1; i < f->tensors; i++)
		if (!by_name(&f->by_name[i - 1], &f->by_name[i], f->tensor))
			return fh_fail(st, FH_CORRUPT, "two tensors named %s", f->tensor[f->by_name[i]].name);
	if (f->metas)
		qsort(f->meta, (size_t)f->metas, sizeof(*f->meta), by_key);
	for (int i = 1; i < f->metas; i++)
		if (!strcmp(f->meta[i - 1].key, f->meta[i].key))
			return fh_fail(st, FH_CORRUPT, "metadata key %.64s twice", f->meta[i].key);
	return 0;
}

/* ---------------------------------------------------------------- opening */

static int parse(struct st_file *f, struct fh_status *st)
{
	uint64_t header = 0;
	struct st_json j;
	int rc;

	if (f->bytes < 8)
		return fh_fail(st, FH_CORRUPT, "%zu bytes are too few for a safetensors file", f->bytes);
	for (int i = 7; i >= 0; i--)
		header = header << 8 | f->base[i];
	if (header > ST_HEADER_MAX || header > f->bytes - 8)
		return fh_fail(st, FH_CORRUPT, "a header of %llu bytes in a file of %zu (at most %u are read)",
			       (unsigned long long)header, f->bytes, ST_HEADER_MAX);
	j = (struct st_json){f->base + 8, f->base + 8 + header, f->base + 8, st};
	if (!st_json_utf8_valid(j.at, j.end))
		return fh_fail(st, FH_CORRUPT, "safetensors header: not valid UTF-8");
	rc = parse_header(f, &j, f->bytes - 8 - header);
	return rc ? rc : index_tables(f, f->bytes - 8 - header, st);
}

int st_open_memory(const void *data, size_t bytes, struct st_file **out, struct fh_status *st)
{
	struct st_file *f = calloc(1, sizeof(*f));
	int rc;

	if (!f)
		return fh_fail(st, FH_EXHAUSTED, "out of memory");
	f->base = data;
	f->bytes = bytes;
	rc = parse(f, st);
	if (rc) {
		st_close(f);
		return rc;
	}
	*out = f;
	return 0;
}

/* A mapping follows the file: whoever replaces a file renames a new one over it (as the writer here does) and never
 * truncates it in place. */
int st_open(const char *path, struct st_file **out, struct fh_status *st)
{
	struct stat info;
	void *base = MAP_FAILED;
	int rc, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang us */

	if (fd < 0)
		return fh_fail(st, errno == ENOENT ? FH_NOT_FOUND : FH_IO, "%s: %s", path, strerror(errno));
	if (fstat(fd, &info)) {
		rc = fh_fail(st, FH_IO, "%s: %s", path, strerror(errno));
	} else if (!S_ISREG(info.st_mode)) {
		rc = fh_fail(st, FH_CORRUPT, "%s: not a regular file", path);
	} else if (info.st_size < 8) {
		rc = fh_fail(st, FH_CORRUPT, "%s: %lld bytes are too few for a safetensors file", path, (long long)info.st_size);
	} else {
		base = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		rc = base == MAP_FAILED ? fh_fail(st, FH_IO, "%s: cannot map: %s", path, strerror(errno)) : 0;
	}
	close(fd);
	if (rc)
		return rc;
	rc = st_open_memory(base, (size_t)info.st_size, out, st);
	if (rc) {
		munmap(base, (size_t)info.st_size);
		if (st)
			fh_prefix(st, "%s", path);
		return rc;
	}
	(*out)->mapped = 1;
	return 0;
}

void st_close(struct st_file *f)
{
	if (!f)
		return;
	if (f->mapped)
		munmap((void *)(uintptr_t)f->base, f->bytes);
	for (int i = 0; i < f->metas; i++) {
		free(f->meta[i].key);
		free(f->meta[i].value);
	}
	free(f->meta);
	free(f->tensor);
	free(f->by_name);
	free(f);
}

/* ---------------------------------------------------------------- asking */

int st_count(const struct st_file *f)
{
	return f->tensors;
}

const struct st_tensor *st_at(const struct st_file *f, int i)
{
	return i >= 0 && i < f->tensors ? &f->tensor[i] : NULL;
}

const struct st_tensor *st_find(const struct st_file *f, const char *name)
{
	int lo = 0, hi = f->tensors;

	while (lo < hi) {
		int mid = (lo + hi) / 2, c = strcmp(name, f->tensor[f->by_name[mid]].name);

		if (!c)
			return &f->tensor[f->by_name[mid]];
		if (c < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return NULL;
}

static void shape_text(char *out, size_t size, enum st_dtype dtype, int rank, const int64_t *dim)
{
	size_t n = (size_t)snprintf(out, size, "%s [", st_dtype_name(dtype));

	for (int i = 0; i < rank && n < size; i++)
		n += (size_t)snprintf(out + n, size - n, "%s%lld", i ? ", " : "", (long long)dim[i]);
	if (n < size)
		snprintf(out + n, size - n, "]");
}

int st_need(const struct st_file *f, const char *name, enum st_dtype dtype, int rank, const int64_t *dim,
	    const struct st_tensor **out, struct fh_status *st)
{
	const struct st_tensor *t = st_find(f, name);
	char have[160], want[160];
	int same;

	if (!t)
		return fh_fail(st, FH_CORRUPT, "tensor %s is missing", name);
	same = t->dtype == dtype && (rank < 0 || rank == t->rank);
	for (int i = 0; same && i < rank; i++)
		same = t->dim[i] == dim[i];
	if (same) {
		*out = t;
		return 0;
	}
	shape_text(have, sizeof(have), t->dtype, t->rank, t->dim);
	shape_text(want, sizeof(want), dtype, rank < 0 ? 0 : rank, dim);
	if (rank < 0)
		snprintf(want, sizeof(want), "%s", st_dtype_name(dtype));
	return fh_fail(st, FH_CORRUPT, "tensor %s is %s, not %s", name, have, want);
}

const char *st_meta(const struct st_file *f, const char *key)
{
	struct st_pair probe = {(char *)(uintptr_t)key, NULL}, *hit;

	hit = f->metas ? bsearch(&probe, f->meta, (size_t)f->metas, sizeof(*f->meta), by_key) : NULL;
	return hit ? hit->value : NULL;
}
