/* A loop turned by hand until something has happened; the deadline ends the test program. */
#ifndef TESTS_LOOP_H
#define TESTS_LOOP_H

#include <stdio.h>
#include <stdlib.h>
#include <uv.h>

#define LOOP_DEADLINE_MS 60000

static inline void loop_on_deadline(uv_timer_t *t)
{
	(void)t;
	fputs("deadline passed\n", stderr);
	abort();
}

/* Until *count is at least `least`. */
static inline void loop_await(uv_loop_t *loop, const int *count, int least)
{
	uv_timer_t deadline;

	uv_timer_init(loop, &deadline);
	uv_timer_start(&deadline, loop_on_deadline, LOOP_DEADLINE_MS, 0);
	while (*count < least)
		uv_run(loop, UV_RUN_ONCE);
	uv_close((uv_handle_t *)&deadline, NULL);
	uv_run(loop, UV_RUN_NOWAIT);
}

/* A folder of a test with all that is in it. */
static inline int folder_remove(const char *dir)
{
	char command[160];

	snprintf(command, sizeof command, "rm -rf '%s'", dir);
	return system(command);
}

#endif
