/* The backward pass: three launches down the layers (each product's relu mask in its epilogue), then every weight
 * gradient in one launch and every bias gradient in another. Fills all of T_GRAD but the padding, which stays zero. */
#include <cuda_bf16.h>
#include "gpu/cuda/gemm.cuh"

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
	q->early = 1;
	return q;
}

/* dW = dy^T x */
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
	q->c_trial = (size_t)d->params * 4;
	q->ldc = d->layer[layer].in;
	q->c_f32 = 1;
	q->m = d->layer[layer].out;
	q->n = d->layer[layer].in;
}

struct bias_layer { const void *dy; size_t trial; float *db; int ld, n, first; };
struct bias_args { int layers, rows; size_t grad_trial; struct bias_layer l[DQN_LAYER_MAX]; };

/* db[n] = sum over rows of dy[row, n]: 32 columns a block, 8 row lanes, combined in order. */
template <typename T> __global__ void k_bias(const __grid_constant__ struct bias_args x)
{
	__shared__ float part[8][33];
	int p = 0;
	while (p + 1 < x.layers && (int)blockIdx.x >= x.l[p + 1].first)
		p++;
	const struct bias_layer &l = x.l[p];
	const int n = (blockIdx.x - l.first) * 32 + (threadIdx.x & 31), lane = threadIdx.x / 32;
	const T *dy = (const T *)((const char *)l.dy + blockIdx.z * l.trial);
	float sum = 0.f;
	if (n < l.n)
		for (int r = lane; r < x.rows; r += 8)
			sum += (float)dy[(size_t)r * l.ld + n];
	part[lane][threadIdx.x & 31] = sum;
	__syncthreads();
	if (lane == 0 && n < l.n) {
		for (int k = 1; k < 8; k++)
			sum += part[k][threadIdx.x & 31];
		((float *)((char *)l.db + blockIdx.z * x.grad_trial))[n] = sum;
	}
}

void add_bias(struct cuda_exec *c, struct bias_args *a, int layer, const struct cuda_array *dy, int ld, int col, int *blocks)
{
	struct bias_layer *l = &a->l[a->layers++];

	l->dy = c->scratch + dy->offset + (size_t)col * c->s.low;
	l->trial = dy->stride;
	l->db = cuda_tensor<float>(c, T_GRAD) + c->dims.layer[layer].b;
	l->ld = ld;
	l->n = c->dims.layer[layer].out;
	l->first = *blocks;
	*blocks += (l->n + 31) / 32;
}

} // namespace

int cuda_dqn_backward(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const struct dqn_dims *d = &c->dims;
	const struct cuda_scratch *s = &c->s;
	const int vh = cuda_pad16(d->VH), ah = cuda_pad16(d->AH);
	struct gemm_group heads = {}, trunk2 = {}, trunk1 = {}, weights = {};
	struct bias_args bias = {};
	int blocks = 0, rc;

	bias.rows = d->B;
	bias.grad_trial = (size_t)d->params * 4;
	for (int h = 0; h <= d->D; h++) {
		int col = h ? vh + (h - 1) * ah : 0, layer = DQN_V1 + 2 * h;

		add_input(c, &heads, layer + 1, &s->dout, s->ldo, s->seg[h], &s->dhead, &s->head, s->ldhead, col);
		add_weight(c, &weights, layer + 1, &s->dout, s->ldo, s->seg[h], &s->head, s->ldhead, col);
		add_weight(c, &weights, layer, &s->dhead, s->ldhead, col, &s->h2, s->ldh2, 0);
		add_bias(c, &bias, layer + 1, &s->dout, s->ldo, s->seg[h], &blocks);
		add_bias(c, &bias, layer, &s->dhead, s->ldhead, col, &blocks);
	}
	/* dh2 = sum over heads of dhead_h W_h: one product whose k runs through the heads */
	struct gemm *q = add_input(c, &trunk2, DQN_V1, &s->dhead, s->ldhead, 0, &s->dh2, &s->h2, s->ldh2, 0);
	for (int b = 0; b < d->D; b++)
		q->seg[q->segments++] = {weight(c, DQN_V1 + 2 + 2 * b), d->layer[DQN_V1 + 2 + 2 * b].out, vh + b * ah};
	add_input(c, &trunk1, DQN_S2, &s->dh2, s->ldh2, 0, &s->dh1, &s->h1, s->ldh1, 0);
	add_weight(c, &weights, DQN_S2, &s->dh2, s->ldh2, 0, &s->h1, s->ldh1, 0);
	add_weight(c, &weights, DQN_S1, &s->dh1, s->ldh1, 0, &s->x, s->ldx, 0);
	add_bias(c, &bias, DQN_S2, &s->dh2, s->ldh2, 0, &blocks);
	add_bias(c, &bias, DQN_S1, &s->dh1, s->ldh1, 0, &blocks);

	if ((rc = gemm_launch(c, &heads, "launch of backward heads", st)) ||
	    (rc = gemm_launch(c, &trunk2, "launch of backward trunk 2", st)) ||
	    (rc = gemm_launch(c, &trunk1, "launch of backward trunk 1", st)) ||
	    (rc = gemm_launch(c, &weights, "launch of weight gradients", st)))
		return rc;
	if (d->precision == FH_PRECISION_BF16)
		k_bias<__nv_bfloat16><<<dim3(blocks, 1, d->P), 256, 0, c->stream>>>(bias);
	else
		k_bias<float><<<dim3(blocks, 1, d->P), 256, 0, c->stream>>>(bias);
	CUDA_LAUNCHED("bias gradients");
	return 0;
}
