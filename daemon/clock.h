/* The two clocks of the daemon, in ns. Any thread. */
#ifndef FHD_CLOCK_H
#define FHD_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_read_ns(clockid_t which)
{
	struct timespec t;

	clock_gettime(which, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Of the day, since 1970: what is kept and shown. It may jump. */
static inline uint64_t time_now_ns(void)
{
	return clock_read_ns(CLOCK_REALTIME);
}

/* Never goes back: for differences. */
static inline uint64_t time_mono_ns(void)
{
	return clock_read_ns(CLOCK_MONOTONIC);
}

#endif
