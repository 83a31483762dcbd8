/* Handlers of ping, info, drain and shutdown. Loop thread; see rpc.h. */
#ifndef FHD_RPC_ADMIN_H
#define FHD_RPC_ADMIN_H

#include "daemon/rpc.h"

void rpc_ping(struct daemon *d, struct rpc_call *c);
void rpc_info(struct daemon *d, struct rpc_call *c);
void rpc_drain(struct daemon *d, struct rpc_call *c);
void rpc_shutdown(struct daemon *d, struct rpc_call *c);

#endif
