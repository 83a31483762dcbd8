/* The network forward (section 1): four launches, one a layer, every product of a layer in the same launch; many rows go
 * through mlp.cu instead, with the same bits.
 *
 * FORWARD computes three passes at once over 3B rows: s and s' with the online parameters, s' with the target's. POLICY
 * computes N rows with the online parameters and picks the greedy action of every branch, the lowest index on a tie. */
#include <cuda_bf16.h>
#include "gpu/cuda/cluster_forward.cuh"
#include "gpu/cuda/gemm.cuh"
#include "gpu/cuda/head.cuh"
#include "gpu/cuda/mlp.cuh"
#include "gpu/cuda/product.cuh"

namespace {

/* Which parameters a block of rows goes through. */
struct pass { int row, rows, x_row, whose; int trial = 0; /* when one trial runs alone */ };

struct net_buffers { const struct cuda_array *x, *h1, *h2, *head, *out; };

/* y = relu?(x w^T + b) for one layer of one pass. Columns x_col.. of x, y_col.. of y, in elements. Not inlined: gcc 12 at -O3 takes the loop over
 * the heads apart (-ftree-loop-distribution) and clears products behind their first fields. */
__attribute__((noinline)) void add(struct cuda_exec *c, struct gemm_group *g, const struct pass *p, int layer, const struct cuda_array *x, int ldx,
	 int x_row, int x_col, const struct cuda_array *y, int ldy, int y_col, int relu, int y_f32)
{
	const struct dqn_dims *d = &c->dims;
	const struct dqn_layer *l = &d->layer[layer];
	size_t low = c->s.low, ysize = y_f32 ? 4 : low;
	struct gemm *q = &g->g[g->count++];

	*q = {};
	q->a = c->scratch + x->offset + ((size_t)x_row * ldx + x_col) * low;
	q->a_trial = x->stride;
	q->lda = ldx;
	q->c = c->scratch + y->offset + ((size_t)p->row * ldy + y_col) * ysize;
	q->c_trial = y->stride;
	q->ldc = ldy;
	q->c_f32 = y_f32;
	q->b_trial = (size_t)d->params * (d->precision == FH_PRECISION_BF16 ? 2 : 4);
	q->ldb = l->in;
	q->segments = 1;
	q->seg[0] = {(const char *)cuda_weights(c, p->whose) + p->trial * q->b_trial + l->w * low, l->in, 0};
	q->bias_trial = (size_t)d->params * 4;
	q->bias = cuda_params(c, p->whose) + (size_t)p->trial * d->params + l->b;
	q->m = p->rows;
	q->n = l->out;
	q->store_n = cuda_pad16(l->out); /* every layer's columns in a row are padded */
	q->relu = relu;
	q->early = 1;
}

/* trials: 0 stands for all. group: of the first layer, see product.cuh. */
int net_forward(struct cuda_exec *c, const struct pass *pass, int passes, const struct net_buffers *b, int trials, int group, struct fh_status *st)
{
	const struct dqn_dims *d = &c->dims;
	const struct cuda_scratch *s = &c->s;
	const int vh = cuda_pad16(d->VH), ah = cuda_pad16(d->AH);
	struct gemm_group l1 = {}, l2 = {}, l3 = {}, l4 = {};

	l1.trials = l2.trials = l3.trials = l4.trials = trials;
	for (int i = 0; i < passes; i++) {
		const struct pass *p = &pass[i];
		add(c, &l1, p, DQN_S1, b->x, s->ldx, p->x_row, 0, b->h1, s->ldh1, 0, 1, 0);
		add(c, &l2, p, DQN_S2, b->h1, s->ldh1, p->row, 0, b->h2, s->ldh2, 0, 1, 0);
		for (int h = 0; h <= d->D; h++) { /* the value head, then the branches */
			int col = h ? vh + (h - 1) * ah : 0, layer = DQN_V1 + 2 * h;

			add(c, &l3, p, layer, b->h2, s->ldh2, p->row, 0, b->head, s->ldhead, col, 1, 0);
			add(c, &l4, p, layer + 1, b->head, s->ldhead, p->row, col, b->out, s->ldo, s->seg[h], 0, 1);
		}
	}
	static const char *const what[4] = {"launch of forward layer 1", "launch of forward layer 2", "launch of forward heads 1", "launch of forward heads 2"};
	struct gemm_group *const layer[4] = {&l1, &l2, &l3, &l4};
	int rc = 0;

	for (int i = 0; i < 4 && !rc; i++)
		rc = product_launch(c, layer[i], group == PRODUCT_NEVER ? group : group + i, 0, what[i], st);
	return rc;
}

/* T_OBS [N, SD] F32 -> low [N, ldx] */
template <typename T> __global__ void k_narrow(const float *src, T *dst, size_t dst_trial, int rows, int sd, int ld)
{
	src += (size_t)blockIdx.z * rows * sd;
	dst = (T *)((char *)dst + blockIdx.z * dst_trial);
	size_t total = (size_t)rows * sd;
	for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x)
		dst[i / sd * ld + i % sd] = (T)src[i];
}

/* One warp an environment: Q of every action of every branch, argmax. */
template <int A, int L>
__global__ void k_greedy(const float *out, size_t out_trial, int32_t *action, const struct dqn_clock *clock, const __grid_constant__ struct dqn_dims d,
                         const __grid_constant__ struct cuda_scratch s)
{
	const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x & 31, z = blockIdx.z;

	cuda_wait_before();
	cuda_let_next();
	if (warp >= d.N)
		return;
	const float *v = (const float *)((const char *)out + z * out_trial) + (size_t)warp * s.ldo;
	const struct head_support zs = head_support_of(&clock[z], d.NA);
	for (int b = 0; b < d.D; b++) {
		struct head_row<A, L> row;

		head_load(row, v, v + s.seg[1 + b], d.A[b], d.NA, lane);
		head_combine(row, d.A[b]);
		const int best = head_greedy(row, d.A[b], d.NA, zs, lane);
		if (lane == 0)
			action[((size_t)z * d.N + warp) * d.D + b] = best;
	}
}

} // namespace

const float *cuda_params(struct cuda_exec *c, int whose)
{
	return whose == CUDA_KEPT ? cuda_at<float>(c, &c->s.vparam) : cuda_tensor<float>(c, whose == CUDA_TARGET ? T_TARGET : T_PARAM);
}

const void *cuda_weights(struct cuda_exec *c, int whose)
{
	if (c->dims.precision != FH_PRECISION_BF16)
		return cuda_params(c, whose);
	return whose == CUDA_KEPT ? cuda_at<void>(c, &c->s.vparam_lp) : cuda_tensor<void>(c, whose == CUDA_TARGET ? T_TARGET_LP : T_PARAM_LP);
}

int cuda_dqn_forward(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const int B = c->dims.B;
	const struct pass pass[2] = {{0, 2 * B, 0, CUDA_ONLINE}, {2 * B, B, B, CUDA_TARGET}};
	const struct mlp_pass wide[2] = {{0, 2 * B, 0, B, 0}, {2 * B, B, B, 0, 1}};
	const struct net_buffers b = {&c->s.x, &c->s.h1, &c->s.h2, &c->s.head, &c->s.out};

	const int many = mlp_takes(c, c->dims.P, 3 * B, 0);

	if (product_asks(c, PRODUCT_FORWARD, 4))
		return net_forward(c, pass, 2, &b, 0, PRODUCT_FORWARD, st);
	if (!(many && c->crowded) && cluster_takes(c, c->dims.P, wide, 2, 1))
		return cluster_forward(c, wide, 2, st);
	if (many)
		return mlp_forward(c, wide, 2, st);
	return net_forward(c, pass, 2, &b, 0, PRODUCT_FORWARD, st);
}

/* T_OBS through the online network into pout. */
int cuda_policy_forward(struct cuda_exec *c, struct fh_status *st)
{
	const struct dqn_dims *d = &c->dims;
	const struct pass pass = {0, d->N, 0, CUDA_ONLINE};
	const struct mlp_pass wide = {0, d->N, 0, 0, 0};
	const struct net_buffers b = {&c->s.px, &c->s.ph1, &c->s.ph2, &c->s.phead, &c->s.pout};
	const dim3 grid((unsigned)(((size_t)d->N * d->SD + 255) / 256), 1, d->P);

	const int layers = product_asks(c, PRODUCT_POLICY, 4);
	if (!layers && cluster_takes(c, d->P, &wide, 1, 0))
		return cluster_outputs(c, st);
	if (!layers && mlp_takes(c, d->P, d->N, 0))
		return mlp_outputs(c, st);
	if (d->precision == FH_PRECISION_BF16)
		CUDA_TRY(cuda_launch_plain(c->stream, k_narrow<__nv_bfloat16>, grid, 256, 0, cuda_tensor<float>(c, T_OBS), cuda_at<__nv_bfloat16>(c, &c->s.px),
		                           c->s.px.stride, d->N, d->SD, c->s.ldx));
	else
		CUDA_TRY(cuda_launch_plain(c->stream, k_narrow<float>, grid, 256, 0, cuda_tensor<float>(c, T_OBS), cuda_at<float>(c, &c->s.px), c->s.px.stride,
		                           d->N, d->SD, c->s.ldx));
	return net_forward(c, &pass, 1, &b, 0, PRODUCT_POLICY, st);
}

/* T_OBS to the greedy action of every branch. */
int cuda_dqn_policy(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const struct dqn_dims *d = &c->dims;

	if (!cluster_asked() && mlp_takes(c, d->P, d->N, 1))
		return mlp_policy(c, st);
	const int rc = cuda_policy_forward(c, st);
	if (rc)
		return rc;
#define GREEDY(A, L)                                                                                                      \
	cuda_launch(c, k_greedy<A, L>, dim3((d->N + 7) / 8, 1, d->P), 256, 0, cuda_at<float>(c, &c->s.pout), c->s.pout.stride,     \
	            cuda_tensor<int32_t>(c, T_ACTION), cuda_tensor<struct dqn_clock>(c, T_CLOCK), *d, c->s)
	CUDA_TRY(HEAD_DISPATCH(head_actions(d), d->NA, GREEDY));
	return 0;
}

/* Each trial's rows stand where those of a whole exec would, only closer together. */
int cuda_rows_layers(struct cuda_exec *c, int whose, int trial, int trials, int x_row, int rows, int32_t *action, struct fh_status *st)
{
	const struct cuda_scratch *s = &c->s;
	struct dqn_dims d = c->dims;
	const struct pass pass = {0, rows, 0, whose, trial};
	const size_t low = (size_t)rows * s->low;
	const struct cuda_array x = {s->vx.offset + (size_t)x_row * s->ldx * s->low, low * s->ldx}, h1 = {s->vh1.offset, low * s->ldh1},
		h2 = {s->vh2.offset, low * s->ldh2}, head = {s->vhead.offset, low * s->ldhead}, out = {s->vout.offset, (size_t)rows * s->ldo * sizeof(float)};
	const struct net_buffers b = {&x, &h1, &h2, &head, &out};
	const int rc = net_forward(c, &pass, 1, &b, trials, PRODUCT_NEVER, st);

	if (rc)
		return rc;
	d.N = rows;
#define GREEDY_ROWS(A, L)                                                                                                 \
	cuda_launch(c, k_greedy<A, L>, dim3((rows + 7) / 8, 1, trials), 256, 0, cuda_at<float>(c, &out), out.stride, action,        \
	            cuda_tensor<struct dqn_clock>(c, T_CLOCK) + trial, d, c->s)
	CUDA_TRY(HEAD_DISPATCH(head_actions(&d), d.NA, GREEDY_ROWS));
	return 0;
}
