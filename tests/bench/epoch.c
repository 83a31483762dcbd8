/* An epoch as a job has it: 300 learn steps of B = 256 with collection and reports every 100, and the validation of 20,000
 * bars, on an AR(1) market. One line an epoch and the medians: first where training waits for every validation, and how much of the
 * epoch that is; then, where a device can, with validations behind the training that goes on: from the end of one to the end of the next.
 *
 *     epoch [-d host|cuda] [-e EPOCHS] [-w WINDOWS] [-p TRIALS] [-s]
 *
 * -s: few steps of a small net and few bars, to see on an emulated device that it runs; its times mean nothing.
 * The trainer runs in short slices; where learning ends and validation begins the device is waited for, which a job does not do, so
 * the parts add up to a little more than it takes there. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu/synth.h"
#include "gpu/trainer_impl.h"
#include "proto/status.h"

#define SLICE_NS 5000000        /* the daemon's */
#define VALIDATION_SLICE_NS 200000 /* what of the next epoch may be counted as validation */
#define EPOCHS_MAX 1000

static int validated = 20000, steps = 300; /* bars; learn steps */

struct epoch { double all, learn, validate; };

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void must(int rc, const struct fh_status *st)
{
	if (rc >= 0)
		return;
	fprintf(stderr, "epoch: %s\n", st->text);
	exit(1);
}

static struct market *make_market(const struct fh_spec *spec)
{
	int64_t n = (int64_t)(validated / spec->data.validation) + 1, *ts = malloc((size_t)n * sizeof(*ts));
	double *v = malloc((size_t)n * 5 * sizeof(*v));
	const struct market_bars bars = {n, ts, v, v + n, v + 2 * n, v + 3 * n, v + 4 * n};
	struct fh_status st = FH_STATUS_INIT;
	struct market *m = NULL;
	struct synth s;

	if (!ts || !v)
		exit(1);
	synth_init(&s, SYNTH_MOMENTUM, n, 1);
	must(synth_bars(&s, ts, v, v + n, v + 2 * n, v + 3 * n, v + 4 * n, &st), &st);
	must(market_build(&bars, spec->env.tick, &m, &st), &st);
	free(ts);
	free(v);
	return m;
}

static struct fh_spec make_spec(const char *device, int epochs, int windows, int trials, int small)
{
	struct fh_spec s;

	spec_defaults(&s);
	snprintf(s.data.dataset, sizeof(s.data.dataset), "synth");
	s.data.embargo = 0;
	s.learn.batch = 256;
	s.replay.capacity = 131072;
	s.run.epochs = epochs;
	s.run.steps_per_epoch = s.run.validate_every = steps;
	s.run.report_every = 100;
	s.run.checkpoint_every = 0;
	s.run.validate_windows = windows;
	s.run.population = trials;
	if (small) {
		s.net.trunk1 = s.net.trunk2 = s.net.value_hidden = s.net.advantage_hidden = 16;
		s.net.atoms = 11;
		s.learn.batch = 8;
		s.learn.warmup = 64;
		s.replay.capacity = 4096;
	}
	spec_resolve(&s, strcmp(device, "host") ? FH_DEVICE_CUDA : FH_DEVICE_HOST);
	return s;
}

/* What it says of itself last; the validation of the policy that is validated all along. Returns how many there were. */
static int take_samples(struct trainer *t, double *sharpe, double *trades)
{
	struct trainer_sample s;
	struct fh_status st = FH_STATUS_INIT;
	int n = 0;

	while (trainer_poll(t, &s, &st) == 1) {
		n += s.validation;
		for (int i = 0; s.validation && s.split == FH_SPLIT_VALIDATION && s.policy == t->spec.run.validate_policy && i < s.values; i++) {
			if (!strcmp(s.metric[i]->name, "sharpe"))
				*sharpe = s.value[i];
			if (!strcmp(s.metric[i]->name, "trades"))
				*trades = s.value[i];
		}
	}
	return n;
}

/* Up to the next validation's sample. */
static double run_behind(struct trainer *t, struct trainer_state *s, double *sharpe, double *trades)
{
	struct fh_status st = FH_STATUS_INIT;
	double begin = now_ms();

	while (!take_samples(t, sharpe, trades) && !s->done)
		must(trainer_run(t, SLICE_NS / 20, s, &st), &st);
	return now_ms() - begin;
}

/* Up to the end of the next validation, or of the job. */
static struct epoch run_epoch(struct trainer *t, struct trainer_state *s)
{
	struct epoch e = {0, 0, 0};
	struct fh_status st = FH_STATUS_INIT;
	int validating = 0;
	double begin = now_ms();

	while (!s->done && !(validating && s->phase != TRAINER_VALIDATE)) {
		double at = now_ms();

		if (s->phase == TRAINER_VALIDATE && !validating) {
			must(t->backend->finish(t->x, &st), &st);
			e.learn += now_ms() - at;
			at = now_ms();
			validating = 1;
		}
		/* the last steps of an epoch one call each, so that none reaches into validation */
		int64_t budget = validating ? VALIDATION_SLICE_NS : s->step % steps < steps - 60 ? SLICE_NS / 20 : 0;
		must(trainer_run(t, budget, s, &st), &st);
		*(validating ? &e.validate : &e.learn) += now_ms() - at;
	}
	e.all = now_ms() - begin;
	return e;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(const struct epoch *e, int n, size_t offset)
{
	double v[EPOCHS_MAX];

	for (int i = 0; i < n; i++)
		memcpy(&v[i], (const char *)(e + i) + offset, sizeof(*v));
	qsort(v, (size_t)n, sizeof(*v), by_size);
	return v[n / 2];
}

int main(int argc, char **argv)
{
	static struct epoch epoch[EPOCHS_MAX];
	const char *device = "host";
	const struct backend *b = NULL;
	struct fh_status st = FH_STATUS_INIT;
	struct device_info info;
	struct trainer_state s = {0};
	struct trainer *t = NULL;
	int epochs = 6, windows = 1, trials = 1, small = 0, c, n = 0;
	double trades = 0, sharpe = 0;

	while ((c = getopt(argc, argv, "d:e:w:p:s")) != -1)
		switch (c) {
		case 'd': device = optarg; break;
		case 'e': epochs = atoi(optarg); break;
		case 'w': windows = atoi(optarg); break;
		case 'p': trials = atoi(optarg); break;
		case 's': small = 1, validated = 500, steps = 80; break;
		default: return 2;
		}
	if (epochs < 3 || epochs > EPOCHS_MAX || windows < 1 || trials < 1) {
		fprintf(stderr, "usage: epoch [-d host|cuda] [-e EPOCHS] [-w WINDOWS] [-p TRIALS] [-s], at least 3 epochs\n");
		return 2;
	}
	must(backend_open(device, &b, NULL, &st), &st);
	must(b->info(b, &info, &st), &st);
	struct fh_spec spec = make_spec(device, epochs, windows, trials, small);
	struct market *m = make_market(&spec);
	must(trainer_new(b, &spec, &t, &st), &st);
	setenv("FH_GPU_BEHIND", "0", 1);
	must(trainer_begin(t, &spec, m, NULL, &st), &st);
	printf("epoch on %s: %d learn steps, B = %lld, collection of %lld environments, validation of %lld bars in %d window%s\n", info.name, steps,
	       (long long)spec.learn.batch, (long long)spec.collect.envs, (long long)(t->split[FH_SPLIT_VALIDATION].end - t->split[FH_SPLIT_VALIDATION].begin),
	       windows, windows > 1 ? "s" : "");
	trainer_state_get(t, &s);
	for (; n < epochs - 1; n++) { /* the last one evaluates four times */
		epoch[n] = run_epoch(t, &s);
		take_samples(t, &sharpe, &trades);
		printf("  %4d: %8.2f ms, learning %8.2f, validation %7.2f (Sharpe %.1f, %.0f trades)%s\n", n + 1, epoch[n].all, epoch[n].learn,
		       epoch[n].validate, sharpe, trades, n ? "" : ", warm-up included");
	}
	double waiting = median(epoch + 1, n - 1, offsetof(struct epoch, all)), behind = waiting;
	double learn = median(epoch + 1, n - 1, offsetof(struct epoch, learn)), validate = median(epoch + 1, n - 1, offsetof(struct epoch, validate));
	if (b->would_wait) {
		unsetenv("FH_GPU_BEHIND");
		must(trainer_begin(t, &spec, m, NULL, &st), &st);
		trainer_state_get(t, &s);
		for (n = 0; n < epochs - 1; n++) {
			epoch[n].all = run_behind(t, &s, &sharpe, &trades);
			printf("  %4d: %8.2f ms, validation behind training (Sharpe %.1f, %.0f trades)%s\n", n + 1, epoch[n].all, sharpe, trades,
			       n ? "" : ", warm-up included");
		}
		behind = median(epoch + 1, n - 1, offsetof(struct epoch, all));
	}
	printf("{\"what\": \"epoch\", \"device\": \"%s\", \"ms\": %.2f, \"waiting_ms\": %.2f, \"learn_ms\": %.2f, \"validate_ms\": %.2f, \"windows\": %d, "
	       "\"trials\": %d}\n", b->name, behind, waiting, learn, validate, windows, trials);
	trainer_free(t);
	market_unref(m);
	return 0;
}
