/* Who a peer on an ipc socket is: the setting `roles`, a list of "role:who" where who is a user's name or number, @ and a
 * group's, or * for anybody. The first that fits the peer counts; a peer that none fits is not let in.
 *
 * Thread: loop. Names are looked up once, when the daemon starts. */
#ifndef FHD_ROLES_H
#define FHD_ROLES_H

#include "daemon/rpc.h"

#define ROLES_MAX 64

struct roles;

/* "" gives NULL: whoever may open the socket has every role. FH_INVALID names the part that is wrong. */
int roles_parse(const char *text, struct roles **out, struct fh_status *st);
void roles_free(struct roles *r);
/* Of the process at the other end of a connected Unix socket, as it was when it connected; ROLE_NONE: nobody that is let in. */
enum rpc_role roles_of_peer(const struct roles *r, int fd);

#endif
