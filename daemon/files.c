/* See files.h. */
#include "daemon/files.h"
#include "daemon/log.h"
#include "proto/status.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

int files_folder(const char *dir, struct fh_status *st)
{
	struct stat s;

	if (mkdir(dir, 0750) && errno != EEXIST)
		return fh_fail(st, FH_IO, "%s: %s", dir, strerror(errno));
	if (stat(dir, &s) || !S_ISDIR(s.st_mode))
		return fh_fail(st, FH_IO, "%s is not a folder", dir);
	return 0;
}

static int ends_with(const char *s, const char *tail)
{
	size_t n = strlen(s), k = strlen(tail);

	return n >= k && !strcmp(s + n - k, tail);
}

static void put_aside(const char *dir, const char *file)
{
	char from[PATH_MAX], to[PATH_MAX];

	snprintf(to, sizeof to, "%s/unregistered", dir);
	mkdir(to, 0750);
	snprintf(from, sizeof from, "%s/%s", dir, file);
	snprintf(to, sizeof to, "%s/unregistered/%s", dir, file);
	if (rename(from, to))
		log_warn("file without a row could not be put aside", "file=%s error=%s", log_quote(from), log_quote(strerror(errno)));
	else
		log_warn("file without a row put aside", "file=%s", log_quote(to));
}

static int is_known(const char *file, int (*known)(void *arg, const char *name), void *arg)
{
	char name[PATH_MAX];

	snprintf(name, sizeof name, "%.*s", (int)(strlen(file) - strlen(FILES_SUFFIX)), file);
	return known(arg, name);
}

int files_sweep(const char *dir, int fresh, int (*known)(void *arg, const char *name), void *arg)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	int n = 0;

	while (d && (e = readdir(d))) {
		char path[PATH_MAX];
		struct stat s;

		snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
		if (lstat(path, &s) || !S_ISREG(s.st_mode))
			continue;
		if (!ends_with(e->d_name, ".tmp") && (!ends_with(e->d_name, FILES_SUFFIX) || is_known(e->d_name, known, arg)))
			continue;
		n++;
		if (fresh && !ends_with(e->d_name, ".tmp"))
			put_aside(dir, e->d_name);
		else if (unlink(path))
			log_warn("orphaned file stays", "file=%s error=%s", log_quote(path), log_quote(strerror(errno)));
		else
			log_info("orphaned file removed", "file=%s", log_quote(path));
	}
	if (d)
		closedir(d);
	return n;
}

static void on_unlinked(uv_fs_t *req)
{
	if (req->result < 0 && req->result != UV_ENOENT)
		log_warn("file not removed", "file=%s error=%s", log_quote(req->path), log_quote(uv_strerror((int)req->result)));
	uv_fs_req_cleanup(req);
	free(req);
}

void files_remove(struct uv_loop_s *loop, const char *dir, const char *file)
{
	static unsigned long long number;
	char from[PATH_MAX], to[PATH_MAX];
	uv_fs_t *req;

	snprintf(from, sizeof from, "%s/%s", dir, file);
	snprintf(to, sizeof to, "%s/removed-%llu.tmp", dir, ++number);
	if (rename(from, to)) {
		if (errno != ENOENT)
			log_warn("file not removed", "file=%s error=%s", log_quote(from), log_quote(strerror(errno)));
		return;
	}
	req = malloc(sizeof *req); /* without memory or pool the sweep of the next start takes it */
	if (req && uv_fs_unlink(loop, req, to, on_unlinked))
		free(req);
}
