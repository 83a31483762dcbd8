/* Bytes of a market data file (source.h).
 *
 * `in` holds compressed bytes as read from the file; the decoders take from it and write straight into the caller's
 * block. One thread. Invariant: in_begin <= in_end <= SOURCE_BLOCK, and the end of the file inside a compressed frame is an
 * error, never a shorter file. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "client/import/source.h"
#include "client/import/zip.h"
#include "proto/status.h"

#define SOURCE_BLOCK (256u << 10)

static int starts(const void *p, size_t have, const char *magic, size_t n)
{
	return have >= n && memcmp(p, magic, n) == 0;
}

int source_foreign(const void *p, size_t n, struct fh_status *st)
{
	if (starts(p, n, "\x50\x2a\x4d\x18", 4))
		return fh_fail(st, FH_INVALID, "this is a DBZ file, the form before DBN; `dbn FILE -o FILE.dbn` of its makers turns it into DBN");
	if (starts(p, n, "\xff\xfe", 2) || starts(p, n, "\xfe\xff", 2))
		return fh_fail(st, FH_INVALID, "this is UTF-16 text; save it as UTF-8");
	if (starts(p, n, "BZh", 3) || starts(p, n, "\xfd" "7zXZ", 5))
		return fh_fail(st, FH_INVALID, "bzip2 and xz files are not read; unpack it first");
	if (starts(p, n, "\x1f\x8b", 2) || starts(p, n, "\x28\xb5\x2f\xfd", 4) || starts(p, n, "PK\x03\x04", 4))
		return fh_fail(st, FH_INVALID, "it is packed twice; unpack it first");
	return 0;
}

enum kind { PLAIN, GZIP, ZSTD, ZIP };

struct source {
	int fd;
	enum kind kind;
	uint64_t bytes, bytes_read;
	unsigned char in[SOURCE_BLOCK];
	size_t in_begin, in_end;
	int in_eof;
	unsigned char peek[SOURCE_PEEK];
	size_t peeked, peek_taken;
	z_stream z;
	int z_open, z_done; /* z_done: between two gzip members, or after the zip member */
	ZSTD_DStream *zstd;
	size_t zstd_hint;   /* 0: between two frames */
	struct zip_member member;
	uint64_t member_left;  /* compressed bytes still in the file */
	uint64_t member_out;   /* bytes unpacked so far */
	uint32_t member_crc;
};

static int fill(struct source *s, struct fh_status *st)
{
	if (s->in_begin < s->in_end || s->in_eof)
		return 0;
	ssize_t n;
	do
		n = read(s->fd, s->in, SOURCE_BLOCK);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return fh_fail(st, FH_IO, "reading: %s", strerror(errno));
	s->in_begin = 0;
	s->in_end = (size_t)n;
	s->in_eof = n == 0;
	s->bytes_read += (uint64_t)n;
	return 0;
}

static int open_zip(struct source *s, const char *path, const char *member, struct fh_status *st)
{
	if (s->fd == STDIN_FILENO)
		return fh_fail(st, FH_INVALID, "a zip archive cannot be read from standard input");
	int rc = zip_find(s->fd, member, &s->member, st);
	if (rc)
		return rc;
	if (lseek(s->fd, (off_t)s->member.offset, SEEK_SET) < 0)
		return fh_fail(st, FH_IO, "seeking in %s: %s", path, strerror(errno));
	s->member_left = s->member.packed;
	s->in_begin = s->in_end = 0;
	s->in_eof = 0;
	s->bytes_read = s->member.offset;
	s->member_crc = (uint32_t)crc32(0, NULL, 0);
	return 0;
}

static int open_kind(struct source *s, const char *path, const char *member, struct fh_status *st)
{
	int rc = fill(s, st);

	if (rc)
		return rc;
	if (starts(s->in, s->in_end, "\x1f\x8b", 2))
		s->kind = GZIP;
	else if (starts(s->in, s->in_end, "\x28\xb5\x2f\xfd", 4))
		s->kind = ZSTD;
	else if (starts(s->in, s->in_end, "PK\x03\x04", 4) || starts(s->in, s->in_end, "PK\x05\x06", 4))
		s->kind = ZIP;
	if (member && s->kind != ZIP)
		return fh_fail(st, FH_INVALID, "--member is for zip archives, and this is none");
	if (s->kind == ZIP && (rc = open_zip(s, path, member, st)))
		return rc;
	if (s->kind == GZIP || (s->kind == ZIP && s->member.deflated)) {
		if (inflateInit2(&s->z, s->kind == GZIP ? 15 + 16 : -15) != Z_OK)
			return fh_fail(st, FH_EXHAUSTED, "no memory to unpack");
		s->z_open = 1;
	}
	if (s->kind == ZSTD) {
		s->zstd = ZSTD_createDStream();
		if (!s->zstd)
			return fh_fail(st, FH_EXHAUSTED, "no memory to unpack");
		s->zstd_hint = ZSTD_initDStream(s->zstd);
	}
	return 0;
}

int source_open(const char *path, const char *member, struct source **out, struct fh_status *st)
{
	struct source *s = calloc(1, sizeof *s);
	struct stat sb;

	if (!s)
		return fh_fail(st, FH_EXHAUSTED, "no memory to read %s", path);
	s->fd = strcmp(path, "-") ? open(path, O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
	if (s->fd < 0) {
		int code = errno == ENOENT ? FH_NOT_FOUND : FH_IO;
		free(s);
		return fh_fail(st, code, "%s", strerror(errno));
	}
	int known = fstat(s->fd, &sb) == 0;
	if (known && S_ISREG(sb.st_mode))
		s->bytes = (uint64_t)sb.st_size;
	int rc = known && S_ISDIR(sb.st_mode) ? fh_fail(st, FH_INVALID, "it is a folder, not a file") : open_kind(s, path, member, st);
	if (rc)
		source_close(s);
	else
		*out = s;
	return rc;
}

static int read_plain(struct source *s, char *buf, size_t want, size_t *got, struct fh_status *st)
{
	if (s->in_begin < s->in_end) {
		size_t n = s->in_end - s->in_begin;
		n = n < want ? n : want;
		memcpy(buf, s->in + s->in_begin, n);
		s->in_begin += n;
		*got = n;
		return 0;
	}
	ssize_t n;
	do
		n = read(s->fd, buf, want);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return fh_fail(st, FH_IO, "reading: %s", strerror(errno));
	s->bytes_read += (uint64_t)n;
	*got = (size_t)n;
	return 0;
}

static int read_gzip(struct source *s, char *buf, size_t want, size_t *got, struct fh_status *st)
{
	s->z.next_out = (unsigned char *)buf;
	s->z.avail_out = (unsigned)want;
	while (s->z.avail_out == want) {
		int rc = fill(s, st);
		if (rc)
			return rc;
		if (s->in_begin == s->in_end) {
			if (!s->z_done)
				return fh_fail(st, FH_CORRUPT, "the gzip stream is cut short");
			break;
		}
		if (s->z_done && inflateReset(&s->z) != Z_OK)
			return fh_fail(st, FH_INTERNAL, "zlib does not reset");
		s->z_done = 0;
		s->z.next_in = s->in + s->in_begin;
		s->z.avail_in = (unsigned)(s->in_end - s->in_begin);
		int zrc = inflate(&s->z, Z_NO_FLUSH);
		s->in_begin = s->in_end - s->z.avail_in;
		if (zrc == Z_STREAM_END)
			s->z_done = 1;
		else if (zrc != Z_OK)
			return fh_fail(st, FH_CORRUPT, "the gzip stream is damaged");
	}
	*got = want - s->z.avail_out;
	return 0;
}

static int read_zstd(struct source *s, char *buf, size_t want, size_t *got, struct fh_status *st)
{
	ZSTD_outBuffer o = {buf, want, 0};

	while (!o.pos) {
		int rc = fill(s, st);
		if (rc)
			return rc;
		if (s->in_begin == s->in_end && s->in_eof && s->zstd_hint == 0)
			break;
		ZSTD_inBuffer i = {s->in, s->in_end, s->in_begin};
		s->zstd_hint = ZSTD_decompressStream(s->zstd, &o, &i);
		if (ZSTD_isError(s->zstd_hint))
			return fh_fail(st, FH_CORRUPT, "the zstd stream is damaged: %s", ZSTD_getErrorName(s->zstd_hint));
		if (i.pos == s->in_begin && !o.pos && s->in_eof)
			return fh_fail(st, FH_CORRUPT, "the zstd stream is cut short");
		s->in_begin = i.pos;
	}
	*got = o.pos;
	return 0;
}

static int member_check(struct source *s, struct fh_status *st)
{
	if (s->member_out != s->member.unpacked || s->member_crc != s->member.crc)
		return fh_fail(st, FH_CORRUPT, "%s in the archive is damaged", s->member.name);
	return 0;
}

/* Stored members are copied, deflated ones inflated; length and CRC are checked at the end. */
static int read_zip(struct source *s, char *buf, size_t want, size_t *got, struct fh_status *st)
{
	size_t done = 0;

	while (!done && !s->z_done) {
		int rc = fill(s, st);
		if (rc)
			return rc;
		size_t n = s->in_end - s->in_begin;
		n = n < s->member_left ? n : (size_t)s->member_left;
		if (!n && s->member_left)
			return fh_fail(st, FH_CORRUPT, "the zip archive is cut short");
		if (!s->member.deflated) {
			n = n < want ? n : want;
			memcpy(buf, s->in + s->in_begin, n);
			done = n;
			s->z_done = s->member_left == n;
		} else {
			s->z.next_in = s->in + s->in_begin;
			s->z.avail_in = (unsigned)n;
			s->z.next_out = (unsigned char *)buf;
			s->z.avail_out = (unsigned)want;
			int zrc = inflate(&s->z, Z_NO_FLUSH);
			n -= s->z.avail_in;
			done = want - s->z.avail_out;
			s->z_done = zrc == Z_STREAM_END;
			if ((zrc != Z_OK && zrc != Z_STREAM_END) || (!n && !done && !s->z_done))
				return fh_fail(st, FH_CORRUPT, "%s in the archive is damaged", s->member.name);
		}
		s->in_begin += n;
		s->member_left -= n;
		s->member_out += done;
		s->member_crc = (uint32_t)crc32(s->member_crc, (unsigned char *)buf, (unsigned)done);
	}
	*got = done;
	return done ? 0 : member_check(s, st);
}

static int read_kind(struct source *s, char *buf, size_t want, size_t *got, struct fh_status *st)
{
	static int (*const reader[])(struct source *, char *, size_t, size_t *, struct fh_status *) = {
		[PLAIN] = read_plain, [GZIP] = read_gzip, [ZSTD] = read_zstd, [ZIP] = read_zip
	};

	return reader[s->kind](s, buf, want, got, st);
}

int source_peek(struct source *s, const void **p, size_t *n, struct fh_status *st)
{
	size_t got = 1;

	while (s->peeked < SOURCE_PEEK && got) {
		int rc = read_kind(s, (char *)s->peek + s->peeked, SOURCE_PEEK - s->peeked, &got, st);
		if (rc)
			return rc;
		s->peeked += got;
	}
	*p = s->peek;
	*n = s->peeked;
	return 0;
}

int source_read(struct source *s, char *buf, size_t want, size_t *got, struct fh_status *st)
{
	size_t n = s->peeked - s->peek_taken;

	if (!n)
		return read_kind(s, buf, want, got, st);
	n = n < want ? n : want;
	memcpy(buf, s->peek + s->peek_taken, n);
	s->peek_taken += n;
	*got = n;
	return 0;
}

uint64_t source_bytes(const struct source *s)
{
	return s->kind == ZIP ? s->member.offset + s->member.packed : s->bytes;
}

uint64_t source_bytes_read(const struct source *s)
{
	uint64_t held = s->in_end - s->in_begin;
	return s->bytes_read > held ? s->bytes_read - held : 0;
}

const char *source_kind(const struct source *s)
{
	static const char *const name[] = {[PLAIN] = "plain", [GZIP] = "gzip", [ZSTD] = "zstd", [ZIP] = "zip"};
	return name[s->kind];
}

void source_close(struct source *s)
{
	if (!s)
		return;
	if (s->z_open)
		inflateEnd(&s->z);
	ZSTD_freeDStream(s->zstd);
	if (s->fd > STDIN_FILENO)
		close(s->fd);
	free(s);
}
