/* Asking networks for actions, rows of several trials in one call: what lies between an evaluation (evaluate.h) and whoever
 * computes (backend.h). Plain data, any thread. */
#ifndef FH_GPU_ACT_H
#define FH_GPU_ACT_H

#include <stdint.h>

struct team;

/* So many rows, one behind another, belong to this trial. Within a call trials come in ascending order, each once. */
struct act_part { int trial, rows; };

struct act_limits {
	int rows;          /* of all trials, at most so many in one call */
	int few;           /* of all trials, so many cost hardly more than one; at least `least` */
	int least;         /* of one trial among many, so many cost hardly more than one */
	struct team *team; /* threads that are idle between two calls (gpu/host/threads.h), NULL: none */
	/* Room for a call's bars and portfolio features and for its actions that is nearest to who computes, until the next act_open; others do
	 * as well, and are copied. NULL: none is nearer. */
	int32_t *bar, *action;
	float *portfolio;
	int kept; /* the networks are kept as they were at act_open: training may go on between two calls */
};

#endif
