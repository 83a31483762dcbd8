/* The network over few rows on clusters of blocks (cluster_forward.cu), BF16: the bits of the products layer by layer (gemm.cu). */
#ifndef FH_GPU_CUDA_CLUSTER_FORWARD_CUH
#define FH_GPU_CUDA_CLUSTER_FORWARD_CUH

#include "gpu/cuda/mlp.cuh"

/* 1: these rows of each of so many trials are taken here: the device has clusters, the network's weights fit into the shared memory of
 * one, and there are so few rows that it is the fastest way: fewer where weights cannot come early, beside the launch in front. Never
 * where stages run one by one (FH_GPU_SYNC=1). */
int cluster_takes(struct cuda_exec *c, int trials, const struct mlp_pass *pass, int passes, int early);

/* 1: FH_GPU_WIDE asks for clusters. */
int cluster_asked(void);

/* The passes of FORWARD, from x into h1, h2, head and out. */
int cluster_forward(struct cuda_exec *c, const struct mlp_pass *pass, int passes, struct fh_status *st);
/* T_OBS through the online network into pout. */
int cluster_outputs(struct cuda_exec *c, struct fh_status *st);

#endif
