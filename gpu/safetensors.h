/* Reading and writing the safetensors format: 8-byte little-endian header length, JSON header, raw tensors.
 *
 * Written files open with the `safetensors` Python package; read files may be hostile: every offset, shape and size is
 * checked against the file before use (FH_CORRUPT). Writing goes to PATH.tmp, fsync, rename, fsync of the directory,
 * so a reader never sees half a file. Any thread; a file object belongs to one thread at a time. */
#ifndef FH_GPU_SAFETENSORS_H
#define FH_GPU_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

struct fh_status;

enum st_dtype { ST_U8 = 1, ST_I32, ST_U32, ST_I64, ST_U64, ST_BF16, ST_F32, ST_F64 };
#define ST_RANK_MAX 6
#define ST_TENSOR_NAME_MAX 96
#define ST_TENSORS_MAX 4096         /* in one file */
#define ST_META_MAX 1024            /* entries of __metadata__ */
#define ST_HEADER_MAX (16u << 20)   /* bytes of JSON */

struct st_tensor {
	char name[ST_TENSOR_NAME_MAX];
	enum st_dtype dtype;
	int rank;
	int64_t dim[ST_RANK_MAX];
	size_t bytes;
	const void *data; /* reading: into the mapped file, aligned to the element; writing: the caller's */
};

struct st_file; /* a mapped file */
int st_open(const char *path, struct st_file **out, struct fh_status *st);
/* The same over a file image in memory, borrowed until st_close(). */
int st_open_memory(const void *data, size_t bytes, struct st_file **out, struct fh_status *st);
void st_close(struct st_file *f); /* NULL is fine */
int st_count(const struct st_file *f);
const struct st_tensor *st_at(const struct st_file *f, int i);
const struct st_tensor *st_find(const struct st_file *f, const char *name); /* NULL when absent */
/* The tensor with this dtype and exactly this shape, else FH_CORRUPT naming both. rank -1: any shape. */
int st_need(const struct st_file *f, const char *name, enum st_dtype dtype, int rank, const int64_t *dim,
	    const struct st_tensor **out, struct fh_status *st);
const char *st_meta(const struct st_file *f, const char *key); /* NULL when absent */
size_t st_dtype_size(enum st_dtype d);
const char *st_dtype_name(enum st_dtype d); /* "F32" */

/* An image is the whole file in one buffer, made by the thread that owns the tensors and written by another. */
struct st_image { void *data; size_t bytes; };
/* Tensors are laid out by element size, largest first, then by the given order. meta: k, v, …, NULL. */
int st_image_make(const struct st_tensor *t, int n, const char *const *meta, struct st_image *out, struct fh_status *st);
int st_image_write(const struct st_image *img, const char *path, struct fh_status *st);
void st_image_release(struct st_image *img);
/* A file written piece by piece, in any order, while its tensors come into being: their data is not looked at, what is never put is zero.
 * It is PATH.KEY.tmp (KEY NULL: PATH.tmp) until st_writer_end() makes it durable and gives it its name; that call and st_writer_abandon()
 * (NULL is fine) end the writer. One thread at a time. */
struct st_writer;
int st_writer_begin(const struct st_tensor *t, int n, const char *const *meta, const char *path, const char *key, struct st_writer **out,
		    struct fh_status *st);
/* `bytes` of tensor i from byte `at` on; the disk begins with them at once. */
int st_writer_put(struct st_writer *w, int i, size_t at, const void *data, size_t bytes, struct fh_status *st);
int st_writer_end(struct st_writer *w, struct fh_status *st);
void st_writer_abandon(struct st_writer *w);
/* All of it in one call, without a second copy of the tensors (data sets of gigabytes). */
int st_save(const struct st_tensor *t, int n, const char *const *meta, const char *path, struct fh_status *st);

#endif
