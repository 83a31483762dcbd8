/* Memory that the daemon cannot go on without: small, and asked for where nobody could be answered. Any thread. */
#ifndef FHD_NEED_H
#define FHD_NEED_H

#include <stdio.h>
#include <stdlib.h>

/* p, or the end of the process when it is NULL. */
static inline void *need(void *p)
{
	if (!p) {
		fputs("fhd: out of memory\n", stderr);
		abort();
	}
	return p;
}

#endif
