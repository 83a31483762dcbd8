/* The backward pass in two launches: the gradient through all layers (back.cu; of few rows cluster_back.cu), then every weight gradient, of many rows with
 * large tiles (weight.cu). BF16 only. Every bit is that of the products layer by layer (backward.cu, gemm.cu): who takes a
 * step is a question of speed alone. */
#ifndef FH_GPU_CUDA_BACK_CUH
#define FH_GPU_CUDA_BACK_CUH

#include <cuda_bf16.h>
#include "gpu/cuda/gemm.cuh"

/* What all kernels through the layers read and write, by the names that their arguments share: act, d: heads, h2, h1. */
template <typename Args> static inline void back_tensors(struct cuda_exec *c, Args *x)
{
	const struct cuda_scratch *s = &c->s;
	const struct cuda_array *act[] = {&s->head, &s->h2, &s->h1}, *to[] = {&s->dhead, &s->dh2, &s->dh1};

	x->weight = cuda_tensor<__nv_bfloat16>(c, T_PARAM_LP), x->params = (size_t)c->dims.params;
	x->dout = cuda_at<__nv_bfloat16>(c, &s->dout), x->dout_trial = s->dout.stride;
	for (int i = 0; i < 3; i++) {
		x->act[i] = cuda_at<__nv_bfloat16>(c, act[i]), x->act_trial[i] = act[i]->stride;
		x->d[i] = cuda_at<__nv_bfloat16>(c, to[i]), x->d_trial[i] = to[i]->stride;
	}
}

/* 1: a network like this and so many rows are taken here. Never where stages run one by one (FH_GPU_SYNC=1): those are
 * what the fused step is held against. */
int back_takes(struct cuda_exec *c);
/* dout -> dhead, dh2, dh1. */
int back_layers(struct cuda_exec *c, struct fh_status *st);
/* About how long that takes in tenths of a microsecond of an H200, or the layers where it does not take them. */
int back_cost(struct cuda_exec *c);

/* The same on clusters of blocks, for few rows. */
int cluster_back_takes(struct cuda_exec *c);
int cluster_back(struct cuda_exec *c, struct fh_status *st);

/* The same by warpgroups, where the device has them (back_group.cu). */
int back_group_takes(struct cuda_exec *c);
int back_group(struct cuda_exec *c, struct fh_status *st);

/* The weight gradients of a group (a_t, b_t, c_f32, one segment each) in large tiles; `part` in tiles of 32 x 32, as gemm.cu leaves
 * it. weight_takes() says which tile, for weight_launch(), and counts them; 0: not taken. */
int weight_takes(struct cuda_exec *c, struct gemm_group *g);
int weight_launch(struct cuda_exec *c, struct gemm_group *g, int tile, struct fh_status *st);
/* Tiles of 128 x 128 by warpgroups, where the device has them (weight_group.cu). */
int weight_group_takes(struct cuda_exec *c, struct gemm_group *g);
int weight_group(struct cuda_exec *c, struct gemm_group *g, struct fh_status *st);
/* The same of few rows, in tiles of 64 x 64 (weight_few.cu). Only behind a launch that has found the gradients of all layers. */
int weight_few_takes(struct cuda_exec *c, const struct gemm_group *g);
int weight_few(struct cuda_exec *c, const struct gemm_group *g, struct fh_status *st);

#endif
