/* Lock files; see lockfile.h. The file is removed by its holder, so whoever gets the lock looks whether the path still
 * leads to the file it has locked. */
#include "daemon/lockfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define RETRIES 16 /* somebody removed the file between our open and our lock */

static int holder(int fd)
{
	char text[32] = "";

	return pread(fd, text, sizeof text - 1, 0) > 0 ? atoi(text) : 0;
}

static int same_file(int fd, const char *path)
{
	struct stat a, b;

	return !fstat(fd, &a) && !stat(path, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static int refused(int fd, const char *path, const char *what, int error, struct fh_status *st)
{
	if (error == EWOULDBLOCK)
		return fh_fail(st, FH_CONFLICT, "another fhd (process %d) has %s", holder(fd), what);
	return fh_fail(st, FH_IO, "lock file %s: %s", path, strerror(error));
}

int lockfile_take(const char *path, const char *what, int *out, struct fh_status *st)
{
	for (int i = 0; i < RETRIES; i++) {
		int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

		if (fd < 0)
			return fh_fail(st, errno == EACCES ? FH_DENIED : FH_IO, "lock file %s: %s", path, strerror(errno));
		if (flock(fd, LOCK_EX | LOCK_NB)) {
			int rc = refused(fd, path, what, errno, st);

			close(fd);
			return rc;
		}
		if (same_file(fd, path)) {
			if (ftruncate(fd, 0) || dprintf(fd, "%d\n", (int)getpid()) < 0) {
				fh_fail(st, FH_IO, "lock file %s: %s", path, strerror(errno));
				close(fd);
				return FH_IO;
			}
			*out = fd;
			return 0;
		}
		close(fd);
	}
	return fh_fail(st, FH_IO, "lock file %s is replaced again and again", path);
}

void lockfile_release(const char *path, int fd)
{
	if (fd < 0)
		return;
	unlink(path);
	close(fd);
}
