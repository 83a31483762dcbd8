/* The device that is pretended: its properties, its memory, errors.
 *
 * FH_EMU_SM=80|86|89|90 chooses the architecture (90), FH_EMU_MULTIPROCESSORS their number (132), FH_EMU_MEMORY the bytes of
 * memory (16 GiB), of which FH_EMU_OTHERS=PATH, a file with a number, says how many belong to somebody else at the moment. */
#include "stream.h"

#include <algorithm>
#include <map>
#include <stdio.h>
#include <stdlib.h>

static size_t number(const char *name, size_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, nullptr, 0) : otherwise;
}

const struct emu_device *emu_device(void)
{
	static struct emu_device d;

	if (d.sm)
		return &d;
	const int sm = (int)number("FH_EMU_SM", 90);
	if (sm != 80 && sm != 86 && sm != 89 && sm != 90)
		emu_fail("FH_EMU_SM is %d, known are 80, 86, 89 and 90", sm);
	d.multiprocessors = (int)number("FH_EMU_MULTIPROCESSORS", sm == 80 ? 108 : sm == 86 ? 84 : sm == 89 ? 128 : 132);
	d.shared_optin = (size_t)(sm == 80 ? 163 : sm == 90 ? 227 : 99) << 10;
	d.shared_total = d.shared_optin + 1024;
	d.memory = number("FH_EMU_MEMORY", (size_t)16 << 30);
	d.sm = sm;
	return &d;
}

/* ---------------------------------------------------------------- errors */

static cudaError_t sticky;
static thread_local cudaError_t last;

cudaError_t emu_result(cudaError_t e)
{
	if (sticky != cudaSuccess)
		e = sticky;
	if (e != cudaSuccess && e != cudaErrorNotReady)
		last = e;
	return e;
}
void emu_break(cudaError_t e)
{
	if (sticky == cudaSuccess)
		sticky = e;
}
bool emu_broken(void) { return sticky != cudaSuccess; }

/* FH_EMU_FAULT=CALL:N:ERROR[:sticky],…: the N-th call of that function returns the error of that number; sticky: so does
 * everything after it. CALL kernel is the N-th kernel that runs, always sticky. FH_EMU_FAULT_FILE=PATH: the same from a file
 * when it is there; it is taken away then, and N counts from then on. */
struct fault { char call[48]; unsigned long at, error; bool is_sticky; };
static std::vector<struct fault> faults;

static void read_faults(const char *text)
{
	for (const char *p = text; p && *p; p = strchr(p, ',') ? strchr(p, ',') + 1 : nullptr) {
		struct fault f = {};
		char word[16] = "";
		const int n = sscanf(p, "%47[^:,\n]:%lu:%lu:%15[a-z]", f.call, &f.at, &f.error, word);

		if (n < 3)
			emu_fail("FH_EMU_FAULT: \"%s\" is not CALL:N:ERROR[:sticky]", p);
		f.is_sticky = !strcmp(word, "sticky") || !strcmp(f.call, "kernel");
		faults.push_back(f);
	}
}

cudaError_t emu_fault(const char *call)
{
	static const char *const from_start = getenv("FH_EMU_FAULT");
	static const char *const file = getenv("FH_EMU_FAULT_FILE");
	static bool begun;

	if (!begun)
		begun = true, read_faults(from_start);
	if (FILE *f = file ? fopen(file, "r") : nullptr) {
		char line[512] = "";

		if (fgets(line, sizeof line, f))
			read_faults(line);
		fclose(f);
		remove(file);
	}
	for (struct fault &f : faults)
		if (f.at && !strcmp(f.call, call) && --f.at == 0) {
			if (f.is_sticky)
				emu_break((cudaError_t)f.error);
			return (cudaError_t)f.error;
		}
	return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
	const cudaError_t e = sticky != cudaSuccess ? sticky : last;

	last = cudaSuccess;
	return e;
}
cudaError_t cudaPeekAtLastError(void) { return sticky != cudaSuccess ? sticky : last; }

static const struct { cudaError_t e; const char *name, *text; } errors[] = {
	{cudaSuccess, "cudaSuccess", "no error"},
	{cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
	{cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
	{cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
	{cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
	{cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
	{cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
	{cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
	{cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
	{cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
	{cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
	{cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
	{cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
	{cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
	{cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
	{cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered"},
	{cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
	{cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
	{cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched", "capture was not initiated in this stream"},
	{cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
	{cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"},
	{cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
	{cudaErrorInvalidClusterSize, "cudaErrorInvalidClusterSize", "cluster misconfiguration"},
	{cudaErrorCapturedEvent, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
};
const char *cudaGetErrorName(cudaError_t e)
{
	for (const auto &k : errors)
		if (k.e == e)
			return k.name;
	return "cudaErrorUnknown";
}
const char *cudaGetErrorString(cudaError_t e)
{
	for (const auto &k : errors)
		if (k.e == e)
			return k.text;
	return "unknown error";
}

/* ---------------------------------------------------------------- device */

cudaError_t cudaGetDeviceCount(int *n)
{
	EMU_CALL();
	*n = 1;
	return emu_result(cudaSuccess);
}
cudaError_t cudaSetDevice(int device)
{
	EMU_CALL();
	return emu_result(device ? cudaErrorInvalidDevice : cudaSuccess);
}
cudaError_t cudaSetDeviceFlags(unsigned)
{
	EMU_CALL();
	return emu_result(cudaSuccess);
}
cudaError_t cudaDeviceGetPCIBusId(char *, int, int) { return emu_result(cudaErrorInvalidValue); }
cudaError_t cudaGetDevice(int *device)
{
	EMU_CALL();
	*device = 0;
	return emu_result(cudaSuccess);
}
cudaError_t cudaDriverGetVersion(int *version)
{
	*version = 0; /* there is no driver */
	return emu_result(cudaSuccess);
}
cudaError_t cudaRuntimeGetVersion(int *version)
{
	*version = 0;
	return emu_result(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr a, int device)
{
	EMU_CALL();
	const struct emu_device *d = emu_device();

	if (device)
		return emu_result(cudaErrorInvalidDevice);
	switch (a) {
	case cudaDevAttrMaxThreadsPerBlock: *value = EMU_THREADS_MAX; break;
	case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
	case cudaDevAttrMultiProcessorCount: *value = d->multiprocessors; break;
	case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
	case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
	case cudaDevAttrComputeCapabilityMajor: *value = d->sm / 10; break;
	case cudaDevAttrComputeCapabilityMinor: *value = d->sm % 10; break;
	case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)d->shared_total; break;
	case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)d->shared_optin; break;
	case cudaDevAttrClusterLaunch: *value = d->sm >= 90; break;
	default: return emu_result(cudaErrorInvalidValue);
	}
	return emu_result(cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
	EMU_CALL();
	const struct emu_device *d = emu_device();

	if (device)
		return emu_result(cudaErrorInvalidDevice);
	*p = {};
	snprintf(p->name, sizeof p->name, "emulated sm_%d (a CPU: no GPU)", d->sm);
	p->totalGlobalMem = d->memory;
	p->sharedMemPerBlock = 48 << 10, p->sharedMemPerBlockOptin = d->shared_optin;
	p->major = d->sm / 10, p->minor = d->sm % 10;
	p->multiProcessorCount = d->multiprocessors;
	p->maxThreadsPerBlock = EMU_THREADS_MAX, p->warpSize = EMU_WARP, p->l2CacheSize = 50 << 20;
	return emu_result(cudaSuccess);
}

/* ---------------------------------------------------------------- memory */

enum { GRANULE = 512 };
static std::map<uintptr_t, size_t> device_memory, pinned_memory;
static size_t taken;

/* What the driver needs for itself it takes in large pieces and keeps for the next time. */
enum { PIECE = 2 << 20 };
static size_t driver_holds, driver_needs;

void emu_driver_takes(size_t bytes)
{
	driver_needs += bytes;
	driver_holds = std::max(driver_holds, (driver_needs + PIECE - 1) / PIECE * PIECE);
}
void emu_driver_gives(size_t bytes) { driver_needs -= bytes; }

static size_t rounded(size_t bytes) { return (bytes + GRANULE - 1) / GRANULE * GRANULE; }
static size_t of_others(void)
{
	static const char *const path = getenv("FH_EMU_OTHERS");
	FILE *f = path ? fopen(path, "r") : nullptr;
	size_t bytes = 0;

	if (f && fscanf(f, "%zu", &bytes) != 1)
		bytes = 0;
	if (f)
		fclose(f);
	return bytes;
}

static bool within(const std::map<uintptr_t, size_t> &m, const void *p, size_t bytes)
{
	auto at = m.upper_bound((uintptr_t)p);

	if (at == m.begin())
		return false;
	--at;
	return (uintptr_t)p + bytes <= at->first + at->second;
}
bool emu_is_device(const void *p, size_t bytes) { return within(device_memory, p, bytes); }
bool emu_is_pinned(const void *p, size_t bytes) { return within(pinned_memory, p, bytes); }

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
	EMU_CALL();

	*total = emu_device()->memory;
	*free_bytes = *total - std::min(*total, taken + driver_holds + of_others());
	return emu_result(cudaSuccess);
}

static cudaError_t take(std::map<uintptr_t, size_t> &m, void **p, size_t bytes)
{
	void *got;

	*p = nullptr;
	if (emu_broken())
		return emu_result(cudaSuccess); /* which it is not */
	if (emu_capturing())
		return emu_result(cudaErrorStreamCaptureUnsupported);
	if (!bytes)
		return emu_result(cudaSuccess);
	if ((&m == &device_memory && taken + driver_holds + of_others() + rounded(bytes) > emu_device()->memory) || posix_memalign(&got, 256, bytes))
		return emu_result(cudaErrorMemoryAllocation);
	memset(got, 0xff, bytes);
	m[(uintptr_t)got] = bytes;
	taken += &m == &device_memory ? rounded(bytes) : 0;
	*p = got;
	return emu_result(cudaSuccess);
}
static cudaError_t give(std::map<uintptr_t, size_t> &m, void *p)
{
	if (!p)
		return emu_result(cudaSuccess);
	if (emu_capturing())
		return emu_result(cudaErrorStreamCaptureUnsupported);
	auto at = m.find((uintptr_t)p);
	if (at == m.end())
		return emu_result(cudaErrorInvalidValue);
	emu_complete_all(); /* a free waits for the device */
	taken -= &m == &device_memory ? rounded(at->second) : 0;
	m.erase(at);
	free(p);
	return emu_result(cudaSuccess);
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
	EMU_CALL();

	return take(device_memory, p, bytes);
}
cudaError_t cudaMallocHost(void **p, size_t bytes)
{
	EMU_CALL();

	return take(pinned_memory, p, bytes);
}
cudaError_t cudaFree(void *p)
{
	EMU_CALL();

	return give(device_memory, p);
}
cudaError_t cudaFreeHost(void *p)
{
	EMU_CALL();

	return give(pinned_memory, p);
}
