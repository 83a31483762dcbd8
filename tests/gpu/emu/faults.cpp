/* Does the emulator find what it is there to find? Small kernels, right ones and wrong ones, each in a process of its own: the
 * right ones give what a card gives, the wrong ones end the process with the words that name the fault. Exit 0 when all do. */
#include <cuda_bf16.h>
#include <emu_ptx.h>
#include <emu_wgmma.h>
#include <initializer_list>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#define MUST(condition) do { if (!(condition)) { fprintf(stderr, "line %d: %s\n", __LINE__, #condition); exit(1); } } while (0)

template <typename... P, typename... A> static void launch(void (*kernel)(P...), unsigned blocks, unsigned threads, bool dependent, cudaStream_t s, A... args)
{
	cudaLaunchAttribute attribute = {};
	cudaLaunchConfig_t c = {};

	attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attribute.val.programmaticStreamSerializationAllowed = 1;
	c.gridDim = dim3(blocks), c.blockDim = dim3(threads), c.dynamicSmemBytes = 4096, c.stream = s;
	c.attrs = &attribute, c.numAttrs = dependent;
	MUST(cudaLaunchKernelEx(&c, kernel, args...) == cudaSuccess);
}
static float *device_floats(int n)
{
	float *p = nullptr;

	MUST(cudaMalloc(&p, sizeof(float) * (size_t)n) == cudaSuccess);
	return p;
}

#include "faults_cluster.h"

/* ---------------------------------------------------------------- right ones */

static __global__ void k_sum(float *out)
{
	__shared__ float part[4];
	float x = (float)threadIdx.x;

	for (int o = 16; o; o >>= 1)
		x += __shfl_xor_sync(0xffffffffu, x, o);
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = x;
	__syncthreads();
	if (threadIdx.x == 0)
		out[blockIdx.x] = part[0] + part[1] + part[2] + part[3];
}
static void sums(void)
{
	float *d = device_floats(5), h[5];

	launch(k_sum, 5, 128, false, nullptr, d);
	MUST(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost) == cudaSuccess);
	for (float x : h)
		MUST(x == 8128.f);
}

/* 16 x 16 by 16 x 8, small integers: exact. a(i, k) = i - k, b(k, j) = k + j. */
static __global__ void k_product(float *c)
{
	PTX_SHARED(__nv_bfloat16, shared);
	__nv_bfloat16 *a = shared, *b = shared + 256;
	const int lane = threadIdx.x;
	float acc[4] = {};
	unsigned fa[4], fb[4];

	for (int i = lane; i < 256; i += 32)
		a[i] = __float2bfloat16((float)(i / 16 - i % 16)), b[i] = __float2bfloat16((float)(i / 16 + i % 16)); /* b[k][j], 16 wide */
	__syncwarp();
	ptx_ldmatrix4(fa, a + (lane & 15) * 16 + (lane >> 4) * 8);
	ptx_ldmatrix4t(fb, b + (lane & 15) * 16 + (lane >> 4) * 8);
	ptx_mma_bf16(acc, fa, fb[0], fb[1]);
	for (int e = 0; e < 4; e++)
		c[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = acc[e];
}
static void product(void)
{
	float *d = device_floats(128), h[128];

	launch(k_product, 1, 32, false, nullptr, d);
	MUST(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost) == cudaSuccess);
	for (int i = 0; i < 16; i++)
		for (int j = 0; j < 8; j++) {
			float sum = 0;

			for (int k = 0; k < 16; k++)
				sum += (float)(i - k) * (float)(k + j);
			MUST(h[i * 8 + j] == sum);
		}
}

/* A copy under way is NaN, one that was waited for is there. */
static __global__ void k_copy(const float *from, float *out)
{
	PTX_SHARED(float, shared);

	ptx_copy16(ptx_shared_at(shared), from, 12);
	ptx_copy_commit();
	out[0] = shared[1];
	ptx_copy_wait<0>();
	out[1] = shared[1], out[2] = shared[3];
}
static void copy(void)
{
	const float h[4] = {1, 2, 3, 4};
	float *from = device_floats(4), *out = device_floats(3), got[3];

	MUST(cudaMemcpy(from, h, sizeof h, cudaMemcpyHostToDevice) == cudaSuccess);
	launch(k_copy, 1, 1, false, nullptr, from, out);
	MUST(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost) == cudaSuccess);
	MUST(got[0] != got[0] && got[1] == 2.f && got[2] == 0.f);
}

static __global__ void k_set(float *p, float v)
{
	cudaGridDependencySynchronize();
	cudaTriggerProgrammaticLaunchCompletion();
	*p = v;
}
/* A capture whose second stream nobody waits for is refused; joined, it runs as often as it is launched. */
static void capture(void)
{
	float *d = device_floats(2), h[2];

	for (int join = 0; join < 2; join++) {
		cudaStream_t a, b;
		cudaEvent_t fork, end;
		cudaGraph_t g;
		cudaGraphExec_t x;

		MUST(!cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking) && !cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
		MUST(!cudaEventCreate(&fork) && !cudaEventCreate(&end));
		MUST(!cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
		launch(k_set, 1, 1, false, a, d, 1.f);
		MUST(!cudaEventRecord(fork, a) && !cudaStreamWaitEvent(b, fork));
		launch(k_set, 1, 1, false, b, d + 1, 2.f);
		if (join)
			MUST(!cudaEventRecord(end, b) && !cudaStreamWaitEvent(a, end));
		const cudaError_t e = cudaStreamEndCapture(a, &g);
		MUST(e == (join ? cudaSuccess : cudaErrorStreamCaptureUnjoined));
		if (!join)
			continue;
		MUST(!cudaGraphInstantiate(&x, g) && !cudaGraphLaunch(x, a) && !cudaStreamSynchronize(a));
		MUST(!cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
		MUST(h[0] == 1.f && h[1] == 2.f);
	}
}

/* ---------------------------------------------------------------- wrong ones */

/* 64 x 64 by 64 x 64 of a warpgroup, small integers: exact. FAULT 0: right; 1: an operand is written while the instruction runs; 2: the
 * result is read before the wait; 3: an operand begins within 32 bytes. */
static __host__ __device__ int group_a(int row, int k) { return (row + k) % 7 - 3; }
static __host__ __device__ int group_b(int k, int column) { return (3 * column + k) % 5 - 2; }
template <int FAULT> static __global__ void k_group(float *out)
{
	enum { PART = 64 * 128 };
	PTX_SHARED(char, shared);
	char *const base = (char *)(((uintptr_t)shared + 1023) & ~(uintptr_t)1023);
	const ptx_shared a = ptx_shared_at(base), b = a + PART;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float d[8][4] = {};

	for (int i = threadIdx.x; i < 64 * 64; i += blockDim.x) {
		const int row = i / 64, k = i % 64, at = row * 128 + ((k / 8) ^ (row & 7)) * 16 + k % 8 * 2;

		*(__nv_bfloat16 *)(base + at) = __float2bfloat16((float)group_a(row, k));
		*(__nv_bfloat16 *)(base + PART + at) = __float2bfloat16((float)group_b(k, row));
	}
	ptx_operands_written();
	__syncthreads();
	ptx_group_begin<8>(d);
	for (int k = 0; k < 4; k++)
		ptx_group_mma<8>(d, ptx_operand_at(a + 32 * k + (FAULT == 3 ? 16 : 0)), ptx_operand_at(b + 32 * k));
	ptx_group_commit();
	if (FAULT == 1 && threadIdx.x == 0)
		*(__nv_bfloat16 *)base = __float2bfloat16(100);
	if (FAULT == 2)
		out[threadIdx.x] = d[0][0];
	ptx_group_wait<0, 8>(d);
	for (int j = 0; j < 8 && FAULT != 2; j++)
		for (int e = 0; e < 4; e++)
			out[(warp * 16 + lane / 4 + e / 2 * 8) * 64 + j * 8 + lane % 4 * 2 + e % 2] = d[j][e];
}
template <int FAULT> static void group(void)
{
	float *d = device_floats(64 * 64), h[64 * 64];
	cudaLaunchConfig_t c = {};

	c.gridDim = dim3(1), c.blockDim = dim3(128), c.dynamicSmemBytes = 17 << 10;
	MUST(cudaLaunchKernelEx(&c, k_group<FAULT>, d) == cudaSuccess);
	MUST(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost) == cudaSuccess);
	for (int i = 0; i < 64; i++)
		for (int j = 0; j < 64; j++) {
			float sum = 0;

			for (int k = 0; k < 64; k++)
				sum += (float)(group_a(i, k) * group_b(k, j));
			if (h[i * 64 + j] != sum) {
				fprintf(stderr, "not the product: %g\n", h[i * 64 + j]);
				abort();
			}
		}
}

/* A box that reaches beyond its tensor comes, is copied as an operand lies, with 1 added to what is there, and goes.
 * FAULT 0: right; 1: read before it is there; 2: written while it is on its way to memory; 3: nobody waits for that; 4: the warpgroups name one barrier. */
enum { BOX_COLUMNS = 72, BOX_ROWS = 5, BOX_TRIALS = 2, BOX_AT = 56, BOX_ALL = BOX_COLUMNS * BOX_ROWS * BOX_TRIALS };
struct box_args { struct emu_tensor_map from, to; };
template <int FAULT> static __global__ void k_box(struct box_args x)
{
	PTX_SHARED(char, shared);
	char *const base = (char *)(((uintptr_t)shared + 1023) & ~(uintptr_t)1023);
	const ptx_shared panel = ptx_shared_at(base), bar = panel + 64 * 128;

	if (threadIdx.x == 0) {
		ptx_barrier_init(bar, 1);
		ptx_barrier_init_fence();
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		ptx_barrier_expect(bar, 64 * 128);
		ptx_box_load3(panel, &x.from, BOX_AT, 1, 1, bar);
	}
	if (FAULT != 1)
		ptx_barrier_wait(bar, 0);
	ptx_group_sync(FAULT == 4 ? 0 : threadIdx.x / 128);
	for (int i = threadIdx.x; i < 64 * 64; i += blockDim.x) {
		__nv_bfloat16 *p = (__nv_bfloat16 *)(base + i / 64 * 128 + ((i % 64 / 8) ^ (i / 64 & 7)) * 16) + i % 8;

		*p = __float2bfloat16(__bfloat162float(*p) + (i / 64 < BOX_ROWS - 1 && i % 64 < BOX_COLUMNS - BOX_AT));
	}
	ptx_operands_written();
	__syncthreads();
	if (FAULT == 1)
		ptx_barrier_wait(bar, 0);
	if (threadIdx.x == 0) {
		ptx_box_store(panel, &x.to, BOX_AT, 1, 0);
		if (FAULT == 2)
			*(unsigned *)base ^= 1;
		if (FAULT != 3)
			ptx_box_wait();
	}
}
template <int FAULT> static void boxes(void)
{
	static const uint64_t size[3] = {BOX_COLUMNS, BOX_ROWS, BOX_TRIALS}, stride[2] = {BOX_COLUMNS * 2, BOX_COLUMNS * BOX_ROWS * 2};
	static const uint32_t box[3] = {64, 64, 1};
	__nv_bfloat16 h[2 * BOX_ALL], *d = (__nv_bfloat16 *)device_floats(BOX_ALL);
	struct box_args x;
	cudaLaunchConfig_t c = {};

	for (int i = 0; i < 2 * BOX_ALL; i++)
		h[i] = __float2bfloat16(i < BOX_ALL ? (float)(i % 200) : -1.f);
	MUST(cudaMemcpy(d, h, sizeof h, cudaMemcpyHostToDevice) == cudaSuccess);
	MUST(emu_tensor_map_make(&x.from, d, 3, size, stride, box) && emu_tensor_map_make(&x.to, d + BOX_ALL, 3, size, stride, box));
	c.gridDim = dim3(1), c.blockDim = dim3(256), c.dynamicSmemBytes = 10 << 10;
	MUST(cudaLaunchKernelEx(&c, k_box<FAULT>, x) == cudaSuccess);
	MUST(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost) == cudaSuccess);
	for (int i = 0; i < BOX_ALL; i++) {
		const int column = i % BOX_COLUMNS, row = i / BOX_COLUMNS % BOX_ROWS, trial = i / BOX_COLUMNS / BOX_ROWS;
		const float want = column < BOX_AT || row < 1 || trial ? -1.f : (float)((i + BOX_ALL / 2) % 200) + 1, got = __bfloat162float(h[BOX_ALL + i]);

		if (got != want) {
			fprintf(stderr, "not what was there: %g, not %g\n", got, want);
			abort();
		}
	}
}

static __global__ void k_missed(float *) { if (threadIdx.x != 3) __syncthreads(); }
static __global__ void k_apart(float *p)
{
	int x;

	if (threadIdx.x < 16)
		x = __shfl_sync(0xffffffffu, (int)threadIdx.x, 0);
	else
		x = __shfl_sync(0xffffffffu, (int)threadIdx.x, 1);
	p[0] = (float)x;
}
static __global__ void k_outside(float *) { __syncwarp(0xffffu); }
static __global__ void k_unwaited(float *p)
{
	PTX_SHARED(float, shared);

	ptx_copy16(ptx_shared_at(shared), p, 16);
	ptx_copy_commit();
}
static __global__ void k_never(float *) {}
static __global__ void k_hurry(float *)
{
	cudaTriggerProgrammaticLaunchCompletion();
	cudaGridDependencySynchronize();
}
static void wrong(void (*kernel)(float *), bool dependent)
{
	float *d = device_floats(64);

	launch(kernel, 2, 64, dependent, nullptr, d);
	cudaDeviceSynchronize();
}

/* What a dependent launch reads in front of its wait is what was there before the launch in front of it. */
static __global__ void k_early(const float *from, float *to)
{
	const float x = *from;

	cudaGridDependencySynchronize();
	*to = x;
}
static void early(void)
{
	float *d = device_floats(2), h = 0;
	cudaStream_t s;

	MUST(!cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	for (int round = 1; round <= 2; round++) { /* that k_set lets the next one begin is known from its first run */
		launch(k_set, 1, 1, true, s, d, (float)round);
		launch(k_early, 1, 1, true, s, (const float *)d, d + 1);
		MUST(!cudaStreamSynchronize(s));
	}
	MUST(!cudaMemcpy(&h, d + 1, sizeof h, cudaMemcpyDeviceToHost));
	if (h != 2.f) {
		fprintf(stderr, "read too early: %g\n", h);
		abort();
	}
}

static void two_sizes(void)
{
	for (int bytes : {64 << 10, 64 << 10, 80 << 10})
		MUST(cudaFuncSetAttribute(k_sum, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) == cudaSuccess);
}

/* What may be done beside a capture: by its thread neither allocating nor asking, by others everything unless the mode is global. */
static void beside(void)
{
	for (cudaStreamCaptureMode mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeGlobal}) {
		cudaStream_t s;
		cudaEvent_t e;
		cudaGraph_t g;
		float *d = device_floats(1), *p = nullptr;
		cudaError_t other = cudaSuccess;

		MUST(!cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) && !cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
		MUST(!cudaEventRecord(e, s) && !cudaStreamBeginCapture(s, mode));
		MUST(cudaMalloc(&p, 4) == cudaErrorStreamCaptureUnsupported && cudaFree(d) == cudaErrorStreamCaptureUnsupported);
		MUST(cudaEventQuery(e) == cudaErrorStreamCaptureUnsupported && cudaEventSynchronize(e) == cudaErrorStreamCaptureUnsupported);
		std::thread([&other] {
			float *q = nullptr;

			other = cudaMalloc(&q, 4);
			if (other == cudaSuccess)
				other = cudaFree(q);
		}).join();
		MUST(other == (mode == cudaStreamCaptureModeGlobal ? cudaErrorStreamCaptureUnsupported : cudaSuccess));
		launch(k_sum, 1, 128, false, s, d);
		MUST(!cudaStreamEndCapture(s, &g) && !cudaGraphDestroy(g));
		MUST(!cudaEventQuery(e) && !cudaFree(d) && !cudaStreamDestroy(s) && !cudaEventDestroy(e));
	}
}

/* Memory behind streams and graphs is the driver's: it grows once and stays. */
static void kept(void)
{
	size_t before, with, after, again, total;
	cudaStream_t s[40];

	MUST(!cudaMemGetInfo(&before, &total));
	for (cudaStream_t &k : s)
		MUST(!cudaStreamCreateWithFlags(&k, cudaStreamNonBlocking));
	MUST(!cudaMemGetInfo(&with, &total) && with < before);
	for (cudaStream_t &k : s)
		MUST(!cudaStreamDestroy(k));
	MUST(!cudaMemGetInfo(&after, &total) && after == with);
	for (cudaStream_t &k : s)
		MUST(!cudaStreamCreateWithFlags(&k, cudaStreamNonBlocking));
	MUST(!cudaMemGetInfo(&again, &total) && again == with);
}

/* ---------------------------------------------------------------- */

static const struct { const char *name, *words; /* NULL: it is right */ void (*act)(void); int natural; /* also in the natural order */ } cases[] = {
	{"sums", nullptr, sums, 1},
	{"product", nullptr, product, 1},
	{"product of a warpgroup", nullptr, group<0>, 1},
	{"boxes, warpgroups that meet", nullptr, boxes<0>, 1},
	{"copy", nullptr, copy, 1},
	{"capture", nullptr, capture, 1},
	{"beside a capture", nullptr, beside, 1},
	{"memory of the driver", nullptr, kept, 1},
	{"clusters", nullptr, ring, 1},
	{"stores into other blocks", nullptr, lands, 1},
	{"stores that count at mbarriers", nullptr, post<2>, 1},
	{"missed barrier", "cannot go on", [] { wrong(k_missed, false); }, 1},
	{"lanes apart", "other lanes of the warp", [] { wrong(k_apart, false); }, 1},
	{"lane outside of its mask", "not in its own mask", [] { wrong(k_outside, false); }, 1},
	{"copy that nobody waits for", "copies under way", [] { wrong(k_unwaited, false); }, 1},
	{"an operand that is written while a warpgroup reads it", "was written while the instruction ran", group<1>, 1},
	{"a warpgroup's product before the wait", "not the product: nan", group<2>, 1},
	{"an operand that begins anywhere", "in the middle of its rows", group<3>, 1},
	{"a box that is read before it is there", "not what was there", boxes<1>, 1},
	{"a box that is written on its way to memory", "while it was on its way to memory", boxes<2>, 1},
	{"a box that nobody waits for", "boxes on their way to memory", boxes<3>, 1},
	{"two warpgroups at one barrier", "ptx_group_sync(0)", boxes<4>, 1},
	{"dependent launch that does not wait", "without having waited", [] { wrong(k_never, true); }, 1},
	{"the next let in too early", "before it has waited", [] { wrong(k_hurry, true); }, 1},
	{"read in front of the wait", "read too early", early, 0},
	{"a block that does not come to the cluster's barrier", "the cluster cannot go on", [] { wrong_cluster(k_absent); }, 1},
	{"a store that nobody can wait for", "nobody can wait for", [] { wrong_cluster(k_untold); }, 1},
	{"a store into a block that has ended", "of the cluster, which has ended", [] { wrong_cluster(k_gone); }, 1},
	{"a block that ends before the others have come", "others may still store into its block", [] { wrong_cluster(k_unmet); }, 1},
	{"a store before all blocks have begun", "it may not have begun", [] { wrong_cluster(k_unbegun); }, 1},
	{"arriving twice", "again without having waited", [] { wrong_cluster(k_twice); }, 1},
	{"a store beyond another's shared memory", "at byte 4096 of the 4096", [] { wrong_cluster(k_beyond); }, 1},
	{"a block that is not of the cluster", "block 2 of a cluster of 2", [] { wrong_cluster(k_stranger); }, 1},
	{"an address that is not in shared memory", "not in shared memory", [] { wrong_cluster(k_global); }, 1},
	{"a lane that does not come to the cluster's barrier", "the cluster cannot go on", [] { wrong_cluster(k_some); }, 1},
	{"an mbarrier that the cluster cannot see", "without ptx_barrier_init_fence", [] { wrong_cluster(k_mbarrier<0>); }, 1},
	{"an mbarrier that is overwritten", "has overwritten the mbarrier", [] { wrong_cluster(k_mbarrier<1>); }, 1},
	{"bytes that nobody expects", "the cluster cannot go on", [] { wrong_cluster(k_mbarrier<2>); }, 1},
	{"bytes that do not come", "the cluster cannot go on", [] { wrong_cluster(k_mbarrier<3>); }, 1},
	{"a store between two words", "not a multiple", [] { wrong_cluster(k_mbarrier<4>); }, 1},
	{"a store that counts in the wrong block", "that counts at an mbarrier of block", [] { wrong_cluster(k_mbarrier<5>); }, 1},
	{"bytes that nobody waits for", "nobody in it has waited", [] { wrong_cluster(k_mbarrier<6>); }, 1},
	{"bytes on their way to a block that ends", "ended", [] { wrong_cluster(k_mbarrier<7>); }, 1},
	{"more bytes than expected", "than it expects", [] { wrong_cluster(k_mbarrier<8>); }, 1},
	{"a round ahead at one mbarrier", "than it expects", post<1>, 0},
	{"overwriting what another block reads", "not what was stored", [] { wrong_cluster(k_overwrites); }, 0},
	{"reading before the wait", "not what was stored", [] { wrong_cluster(k_impatient); }, 1},
	{"shared memory by launch", "other threads rely on it", two_sizes, 1},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* Case i in a process of its own, begun anew: the seed is read once. */
static int run(int i, const char *seed)
{
	const char *words = cases[i].words;
	char text[8192] = "", number[16];
	size_t at = 0;
	int p[2], status = 0;

	snprintf(number, sizeof number, "%d", i);
	if (pipe(p) != 0)
		return 1;
	const pid_t child = fork();
	if (child == 0) {
		dup2(p[1], 2);
		close(p[0]), close(p[1]);
		setenv("FH_EMU_SEED", seed, 1);
		execl("/proc/self/exe", "faults", number, (char *)nullptr);
		_exit(127);
	}
	close(p[1]);
	for (ssize_t n; at + 1 < sizeof text && (n = read(p[0], text + at, sizeof text - 1 - at)) > 0;)
		at += (size_t)n;
	close(p[0]);
	waitpid(child, &status, 0);
	const bool good = words ? WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strstr(text, words) : WIFEXITED(status) && WEXITSTATUS(status) == 0;
	printf("%s %s, seed %s\n", good ? "ok   " : "WRONG", cases[i].name, seed);
	if (!good)
		printf("%s\n", text);
	fflush(stdout);
	return !good;
}

int main(int argc, char **argv)
{
	int bad = 0;

	if (argc > 1) {
		const int i = atoi(argv[1]);

		MUST(i >= 0 && i < CASES);
		cases[i].act();
		return 0;
	}
	for (const char *seed : {"0", "2", "3"})
		for (int i = 0; i < CASES; i++)
			if (cases[i].natural || strcmp(seed, "0") != 0)
				bad += run(i, seed);
	return bad != 0;
}
