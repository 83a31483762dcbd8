/* Handlers of the calls about jobs. Loop thread; see rpc.h. */
#ifndef FHD_RPC_JOB_H
#define FHD_RPC_JOB_H

#include "daemon/jobs.h"
#include "daemon/rpc.h"

void rpc_start_job(struct daemon *d, struct rpc_call *c);
void rpc_stop_job(struct daemon *d, struct rpc_call *c);
void rpc_pause_job(struct daemon *d, struct rpc_call *c);
void rpc_resume_job(struct daemon *d, struct rpc_call *c);
void rpc_list_jobs(struct daemon *d, struct rpc_call *c);
void rpc_show_job(struct daemon *d, struct rpc_call *c);
/* A JobReply with everything about j. */
void rpc_answer_job(struct daemon *d, struct rpc_call *c, const struct job *j, int attached);

#endif
