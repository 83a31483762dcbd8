/* The token file: who may do what. Lines "ROLE TOKEN" with ROLE read, submit or admin; empty lines and lines with #
 * are skipped. Without a file whoever may connect is admin (the socket's mode decides who may). Loop thread. */
#ifndef FHD_TOKENS_H
#define FHD_TOKENS_H

#include <stddef.h>
#include "daemon/rpc.h"

struct tokens;

/* path "": no file. FH_INVALID names file and line; FH_DENIED when others than the owner and group may read it. */
int tokens_load(const char *path, struct tokens **out, struct fh_status *st);
void tokens_free(struct tokens *t);
/* Compares with every token in constant time; ROLE_NONE when it is none of them. token NULL: none was sent. */
enum rpc_role tokens_role(const struct tokens *t, const char *token, size_t len);

/* There is no file. */
int tokens_are_open(const struct tokens *t);

#endif
