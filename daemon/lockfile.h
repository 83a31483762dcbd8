/* Lock files: who holds one owns what it stands for (a state directory, a socket path). Any thread, plain functions.
 * The lock belongs to the open file (flock), so it goes with the process however that ends. */
#ifndef FHD_LOCKFILE_H
#define FHD_LOCKFILE_H

#include "proto/status.h"

/* Takes the lock or fails at once: FH_CONFLICT names `what` and the process that holds it. *fd is the open file. */
int lockfile_take(const char *path, const char *what, int *fd, struct fh_status *st);
/* Removes the file and lets go of it. fd -1 is fine. */
void lockfile_release(const char *path, int fd);

#endif
