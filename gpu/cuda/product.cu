/* Products through cuBLASLt, and what they leave to be done; see product.cuh.
 *
 * The library counts columns first, so C = A B^T by rows is C^T = B A^T to it: its first operand is the weights (or the layer's inputs), its second the
 * activations (or gradients). Columns of padding are never written and stay as product_choose() left them, zero. */
#include <cuda_bf16.h>
#include "gpu/cuda/product.cuh"

namespace {

enum { LEAVE_TILE = 32, THREADS = 256, CLASSES = THREADS / LEAVE_TILE, ALIGNED = 16 };

/* One product as it is called: `count` of them, so many bytes apart. */
struct call {
	lt_desc_t desc;
	lt_layout_t a, b, c;
	const void *pa, *pb;
	void *pc;
};
struct batch { int count; size_t a, b, c, bias; };

unsigned alignment(size_t x, size_t y)
{
	unsigned n = ALIGNED;

	while ((x | y) % n)
		n /= 2;
	return n;
}

void done(const struct lt *lt, struct call *x)
{
	if (x->desc)
		lt->desc_destroy(x->desc);
	for (lt_layout_t l : {x->a, x->b, x->c})
		if (l)
			lt->layout_destroy(l);
	*x = {};
}

int describe_batch(const struct lt *lt, lt_layout_t l, int count, size_t bytes, size_t element, struct fh_status *st)
{
	const int64_t offset = (int64_t)(bytes / element);

	LT_TRY(layout_set(l, LT_BATCH_COUNT, &count, sizeof count));
	LT_TRY(layout_set(l, LT_BATCH_OFFSET, &offset, sizeof offset));
	return 0;
}

int describe(const struct cuda_exec *c, const struct gemm *g, int k, const struct batch *batch, struct call *x, struct fh_status *st)
{
	const struct lt *lt = c->products->lt;
	const int bf16 = c->dims.precision == FH_PRECISION_BF16, low = bf16 ? LT_BF16 : LT_F32, out = g->c_f32 || !bf16 ? LT_F32 : LT_BF16;
	const int one = !g->b_t, two = g->a_t, f32 = LT_F32, epilogue = g->relu ? LT_EPILOGUE_RELU_BIAS : LT_EPILOGUE_BIAS;
	const size_t size = bf16 ? 2 : 4;
	const int64_t bias_batch = (int64_t)(batch->bias / sizeof(float));

	LT_TRY(desc_create(&x->desc, c->dims.precision == FH_PRECISION_TF32 ? LT_COMPUTE_TF32 : LT_COMPUTE_F32, LT_F32));
	LT_TRY(desc_set(x->desc, LT_TRANSA, &one, sizeof one));
	LT_TRY(desc_set(x->desc, LT_TRANSB, &two, sizeof two));
	LT_TRY(layout_create(&x->a, low, g->b_t ? g->n : k, g->b_t ? k : g->n, g->ldb));
	LT_TRY(layout_create(&x->b, low, g->a_t ? g->m : k, g->a_t ? k : g->m, g->lda));
	LT_TRY(layout_create(&x->c, out, g->n, g->m, g->ldc));
	if (g->bias) {
		LT_TRY(desc_set(x->desc, LT_EPILOGUE, &epilogue, sizeof epilogue));
		LT_TRY(desc_set(x->desc, LT_BIAS, &g->bias, sizeof g->bias));
		LT_TRY(desc_set(x->desc, LT_BIAS_TYPE, &f32, sizeof f32));
	}
	x->pa = g->seg[0].b, x->pb = g->a, x->pc = g->c;
	if (batch->count == 1)
		return 0;
	if (g->bias)
		LT_TRY(desc_set(x->desc, LT_BIAS_BATCH, &bias_batch, sizeof bias_batch));
	int rc = describe_batch(lt, x->a, batch->count, batch->b, size, st);
	if (!rc)
		rc = describe_batch(lt, x->b, batch->count, batch->a, size, st);
	if (!rc)
		rc = describe_batch(lt, x->c, batch->count, batch->c, out == LT_F32 ? 4 : 2, st);
	return rc;
}

/* The algorithms that the library names first for one trial, if any. */
int ask_product(struct cuda_exec *c, const struct gemm *g, int k, int group, int at, struct fh_status *st)
{
	struct products *p = c->products;
	const struct lt *lt = p->lt;
	const size_t size = c->dims.precision == FH_PRECISION_BF16 ? 2 : 4, out = g->c_f32 ? 4 : size, room = CUDA_WORK;
	const unsigned none = 0, align[3] = {alignment((size_t)g->seg[0].b | g->b_trial, g->ldb * size), alignment((size_t)g->a | g->a_trial, g->lda * size),
	                                     alignment((size_t)g->c | g->c_trial, g->ldc * out)};
	const struct batch alone = {1, 0, 0, 0, 0};
	struct lt_found best[PRODUCT_CANDIDATES];
	struct call x = {};
	lt_preference_t how = NULL;
	int found = 0, rc = describe(c, g, k, &alone, &x, st);

	if (!rc && lt->preference_create(&how) != 0)
		rc = fh_fail(st, FH_EXHAUSTED, "cublasLtMatmulPreferenceCreate");
	if (!rc) {
		int s = lt->preference_set(how, LT_MAX_WORKSPACE, &room, sizeof room);
		s = s ? s : lt->preference_set(how, LT_REDUCTIONS, &none, sizeof none); /* no sum is shared */
		s = s ? s : lt->preference_set(how, LT_ALIGN_A, &align[0], sizeof *align);
		s = s ? s : lt->preference_set(how, LT_ALIGN_B, &align[1], sizeof *align);
		s = s ? s : lt->preference_set(how, LT_ALIGN_C, &align[2], sizeof *align);
		s = s ? s : lt->preference_set(how, LT_ALIGN_D, &align[2], sizeof *align);
		rc = s ? lt_fail(lt, st, s, "cublasLtMatmulPreferenceSetAttribute") : 0;
	}
	if (!rc && lt->heuristic(lt->handle, x.desc, x.a, x.b, x.c, x.c, how, PRODUCT_CANDIDATES, best, &found) != 0)
		found = 0;
	p->candidates[group][at] = 0;
	for (int i = 0; i < found && best[i].state == 0 && best[i].workspace <= room; i++)
		p->algo[group][at][p->candidates[group][at]++] = best[i].algo;
	if (how)
		lt->preference_destroy(how);
	done(lt, &x);
	return rc;
}

/* *said: what the library says of it. */
int call_product(struct cuda_exec *c, const struct gemm *g, int k, const struct batch *batch, int group, int at, int *said, struct fh_status *st)
{
	const struct products *p = c->products;
	const float one = 1.f, zero = 0.f;
	struct call x = {};
	const int rc = describe(c, g, k, batch, &x, st);

	if (!rc)
		*said = p->lt->matmul(p->lt->handle, x.desc, &one, x.pa, x.a, x.pb, x.b, &zero, x.pc, x.c, x.pc, x.c, &p->algo[group][at][p->pick[group][at]],
		                      cuda_at<void>(c, &c->s.work), CUDA_WORK, c->stream);
	done(p->lt, &x);
	return rc;
}

/* Side by side, or one after another where this algorithm does not take batches: the same bits. */
int multiply(struct cuda_exec *c, const struct gemm *g, int k, const struct batch *batch, int group, int at, struct fh_status *st)
{
	const struct batch alone = {1, 0, 0, 0, 0};
	struct gemm q = *g;
	int said = 0, rc = call_product(c, g, k, batch, group, at, &said, st);

	if (!rc && batch->count > 1 && (said == LT_INVALID || said == LT_NOT_SUPPORTED)) {
		said = 0;
		for (int i = 0; i < batch->count && !rc && !said; i++) {
			q.a = (const char *)g->a + i * batch->a;
			q.seg[0].b = (const char *)g->seg[0].b + i * batch->b;
			q.c = (char *)g->c + i * batch->c;
			q.bias = g->bias ? (const float *)((const char *)g->bias + i * batch->bias) : NULL;
			rc = call_product(c, &q, k, &alone, group, at, &said, st);
		}
	}
	return rc ? rc : said ? lt_fail(c->products->lt, st, said, "cublasLtMatmul") : 0;
}

/* The sum over segments as one product: the weights of the heads' first layers one under another, as the gradients of what they gave lie side by
 * side. Rows that belong to padding are zero since the exec was made. */
template <typename T> __global__ void __launch_bounds__(THREADS) k_stack(const __grid_constant__ struct gemm g, T *to, size_t to_trial, int ld)
{
	const int z = blockIdx.z, n = g.n;

	cuda_wait_before();
	cuda_let_next();
	to = (T *)((char *)to + z * to_trial);
	for (int s = blockIdx.y; s < g.segments; s += gridDim.y) {
		const T *from = (const T *)((const char *)g.seg[s].b + z * g.b_trial);

		for (int i = blockIdx.x * THREADS + threadIdx.x; i < g.seg[s].k * n; i += gridDim.x * THREADS)
			to[(size_t)(g.seg[s].a + i / n) * ld + i % n] = from[(size_t)(i / n) * g.ldb + i % n];
	}
}

/* relu's derivative: kept where the layer gave something. Rows lie behind each other, padding and all. */
template <typename T>
__global__ void __launch_bounds__(THREADS) k_mask(T *d, size_t d_trial, const T *act, size_t act_trial, int vectors)
{
	enum { V = 16 / sizeof(T) };
	union vector { uint4 whole; T each[V]; };
	const int i = blockIdx.x * THREADS + threadIdx.x;

	cuda_wait_before();
	cuda_let_next();
	if (i >= vectors)
		return;
	uint4 *to = (uint4 *)((char *)d + blockIdx.z * d_trial) + i;
	union vector v, a;
	v.whole = *to, a.whole = ((const uint4 *)((const char *)act + blockIdx.z * act_trial))[i];
#pragma unroll
	for (int k = 0; k < V; k++)
		v.each[k] = (float)a.each[k] > 0.f ? v.each[k] : (T)0.f;
	*to = v.whole;
}

/* What gemm.cu leaves beside a weight gradient: the columns' sums, and without slices the sum of squares of every tile of 32 x 32. A block a tile. */
template <typename T> __global__ void __launch_bounds__(THREADS) k_leave(const __grid_constant__ struct gemm_group group)
{
	__shared__ float sums[CLASSES][LEAVE_TILE];
	__shared__ double total[CLASSES];
	const int z = blockIdx.z, row = threadIdx.x / LEAVE_TILE, lane = threadIdx.x % LEAVE_TILE;
	double square = 0.0;
	int p = 0;

	cuda_wait_before();
	cuda_let_next();
	while (p + 1 < group.count && (int)blockIdx.x >= group.first[p + 1])
		p++;
	const struct gemm &g = group.g[p];
	const int index = blockIdx.x - group.first[p], m0 = index / g.tiles_n * LEAVE_TILE, n0 = index % g.tiles_n * LEAVE_TILE, m = m0 + lane;
	if (g.part) {
		const float *c = (const float *)((const char *)g.c + z * g.c_trial) + n0 + lane;

		for (int i = m0 + row; i < min(m0 + LEAVE_TILE, g.m); i += CLASSES)
			if (n0 + lane < g.n)
				square += (double)c[(size_t)i * g.ldc] * c[(size_t)i * g.ldc];
	}
	if (n0 == 0) {
		const int from = blockIdx.y * group.slice_k, to = group.slice_k ? min(from + group.slice_k, g.seg[0].k) : g.seg[0].k;
		const T *a = (const T *)((const char *)g.a + z * g.a_trial) + m;
		float sum = 0.f;

#pragma unroll 4
		for (int k = from + row; k < to; k += CLASSES)
			sum += m < g.m ? (float)a[(size_t)k * g.lda] : 0.f;
		sums[row][lane] = sum;
		__syncthreads();
		if (row == 0 && m < g.m) {
			const float b = ((sums[0][lane] + sums[1][lane]) + (sums[2][lane] + sums[3][lane])) +
			                ((sums[4][lane] + sums[5][lane]) + (sums[6][lane] + sums[7][lane]));

			((float *)((char *)g.column + z * g.column_trial + blockIdx.y * group.slice_bytes))[m] = b;
			square += (double)b * b;
		}
	}
	if (!g.part)
		return;
#pragma unroll
	for (int o = 16; o; o >>= 1)
		square += __shfl_xor_sync(0xffffffffu, square, o);
	if (lane == 0)
		total[row] = square;
	__syncthreads();
	if (threadIdx.x == 0)
		((double *)((char *)g.part + z * g.part_trial))[index] =
		    ((total[0] + total[1]) + (total[2] + total[3])) + ((total[4] + total[5]) + (total[6] + total[7]));
}

/* What a layer of BF16 gives, from F32 [rows, ldw] of some trials: bias, relu, rounding, zeros in the padding. The library adds no bias of F32 to BF16. */
struct finish { const float *from; const float *bias; __nv_bfloat16 *to; size_t bias_trial, to_trial; int rows, n, store_n, ldw, ldc, relu; };
__global__ void __launch_bounds__(THREADS) k_finish(const __grid_constant__ struct finish f)
{
	enum { V = 8 }; /* columns of a thread; rows of both are padded to twice as many */
	union { uint4 whole; __nv_bfloat162 pair[V / 2]; } out;
	const int each = f.store_n / V, i = blockIdx.x * THREADS + threadIdx.x, r = i / each, n = i % each * V, z = blockIdx.z;
	float v[V];

	cuda_wait_before();
	cuda_let_next();
	if (r >= f.rows)
		return;
	const float4 *from = (const float4 *)(f.from + ((size_t)z * f.rows + r) * f.ldw + n);
	const float *bias = (const float *)((const char *)f.bias + z * f.bias_trial) + n;
	const float4 lo = from[0], hi = from[1];
	v[0] = lo.x, v[1] = lo.y, v[2] = lo.z, v[3] = lo.w, v[4] = hi.x, v[5] = hi.y, v[6] = hi.z, v[7] = hi.w;
#pragma unroll
	for (int k = 0; k < V; k++) {
		v[k] = n + k < f.n ? v[k] + bias[k] : 0.f;
		if (f.relu && v[k] < 0.f) /* NaN stays: visible to the guard */
			v[k] = 0.f;
	}
#pragma unroll
	for (int k = 0; k < V; k += 2)
		out.pair[k / 2] = __floats2bfloat162_rn(v[k], v[k + 1]);
	*(uint4 *)((__nv_bfloat16 *)((char *)f.to + z * f.to_trial) + (size_t)r * f.ldc + n) = out.whole;
}

/* The group as it is called: segments as one. */
void joined(const struct cuda_exec *c, struct gemm *g)
{
	const struct cuda_scratch *s = &c->s;

	if (g->segments < 2)
		return;
	g->segments = 1;
	g->seg[0] = {c->scratch + s->stack.offset, s->ldhead, 0};
	g->b_trial = s->stack.stride;
	g->ldb = s->ldh2;
}

template <typename T> int stack(struct cuda_exec *c, const struct gemm *g, int trials, struct fh_status *st)
{
	CUDA_TRY(cuda_launch(c, k_stack<T>, dim3(64, g->segments, trials), THREADS, 0, *g, cuda_at<T>(c, &c->s.stack), c->s.stack.stride, c->s.ldh2));
	return 0;
}

/* All products of a group through the heads or the trunk fill whole rows of one array. */
template <typename T> int mask(struct cuda_exec *c, const struct gemm_group *g, int trials, struct fh_status *st)
{
	const struct gemm *q = &g->g[0];
	const int vectors = (int)((size_t)q->m * q->ldc * sizeof(T) / 16);

	CUDA_TRY(cuda_launch(c, k_mask<T>, dim3(cuda_tiles(vectors, THREADS), 1, trials), THREADS, 0, (T *)q->c, q->c_trial, (const T *)q->mask, q->mask_trial, vectors));
	return 0;
}

template <typename T> int leave(struct cuda_exec *c, struct gemm_group *g, int slices, int trials, struct fh_status *st)
{
	g->tiles = 0;
	for (int i = 0; i < g->count; i++) {
		g->first[i] = g->tiles;
		g->g[i].tiles_n = g->g[i].part ? cuda_tiles(g->g[i].n, LEAVE_TILE) : 1;
		g->tiles += cuda_tiles(g->g[i].m, LEAVE_TILE) * g->g[i].tiles_n;
	}
	CUDA_TRY(cuda_launch(c, k_leave<T>, dim3(g->tiles, slices, trials), THREADS, 0, *g));
	return 0;
}

/* Trials side by side, or the slices of a batch where they are more; then the others one after another. */
int multiply_all(struct cuda_exec *c, const struct gemm_group *group, const struct gemm *g, int slices, int trials, int id, int at, struct fh_status *st)
{
	const size_t low = c->s.low, a = (size_t)group->slice_k * g->lda * low, b = (size_t)group->slice_k * g->ldb * low;
	const int together = slices > trials, k = slices > 1 ? group->slice_k : g->seg[0].k;
	const struct batch side = together ? batch{slices, a, b, group->slice_bytes, 0} : batch{trials, g->a_trial, g->b_trial, g->c_trial, g->bias_trial};
	struct gemm q = *g;
	int rc = 0;

	for (int i = 0; !rc && i < (together ? trials : slices); i++) {
		q.a = (const char *)g->a + i * (together ? g->a_trial : a);
		q.seg[0].b = (const char *)g->seg[0].b + i * (together ? g->b_trial : b);
		q.c = (char *)g->c + i * (together ? g->c_trial : group->slice_bytes);
		rc = multiply(c, &q, k, &side, id, at, st);
	}
	return rc;
}

/* Rows that go through the wide buffer at once, by the shape alone; 0: the product needs none of it. */
int wide_rows(const struct cuda_exec *c, const struct gemm *g)
{
	const int most = (int)(c->s.wide / (size_t)cuda_pad16(g->n));

	return !g->bias || g->c_f32 || c->s.low == 4 ? 0 : g->m <= most ? g->m : most / 128 * 128;
}
struct gemm widened(struct cuda_exec *c, const struct gemm *g, int rows)
{
	struct gemm q = *g;

	q.c = cuda_at<float>(c, &c->s.wide_rows), q.ldc = cuda_pad16(g->n), q.c_f32 = 1;
	q.m = rows, q.c_trial = (size_t)rows * q.ldc * sizeof(float);
	q.bias = NULL, q.relu = 0;
	return q;
}

/* Trials that fit into the buffer at once, or some rows of one. */
int multiply_wide(struct cuda_exec *c, const struct gemm *g, int rows, int trials, int id, int at, struct fh_status *st)
{
	const size_t low = c->s.low, one = (size_t)rows * cuda_pad16(g->n);
	const int together = rows < g->m ? 1 : max((int)(c->s.wide / one), 1);
	int rc = 0;

	for (int z = 0; z < trials && !rc; z += together)
		for (int r = 0; r < g->m && !rc; r += rows) {
			const int n = min(rows, g->m - r), count = min(together, trials - z);
			struct gemm q = widened(c, g, n);
			const struct batch side = {count, q.a_trial, q.b_trial, q.c_trial, 0};
			const struct finish f = {(const float *)q.c, (const float *)((const char *)g->bias + z * g->bias_trial),
			                         (__nv_bfloat16 *)((char *)g->c + z * g->c_trial) + (size_t)r * g->ldc, g->bias_trial, g->c_trial,
			                         n, g->n, cuda_pad16(g->n), q.ldc, g->ldc, g->relu};

			q.a = (const char *)g->a + z * g->a_trial + (size_t)r * g->lda * low;
			q.seg[0].b = (const char *)g->seg[0].b + z * g->b_trial;
			rc = multiply(c, &q, q.seg[0].k, &side, id, at, st);
			if (!rc)
				CUDA_TRY(cuda_launch(c, k_finish, dim3(cuda_tiles(n * (f.store_n / 8), THREADS), 1, count), THREADS, 0, f));
		}
	return rc;
}

int one_product(struct cuda_exec *c, const struct gemm_group *g, const struct gemm *q, int id, int at, struct fh_status *st)
{
	const int trials = g->trials ? g->trials : c->dims.P, rows = wide_rows(c, q);

	return rows ? multiply_wide(c, q, rows, trials, id, at, st) : multiply_all(c, g, q, g->slices > 1 ? g->slices : 1, trials, id, at, st);
}

int ask(struct cuda_exec *c, const struct gemm_group *g, int id, struct fh_status *st)
{
	struct products *p = c->products;
	double work = 0;
	int rc = 0;

	for (int i = 0; i < g->count; i++)
		for (int s = 0; s < g->g[i].segments; s++)
			work += (double)g->g[i].m * g->g[i].n * g->g[i].seg[s].k;
	if (work < p->least || (g->slices > 1 && c->dims.B % g->slice_k))
		return 0;
	p->products[id] = (unsigned char)g->count;
	for (int i = 0; i < g->count; i++) {
		struct gemm q = g->g[i];
		const int rows = wide_rows(c, &q);

		joined(c, &q);
		if (rows)
			q = widened(c, &q, rows);
		rc = ask_product(c, &q, g->slices > 1 ? g->slice_k : q.seg[0].k, id, i, st);
		if (rc || !p->candidates[id][i])
			return rc;
	}
	p->offered |= 1u << id;
	return 0;
}

/* Each product by the fastest of its algorithms; by the first where another one is not much faster. */
int time_group(struct cuda_exec *c, const struct gemm_group *g, int id, struct fh_status *st)
{
	const double gain = 0.1;
	struct products *p = c->products;
	int rc = 0;

	for (int i = 0; i < g->count && p->offered >> id & 1; i++) {
		struct gemm q = g->g[i];
		double least = 1e30, us;
		int best = 0;

		joined(c, &q);
		for (int n = 0; n < p->candidates[id][i] && !rc; n++) {
			p->pick[id][i] = (unsigned char)n;
			rc = product_time(c, [&](struct fh_status *s) { return one_product(c, g, &q, id, i, s); }, &us, st);
			if (rc == FH_DEVICE) /* it was named, and does not do it after all */
				rc = 0, us = 1e30;
			if (!rc && us < least * (1 - gain))
				least = us, best = n;
		}
		p->pick[id][i] = (unsigned char)best;
		if (rc)
			return rc;
		if (least == 1e30)
			p->offered &= ~(1u << id);
	}
	return 0;
}

template <typename T> int through(struct cuda_exec *c, struct gemm_group *g, int id, struct fh_status *st)
{
	const int trials = g->trials ? g->trials : c->dims.P;
	int rc = 0;

	for (int i = 0; !rc && i < g->count; i++) {
		struct gemm q = g->g[i];

		if (q.segments > 1)
			rc = stack<T>(c, &q, trials, st);
		joined(c, &q);
		if (!rc)
			rc = one_product(c, g, &q, id, i, st);
	}
	if (!rc && g->g[0].mask)
		rc = mask<T>(c, g, trials, st);
	if (!rc && g->g[0].column)
		rc = leave<T>(c, g, g->slices > 1 ? g->slices : 1, trials, st);
	return rc;
}

} // namespace

int product_launch(struct cuda_exec *c, struct gemm_group *g, int group, int tile, const char *what, struct fh_status *st)
{
	if (c->products && c->products->mode != PRODUCT_RUN && group >= 0)
		return c->products->mode == PRODUCT_ASK ? ask(c, g, group, st) : time_group(c, g, group, st);
	if (!product_takes(c, group))
		return gemm_launch(c, g, tile, what, st);
	return c->dims.precision == FH_PRECISION_BF16 ? through<__nv_bfloat16>(c, g, group, st) : through<float>(c, g, group, st);
}
