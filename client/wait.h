/* Waiting inside the client library: on descriptors, never past a deadline, with an ear for the interrupt flag. */
#ifndef FH_CLIENT_WAIT_H
#define FH_CLIENT_WAIT_H

#include <nng/nng.h>
#include <poll.h>
#include <stdint.h>

struct fh_client;

#define WAIT_SLICE_MS 100 /* a signal may be handled by another thread: the flag is looked at this often */

enum { WAIT_TIMEOUT = 0, WAIT_READY = 1, WAIT_INTERRUPTED = 2 };

int64_t wait_now_ns(void); /* CLOCK_MONOTONIC */
int wait_interrupted(const volatile int *flag); /* NULL: never */
/* Until one of the descriptors is ready, the deadline or the interrupt. n may be 0: a pause. */
int wait_fds(struct pollfd *fd, int n, int64_t deadline_ns, const volatile int *interrupt);
/* Order between us and NNG's callbacks: what was written before wait_give() is seen after wait_take(). NNG's locks do the
 * same, but a checker that cannot see into the library would not know. */
void wait_give(void);
void wait_take(void);
/* nng_close() within a second. NNG 1.5.2 now and then never comes back from it while messages arrive: then -1, and what
 * its callbacks point to must stay for ever. */
int wait_close(struct nng_socket_s sock);
const volatile int *wait_interrupt_of(const struct fh_client *c);

#endif
