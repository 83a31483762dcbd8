/* systemd: READY when calls are answered, STATUS for `systemctl status`, WATCHDOG only while the loop turns and every
 * worker that has a job makes progress, STOPPING. Without NOTIFY_SOCKET all of it does nothing. Thread: loop. */
#ifndef FHD_NOTIFY_H
#define FHD_NOTIFY_H

#include "proto/status.h"

struct daemon;
struct notify;

int notify_new(struct daemon *d, struct notify **out, struct fh_status *st);
void notify_ready(struct notify *n);
void notify_stopping(struct notify *n, const char *why);
void notify_free(struct notify *n);

#endif
