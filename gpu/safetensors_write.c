/* The safetensors format, writing half: header text, image in memory, and a file that is whole or not there.
 *
 * Owns nothing between calls. Any thread. Invariant: PATH holds either its old content or all of the new one, on the
 * disk, whatever moment the power fails; PATH.tmp may be left by a crash and is overwritten by the next writer.
 * One writer per path at a time. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/safetensors.h"
#include "proto/status.h"

#define PATH_BYTES_MAX 4096
#define WRITE_BYTES_MAX ((size_t)1 << 30) /* one write(2); Linux moves at most 2 GiB */

/* ---------------------------------------------------------------- header */

struct text { char *s; size_t used, cap; int failed; };

static void text_put(struct text *t, const char *s, size_t n)
{
	if (t->failed)
		return;
	if (t->used + n + 1 > t->cap) {
		size_t cap = (t->used + n + 1) * 2;
		char *p = realloc(t->s, cap);

		if (!p) {
			t->failed = 1;
			return;
		}
		t->s = p;
		t->cap = cap;
	}
	memcpy(t->s + t->used, s, n);
	t->used += n;
}

static void text_str(struct text *t, const char *s)
{
	text_put(t, s, strlen(s));
}

static void text_quoted(struct text *t, const char *s)
{
	char esc[8];

	text_put(t, "\"", 1);
	for (; *s; s++) {
		if (*s == '"' || *s == '\\') {
			snprintf(esc, sizeof(esc), "\\%c", *s);
			text_str(t, esc);
		} else if ((unsigned char)*s < 0x20) {
			snprintf(esc, sizeof(esc), "\\u%04x", *s);
			text_str(t, esc);
		} else {
			text_put(t, s, 1);
		}
	}
	text_put(t, "\"", 1);
}

static void text_meta(struct text *t, const char *const *meta)
{
	text_str(t, "\"__metadata__\":{");
	for (int i = 0; meta[i] && meta[i + 1]; i += 2) {
		text_str(t, i ? "," : "");
		text_quoted(t, meta[i]);
		text_str(t, ":");
		text_quoted(t, meta[i + 1]);
	}
	text_str(t, "}");
}

static void text_tensor(struct text *t, const struct st_tensor *x, size_t begin)
{
	char num[64];

	text_quoted(t, x->name);
	text_str(t, ":{\"dtype\":\"");
	text_str(t, st_dtype_name(x->dtype));
	text_str(t, "\",\"shape\":[");
	for (int i = 0; i < x->rank; i++) {
		snprintf(num, sizeof(num), "%s%lld", i ? "," : "", (long long)x->dim[i]);
		text_str(t, num);
	}
	snprintf(num, sizeof(num), "],\"data_offsets\":[%zu,%zu]}", begin, begin + x->bytes);
	text_str(t, num);
}

static int tensor_check(const struct st_tensor *t, int i, struct fh_status *st)
{
	size_t bytes = st_dtype_size(t[i].dtype);

	for (int d = 0; d < t[i].rank && d < ST_RANK_MAX; d++)
		if (t[i].dim[d] < 0 || __builtin_mul_overflow(bytes, (size_t)t[i].dim[d], &bytes))
			return fh_fail(st, FH_INVALID, "tensor %s: bad shape", t[i].name);
	if (!st_dtype_size(t[i].dtype) || t[i].rank < 0 || t[i].rank > ST_RANK_MAX || bytes != t[i].bytes)
		return fh_fail(st, FH_INVALID, "tensor %s: %zu bytes do not match its shape and type", t[i].name, t[i].bytes);
	for (int k = 0; k < i; k++)
		if (!strcmp(t[k].name, t[i].name))
			return fh_fail(st, FH_INVALID, "two tensors named %s", t[i].name);
	return 0;
}

/* Order of the tensors in the file: element size descending, then as given. */
static void order_make(const struct st_tensor *t, int n, int *order)
{
	int k = 0;

	for (size_t size = 8; size; size /= 2)
		for (int i = 0; i < n; i++)
			if (st_dtype_size(t[i].dtype) == size)
				order[k++] = i;
}

/* The 8 length bytes and the JSON, padded so that the data starts on 8 bytes. order[n] says where which tensor goes. */
static int header_make(const struct st_tensor *t, int n, const char *const *meta, struct text *out, int *order,
		       struct fh_status *st)
{
	size_t at = 0, json;
	int rc = n > ST_TENSORS_MAX ? fh_fail(st, FH_INVALID, "%d tensors; at most %d", n, ST_TENSORS_MAX) : 0;

	for (int i = 0; !rc && i < n; i++)
		rc = tensor_check(t, i, st);
	if (rc)
		return rc;
	order_make(t, n, order);
	text_put(out, "\0\0\0\0\0\0\0\0{", 9);
	if (meta && meta[0])
		text_meta(out, meta);
	for (int i = 0; i < n; i++) {
		text_str(out, i || (meta && meta[0]) ? "," : "");
		text_tensor(out, &t[order[i]], at);
		at += t[order[i]].bytes;
	}
	text_str(out, "}");
	while (!out->failed && out->used % 8)
		text_put(out, " ", 1);
	if (out->failed)
		return fh_fail(st, FH_EXHAUSTED, "out of memory");
	json = out->used - 8;
	if (json > ST_HEADER_MAX)
		return fh_fail(st, FH_INVALID, "a header of %zu bytes; at most %u", json, ST_HEADER_MAX);
	for (int i = 0; i < 8; i++)
		out->s[i] = (char)(json >> (8 * i));
	return 0;
}

/* ---------------------------------------------------------------- image */

int st_image_make(const struct st_tensor *t, int n, const char *const *meta, struct st_image *out, struct fh_status *st)
{
	struct text head = {NULL, 0, 0, 0};
	int *order = malloc(sizeof(int) * (size_t)(n + 1));
	int rc = order ? header_make(t, n, meta, &head, order, st) : fh_fail(st, FH_EXHAUSTED, "out of memory");
	size_t bytes = head.used;
	char *data = NULL;

	for (int i = 0; !rc && i < n; i++)
		bytes += t[i].bytes;
	if (!rc && !(data = malloc(bytes)))
		rc = fh_fail(st, FH_EXHAUSTED, "no memory for a file image of %zu bytes", bytes);
	if (!rc) {
		char *at = data + head.used;

		memcpy(data, head.s, head.used);
		for (int i = 0; i < n; i++) {
			const struct st_tensor *x = &t[order[i]];

			if (x->bytes)
				memcpy(at, x->data, x->bytes);
			at += x->bytes;
		}
		*out = (struct st_image){data, bytes};
	}
	free(head.s);
	free(order);
	return rc;
}

void st_image_release(struct st_image *img)
{
	if (!img)
		return;
	free(img->data);
	*img = (struct st_image){NULL, 0};
}

/* ---------------------------------------------------------------- file */

static int io_failed(struct fh_status *st, const char *what, const char *path)
{
	return fh_fail(st, errno == ENOSPC || errno == EDQUOT ? FH_EXHAUSTED : FH_IO, "%s: cannot %s: %s", path, what,
		       strerror(errno));
}

static int write_all(int fd, const void *data, size_t bytes)
{
	const char *at = data;

	while (bytes) {
		ssize_t n = write(fd, at, bytes < WRITE_BYTES_MAX ? bytes : WRITE_BYTES_MAX);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		at += n;
		bytes -= (size_t)n;
	}
	return 0;
}

/* The rename itself must survive a power cut: its directory is synced too. */
static int sync_directory(const char *path, struct fh_status *st)
{
	char dir[PATH_BYTES_MAX];
	char *slash;
	int fd, rc = 0;

	snprintf(dir, sizeof(dir), "%s", path);
	slash = strrchr(dir, '/');
	if (!slash)
		strcpy(dir, ".");
	else
		slash[slash == dir] = 0;
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return io_failed(st, "open", dir);
	if (fsync(fd))
		rc = io_failed(st, "sync", dir);
	close(fd);
	return rc;
}

static int temporary(char tmp[PATH_BYTES_MAX], const char *path, const char *key, struct fh_status *st)
{
	int n = snprintf(tmp, PATH_BYTES_MAX, "%s%s%s.tmp", path, key ? "." : "", key ? key : "");

	return n < PATH_BYTES_MAX ? 0 : fh_fail(st, FH_INVALID, "the path is longer than %d bytes", PATH_BYTES_MAX - 5);
}

/* rc: what went wrong before. Durable under its name, or gone. */
static int close_file(int fd, const char *tmp, const char *path, int rc, struct fh_status *st)
{
	if (!rc && fsync(fd))
		rc = io_failed(st, "sync", tmp);
	if (close(fd) && !rc)
		rc = io_failed(st, "close", tmp);
	if (!rc && rename(tmp, path))
		rc = io_failed(st, "rename to its place", tmp);
	if (rc) {
		unlink(tmp);
		return rc;
	}
	return sync_directory(path, st);
}

int st_image_write(const struct st_image *img, const char *path, struct fh_status *st)
{
	char tmp[PATH_BYTES_MAX];
	int fd, rc = temporary(tmp, path, NULL, st);

	if (rc)
		return rc;
	fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
	if (fd < 0)
		return io_failed(st, "create", tmp);
	if (write_all(fd, img->data, img->bytes))
		rc = io_failed(st, "write", tmp);
	return close_file(fd, tmp, path, rc, st);
}

/* ---------------------------------------------------------------- piece by piece */

struct st_writer {
	int fd, n;
	size_t *begin, *bytes; /* of each tensor, in the caller's order; begin: in the file */
	char path[PATH_BYTES_MAX], tmp[PATH_BYTES_MAX];
};

static void writer_free(struct st_writer *w)
{
	free(w->begin);
	free(w->bytes);
	free(w);
}

static int write_at(struct st_writer *w, const void *data, size_t bytes, size_t at, struct fh_status *st)
{
	const char *from = data;
	size_t done = 0;

	while (done < bytes) {
		size_t left = bytes - done;
		ssize_t n = pwrite(w->fd, from + done, left < WRITE_BYTES_MAX ? left : WRITE_BYTES_MAX, (off_t)(at + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return io_failed(st, "write", w->tmp);
		done += (size_t)n;
	}
	sync_file_range(w->fd, (off_t)at, (off_t)bytes, SYNC_FILE_RANGE_WRITE); /* a hint; the sync at the end is what counts */
	return 0;
}

static int open_writer(struct st_writer *w, const struct st_tensor *t, const struct text *head, const int *order, struct fh_status *st)
{
	size_t at = head->used;
	int rc;

	for (int i = 0; i < w->n; i++) {
		w->begin[order[i]] = at;
		w->bytes[order[i]] = t[order[i]].bytes;
		at += t[order[i]].bytes;
	}
	w->fd = open(w->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
	if (w->fd < 0)
		return io_failed(st, "create", w->tmp);
	rc = ftruncate(w->fd, (off_t)at) ? io_failed(st, "write", w->tmp) : write_at(w, head->s, head->used, 0, st);
	if (rc) {
		close(w->fd);
		unlink(w->tmp);
	}
	return rc;
}

int st_writer_begin(const struct st_tensor *t, int n, const char *const *meta, const char *path, const char *key, struct st_writer **out,
		    struct fh_status *st)
{
	struct text head = {NULL, 0, 0, 0};
	int *order = malloc(sizeof(int) * (size_t)(n + 1));
	struct st_writer *w = calloc(1, sizeof(*w));
	int rc = 0;

	if (w) {
		w->n = n;
		w->begin = calloc((size_t)n + 1, sizeof(*w->begin));
		w->bytes = calloc((size_t)n + 1, sizeof(*w->bytes));
	}
	if (!order || !w || !w->begin || !w->bytes)
		rc = fh_fail(st, FH_EXHAUSTED, "out of memory");
	if (!rc)
		rc = temporary(w->tmp, path, key, st);
	if (!rc)
		rc = header_make(t, n, meta, &head, order, st);
	if (!rc) {
		snprintf(w->path, sizeof(w->path), "%s", path);
		rc = open_writer(w, t, &head, order, st);
	}
	free(head.s);
	free(order);
	if (rc && w)
		writer_free(w);
	else if (!rc)
		*out = w;
	return rc;
}

int st_writer_put(struct st_writer *w, int i, size_t at, const void *data, size_t bytes, struct fh_status *st)
{
	if (i < 0 || i >= w->n || at > w->bytes[i] || bytes > w->bytes[i] - at)
		return fh_fail(st, FH_INTERNAL, "%zu bytes from %zu on are no part of tensor %d", bytes, at, i);
	return bytes ? write_at(w, data, bytes, w->begin[i] + at, st) : 0;
}

int st_writer_end(struct st_writer *w, struct fh_status *st)
{
	int rc = close_file(w->fd, w->tmp, w->path, 0, st);

	writer_free(w);
	return rc;
}

void st_writer_abandon(struct st_writer *w)
{
	if (!w)
		return;
	close(w->fd);
	unlink(w->tmp);
	writer_free(w);
}

int st_save(const struct st_tensor *t, int n, const char *const *meta, const char *path, struct fh_status *st)
{
	struct st_writer *w = NULL;
	int rc = st_writer_begin(t, n, meta, path, NULL, &w, st);

	for (int i = 0; !rc && i < n; i++)
		rc = st_writer_put(w, i, 0, t[i].data, t[i].bytes, st);
	if (!rc)
		return st_writer_end(w, st);
	st_writer_abandon(w);
	return rc;
}
