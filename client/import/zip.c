/* The directory of a zip archive (zip.h).
 *
 * The end record is searched backwards from the end of the file, then the central directory is read whole (it is bounded)
 * and walked. Every offset and length is checked against the file before it is used. Any thread. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/import/zip.h"
#include "proto/status.h"

#define END_SIZE 22
#define COMMENT_MAX 65535
#define ENTRY_SIZE 46
#define LOCAL_SIZE 30
#define ZIP64_EXTRA 1
#define DIRECTORY_MAX (16u << 20)
#define LISTED_MAX 6 /* names in a refusal */

static unsigned u16(const unsigned char *p)
{
	return p[0] | (unsigned)p[1] << 8;
}

static uint32_t u32(const unsigned char *p)
{
	return (uint32_t)u16(p) | (uint32_t)u16(p + 2) << 16;
}

static int read_at(int fd, void *buf, size_t n, uint64_t at, struct fh_status *st)
{
	size_t done = 0;

	while (done < n) {
		ssize_t k = pread(fd, (char *)buf + done, n - done, (off_t)(at + done));
		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return fh_fail(st, FH_IO, "reading the zip directory: %s", strerror(errno));
		if (k == 0)
			return fh_fail(st, FH_CORRUPT, "the zip archive is cut short");
		done += (size_t)k;
	}
	return 0;
}

/* Reads the central directory; *dir is the caller's to free. */
static int read_directory(int fd, unsigned char **dir, size_t *size, unsigned *entries, struct fh_status *st)
{
	struct stat sb;

	if (fstat(fd, &sb) || !S_ISREG(sb.st_mode) || sb.st_size < END_SIZE)
		return fh_fail(st, FH_CORRUPT, "the zip archive is cut short");
	uint64_t file = (uint64_t)sb.st_size;
	size_t tail = file < END_SIZE + COMMENT_MAX ? (size_t)file : END_SIZE + COMMENT_MAX;
	unsigned char *buf = malloc(tail), *end = NULL;
	if (!buf)
		return fh_fail(st, FH_EXHAUSTED, "no memory for the zip directory");
	int rc = read_at(fd, buf, tail, file - tail, st);
	for (size_t i = tail - END_SIZE + 1; !rc && !end && i-- > 0;)
		if (!memcmp(buf + i, "PK\5\6", 4))
			end = buf + i;
	uint64_t offset = end ? u32(end + 16) : 0;
	size_t bytes = end ? u32(end + 12) : 0;
	unsigned count = end ? u16(end + 10) : 0;
	free(buf);
	if (rc)
		return rc;
	if (!end)
		return fh_fail(st, FH_CORRUPT, "the zip archive has no directory: it is cut short");
	if (count == 0xffff || offset == 0xffffffff)
		return fh_fail(st, FH_INVALID, "its directory is in the zip64 form, which is not read; unpack it first");
	if (bytes > DIRECTORY_MAX || offset + bytes > file)
		return fh_fail(st, FH_CORRUPT, "the zip directory is damaged");
	unsigned char *d = malloc(bytes ? bytes : 1);
	if (!d)
		return fh_fail(st, FH_EXHAUSTED, "no memory for the zip directory");
	rc = read_at(fd, d, bytes, offset, st);
	if (rc) {
		free(d);
		return rc;
	}
	*dir = d;
	*size = bytes;
	*entries = count;
	return 0;
}

/* Sizes and offset of an entry; where 32 bits do not hold them (or the writer did not care) they are in an extra field, in
 * the order unpacked, packed, offset, only those that are all ones in the entry itself. */
static int sizes(const unsigned char *e, struct zip_member *m, uint64_t *at)
{
	const unsigned char *x = e + ENTRY_SIZE + u16(e + 28), *end = x + u16(e + 30);
	uint64_t *const value[] = {&m->unpacked, &m->packed, at};

	m->unpacked = u32(e + 24);
	m->packed = u32(e + 20);
	*at = u32(e + 42);
	while (end - x >= 4 && u16(x) != ZIP64_EXTRA)
		x += 4 + u16(x + 2) < end - x ? 4 + u16(x + 2) : end - x;
	if (end - x >= 4 && 4 + u16(x + 2) <= end - x)
		end = x + 4 + u16(x + 2);
	x += end - x >= 4 ? 4 : end - x;
	for (int i = 0; i < 3; i++) {
		if (*value[i] != UINT32_MAX)
			continue;
		if (end - x < 8)
			return 0;
		*value[i] = u32(x) | (uint64_t)u32(x + 4) << 32;
		x += 8;
	}
	return 1;
}

static int locate(int fd, const unsigned char *e, struct zip_member *m, struct fh_status *st)
{
	unsigned char local[LOCAL_SIZE];
	unsigned method = u16(e + 10);
	uint64_t at;

	if (u16(e + 8) & 1)
		return fh_fail(st, FH_INVALID, "%s in the archive is encrypted", m->name);
	if (method != 0 && method != 8)
		return fh_fail(st, FH_INVALID, "%s in the archive is packed with method %u; only deflate is read", m->name, method);
	m->crc = u32(e + 16);
	m->deflated = method == 8;
	if (!sizes(e, m, &at) || m->packed > INT64_MAX || at > INT64_MAX - UINT32_MAX)
		return fh_fail(st, FH_CORRUPT, "the zip directory is damaged");
	int rc = read_at(fd, local, sizeof local, at, st);
	if (rc)
		return rc;
	if (memcmp(local, "PK\3\4", 4))
		return fh_fail(st, FH_CORRUPT, "the zip directory is damaged");
	m->offset = at + LOCAL_SIZE + u16(local + 26) + u16(local + 28);
	return 0;
}

int zip_find(int fd, const char *want, struct zip_member *out, struct fh_status *st)
{
	unsigned char *dir = NULL;
	const unsigned char *found = NULL;
	char names[FH_TEXT_MAX / 2] = "";
	size_t size = 0, files = 0, room = sizeof names;
	unsigned entries = 0;
	struct zip_member m;

	memset(&m, 0, sizeof m);
	int rc = read_directory(fd, &dir, &size, &entries, st);
	if (rc)
		return rc;
	for (size_t at = 0; entries && at + ENTRY_SIZE <= size; entries--) {
		const unsigned char *e = dir + at;
		size_t n = u16(e + 28), next = at + ENTRY_SIZE + n + u16(e + 30) + u16(e + 32);
		if (memcmp(e, "PK\1\2", 4) || next > size) {
			free(dir);
			return fh_fail(st, FH_CORRUPT, "the zip directory is damaged");
		}
		at = next;
		if (!n || n >= ZIP_NAME_MAX || e[ENTRY_SIZE + n - 1] == '/')
			continue;
		const char *name = (const char *)e + ENTRY_SIZE;
		if (files++ < LISTED_MAX) {
			size_t used = strlen(names);
			snprintf(names + used, room - used, "%s%.*s", used ? ", " : "", (int)n, name);
		}
		if (want ? strlen(want) == n && !memcmp(want, name, n) : files == 1) {
			found = e;
			memcpy(m.name, name, n);
			m.name[n] = '\0';
		}
	}
	if (!files)
		rc = fh_fail(st, FH_INVALID, "the zip archive is empty");
	else if (want && !found)
		rc = fh_fail(st, FH_NOT_FOUND, "the archive has no %s; it holds %s", want, names);
	else if (!want && files > 1)
		rc = fh_fail(st, FH_INVALID, "the archive holds %zu files: name one with --member (%s%s)", files, names,
			     files > LISTED_MAX ? ", …" : "");
	else
		rc = locate(fd, found, &m, st);
	if (!rc)
		*out = m;
	free(dir);
	return rc;
}
