/* Folders of bulk files that belong to rows of the store: made at start, and swept of what no row knows.
 * Loop thread, start-up only (it blocks). */
#ifndef FHD_FILES_H
#define FHD_FILES_H

struct fh_status;

#define FILES_SUFFIX ".safetensors"

/* Makes the folder (mode 0750) unless it is there. */
int files_folder(const char *dir, struct fh_status *st);
/* Removes temporary files of writers that were killed (*.tmp) and files whose name, less FILES_SUFFIX, `known` does not know:
 * those of a crash between file and row, or between row and removal. When `fresh` (the store was made just now: somebody moved it away) they are
 * put into <dir>/unregistered/ instead: a lost database is no reason to delete data. Returns how many were met. */
int files_sweep(const char *dir, int fresh, int (*known)(void *arg, const char *name), void *arg);
/* Removes dir/file: renamed at once, so that the name is free for the next writer, then unlinked on the libuv pool. */
struct uv_loop_s;
void files_remove(struct uv_loop_s *loop, const char *dir, const char *file);

#endif
