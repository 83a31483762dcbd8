/* The device: errors, what it is, who holds its memory. See device.h. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <set>
#include "gpu/cuda/device.h"

#define GRANULE_MOST ((size_t)2 << 20)     /* what drivers round large allocations up to */
#define GRANULE_LEAST ((size_t)256)
#define PROBE ((size_t)4 << 20)
#define GRAPHS_GUESS ((size_t)4 << 20)    /* captured graphs of a trainer, where none could be measured */
#define CONTEXT_MOST ((size_t)4 << 30)    /* no context takes that: somebody else came in between */
#define CROWD 5                           /* trainers: with fewer the kernels that end first do more together, measured on an H200 */
#define CROWD_NS 20000000                 /* so long after its last launch one still counts */
#define COMPUTE_LEAST 8                   /* capability, major: there is no code for less */
#define FOREIGN ((size_t)64 << 20)        /* a difference that is off by more was made by somebody else */

/* ---------------------------------------------------------------- errors */

/* After these every later call of the process fails as well. */
static int is_sticky(cudaError_t e)
{
	switch (e) {
	case cudaErrorIllegalAddress: case cudaErrorIllegalInstruction: case cudaErrorMisalignedAddress:
	case cudaErrorInvalidAddressSpace: case cudaErrorInvalidPc: case cudaErrorHardwareStackError:
	case cudaErrorLaunchFailure: case cudaErrorLaunchTimeout: case cudaErrorECCUncorrectable: case cudaErrorAssert:
	case cudaErrorNvlinkUncorrectable: case cudaErrorContextIsDestroyed: case cudaErrorDevicesUnavailable:
	case cudaErrorSystemNotReady: case cudaErrorMpsConnectionFailed: case cudaErrorMpsRpcFailure:
	case cudaErrorMpsServerNotReady: case cudaErrorExternalDevice: case cudaErrorUnknown:
#if CUDART_VERSION >= 12080
	case cudaErrorContained: case cudaErrorTensorMemoryLeak:
#endif
		return 1;
	default:
		return 0;
	}
}

int cuda_fail(struct fh_status *st, cudaError_t e, const char *call)
{
	int code = e == cudaErrorMemoryAllocation ? FH_EXHAUSTED : is_sticky(e) ? FH_DEVICE_LOST : FH_DEVICE;

	(void)cudaGetLastError(); /* else the next launch would be blamed for it */
	return fh_fail(st, code, "%.120s: %s (%s)", call, cudaGetErrorString(e), cudaGetErrorName(e));
}

int cuda_use(const struct backend *b, struct fh_status *st)
{
	CUDA_TRY(cudaSetDevice(b->device));
	return 0;
}

/* ---------------------------------------------------------------- memory */

size_t cuda_free_now(void)
{
	size_t free_bytes = 0, total = 0;

	if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess)
		(void)cudaGetLastError();
	return free_bytes;
}

static size_t granule = GRANULE_MOST; /* of the one device of this process; written when it is opened */

size_t cuda_rounded(size_t bytes)
{
	return (bytes + granule - 1) / granule * granule;
}

/* One byte more than a round number tells. */
static int find_granule(struct fh_status *st)
{
	size_t before = cuda_free_now(), more;
	void *p = NULL;

	CUDA_TRY(cudaMalloc(&p, PROBE + 1));
	more = before - cuda_free_now() - PROBE;
	if (more >= GRANULE_LEAST && more <= GRANULE_MOST)
		granule = more;
	CUDA_TRY(cudaFree(p));
	return 0;
}

size_t cuda_cost(size_t before, size_t asked)
{
	size_t now = cuda_free_now(), cost = before > now ? before - now : 0;
	int believed = asked ? cost >= asked && cost - asked < FOREIGN : cost < FOREIGN;

	return believed ? cost : cuda_rounded(asked);
}

void cuda_own(size_t *owner, size_t more, size_t less)
{
	__atomic_add_fetch(owner, more - less, __ATOMIC_RELAXED); /* wraps as it should */
}

static size_t owned(const size_t *owner)
{
	return __atomic_load_n(owner, __ATOMIC_RELAXED);
}

int cuda_memory(const struct backend *b, struct device_memory *out, struct fh_status *st)
{
	struct cuda_state *s = cuda_state_of(b);
	struct device_memory m = {};
	size_t ours;
	int rc = cuda_use(b, st);

	if (rc)
		return rc;
	/* Nobody takes memory between the driver's numbers and ours. */
	std::lock_guard<std::mutex> hold(s->taking);
	CUDA_TRY(cudaMemGetInfo(&m.free, &m.total));
	m.context = owned(&s->context);
	m.arenas = owned(&s->arenas);
	m.markets = owned(&s->markets);
	m.graphs = owned(&s->graphs);
	m.pinned = owned(&s->pinned);
	ours = m.context + m.arenas + m.markets + m.graphs;
	m.others = m.total - m.free > ours ? m.total - m.free - ours : 0;
	__atomic_store_n(&s->info.memory_free, m.free, __ATOMIC_RELAXED);
	*out = m;
	return 0;
}

void cuda_price(const struct backend *b, const struct plan *plan, int64_t bars, struct memory_plan *m)
{
	const struct cuda_state *s = cuda_state_of(b);

	m->market = bars > 0 ? cuda_tape_bytes(bars, 0) : 0;
	m->overhead = cuda_rounded(plan->arena_bytes) - plan->arena_bytes + cuda_rounded(m->market) - m->market + owned(&s->graph_typical);
	m->total = plan->arena_bytes + m->market + m->overhead;
}

int cuda_first_launch(const void *kernel)
{
	static std::mutex lock;
	static std::set<const void *> known;
	std::lock_guard<std::mutex> hold(lock);

	return known.insert(kernel).second;
}

/* ---------------------------------------------------------------- who runs on it */

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int cuda_sit(struct cuda_state *s)
{
	for (int i = 0; i < CUDA_SEATS; i++)
		if (!__atomic_load_n(&s->ran[i], __ATOMIC_RELAXED)) {
			__atomic_store_n(&s->ran[i], 1, __ATOMIC_RELAXED); /* long ago */
			return i;
		}
	return -1;
}

void cuda_stand(struct cuda_state *s, int seat)
{
	if (seat >= 0)
		__atomic_store_n(&s->ran[seat], 0, __ATOMIC_RELAXED);
}

int cuda_crowded(struct cuda_state *s, int seat)
{
	const char *asked = getenv("FH_GPU_CROWD");
	const int crowd = asked && *asked ? atoi(asked) : CROWD;
	const int64_t now = now_ns();
	int n = 0;

	if (seat < 0 || crowd <= 0)
		return 0;
	__atomic_store_n(&s->ran[seat], now, __ATOMIC_RELAXED);
	for (int i = 0; i < CUDA_SEATS; i++)
		n += now - __atomic_load_n(&s->ran[i], __ATOMIC_RELAXED) < CROWD_NS;
	return n >= crowd;
}

/* ---------------------------------------------------------------- what it is */

int cuda_info(const struct backend *b, struct device_info *out, struct fh_status *st)
{
	const struct cuda_state *s = cuda_state_of(b);

	*out = s->info;
	out->memory_free = __atomic_load_n(&s->info.memory_free, __ATOMIC_RELAXED);
	return 0;
}

static int describe(struct cuda_state *s, int device, const struct cuda_nvml *nvml, struct fh_status *st)
{
	cudaDeviceProp prop;
	struct device_info *info = &s->info;
	int driver = 0;

	CUDA_TRY(cudaGetDeviceProperties(&prop, device));
	if (prop.major < COMPUTE_LEAST)
		return fh_fail(st, FH_UNAVAILABLE, "%.100s has compute capability %d.%d, %d.0 or more is needed", prop.name, prop.major, prop.minor, COMPUTE_LEAST);
	CUDA_TRY(cudaDriverGetVersion(&driver));
	CUDA_TRY(cudaDeviceGetAttribute(&s->shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
	CUDA_TRY(cudaDeviceGetAttribute(&s->multiprocessors, cudaDevAttrMultiProcessorCount, device));
	CUDA_TRY(cudaDeviceGetAttribute(&s->clusters, cudaDevAttrClusterLaunch, device));
	CUDA_TRY(cudaMemGetInfo(&info->memory_free, &info->memory_total));
	snprintf(info->name, sizeof info->name, "%.100s", prop.name);
	snprintf(info->driver, sizeof info->driver, "%.40s%sCUDA %d.%d", nvml->driver, nvml->driver[0] ? ", " : "", driver / 1000,
	         driver % 1000 / 10);
	info->compute_major = prop.major;
	info->compute_minor = prop.minor;
	s->overlap = prop.major >= 9;
	return 0;
}

/* Makes the context now, and what the driver adds to it at first use, not in the first job, and measures it where that can be done. A
 * worker that waits for the device sleeps: a core that spins would be missing to those who do something. */
int cuda_device_open(struct cuda_state *s, int device, struct fh_status *st)
{
	struct cuda_nvml before = {}, after = {};
	char pci[32] = "";
	int rc, looked;

	if (cudaDeviceGetPCIBusId(pci, sizeof pci, device) != cudaSuccess)
		(void)cudaGetLastError();
	looked = pci[0] && cuda_nvml_look(pci, &before);
	CUDA_TRY(cudaSetDevice(device));
	if (cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync) != cudaSuccess)
		(void)cudaGetLastError(); /* a runtime that wants it earlier: then waits spin, and all else holds */
	CUDA_TRY(cudaFree(NULL));
	s->graph_typical = GRAPHS_GUESS;
	rc = describe(s, device, &before, st);
	if (rc)
		return rc;
	cuda_prime(&s->graph_typical);
	rc = find_granule(st);
	if (rc == 0 && looked && cuda_nvml_look(pci, &after) && before.free_bytes > after.free_bytes &&
	    before.free_bytes - after.free_bytes < CONTEXT_MOST)
		s->context = before.free_bytes - after.free_bytes;
	return rc;
}
