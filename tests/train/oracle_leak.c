/* An agent that is shown the next bar's return uses it, and by a wide margin: at least half of what perfect foresight
 * earns above buy-and-hold. On a market without structure, so the leak is all there is to learn; and on real bars,
 * where they are: the EURUSD hours that `make demo` fetched, or the file FHD_PROOF_CSV names (time, open, high, low, close,
 * volume as gym-anytrading has them).
 * The leak is made here, in the features of a market that only this program sees. */
#include <unistd.h>

#include "tests/train/proof.h"

#define LEAK_FEATURE 39 /* cos of the day of week, of no use on a walk */
#define SHARE_MIN 0.5
#define STEPS 1000
#define DEMO_CSV "build/data/EURUSD_1H.csv"

static void leak(struct market *m)
{
	for (int64_t t = 0; t < m->bars; t++) {
		double next = t + 1 < m->bars ? log(m->close[t + 1] / m->close[t]) / (double)m->sigma[t] : 0;
		m->feature[t * FH_MARKET_FEATURES + LEAK_FEATURE] = (float)fmax(-5, fmin(5, next));
	}
}

static void foresee(void *ctx, const struct market *m, int64_t t, const struct env_state *s, int32_t *action)
{
	double next = m->close[t + 1] - m->close[t];

	action[0] = next > 0 ? 4 : next < 0 ? 0 : 2;
	action[1] = ENV_MARKET;
	action[2] = 2;
}

static void prove(const char *what, struct fh_spec *s, struct market *m)
{
	leak(m);
	struct eval_report hold = proof_script(s, m, FH_SPLIT_TEST, eval_buy_and_hold, 1);
	struct eval_report best = proof_script(s, m, FH_SPLIT_TEST, foresee, 0);
	struct proof p = proof_train(s, m);
	double share = (p.test_target.ret - hold.ret) / (best.ret - hold.ret);

	printf("leak %s seed %lld: test return %.3g, buy-and-hold %.3g, perfect foresight %.3g: share %.2f (needed %.2f), Sharpe %.1f "
	       "against %.1f, %lld steps in %.1f s\n",
	       what, (long long)s->run.seed, p.test_target.ret, hold.ret, best.ret, share, SHARE_MIN, p.test_target.sharpe, hold.sharpe,
	       (long long)p.steps, p.seconds);
	fflush(stdout);
	assert_true(best.ret > hold.ret);
	assert_true(share >= SHARE_MIN);
	assert_true(p.test_target.sharpe > hold.sharpe);
}

/* "02.05.2017 00:00:00.000,1.0903,1.0903,1.08979,1.08992,2031.96" */
static int64_t read_csv(const char *path, int64_t **ts, double *v[5])
{
	FILE *f = fopen(path, "r");
	char line[512];
	int64_t n = 0, room = 0;

	if (!f || !fgets(line, sizeof(line), f))
		return 0;
	while (fgets(line, sizeof(line), f)) {
		struct tm tm = {0};
		double x[5];
		char *rest = strptime(line, "%d.%m.%Y %H:%M:%S", &tm);
		if (!rest || !(rest = strchr(rest, ',')) ||
		    sscanf(rest, ",%lf,%lf,%lf,%lf,%lf", &x[0], &x[1], &x[2], &x[3], &x[4]) != 5)
			continue;
		if (n == room) {
			room = room ? 2 * room : 4096;
			*ts = realloc(*ts, (size_t)room * 8);
			for (int i = 0; i < 5; i++)
				v[i] = realloc(v[i], (size_t)room * 8);
		}
		(*ts)[n] = (int64_t)timegm(&tm) * 1000000000;
		for (int i = 0; i < 5; i++)
			v[i][n] = x[i];
		n++;
	}
	fclose(f);
	return n;
}

static void test_real_bars(void **state)
{
	const char *path = getenv("FHD_PROOF_CSV");
	struct fh_status st = FH_STATUS_INIT;
	struct fh_spec s = proof_spec(1);
	struct market *m = NULL;
	int64_t *ts = NULL, n;
	double *v[5] = {NULL};

	if (!path && access(DEMO_CSV, R_OK) == 0)
		path = DEMO_CSV;
	if (!path)
		skip(); /* no package index, no file */
	n = read_csv(path, &ts, v);
	if (n == 0)
		fail_msg("no bars in %s", path);
	s.env.tick = 1e-5;
	proof_steps(&s, STEPS);
	struct market_bars bars = {n, ts, v[0], v[1], v[2], v[3], v[4]};
	must(market_build(&bars, s.env.tick, &m, &st), &st);
	prove("real bars", &s, m);
	market_unref(m);
	free(ts);
	for (int i = 0; i < 5; i++)
		free(v[i]);
}

static void test_walk(void **state)
{
	struct fh_spec s = proof_spec(1);
	struct market *m;

	proof_steps(&s, STEPS);
	m = test_market(SYNTH_WALK, 20000, 1, s.env.tick);
	prove("walk", &s, m);
	market_unref(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_walk), cmocka_unit_test(test_real_bars)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
