/* The PUB socket: every sample that became visible goes out once, as topic "job/<id>/" and a packed fh.v1.Event.
 *
 * Loop thread. Never blocks and never fails the caller: a subscriber that is too slow loses messages (it sees the gap in
 * `seq` and polls). Listens beside the main socket, mode 0660, under the same file lock. */
#ifndef FHD_PUBLISH_H
#define FHD_PUBLISH_H

#include <stddef.h>
#include <stdint.h>

struct fh_status;
struct publish;

#define PUBLISH_SEND_QUEUE 1024 /* messages kept for one subscriber before it loses some */

/* url "ipc:///run/fhd/fhd.pub": a stale ipc path is removed first (the caller holds the lock). FH_UNAVAILABLE. */
int publish_open(const char *url, struct publish **out, struct fh_status *st);
void publish_close(struct publish *p); /* NULL is fine */
const char *publish_url(const struct publish *p);
/* `sample` is a packed fh.v1.Sample; p may be NULL (no publishing). */
void publish_sample(struct publish *p, uint64_t job, const void *sample, size_t bytes);
/* Listens again when the listener has died: the caller's self-probe found nobody there. Returns 0 or the code. */
int publish_relisten(struct publish *p, struct fh_status *st);
struct publish_stats { uint64_t sent, dropped, subscribers, relistens; };
void publish_stats(const struct publish *p, struct publish_stats *out);

#endif
