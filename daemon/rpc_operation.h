/* Replies that several handlers give. Loop thread. */
#ifndef FHD_RPC_OPERATION_H
#define FHD_RPC_OPERATION_H

#include "proto/fh.pb-c.h"

struct checkpoint;
struct daemon;
struct operation;
struct rpc_call;

/* How far it is, and its result when it is done: of an evaluation the trace rows from `row` on. */
void rpc_reply_operation(struct daemon *d, struct rpc_call *c, struct operation *op, uint64_t row);
void checkpoint_to_wire(const struct checkpoint *c, Fh__V1__Checkpoint *out); /* texts stay the checkpoint's */

/* By FH_SPLIT_* and EVALUATE_ALL. */
extern const char *const rpc_split_name[];

#endif
