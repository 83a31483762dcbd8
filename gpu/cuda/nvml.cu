/* What only the management library of the driver knows: its version, and how much memory is free before this process has a
 * context, so that the context itself can be measured. Loaded when it is asked, never needed: without it the context is
 * counted among `others`.
 *
 * Thread: the one that opens the device. The few declarations here are the library's stable interface. */
#include <dlfcn.h>
#include <stdio.h>
#include "gpu/cuda/device.h"

typedef struct nvml_device *nvml_device_t;
struct nvml_memory { unsigned long long total, free, used; };

struct nvml {
	void *handle;
	int (*init)(void);
	int (*shutdown)(void);
	int (*by_pci)(const char *, nvml_device_t *);
	int (*memory)(nvml_device_t, struct nvml_memory *);
	int (*driver)(char *, unsigned);
};

static int find(void *handle, const char *name, void *to)
{
	return (*(void **)to = dlsym(handle, name)) != NULL;
}

static int load(struct nvml *n)
{
	n->handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	return n->handle && find(n->handle, "nvmlInit_v2", &n->init) && find(n->handle, "nvmlShutdown", &n->shutdown) &&
	       find(n->handle, "nvmlDeviceGetHandleByPciBusId_v2", &n->by_pci) &&
	       find(n->handle, "nvmlDeviceGetMemoryInfo", &n->memory) && find(n->handle, "nvmlSystemGetDriverVersion", &n->driver);
}

int cuda_nvml_look(const char *pci, struct cuda_nvml *out)
{
	struct nvml n = {};
	struct nvml_memory m = {};
	nvml_device_t device;
	int ok = 0;

	if (load(&n) && n.init() == 0) {
		ok = n.by_pci(pci, &device) == 0 && n.memory(device, &m) == 0 && n.driver(out->driver, sizeof out->driver) == 0;
		out->free_bytes = (size_t)m.free;
		n.shutdown();
	}
	if (n.handle)
		dlclose(n.handle);
	return ok;
}
