/* The beginning of a learn step on the device (section 4): schedules, stratified sampling with importance weights, gathering.
 *
 * Compiled without contraction: sampled indices equal the host's exactly for the same tree. */
#include <cuda_bf16.h>
#include "gpu/cuda/exec.h"
#include "gpu/philox.h"
#include "gpu/sumtree.h"

namespace {

/* Schedules of this step, and the numbers that the optimizer will want. By ADVANCE_THREADS: a power and what follows from it are a lane's each, the
 * rest another warp's, and all is read before anything is stored, or this would take longer than the walk beside it. */
enum { ADVANCE_THREADS = 64 };
__device__ __forceinline__ void advance(struct dqn_clock *c, struct cuda_step *step, int thread)
{
	if (thread < 2) {
		const double bias = 1.0 - pow(thread ? 0.999 : 0.9, (double)(c->applied + 1));

		*(thread ? &c->bias2 : &c->bias1) = bias;
		*(thread ? &step->scale2 : &step->scale1) = (float)(1.0 / bias);
	}
	if (thread != 32)
		return;
	const int64_t now = c->step, planned = c->planned, applied = c->applied, period = c->target_period;
	const double lr0 = c->lr0, lr_end = c->lr_end, weight_decay = c->weight_decay, tau = c->tau, most = c->max_grad_norm;
	const double beta = tree_beta(c->beta0, c->beta_end, now, planned), share = planned > 0 ? (double)now / (double)planned : 1.0;
	const double lr = c->lr_linear ? lr0 + (lr_end - lr0) * (share < 1.0 ? share : 1.0) : lr0;
	const int stuck = c->skipped_run >= DQN_SKIP_LIMIT;

	c->lr = lr;
	c->beta = beta;
	step->lr = (float)lr;
	step->decay = (float)(lr * weight_decay);
	step->tau = (float)tau;
	step->stuck = stuck;
	step->hard = period > 0;
	step->max_grad_norm = most;
	step->copy = period > 0 && (applied + 1) % period == 0;
}

__global__ void k_advance(struct dqn_clock *clock, struct cuda_step *step, size_t step_trial)
{
	advance(&clock[blockIdx.z], (struct cuda_step *)((char *)step + blockIdx.z * step_trial), threadIdx.x);
}

/* The children of the nodes of `levels` levels from n down (at most ROUND), by one warp: as if n were 1, lane l holds the two children of
 * node l of the heap (1..31), and of node 32 + l. One load is five levels, two are six. */
enum { ROUND = 6 };
struct nodes { float2 upper, lower; };
__device__ __forceinline__ struct nodes load_below(const float *node, int n, int levels, int lane)
{
	const int depth = 31 - __clz(lane | 1);
	const float2 *pair = (const float2 *)node, none = make_float2(0.f, 0.f);

	return {lane && depth < levels ? pair[(n << depth) + (lane - (1 << depth))] : none, levels == ROUND ? pair[(n << 5) + lane] : none};
}

/* One level down from h, whose children lane h & 31 has: the same comparisons on the same numbers as tree_step(). All lanes alike. */
__device__ __forceinline__ void step_down(double &x, int &h, double lefts, unsigned empty)
{
	const double left = __shfl_sync(0xffffffffu, lefts, h & 31);
	const bool right = !(x < left || (empty >> (h & 31) & 1));

	x = right ? x - left : x;
	h = 2 * h + right;
}

/* tree_find() by one warp: six levels at a time are loaded at once, so a tree of 2^17 leaves costs three waits, not seventeen. All
 * lanes hold x and get the leaf and what it holds; `now` are the nodes below the root. */
__device__ __forceinline__ int32_t find_by_warp(const float *node, int C, int depth, struct nodes now, double x, int lane, float &own)
{
	int n = 1;

	own = depth ? 0.f : node[1];
	while (depth > 0) {
		const int levels = min(depth, (int)ROUND);
		const double upper = now.upper.x, lower = now.lower.x;
		const unsigned upper_empty = __ballot_sync(0xffffffffu, now.upper.y == 0.f), lower_empty = __ballot_sync(0xffffffffu, now.lower.y == 0.f);
		int h = 1;

#pragma unroll
		for (int k = 0; k < ROUND - 1; k++)
			if (k < levels)
				step_down(x, h, upper, upper_empty);
		if (levels == ROUND)
			step_down(x, h, lower, lower_empty);
		n = (n << levels) + (h - (1 << levels));
		depth -= levels;
		if (depth > 0) {
			now = load_below(node, n, min(depth, (int)ROUND), lane);
		} else {
			const float2 last = levels == ROUND ? now.lower : now.upper;

			own = __shfl_sync(0xffffffffu, h & 1 ? last.y : last.x, h >> 1 & 31);
		}
	}
	return n - C;
}

struct walk_args {
	const float *tree;
	struct dqn_clock *clock;
	struct cuda_step *step;  /* NULL: ADVANCE is a launch of its own */
	int32_t *index;
	double *raw, *top;
	size_t step_trial, raw_trial, top_trial;
	int gather;              /* the transitions follow in the same launch */
	/* the replay and the batch */
	const void *rp_s, *rp_s2;
	const uint8_t *rp_a;
	const float *rp_r, *rp_g;
	float *s, *s2, *R, *G;   /* s, s2 NULL: not wanted (only comparisons read them) */
	int32_t *a;
	void *x; /* low [2B, ldx] */
	size_t x_trial;
	int ldx, B, SD, D;       /* not the dimensions whole: arguments are fetched line by line */
	int64_t C;
};

template <typename T> __device__ void gather(const struct walk_args &x, int j, int32_t leaf, int lane)
{
	const int z = blockIdx.z;
	const size_t at = (size_t)z * x.B + j, from = (size_t)z * x.C + leaf;
	const T *s = (const T *)x.rp_s + from * x.SD, *s2 = (const T *)x.rp_s2 + from * x.SD;
	T *low = (T *)((char *)x.x + z * x.x_trial), *to = low + (size_t)j * x.ldx, *to2 = low + (size_t)(x.B + j) * x.ldx;

	for (int k = lane; k < x.SD; k += 32) {
		const T v = s[k], v2 = s2[k];

		to[k] = v;
		to2[k] = v2;
		if (x.s)
			x.s[at * x.SD + k] = (float)v, x.s2[at * x.SD + k] = (float)v2;
	}
	if (lane < x.D)
		x.a[at * x.D + lane] = x.rp_a[from * x.D + lane];
	if (lane == 0)
		x.R[at] = x.rp_r[from], x.G[at] = x.rp_g[from];
}

/* A transition whose rows are whole 16s, by one warp: first s, then s'. Loaded before the weight is found, stored after. */
struct transition { uint4 part; int32_t a; float R, G; };
template <typename T> __device__ __forceinline__ bool whole_rows(int SD)
{
	return SD * sizeof(T) % 16 == 0 && 2 * SD * sizeof(T) <= 32 * 16;
}
template <typename T> __device__ __forceinline__ void load_rows(struct transition &t, const struct walk_args &x, int32_t leaf, int lane)
{
	const int per_row = x.SD * (int)sizeof(T) / 16;
	const size_t from = (size_t)blockIdx.z * x.C + leaf;

	if (lane < 2 * per_row)
		t.part = *((const uint4 *)((const T *)(lane < per_row ? x.rp_s : x.rp_s2) + from * x.SD) + lane % per_row);
	if (lane < x.D)
		t.a = x.rp_a[from * x.D + lane];
	t.R = x.rp_r[from], t.G = x.rp_g[from];
}
template <typename T> __device__ __forceinline__ void store_rows(const struct transition &t, const struct walk_args &x, int j, int lane)
{
	const int per_row = x.SD * (int)sizeof(T) / 16;
	const size_t at = (size_t)blockIdx.z * x.B + j;
	T *low = (T *)((char *)x.x + blockIdx.z * x.x_trial);

	if (lane < 2 * per_row)
		__stwb((uint4 *)(low + (size_t)(lane < per_row ? j : x.B + j) * x.ldx) + lane % per_row, t.part);
	if (lane < x.D)
		x.a[at * x.D + lane] = t.a;
	if (lane == 0)
		x.R[at] = t.R, x.G[at] = t.G;
}

/* One warp a sample: the walk down the tree, the weight before normalisation, the transition. Each block leaves its
 * largest weight; whoever wants weights divides by the largest of those. */
template <typename T> __global__ void __launch_bounds__(32 * CUDA_WALK_SAMPLES) k_walk(const __grid_constant__ struct walk_args x)
{
	__shared__ double most[CUDA_WALK_SAMPLES];
	const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, z = blockIdx.z, j = blockIdx.x * CUDA_WALK_SAMPLES + warp;
	struct dqn_clock *c = &x.clock[z];
	const float *node = x.tree + (size_t)z * 2 * x.C;

	cuda_wait_before();
	cuda_let_next();
	if (blockIdx.x == gridDim.x - 1 && x.step) { /* one block more than samples need */
		if (threadIdx.x < ADVANCE_THREADS)
			advance(c, (struct cuda_step *)((char *)x.step + z * x.step_trial), threadIdx.x);
		return;
	}
	if (lane == 0)
		most[warp] = 0.0;
	if (j < x.B) {
		const int depth = 31 - __clz((int)x.C);
		const struct nodes first = load_below(node, 1, min(depth, (int)ROUND), lane); /* on their way while x is found */
		const float total = node[1], u = philox_uniform(philox_word(c->seed, PHILOX_SAMPLE, (uint64_t)c->step, (uint64_t)j));
		float own;
		const int32_t leaf = find_by_warp(node, (int)x.C, depth, first, tree_target(total, x.B, j, u), lane, own);
		const bool rows = x.gather && whole_rows<T>(x.SD);
		struct transition t = {};

		if (rows)
			load_rows<T>(t, x, leaf, lane);
		const double filled = (double)(c->stored < x.C ? c->stored : x.C), beta = tree_beta(c->beta0, c->beta_end, c->step, c->planned);
		const double weight = (double)powf((float)(filled * (double)own / (double)total), (float)-beta);
		if (lane == 0) {
			most[warp] = weight;
			x.index[(size_t)z * x.B + j] = leaf;
			((double *)((char *)x.raw + z * x.raw_trial))[j] = weight;
		}
		if (rows)
			store_rows<T>(t, x, j, lane);
		else if (x.gather)
			gather<T>(x, j, leaf, lane);
	}
	__syncthreads();
	if (threadIdx.x < 32) {
		double top = most[lane % CUDA_WALK_SAMPLES];

#pragma unroll
		for (int o = CUDA_WALK_SAMPLES / 2; o; o >>= 1)
			top = fmax(top, __shfl_xor_sync(0xffffffffu, top, o));
		if (lane == 0)
			((double *)((char *)x.top + z * x.top_trial))[blockIdx.x] = top;
	}
}

/* Many samples: a thread each. The levels that all of them pass come from shared memory, those below three at a time, and the transitions
 * follow 16 bytes at a time by all threads. The same comparisons as find_by_warp(). MANY: from so many samples of all trials on, when a warp
 * each would be several waves; TOP: nodes in shared memory. */
enum { MANY = 8192, MANY_THREADS = 256, MANY_SAMPLES = 64, TOP = 2048 };
static_assert(MANY_SAMPLES % 32 == 0 && 32 % CUDA_WALK_SAMPLES == 0, "whole warps of samples, whole maxima of a warp");
static_assert(TOP == 8 * MANY_THREADS, "two vectors a thread");

/* One level down into one of two children: 1 for the right one. own: what it holds. */
__device__ __forceinline__ int turn(float2 child, double &x, float &own)
{
	const double left = child.x;
	const bool right = !(x < left || child.y == 0.f);

	x = right ? x - left : x;
	own = right ? child.y : child.x;
	return right;
}
__device__ __forceinline__ float2 half_of(float4 v, int right) { return right ? make_float2(v.z, v.w) : make_float2(v.x, v.y); }

__device__ __forceinline__ int32_t find_by_thread(const float *node, const float *top, int64_t C, double x, float &own)
{
	int64_t n = 1;

	own = top[1];
	while (n < C && 2 * n < TOP)
		n = 2 * n + turn(*(const float2 *)(top + 2 * n), x, own);
	while (4 * n < C) {
		const float2 a = *(const float2 *)(node + 2 * n);
		const float4 b = *(const float4 *)(node + 4 * n), c = *(const float4 *)(node + 8 * n), d = *(const float4 *)(node + 8 * n + 4);
		const int first = turn(a, x, own), second = turn(half_of(b, first), x, own);
		const float2 e = half_of(c, second), f = half_of(d, second);

		n = 8 * n + 4 * first + 2 * second;
		n += turn(first ? f : e, x, own);
	}
	while (n < C)
		n = 2 * n + turn(*(const float2 *)(node + 2 * n), x, own);
	return (int32_t)(n - C);
}

/* Rows of s and s' of the block's samples, several loads of a thread at once. */
template <typename T, typename V>
__device__ __forceinline__ void gather_rows(const struct walk_args &x, const int32_t *leaf, int first, int rows)
{
	enum { U = sizeof(V) / sizeof(T), AT_ONCE = 4 };
	const int z = blockIdx.z, per_row = x.SD / U, items = 2 * rows * per_row;
	const size_t replay = (size_t)z * x.C;
	T *low = (T *)((char *)x.x + z * x.x_trial);

#pragma unroll 1
	for (int i = threadIdx.x; i < items; i += AT_ONCE * MANY_THREADS) {
		V part[AT_ONCE];
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++) {
			const int j = min(i + k * MANY_THREADS, items - 1), row = j / per_row, r = row >> 1;

			part[k] = *(const V *)((const T *)(row & 1 ? x.rp_s2 : x.rp_s) + (replay + leaf[r]) * x.SD + j % per_row * U);
		}
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++) {
			const int j = i + k * MANY_THREADS, row = j / per_row;
			V *to = (V *)(low + (size_t)((row & 1 ? x.B : 0) + first + (row >> 1)) * x.ldx + j % per_row * U);

			if (j >= items)
				break;
			if constexpr (sizeof(V) == 16)
				__stwb(to, part[k]);
			else
				*to = part[k];
		}
	}
}

/* What a step needs of the clock before it knows where it looks. */
struct draws { uint64_t seed; int64_t step; double filled, beta; };
__device__ __forceinline__ struct draws draws_of(const struct dqn_clock *c, int64_t C)
{
	return {c->seed, c->step, (double)(c->stored < C ? c->stored : C), tree_beta(c->beta0, c->beta_end, c->step, c->planned)};
}

template <typename T> __global__ void __launch_bounds__(MANY_THREADS, 4) k_walk_many(const __grid_constant__ struct walk_args x)
{
	__shared__ float4 top[TOP / 4];
	__shared__ int32_t leaf[MANY_SAMPLES];
	const int z = blockIdx.z, first = blockIdx.x * MANY_SAMPLES, rows = min(x.B - first, (int)MANY_SAMPLES), j = first + threadIdx.x;
	struct dqn_clock *c = &x.clock[z];
	const float *node = x.tree + (size_t)z * 2 * x.C;

	cuda_wait_before();
	cuda_let_next();
	if (rows <= 0) { /* one block more than samples need */
		if (threadIdx.x < ADVANCE_THREADS)
			advance(c, (struct cuda_step *)((char *)x.step + z * x.step_trial), threadIdx.x);
		return;
	}
	const bool walks = threadIdx.x < MANY_SAMPLES && j < x.B;
	struct draws d = {};
	float4 part[2] = {};

#pragma unroll
	for (int k = 0; k < 2; k++)
		if (4 * (threadIdx.x + k * MANY_THREADS) < min((int64_t)TOP, 2 * x.C))
			part[k] = ((const float4 *)node)[threadIdx.x + k * MANY_THREADS];
	if (walks)
		d = draws_of(c, x.C);
	const float u = philox_uniform(philox_word(d.seed, PHILOX_SAMPLE, (uint64_t)d.step, (uint64_t)j));
#pragma unroll
	for (int k = 0; k < 2; k++)
		top[threadIdx.x + k * MANY_THREADS] = part[k];
	__syncthreads();
	if (threadIdx.x < MANY_SAMPLES) {
		double most = 0.0;

		if (walks) {
			const float total = ((const float *)top)[1];
			float own;
			const int32_t found = find_by_thread(node, (const float *)top, x.C, tree_target(total, x.B, j, u), own);

			leaf[threadIdx.x] = found;
			x.index[(size_t)z * x.B + j] = found;
			most = (double)powf((float)(d.filled * (double)own / (double)total), (float)-d.beta);
			((double *)((char *)x.raw + z * x.raw_trial))[j] = most;
		}
#pragma unroll
		for (int o = CUDA_WALK_SAMPLES / 2; o; o >>= 1)
			most = fmax(most, __shfl_xor_sync(0xffffffffu, most, o));
		if (threadIdx.x % CUDA_WALK_SAMPLES == 0 && j < x.B)
			((double *)((char *)x.top + z * x.top_trial))[j / CUDA_WALK_SAMPLES] = most;
	}
	if (!x.gather)
		return;
	__syncthreads();
	const bool numbers = (int)threadIdx.x < rows; /* and these numbers of a sample; asked for before the rows are */
	const size_t at = (size_t)z * x.B + first + threadIdx.x, from = (size_t)z * x.C + (numbers ? leaf[threadIdx.x] : 0);
	float R = 0.f, G = 0.f;
	int32_t a[FH_BRANCH_MAX];

	if (numbers)
		R = x.rp_r[from], G = x.rp_g[from];
#pragma unroll
	for (int b = 0; b < FH_BRANCH_MAX; b++)
		a[b] = numbers && b < x.D ? x.rp_a[from * x.D + b] : 0;
	if (x.SD * sizeof(T) % 16 == 0)
		gather_rows<T, uint4>(x, leaf, first, rows);
	else
		gather_rows<T, T>(x, leaf, first, rows);
	if (!numbers)
		return;
	x.R[at] = R, x.G[at] = G;
#pragma unroll
	for (int b = 0; b < FH_BRANCH_MAX; b++)
		if (b < x.D)
			x.a[at * x.D + b] = a[b];
}

/* T_WEIGHT for the stage by itself. */
__global__ void k_weights(const double *raw, const double *top, size_t raw_trial, size_t top_trial, int tops, float *weight, int B)
{
	const int j = blockIdx.x * blockDim.x + threadIdx.x, z = blockIdx.z;
	const double *t = (const double *)((const char *)top + z * top_trial);
	double most = 0.0;

	if (j >= B)
		return;
	for (int k = 0; k < tops; k++)
		most = fmax(most, t[k]);
	weight[(size_t)z * B + j] = (float)(((const double *)((const char *)raw + z * raw_trial))[j] / most);
}

/* One warp a sample: the stage by itself. */
template <typename T> __global__ void k_gather(const __grid_constant__ struct walk_args x)
{
	const int j = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;

	if (j < x.B)
		gather<T>(x, j, x.index[(size_t)blockIdx.z * x.B + j], threadIdx.x & 31);
}

} // namespace

int cuda_dqn_advance(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);

	CUDA_TRY(cuda_launch_plain(c->stream, k_advance, dim3(1, 1, c->dims.P), ADVANCE_THREADS, 0, cuda_tensor<struct dqn_clock>(c, T_CLOCK),
	                           cuda_at<struct cuda_step>(c, &c->s.step), c->s.step.stride));
	return 0;
}

static struct walk_args walk_args_of(struct cuda_exec *c)
{
	struct walk_args a = {};

	a.tree = cuda_tensor<float>(c, T_TREE);
	a.clock = cuda_tensor<struct dqn_clock>(c, T_CLOCK);
	a.index = cuda_tensor<int32_t>(c, T_INDEX);
	a.raw = cuda_at<double>(c, &c->s.wraw), a.raw_trial = c->s.wraw.stride;
	a.top = cuda_at<double>(c, &c->s.wtop), a.top_trial = c->s.wtop.stride;
	a.rp_s = c->x.tensor[T_RP_S], a.rp_s2 = c->x.tensor[T_RP_S2];
	a.rp_a = cuda_tensor<uint8_t>(c, T_RP_A);
	a.rp_r = cuda_tensor<float>(c, T_RP_R), a.rp_g = cuda_tensor<float>(c, T_RP_G);
	a.R = cuda_tensor<float>(c, T_R), a.G = cuda_tensor<float>(c, T_G);
	a.a = cuda_tensor<int32_t>(c, T_A);
	a.x = cuda_at<char>(c, &c->s.x), a.x_trial = c->s.x.stride, a.ldx = c->s.ldx;
	a.B = c->dims.B, a.SD = c->dims.SD, a.D = c->dims.D, a.C = c->dims.C;
	return a;
}

static cudaError_t walk_launch(struct cuda_exec *c, const struct walk_args &a)
{
	const dim3 grid(cuda_tiles(c->dims.B, CUDA_WALK_SAMPLES) + (a.step ? 1 : 0), 1, c->dims.P);
	const dim3 many(cuda_tiles(c->dims.B, MANY_SAMPLES) + (a.step ? 1 : 0), 1, c->dims.P);

	if (cuda_wide((long)c->dims.B * c->dims.P >= MANY))
		return c->dims.precision == FH_PRECISION_BF16 ? cuda_launch(c, k_walk_many<__nv_bfloat16>, many, MANY_THREADS, 0, a) :
		                                                cuda_launch(c, k_walk_many<float>, many, MANY_THREADS, 0, a);
	return c->dims.precision == FH_PRECISION_BF16 ? cuda_launch(c, k_walk<__nv_bfloat16>, grid, 32 * CUDA_WALK_SAMPLES, 0, a) :
	                                                cuda_launch(c, k_walk<float>, grid, 32 * CUDA_WALK_SAMPLES, 0, a);
}

int cuda_dqn_sample(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const struct dqn_dims *d = &c->dims;

	CUDA_TRY(walk_launch(c, walk_args_of(c)));
	CUDA_TRY(cuda_launch_plain(c->stream, k_weights, dim3(cuda_tiles(d->B, 128), 1, d->P), 128, 0, cuda_at<double>(c, &c->s.wraw), cuda_at<double>(c, &c->s.wtop),
	                           c->s.wraw.stride, c->s.wtop.stride, cuda_tiles(d->B, CUDA_WALK_SAMPLES), cuda_tensor<float>(c, T_WEIGHT), d->B));
	return 0;
}

int cuda_dqn_gather(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	struct walk_args a = walk_args_of(c);
	const dim3 grid(cuda_tiles(c->dims.B, 8), 1, c->dims.P);

	a.s = cuda_tensor<float>(c, T_S), a.s2 = cuda_tensor<float>(c, T_S2);
	CUDA_TRY(c->dims.precision == FH_PRECISION_BF16 ? cuda_launch_plain(c->stream, k_gather<__nv_bfloat16>, grid, 256, 0, a) :
	                                                  cuda_launch_plain(c->stream, k_gather<float>, grid, 256, 0, a));
	return 0;
}

/* ADVANCE, SAMPLE and GATHER in one launch. */
int cuda_draw(struct cuda_exec *c, struct fh_status *st)
{
	struct walk_args a = walk_args_of(c);

	a.step = cuda_at<struct cuda_step>(c, &c->s.step), a.step_trial = c->s.step.stride;
	a.gather = 1;
	CUDA_TRY(walk_launch(c, a));
	return 0;
}
