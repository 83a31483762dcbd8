/* Chooses where training runs: the host backend, built in, or the CUDA backend, a shared object beside the program.
 *
 * A loaded object stays loaded until the process ends: its driver state cannot be unloaded safely. Any thread, but the
 * first call comes from the one that starts the program. */
#include "gpu/backend.h"

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/status.h"

#define CUDA_OBJECT "fhd-cuda.so"
#define CUDA_DEVICE_MAX 63

/* Where the object may lie, in order: FHD_LIBDIR, beside the executable, the libdir of an installation. */
static void *load_object(char *why, size_t size)
{
	static const char *const places[] = {"", "/../lib/fhd", "/../libexec/fhd"};
	const char *dir = getenv("FHD_LIBDIR");
	char exe[PATH_MAX], path[PATH_MAX + 64];
	void *handle = NULL;
	ssize_t n;

	snprintf(why, size, CUDA_OBJECT " was not found beside the program");
	if (dir) {
		snprintf(path, sizeof path, "%.4000s/" CUDA_OBJECT, dir);
		handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		if (!handle)
			snprintf(why, size, "%s", dlerror());
		return handle;
	}
	n = readlink("/proc/self/exe", exe, sizeof exe - 1);
	if (n < 0)
		return NULL;
	exe[n] = 0;
	for (unsigned i = 0; !handle && i < sizeof places / sizeof places[0]; i++) {
		char copy[PATH_MAX];
		memcpy(copy, exe, (size_t)n + 1);
		snprintf(path, sizeof path, "%.3900s%s/" CUDA_OBJECT, dirname(copy), places[i]);
		if (access(path, R_OK) != 0)
			continue;
		handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		if (!handle)
			snprintf(why, size, "%s", dlerror());
	}
	return handle;
}

static int open_cuda(int device, const struct backend **out, struct fh_status *st)
{
	char why[FH_TEXT_MAX - 64];
	void *handle = load_object(why, sizeof why);
	const struct backend *b = NULL;
	backend_entry entry;
	int rc;

	if (!handle)
		return fh_fail(st, FH_UNAVAILABLE, "no CUDA backend: %s", why);
	backend_environment();
	*(void **)&entry = dlsym(handle, BACKEND_ENTRY);
	if (!entry)
		return fh_fail(st, FH_UNAVAILABLE, "no CUDA backend: " CUDA_OBJECT " has no " BACKEND_ENTRY);
	rc = entry(BACKEND_ABI, device, &b, st);
	if (rc == 0 && b->abi != BACKEND_ABI)
		rc = fh_fail(st, FH_VERSION, "no CUDA backend: " CUDA_OBJECT " has interface %d, this program needs %d", b->abi,
			     BACKEND_ABI);
	if (rc == 0)
		*out = b;
	return rc;
}

/* "cuda" or "cuda:N" -> N, or -1. */
static int cuda_device(const char *device)
{
	char *end;
	long n;

	if (strcmp(device, "cuda") == 0)
		return 0;
	if (strncmp(device, "cuda:", 5) != 0 || device[5] < '0' || device[5] > '9')
		return -1;
	n = strtol(device + 5, &end, 10);
	return *end || n > CUDA_DEVICE_MAX ? -1 : (int)n;
}

void backend_environment(void)
{
	/* Kernels are loaded with the context, not in the middle of the first job, so that its memory is known before; and every
	 * slot has hardware queues of its own: with the default of 8 the streams of eight slots, three each, wait for each other. */
	setenv("CUDA_MODULE_LOADING", "EAGER", 0);
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

int backend_open(const char *device, const struct backend **out, char *note, struct fh_status *st)
{
	struct fh_status why = FH_STATUS_INIT;

	if (note)
		note[0] = 0;
	if (strcmp(device, "host") == 0) {
		*out = backend_host();
		return 0;
	}
	if (strcmp(device, "auto") == 0) {
		if (open_cuda(0, out, &why) != 0) {
			*out = backend_host();
			if (note)
				snprintf(note, FH_TEXT_MAX, "%s", why.text);
		}
		return 0;
	}
	if (cuda_device(device) < 0)
		return fh_fail_field(st, FH_INVALID, "device", "device is \"%.40s\", allowed: auto, host, cuda, cuda:N with N <= %d",
				     device, CUDA_DEVICE_MAX);
	return open_cuda(cuda_device(device), out, st);
}
