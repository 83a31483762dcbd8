/* A team of threads for loops whose tasks are independent of each other.
 *
 * The caller is member 0 and works too. Members spin for a few microseconds between loops and then block, so an idle
 * trainer uses no CPU. Tasks may run on any member in any order: a task must not depend on another one, and what it
 * computes must not depend on the member, so results have the same bits with any number of threads.
 * One thread at a time may call team_run() on a team; a NULL team runs everything on the caller. */
#ifndef FH_GPU_HOST_THREADS_H
#define FH_GPU_HOST_THREADS_H

struct fh_status;
struct team;

#define TEAM_THREADS_MAX 16

/* member (0 … threads - 1, the one that runs the task) may choose temporary memory and nothing else. */
typedef void (*team_fn)(void *ctx, int task, int member);

/* threads = 0: FH_HOST_THREADS from the environment, else the CPUs this process may run on; at most 16.
 * FH_EXHAUSTED when the system gives no thread. */
int team_new(int threads, struct team **out, struct fh_status *st);
void team_free(struct team *t); /* NULL is fine; joins */
int team_threads(const struct team *t); /* 1 for NULL */
int team_default_threads(void);
/* fn(ctx, 0, .) … fn(ctx, tasks - 1, .), all done on return. Memory written before is seen by the tasks, and theirs after. */
void team_run(struct team *t, int tasks, team_fn fn, void *ctx);

#endif
