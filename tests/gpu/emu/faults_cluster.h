/* Clusters of blocks: right kernels and wrong ones for faults.cpp, which includes this behind device_floats() and MUST(). */
#ifndef FH_EMU_FAULTS_CLUSTER_H
#define FH_EMU_FAULTS_CLUSTER_H

static cudaError_t launch_cluster(void (*kernel)(float *), unsigned blocks, unsigned cluster, bool dependent, cudaStream_t s, float *p)
{
	cudaLaunchAttribute attribute[2] = {};
	cudaLaunchConfig_t c = {};

	attribute[0].id = cudaLaunchAttributeClusterDimension;
	attribute[0].val.clusterDim = {cluster, 1, 1};
	attribute[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attribute[1].val.programmaticStreamSerializationAllowed = 1;
	c.gridDim = dim3(blocks), c.blockDim = dim3(64), c.dynamicSmemBytes = 4096, c.stream = s;
	c.attrs = attribute, c.numAttrs = dependent ? 2 : 1;
	return cudaLaunchKernelEx(&c, kernel, p);
}

/* ---------------------------------------------------------------- right ones */

/* Each block of a cluster gives every other, round by round, what it has been given: two buffers, or one block would overwrite
 * what another still reads. */
enum { RING = 4, RING_ROUNDS = 5 };
static __global__ void k_ring(float *out)
{
	PTX_SHARED(float, shared); /* [2][RING] */
	__shared__ float own[RING];
	const unsigned rank = ptx_cluster_rank();
	float x = (float)blockIdx.x;

	ptx_cluster_arrive();
	cudaGridDependencySynchronize();
	ptx_cluster_wait();
	for (int round = 0; round < RING_ROUNDS; round++) {
		float *to = shared + round % 2 * RING;

		if (threadIdx.x < RING)
			ptx_remote_store4(ptx_remote_at(ptx_shared_at(to), threadIdx.x) + 4 * rank, __float_as_uint(x));
		ptx_cluster_arrive();
		if (threadIdx.x < RING)
			own[threadIdx.x] = (float)rank;
		ptx_cluster_wait();
		x = to[0] + 2 * to[1] + 3 * to[2] + 4 * to[3] + own[rank];
		__syncthreads();
	}
	if (threadIdx.x == 0)
		out[blockIdx.x] = x;
}
static void ring(void)
{
	float *d = device_floats(12), h[12], want[12], next[12];

	for (bool dependent : {false, true}) {
		for (int i = 0; i < 12; i++)
			want[i] = (float)i;
		for (int round = 0; round < RING_ROUNDS; round++) {
			for (int i = 0; i < 12; i++) {
				const float *of = want + i / RING * RING;

				next[i] = of[0] + 2 * of[1] + 3 * of[2] + 4 * of[3] + (float)(i % RING);
			}
			memcpy(want, next, sizeof want);
		}
		for (int launches = 0; launches < 2; launches++)
			MUST(launch_cluster(k_ring, 12, RING, dependent, nullptr, d) == cudaSuccess);
		MUST(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost) == cudaSuccess);
		for (int i = 0; i < 12; i++)
			MUST(h[i] == want[i]);
		MUST(cudaMemset(d, 0, sizeof h) == cudaSuccess);
	}
	MUST(launch_cluster(k_ring, 10, RING, false, nullptr, d) == cudaErrorInvalidClusterSize);
	MUST(launch_cluster(k_ring, 16, 16, false, nullptr, d) == cudaErrorInvalidClusterSize);
}

/* The same with stores that count at mbarriers: two of them, as a block that is a round ahead sends while others still wait for this one. */
enum { POST_ROUNDS = 12 };
template <int BARRIERS> static __global__ void k_post(float *out)
{
	PTX_SHARED(float, shared); /* [2][RING][4] */
	__shared__ uint64_t bar[2];
	const unsigned rank = ptx_cluster_rank(), size = RING;
	const unsigned me = threadIdx.x;
	float x = (float)blockIdx.x;

	if (me == 0) {
		for (uint64_t &b : bar)
			ptx_barrier_init(ptx_shared_at(&b), 2);
		ptx_barrier_init_fence();
	}
	ptx_cluster_arrive_relaxed();
	cudaGridDependencySynchronize();
	ptx_cluster_wait();
	for (unsigned round = 0; round < POST_ROUNDS; round++) {
		float *to = shared + round % 2 * 4 * size;
		const ptx_shared b = ptx_shared_at(bar + round % BARRIERS);

		if (me < size) {
			const ptx_remote there = ptx_remote_at(ptx_shared_at(to), me) + 16 * rank, its = ptx_remote_at(b, me);
			const unsigned bits = __float_as_uint(x);

			if (rank % 2) {
				ptx_remote_async16(there, make_uint4(bits, bits, bits, bits), its);
			} else {
				for (int e = 0; e < 4; e++)
					ptx_remote_async4(there + 4 * e, bits, its);
			}
		}
		if (me == 40)
			ptx_barrier_expect(b, 16 * size);
		if (me == 50)
			ptx_barrier_arrive(b);
		ptx_barrier_wait(b, round / BARRIERS & 1);
		x = fmodf(to[0] + 2 * to[5] + 3 * to[10] + 4 * to[15] + (float)rank, 1021.f);
		__syncthreads(); /* or a thread of this block might still read what the next round but one overwrites */
	}
	if (me == 0)
		out[blockIdx.x] = x;
}
template <int BARRIERS> static void post(void)
{
	float *d = device_floats(12), h[12], want[12], next[12];

	for (int i = 0; i < 12; i++)
		want[i] = (float)i;
	for (int round = 0; round < POST_ROUNDS; round++) {
		for (int i = 0; i < 12; i++) {
			const float *of = want + i / RING * RING;

			next[i] = fmodf(of[0] + 2 * of[1] + 3 * of[2] + 4 * of[3] + (float)(i % RING), 1021.f);
		}
		memcpy(want, next, sizeof want);
	}
	for (int launches = 0; launches < 3; launches++) {
		MUST(launch_cluster(k_post<BARRIERS>, 12, RING, true, nullptr, d) == cudaSuccess);
		MUST(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost) == cudaSuccess);
		for (int i = 0; i < 12; i++)
			if (h[i] != want[i]) {
				fprintf(stderr, "not what was sent: %g\n", h[i]);
				abort();
			}
	}
}

/* A store is not there before the wait, and then it is; vectors of all sizes; into statics too. */
static __global__ void k_lands(float *out)
{
	PTX_SHARED(float, shared);
	__shared__ float other[4];
	const ptx_remote to = ptx_remote_at(ptx_shared_at(shared), ptx_cluster_rank() ^ 1);

	if (threadIdx.x < 16)
		shared[threadIdx.x] = 1;
	if (threadIdx.x < 4)
		other[threadIdx.x] = 1;
	ptx_cluster_arrive();
	ptx_cluster_wait();
	if (threadIdx.x == 0) {
		ptx_remote_store16(to + 16, make_uint4(0x40000000, 0x40400000, 0x40800000, 0x40a00000)); /* 2 3 4 5 */
		ptx_remote_store8(to + 40, make_float2(6, 7));
		ptx_remote_store4(ptx_remote_at(ptx_shared_at(other), ptx_cluster_rank() ^ 1) + 8, 0x41000000); /* 8 */
	}
	ptx_cluster_arrive();
	ptx_cluster_wait();
	if (threadIdx.x < 16)
		out[blockIdx.x * 20 + threadIdx.x] = shared[threadIdx.x];
	if (threadIdx.x < 4)
		out[blockIdx.x * 20 + 16 + threadIdx.x] = other[threadIdx.x];
}
static void lands(void)
{
	static const float want[20] = {1, 1, 1, 1, 2, 3, 4, 5, 1, 1, 6, 7, 1, 1, 1, 1, 1, 1, 8, 1};
	float *d = device_floats(120), h[120];

	MUST(launch_cluster(k_lands, 6, 2, false, nullptr, d) == cudaSuccess);
	MUST(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost) == cudaSuccess);
	for (int i = 0; i < 120; i++)
		MUST(h[i] == want[i % 20]);
}

/* ---------------------------------------------------------------- wrong ones */

/* What a cluster does wrong: the second block where it says one. */
static __device__ ptx_remote other_block(float *shared) { return ptx_remote_at(ptx_shared_at(shared), ptx_cluster_rank() ^ 1); }
static __device__ void cluster_meets(void) { ptx_cluster_arrive(), ptx_cluster_wait(); }
static __global__ void k_absent(float *) /* it ends without having come to the barrier that the first waits at */
{
	cluster_meets();
	if (ptx_cluster_rank() == 0)
		cluster_meets();
}
static __global__ void k_untold(float *)
{
	PTX_SHARED(float, shared);

	cluster_meets();
	ptx_remote_store4(other_block(shared) + 4 * threadIdx.x, 1);
}
static __global__ void k_gone(float *) /* it has ended when the first stores into it */
{
	PTX_SHARED(float, shared);

	cluster_meets();
	for (int i = 0; i < 100 && ptx_cluster_rank() == 0; i++)
		__syncthreads();
	if (ptx_cluster_rank() == 0)
		ptx_remote_store4(other_block(shared) + 4 * threadIdx.x, 1);
}
static __global__ void k_unmet(float *) /* it ends before the store that the others still wait for has landed */
{
	cluster_meets();
	ptx_cluster_arrive();
	if (ptx_cluster_rank() == 0)
		ptx_cluster_wait();
}
static __global__ void k_unbegun(float *)
{
	PTX_SHARED(float, shared);

	ptx_remote_store4(other_block(shared), 1);
	cluster_meets();
}
static __global__ void k_twice(float *)
{
	ptx_cluster_arrive();
	ptx_cluster_arrive();
}
static __global__ void k_beyond(float *)
{
	PTX_SHARED(float, shared);

	cluster_meets();
	ptx_remote_store4(other_block(shared) + 4096, 1);
	cluster_meets();
}
static __global__ void k_stranger(float *)
{
	PTX_SHARED(float, shared);

	ptx_remote_at(ptx_shared_at(shared), 2);
}
static __global__ void k_global(float *p) { ptx_remote_at(ptx_shared_at(p), 1); }
static __global__ void k_some(float *)
{
	if (threadIdx.x != 3)
		ptx_cluster_arrive();
	__syncthreads();
}
template <int FAULT> static __global__ void k_mbarrier(float *)
{
	PTX_SHARED(float, shared);
	__shared__ uint64_t bar;
	const ptx_shared b = ptx_shared_at(&bar);
	const ptx_remote its = ptx_remote_at(b, ptx_cluster_rank() ^ 1);

	if (threadIdx.x == 0) {
		ptx_barrier_init(b, 1);
		if (FAULT != 0)
			ptx_barrier_init_fence();
	}
	cluster_meets();
	if (FAULT == 1 && threadIdx.x == 0)
		bar = 0;
	if (threadIdx.x == 0 && FAULT != 2)
		ptx_barrier_expect(b, FAULT == 3 ? 8 : 4);
	if (threadIdx.x == 0)
		ptx_remote_async4(other_block(shared) + (FAULT == 4 ? 2 : 0), 1, FAULT == 5 ? ptx_remote_at(b, ptx_cluster_rank()) : its);
	if (FAULT == 6)
		cluster_meets();
	else
		ptx_barrier_wait(b, 0);
	if (threadIdx.x == 0 && FAULT == 7)
		ptx_remote_async4(other_block(shared), 1, its);
	if (threadIdx.x == 0 && FAULT == 8)
		ptx_barrier_expect(b, 4), ptx_remote_async16(other_block(shared), make_uint4(1, 1, 1, 1), its);
	if (FAULT == 8)
		ptx_barrier_wait(b, 1);
}
/* One block overwrites what the other still reads, or reads what it has not waited for: NaN in place of a sum. */
static __global__ void k_overwrites(float *out)
{
	PTX_SHARED(float, shared);

	cluster_meets();
	for (int round = 0; round < 2; round++) {
		if (threadIdx.x == 0)
			ptx_remote_store4(other_block(shared), 0x3f800000);
		cluster_meets();
		if (round == 0)
			out[blockIdx.x] = shared[0];
	}
	cluster_meets();
}
static __global__ void k_impatient(float *out)
{
	PTX_SHARED(float, shared);

	cluster_meets();
	if (threadIdx.x == 0)
		ptx_remote_store4(other_block(shared), 0x3f800000);
	ptx_cluster_arrive();
	out[blockIdx.x] = shared[0];
	ptx_cluster_wait();
}
static void wrong_cluster(void (*kernel)(float *))
{
	float *d = device_floats(64), h[8];

	MUST(launch_cluster(kernel, 8, 2, false, nullptr, d) == cudaSuccess);
	MUST(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost) == cudaSuccess);
	for (float x : h)
		if (x != 1.f) {
			fprintf(stderr, "not what was stored: %g\n", x);
			abort();
		}
}

#endif
