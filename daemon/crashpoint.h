/* Places where the crash tests end the process. FHD_CRASH_AT=<label> makes FHD_CRASH_POINT(label) call _exit(99);
 * only a build with -DFH_CRASH_POINTS contains them. Any thread. */
#ifndef FHD_CRASHPOINT_H
#define FHD_CRASHPOINT_H

#ifdef FH_CRASH_POINTS
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* FHD_CRASH_AT=label or label:N, the N-th time the point is passed (1 = first). */
static inline void fhd_crash_point(const char *label, int *passed)
{
	const char *at = getenv("FHD_CRASH_AT");
	size_t n = strlen(label);

	if (!at || strncmp(at, label, n))
		return;
	if (at[n] && at[n] != ':')
		return;
	if (__atomic_add_fetch(passed, 1, __ATOMIC_RELAXED) >= (at[n] == ':' ? atoi(at + n + 1) : 1))
		_exit(99);
}
#define FHD_CRASH_POINT(label) do { static int passed_; fhd_crash_point(label, &passed_); } while (0)
#else
#define FHD_CRASH_POINT(label) do { } while (0)
#endif

#endif
