/* One episode of an evaluation: what has happened in it, and looking ahead. Inside of evaluate.c.
 *
 * Of what the network sees only the portfolio features depend on earlier actions. So the actions of the next bars are
 * guessed, the environment runs over them, and the network answers all these rows at once. As long as its actions leave
 * the environment where the guessed ones did, the rows behind were the right ones: those bars are done. The first action
 * that leads elsewhere is right as well, for its row was; from there it goes on, with the answers behind it as guesses.
 * Invariant: bars that are done are the ones a walk bar by bar would give, bit for bit, whatever was guessed. */
#ifndef FH_GPU_EPISODE_H
#define FH_GPU_EPISODE_H

#include "gpu/evaluate.h"

#define EPISODE_BRANCHES 3
#define EPISODE_EXPOSURES 5 /* action counts of the environment's branches */
#define EPISODE_ORDERS 3
#define EPISODE_URGENCIES 3

struct episode {
	struct env_state state;
	int64_t first, last;   /* its first bar, its last usable one */
	int64_t n, fills;      /* bars done, entries of fill */
	int over;
	int ahead;             /* rows that it may look in the call that is being made */
	int32_t action[FH_BRANCH_MAX]; /* taken last */
	int64_t held, run;     /* bars since a guess was wrong, and how many those were of late */
	double *equity, *q;    /* [bars + 1], [bars] */
	double (*fill)[2];     /* quantity, price: an order and an exit a bar, two more where contracts change */
	struct eval_row *row;  /* [bars], NULL without trace */
	uint8_t *guess;        /* [bars, EVAL_GUESS_SIDES] what the network last said there, by position */
	float *seen;           /* [bars, 8] the portfolio features that it was asked with, NULL: not kept */
};

/* One bar ahead under a guessed action. */
struct look {
	int32_t action[FH_BRANCH_MAX];
	struct env_state after;
	struct env_result result;
	int side;              /* which of the bar's guesses it was */
};

struct episode_world { const struct market *m; struct env_config cfg; };

void episode_start(struct episode *e, const struct episode_world *w, int64_t first, int64_t last);
/* One bar under this action. */
void episode_step(struct episode *e, const struct episode_world *w, const int32_t *action);
/* At most `rows` bars ahead: their bar numbers, the portfolio features [rows, 8], and what the guesses do. Returns how many,
 * at least 1 while the episode is not over. */
int episode_look(const struct episode *e, const struct episode_world *w, int rows, struct look *look, int32_t *bar, float *portfolio);
/* The network's actions [rows, EPISODE_BRANCHES] for them: takes all that are certain, at least one bar. portfolio: as looked. Of the bars
 * taken look says what happened in them. */
void episode_take(struct episode *e, const struct episode_world *w, struct look *look, int rows, const float *portfolio, const int32_t *action);
/* Goes once more over what was looked at from row `from` on, where the episode stands (astray: not in the state that was looked at there),
 * but only where the network's actions [rows, EPISODE_BRANCHES] lead elsewhere than the guesses did, and until the position is the
 * looked one again: equity is let be as it was, for all this is good for is better guesses. Returns the rows (numbers in `where`, at
 * most `most`) at which the network has to be asked again, with their bars and portfolio features; look is as it was gone over. */
int episode_mend(const struct episode *e, const struct episode_world *w, struct look *look, int from, int astray, int rows, const int32_t *action,
		 int most, int *where, int32_t *bar, float *portfolio);
/* What it said there: the new guesses, and in `action`. taken: bars of the episode that were done before the `rows` were looked at. */
void episode_mended(struct episode *e, const struct look *look, int64_t taken, int n, const int *where, const int32_t *said, int32_t *action);
/* Guesses [rows, EVAL_GUESS_SIDES] out of actions for portfolio features [rows, 8] that are near what will be seen there. */
void episode_prime(uint8_t *guess, int rows, const float *portfolio, const int32_t *action);

#endif
