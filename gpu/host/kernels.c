/* Which kernels this process uses: the best the CPU runs, decided once. Any thread. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/host/kernels.h"

static const struct kernels *chosen;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void choose(void)
{
	const struct kernels *all[] = {host_kernels_avx512(), host_kernels_avx2(), host_kernels_base()};
	const char *want = getenv("FH_HOST_KERNELS");

	for (int i = 0; i < 3 && !chosen; i++)
		if (all[i] && (!want || !strcmp(want, all[i]->name)))
			chosen = all[i];
	if (!chosen) /* asked for what this CPU has not */
		chosen = host_kernels_base();
}

const struct kernels *host_kernels(void)
{
	pthread_once(&once, choose);
	return chosen;
}
