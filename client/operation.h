/* Long operations of the daemon (evaluations, checkpoint saves): wait for one with a progress bar, cancel it on a signal.
 * One thread. */
#ifndef FH_CLIENT_OPERATION_H
#define FH_CLIENT_OPERATION_H

#include "client/cmd.h"

/* Polls until it is done; --timeout bounds the whole wait (FH_DEADLINE, the operation is cancelled). 0: *out holds the
 * final OperationReply, without an error in it. `what` is the bar's text. */
int operation_wait(struct ctx *c, const char *operation, const char *what, struct fh_answer *out, struct fh_status *st);
/* The page of a finished operation's rows that begins at `row`. */
int operation_page(struct ctx *c, const char *operation, uint64_t row, struct fh_answer *out, struct fh_status *st);

#endif
