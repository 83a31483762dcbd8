/* The inside of an evaluation, shared by evaluate.c (life, results, scripts) and evaluate_ask.c (calls of who acts). One thread at a
 * time. */
#ifndef FH_GPU_EVALUATE_IMPL_H
#define FH_GPU_EVALUATE_IMPL_H

#include "gpu/episode.h"

#define MEND_ROWS 1024 /* rows behind the first wrong guess from which mending them pays: about 50 ns each, or two calls */

struct evaluation {
	struct eval_actor actor; /* act NULL: script */
	struct policy *policy;   /* borrowed, the actor's when one was given; NULL: another actor, or script */
	eval_script script;
	void *ctx;
	struct market *m;
	struct episode_world world;
	int64_t first, end;      /* bars [first, end) */
	struct episode *episode; /* [trials, windows] */
	int windows, trials, episodes;
	int over, turn;          /* episodes that are over; the one that looks ahead first next time */
	int *alive, trials_over; /* windows of a trial that are not over */
	int64_t calls, asked, primed; /* primed: bars of the first trial that it was asked about before it plays */
	const float *seen;            /* NULL: none */
	uint8_t *guesses;
	int whole;               /* look and said have a place for every bar: of one episode, whose last walk is mended first */
	int64_t walked;          /* bars of it that are still there */
	int walking, mending;    /* calls left that mend guesses: of that walk, of what the last call looked at */
	struct eval_room *room;
	/* one call's rows; episodes in `place` share them, trial after trial */
	struct look *look;
	int32_t *bar, *action;
	float *portfolio, *state;
	int32_t *said;           /* answers that are being mended, NULL: none are */
	int *where;              /* their rows */
	struct place { int episode, at, rows, mended, mended_at; int64_t taken; } *place; /* taken: bars before */
	int places;
	struct act_part *part;   /* [trials] */
	void *own;               /* the memory of all these, NULL where it is the caller's */
	/* behind the episodes */
	double *equity, *q, (*fill)[2];
	struct eval_row *row;    /* NULL without trace */
	uint8_t *guess;          /* NULL: the caller's */
};

/* One call of the actor at most and what follows from it: at least one bar, or better guesses. */
int evaluation_ask(struct evaluation *e, struct fh_status *st);
/* 1 when episode k is over, which is counted. */
int evaluation_count_over(struct evaluation *e, int k);

#endif
