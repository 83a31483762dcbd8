/* What the CUDA backend uses of the toolkit's header of this name, for a compiler that knows no CUDA: kernels are functions
 * whose threads are fibers of the process (emu.h). Names, values and meanings are CUDA's; what is missing here is not used.
 *
 * Host side as in CUDA: calls may come from any thread, errors of launched work are sticky. */
#ifndef FH_EMU_CUDA_RUNTIME_H
#define FH_EMU_CUDA_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* All that anybody here includes, before the words below: the standard library of GCC 13 and later says __noinline__ itself. */
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#define CUDART_VERSION 13000

/* ---------------------------------------------------------------- words of the language */
#define __global__ __attribute__((noinline))
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
/* One block runs at a time, so one place a variable is enough. In a section of their own all can be poisoned before a block begins,
 * and put aside while another runs; AddressSanitizer guards them there too (-fsanitize-sections). */
#define __shared__ static __attribute__((section("fh_shared")))

/* ---------------------------------------------------------------- vectors */
struct uint3 { unsigned x, y, z; };
struct dim3 {
	unsigned x, y, z;
	constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
#define FH_EMU_VECTORS(T, name)                                                                                         \
	struct __align__(2 * sizeof(T)) name##2 { T x, y; };                                                            \
	struct name##3 { T x, y, z; };                                                                                  \
	struct __align__(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; };                            \
	static inline struct name##2 make_##name##2(T x, T y) { return {x, y}; }                                        \
	static inline struct name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                \
	static inline struct name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
FH_EMU_VECTORS(float, float)
FH_EMU_VECTORS(double, double)
FH_EMU_VECTORS(int, int)
struct __align__(8) uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
static inline struct uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline struct uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

/* ---------------------------------------------------------------- errors */
enum cudaError_t {
	cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorInvalidConfiguration = 9,
	cudaErrorDevicesUnavailable = 46, cudaErrorNoDevice = 100, cudaErrorInvalidDevice = 101, cudaErrorECCUncorrectable = 214, cudaErrorNvlinkUncorrectable = 220,
	cudaErrorInvalidResourceHandle = 400, cudaErrorNotReady = 600, cudaErrorIllegalAddress = 700, cudaErrorLaunchOutOfResources = 701,
	cudaErrorLaunchTimeout = 702, cudaErrorContextIsDestroyed = 709, cudaErrorAssert = 710, cudaErrorHardwareStackError = 714,
	cudaErrorIllegalInstruction = 715, cudaErrorMisalignedAddress = 716, cudaErrorInvalidAddressSpace = 717, cudaErrorInvalidPc = 718,
	cudaErrorLaunchFailure = 719, cudaErrorTensorMemoryLeak = 721, cudaErrorNotSupported = 801, cudaErrorSystemNotReady = 802,
	cudaErrorMpsConnectionFailed = 805, cudaErrorMpsRpcFailure = 806, cudaErrorMpsServerNotReady = 807, cudaErrorContained = 818, cudaErrorStreamCaptureUnsupported = 900, cudaErrorStreamCaptureInvalidated = 901,
	cudaErrorStreamCaptureUnmatched = 903, cudaErrorStreamCaptureUnjoined = 904, cudaErrorStreamCaptureIsolation = 905,
	cudaErrorCapturedEvent = 907, cudaErrorExternalDevice = 911, cudaErrorInvalidClusterSize = 912, cudaErrorUnknown = 999,
};
const char *cudaGetErrorName(cudaError_t e);
const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);

/* ---------------------------------------------------------------- device */
enum cudaDeviceAttr {
	cudaDevAttrMaxThreadsPerBlock = 1, cudaDevAttrMaxSharedMemoryPerBlock = 8, cudaDevAttrMultiProcessorCount = 16, cudaDevAttrL2CacheSize = 38,
	cudaDevAttrMaxThreadsPerMultiProcessor = 39, cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrComputeCapabilityMinor = 76,
	cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81, cudaDevAttrMaxSharedMemoryPerBlockOptin = 97, cudaDevAttrClusterLaunch = 120,
};
struct cudaDeviceProp {
	char name[256];
	size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin;
	int major, minor, multiProcessorCount, maxThreadsPerBlock, warpSize, l2CacheSize;
};
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaSetDevice(int device);
enum { cudaDeviceScheduleAuto = 0, cudaDeviceScheduleSpin = 1, cudaDeviceScheduleYield = 2, cudaDeviceScheduleBlockingSync = 4 };
cudaError_t cudaSetDeviceFlags(unsigned flags);
cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device); /* fails: it lies on no bus */
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr a, int device);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void);

/* ---------------------------------------------------------------- memory */
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
typedef struct emu_stream *cudaStream_t;
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);
cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaMallocHost(void **p, size_t bytes);
template <typename T> static inline cudaError_t cudaMalloc(T **p, size_t bytes) { return cudaMalloc((void **)p, bytes); }
template <typename T> static inline cudaError_t cudaMallocHost(T **p, size_t bytes) { return cudaMallocHost((void **)p, bytes); }
cudaError_t cudaFree(void *p);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemset(void *to, int value, size_t bytes);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s = nullptr);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t s = nullptr);

/* ---------------------------------------------------------------- streams, events, graphs */
typedef struct emu_event *cudaEvent_t;
typedef struct emu_graph *cudaGraph_t;
typedef struct emu_graph_exec *cudaGraphExec_t;
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed };
cudaError_t cudaStreamCreate(cudaStream_t *s);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamQuery(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags = 0);
cudaError_t cudaEventCreate(cudaEvent_t *e);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags = 0);
cudaError_t cudaGraphUpload(cudaGraphExec_t x, cudaStream_t s);
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x);

/* ---------------------------------------------------------------- launches */
enum cudaLaunchAttributeID {
	cudaLaunchAttributeIgnore = 0, cudaLaunchAttributeClusterDimension = 4, cudaLaunchAttributeProgrammaticStreamSerialization = 6,
};
union cudaLaunchAttributeValue {
	char pad[64];
	struct { unsigned x, y, z; } clusterDim;
	int programmaticStreamSerializationAllowed;
};
struct cudaLaunchAttribute { cudaLaunchAttributeID id; cudaLaunchAttributeValue val; };
struct cudaLaunchConfig_t {
	dim3 gridDim, blockDim;
	size_t dynamicSmemBytes;
	cudaStream_t stream;
	cudaLaunchAttribute *attrs;
	unsigned numAttrs;
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout = 9 };
enum cudaSharedCarveout { cudaSharedmemCarveoutMaxShared = 100 };

cudaError_t emu_launch(const struct cudaLaunchConfig_t *config, const void *kernel, const char *type, std::function<void()> body);
cudaError_t emu_func_attribute(const void *kernel, cudaFuncAttribute a, int value);
cudaError_t emu_occupancy(int *blocks, int threads, size_t shared);

/* The arguments are copied now, as by a launch; each thread gets its own copy. */
template <typename... Params, typename... Args>
static inline cudaError_t cudaLaunchKernelEx(const struct cudaLaunchConfig_t *config, void (*kernel)(Params...), Args &&...args)
{
	auto held = std::make_shared<std::tuple<std::decay_t<Params>...>>(static_cast<Params>(args)...);

	return emu_launch(config, (const void *)kernel, __PRETTY_FUNCTION__, [kernel, held] { std::apply(kernel, *held); });
}
template <typename K> static inline cudaError_t cudaFuncSetAttribute(K *kernel, cudaFuncAttribute a, int value)
{
	return emu_func_attribute((const void *)kernel, a, value);
}
template <typename K>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, K, int threads, size_t shared)
{
	return emu_occupancy(blocks, threads, shared);
}

#include <emu_device.h>

#endif
