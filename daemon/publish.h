/* The PUB socket: every sample that became visible goes out once, as topic "job/<id>/" and a packed fh.v1.Event.
 *
 * Loop thread. Never blocks and never fails the caller: a subscriber that is too slow loses messages (it sees the gap in
 * `seq` and polls). Listening, lock file and self-probe are net.c's (net_listen). */
#ifndef FHD_PUBLISH_H
#define FHD_PUBLISH_H

#include <stddef.h>
#include <stdint.h>
#include <nng/nng.h>

struct fh_status;
struct publish;

#define PUBLISH_SEND_QUEUE 1024 /* messages kept for one subscriber before it loses some */

/* The socket, not yet listening; `url` is where it will be, for InfoReply.publish_url. FH_EXHAUSTED. */
int publish_open(const char *url, struct publish **out, struct fh_status *st);
void publish_close(struct publish *p); /* NULL is fine */
nng_socket publish_socket(const struct publish *p);
const char *publish_url(const struct publish *p); /* "" for NULL */
/* `sample` is a packed fh.v1.Sample; p may be NULL (no publishing). */
void publish_sample(struct publish *p, uint64_t job, const void *sample, size_t bytes);
struct publish_stats { uint64_t sent, failed; };
void publish_stats(const struct publish *p, struct publish_stats *out);

#endif
