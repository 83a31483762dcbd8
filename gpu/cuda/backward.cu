/* The backward pass: one launch down the layers and one for the weights (back.cuh), or three down the layers, each product's relu
 * mask in its epilogue, weight and bias gradients beside. Fills all of T_GRAD but the padding, which stays zero, and leaves the sum
 * of squares of every tile for the norm. */
#include <cuda_bf16.h>
#include "gpu/cuda/back.cuh"
#include "gpu/cuda/norm.cuh"
#include "gpu/cuda/product.cuh"

namespace {

const char *weight(struct cuda_exec *c, int layer)
{
	const struct dqn_dims *d = &c->dims;
	if (d->precision == FH_PRECISION_BF16)
		return (const char *)(cuda_tensor<__nv_bfloat16>(c, T_PARAM_LP) + d->layer[layer].w);
	return (const char *)(cuda_tensor<float>(c, T_PARAM) + d->layer[layer].w);
}

/* dx = (dy W) where relu let x through; columns in elements. */
struct gemm *add_input(struct cuda_exec *c, struct gemm_group *g, int layer, const struct cuda_array *dy, int lddy, int dy_col,
		       const struct cuda_array *dx, const struct cuda_array *act, int ld, int col)
{
	const struct dqn_dims *d = &c->dims;
	const size_t low = c->s.low;
	struct gemm *q = &g->g[g->count++];

	*q = {};
	q->a = c->scratch + dy->offset + dy_col * low;
	q->a_trial = dy->stride;
	q->lda = lddy;
	q->c = c->scratch + dx->offset + col * low;
	q->c_trial = dx->stride;
	q->ldc = ld;
	q->mask = c->scratch + act->offset + col * low;
	q->mask_trial = act->stride;
	q->ldmask = ld;
	q->b_t = 1;
	q->b_trial = (size_t)d->params * low;
	q->ldb = d->layer[layer].in;
	q->segments = 1;
	q->seg[0] = {weight(c, layer), d->layer[layer].out, 0};
	q->m = d->B;
	q->n = d->layer[layer].in;
	q->store_n = cuda_pad16(d->layer[layer].in);
	q->early = 1;
	return q;
}

/* dW = dy^T x, db = column sums of dy, and the sum of squares of both by tile. */
void add_weight(struct cuda_exec *c, struct gemm_group *g, int layer, const struct cuda_array *dy, int lddy, int dy_col,
		const struct cuda_array *x, int ldx, int x_col)
{
	const struct dqn_dims *d = &c->dims;
	const size_t low = c->s.low;
	struct gemm *q = &g->g[g->count++];

	*q = {};
	q->a = c->scratch + dy->offset + dy_col * low;
	q->a_trial = dy->stride;
	q->lda = lddy;
	q->a_t = q->b_t = 1;
	q->b_trial = x->stride;
	q->ldb = ldx;
	q->segments = 1;
	q->seg[0] = {c->scratch + x->offset + x_col * low, d->B, 0};
	q->c = cuda_tensor<float>(c, T_GRAD) + d->layer[layer].w;
	q->c_trial = q->column_trial = (size_t)d->params * 4;
	q->ldc = d->layer[layer].in;
	q->c_f32 = 1;
	q->m = d->layer[layer].out;
	q->n = d->layer[layer].in;
	q->early = 1, q->a_early = dy == &c->s.dout;
	q->column = cuda_tensor<float>(c, T_GRAD) + d->layer[layer].b;
	q->part_trial = c->s.part.stride;
	if (c->s.slices > 1) { /* k_slices adds them up and leaves the squares */
		float *slice = cuda_at<float>(c, &c->s.slice);

		q->c = slice + d->layer[layer].w;
		q->column = slice + d->layer[layer].b;
		q->c_trial = q->column_trial = c->s.slice.stride;
		return;
	}
	q->part = cuda_at<double>(c, &c->s.part);
	for (int l = 0; l < layer; l++)
		q->part += cuda_tiles(d->layer[l].out, c->s.grad_tile) * cuda_tiles(d->layer[l].in, c->s.grad_tile);
}

/* The pass, as far down as products depend on each other: the gradient through each layer, and the weight gradients that
 * wait for nothing but what lies above it. The last of those wait for all layers. */
struct pass { struct gemm_group through[3], along[4]; };

void describe(struct cuda_exec *c, struct pass *p)
{
	const struct dqn_dims *d = &c->dims;
	const struct cuda_scratch *s = &c->s;
	const int vh = cuda_pad16(d->VH), ah = cuda_pad16(d->AH);

	for (int h = 0; h <= d->D; h++) {
		const int col = h ? vh + (h - 1) * ah : 0;

		add_input(c, &p->through[0], DQN_V1 + 2 * h + 1, &s->dout, s->ldo, s->seg[h], &s->dhead, &s->head, s->ldhead, col);
		add_weight(c, &p->along[0], DQN_V1 + 2 * h + 1, &s->dout, s->ldo, s->seg[h], &s->head, s->ldhead, col);
		add_weight(c, &p->along[1], DQN_V1 + 2 * h, &s->dhead, s->ldhead, col, &s->h2, s->ldh2, 0);
	}
	/* dh2 = sum over heads of dhead_h W_h: one product whose k runs through the heads */
	struct gemm *q = add_input(c, &p->through[1], DQN_V1, &s->dhead, s->ldhead, 0, &s->dh2, &s->h2, s->ldh2, 0);
	for (int b = 0; b < d->D; b++)
		q->seg[q->segments++] = {weight(c, DQN_V1 + 2 + 2 * b), d->layer[DQN_V1 + 2 + 2 * b].out, vh + b * ah};
	add_input(c, &p->through[2], DQN_S2, &s->dh2, s->ldh2, 0, &s->dh1, &s->h1, s->ldh1, 0);
	add_weight(c, &p->along[2], DQN_S2, &s->dh2, s->ldh2, 0, &s->h1, s->ldh1, 0);
	add_weight(c, &p->along[3], DQN_S1, &s->dh1, s->ldh1, 0, &s->x, s->ldx, 0);
}

void append(struct gemm_group *to, const struct gemm_group *g)
{
	for (int i = 0; i < g->count; i++)
		to->g[to->count++] = g->g[i];
}

/* The gradient from its slices, in order, and the sum of squares of each block's share. Padding lies in no product: it
 * is zero in T_GRAD and stays so. */
__global__ void __launch_bounds__(CUDA_SUM_THREADS) k_slices(const float *slice, size_t slice_trial, int slices, float *grad, int64_t params,
                                                            double *part, size_t part_trial)
{
	__shared__ double shared[CUDA_SUM_THREADS / 32];
	const int z = blockIdx.z;
	const int64_t i = ((int64_t)blockIdx.x * CUDA_SUM_THREADS + threadIdx.x) * 4;
	double square = 0.0;

	cuda_wait_before();
	cuda_let_next();
	if (i < params) {
		const float *from = (const float *)((const char *)slice + z * slice_trial) + i;
		float4 g = *(const float4 *)from;

#pragma unroll 8 /* loads of several slices in flight */
		for (int k = 1; k < slices; k++) {
			const float4 more = *(const float4 *)(from + k * params);
			g.x += more.x, g.y += more.y, g.z += more.z, g.w += more.w;
		}
		__stwb((float4 *)(grad + z * params + i), g); /* by name: nvcc may take assigned vectors apart */
		square = (double)g.x * g.x + (double)g.y * g.y + (double)g.z * g.z + (double)g.w * g.w;
	}
	square = cuda_block_total(square, shared);
	if (threadIdx.x == 0)
		((double *)((char *)part + z * part_trial))[blockIdx.x] = square;
}

} // namespace

/* Layer by layer, each launch goes one layer down and takes along the weight gradients of the layer above. Where all layers go in
 * one launch, or many rows want other tiles, all weight gradients follow in a launch of their own; those of a large batch are
 * cut into slices. */
int cuda_dqn_backward(struct exec *x, struct fh_status *st)
{
	static const char *const what[3] = {"launch of backward heads 2", "launch of backward heads 1", "launch of backward trunk 2"};
	struct cuda_exec *c = cuda_of(x);
	const struct cuda_scratch *s = &c->s;
	const bool layers = product_asks(c, PRODUCT_BACK, 3), many = !layers && back_takes(c), cluster = !layers && !(many && c->crowded) && cluster_back_takes(c), once = !cluster && many, apart = s->slices > 1 || c->dims.P >= 8 || cluster || once || c->products;
	struct gemm_group all = {};
	struct pass p = {};
	int rc = 0;

	describe(c, &p);
	if (cluster)
		rc = cluster_back(c, st);
	else if (once)
		rc = back_layers(c, st);
	else
		for (int i = 0; i < 3 && !rc; i++) {
			if (!apart)
				append(&p.through[i], &p.along[i]);
			rc = product_launch(c, &p.through[i], PRODUCT_BACK + i, apart ? 0 : s->grad_tile, what[i], st);
		}
	if (rc)
		return rc;
	for (int i = apart ? 0 : 3; i < 4; i++)
		append(&all, &p.along[i]);
	if (s->slices > 1)
		all.slices = s->slices, all.slice_k = CUDA_SLICE_ROWS, all.slice_bytes = (size_t)c->dims.params * 4;
	/* one product is left where the others went along: small tiles spread it */
	const int tile = apart && !product_asks(c, PRODUCT_WEIGHTS, 1) ? weight_takes(c, &all) : 0;
	rc = tile ? weight_launch(c, &all, tile, st) : product_launch(c, &all, PRODUCT_WEIGHTS, s->grad_tile, "launch of weight gradients", st);
	if (rc || s->slices == 1)
		return rc;
	CUDA_TRY(cuda_launch(c, k_slices, dim3(s->parts, 1, c->dims.P), CUDA_SUM_THREADS, 0, cuda_at<float>(c, &s->slice), s->slice.stride, s->slices,
	                     cuda_tensor<float>(c, T_GRAD), c->dims.params, cuda_at<double>(c, &s->part), s->part.stride));
	return 0;
}
