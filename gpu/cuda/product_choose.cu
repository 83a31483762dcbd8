/* Who does which products: measured, remembered, kept by a job. See product.cuh.
 *
 * Each group is timed as what it changes of its stage, captured as a job would run it, for one trial. cuBLASLt takes a group when the stage is
 * shorter by GAIN of itself at least: near a tie two measurements could differ, and ours needs no library. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <string>
#include <vector>
#include "gpu/cuda/product.cuh"

namespace {

const double GAIN = 0.03;
/* Multiply-adds: below, a launch for each product costs more than it gains. */
const double LEAST = 5e8;
const size_t LIBRARY_MOST = (size_t)1 << 30; /* all its kernels are a third of that */
enum { ROUNDS = 3, REPEATS = 4, KEY_MAX = 512 };

enum { TEXT_MAX = 96 };
struct remembered { std::string key, text; };
std::vector<struct remembered> memory; /* of the process; cuda_state.taking is held */

/* ---------------------------------------------------------------- in words */

/* Group by group "-" for ours, else a digit a product: which of the library's algorithms. */
void write_text(const struct products *p, char *text, size_t size)
{
	size_t n = (size_t)snprintf(text, size, "cublasLt %zu ", p->lt->version);

	for (int i = 0; i < PRODUCT_GROUPS; i++) {
		const int ours = !(p->taken >> i & 1);

		for (int k = 0; k < (ours ? 1 : p->products[i]) && n + 2 < size; k++)
			text[n++] = ours ? '-' : (char)('0' + p->pick[i][k]);
		text[n++] = i + 1 < PRODUCT_GROUPS ? '.' : 0;
	}
}

/* The other way round, where the library has all that the text names. 1, or 0 and nothing is changed. */
int read_text(struct products *p, const char *text)
{
	unsigned char pick[PRODUCT_GROUPS][GEMM_GROUP] = {};
	unsigned taken = 0;
	size_t version;
	int n = 0;

	if (sscanf(text, "cublasLt %zu %n", &version, &n) != 1 || !n || version != p->lt->version)
		return 0;
	text += n;
	for (int i = 0; i < PRODUCT_GROUPS; i++) {
		const char end = i + 1 < PRODUCT_GROUPS ? '.' : 0;

		for (n = 0; *text >= '0' && *text <= '9' && n < p->products[i]; n++, text++)
			if ((pick[i][n] = (unsigned char)(*text - '0')) >= p->candidates[i][n])
				return 0;
		if (n)
			taken |= 1u << i;
		else if (*text++ != '-')
			return 0;
		if (*text != end || (n && n != p->products[i]))
			return 0;
		text += end != 0;
	}
	if (taken & ~p->offered)
		return 0;
	p->taken = taken;
	memcpy(p->pick, pick, sizeof pick);
	return 1;
}

/* ---------------------------------------------------------------- what is remembered */

/* Everything that the measurement depends on, but the trials. */
void key_of(const struct cuda_exec *c, const struct lt *lt, char *key)
{
	const struct dqn_dims *d = &c->dims;
	int n = snprintf(key, KEY_MAX, "%.100s, %d multiprocessors, cublasLt %zu: SD %d H %d %d heads %d %d NA %d A", cuda_state_of(c->x.backend)->info.name,
	                 c->multiprocessors, lt->version, d->SD, d->H1, d->H2, d->VH, d->AH, d->NA);

	for (int b = 0; b < d->D; b++)
		n += snprintf(key + n, KEY_MAX - n, " %d", d->A[b]);
	snprintf(key + n, KEY_MAX - n, " B %d N %d precision %d", d->B, d->N, d->precision);
}

/* Lines "KEY = TEXT"; the first one of a key counts, so that two daemons that measured at the same time go on with the same. */
int look_up(const char *key, char *text)
{
	const char *path = getenv("FH_GPU_CHOICES");
	const size_t length = strlen(key);
	char line[KEY_MAX + TEXT_MAX];

	for (const struct remembered &r : memory)
		if (r.key == key) {
			snprintf(text, TEXT_MAX, "%s", r.text.c_str());
			return 1;
		}
	FILE *f = path && *path ? fopen(path, "re") : NULL;
	int found = 0;
	while (f && !found && fgets(line, sizeof line, f))
		if (!strncmp(line, key, length) && !strncmp(line + length, " = ", 3)) {
			line[strcspn(line, "\n")] = 0;
			snprintf(text, TEXT_MAX, "%s", line + length + 3);
			found = 1;
		}
	if (f)
		fclose(f);
	if (found)
		memory.push_back({key, text});
	return found;
}

/* A file that cannot be written costs the next process a measurement, not this job. */
void remember(const char *key, const char *text)
{
	const char *path = getenv("FH_GPU_CHOICES");
	const std::string line = std::string(key) + " = " + text + "\n";

	memory.push_back({key, text});
	const int fd = path && *path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
	if (fd < 0)
		return;
	if (write(fd, line.data(), line.size()) == (ssize_t)line.size())
		(void)fdatasync(fd);
	close(fd);
}

/* ---------------------------------------------------------------- measuring */

typedef int (*stage)(struct cuda_exec *c, struct fh_status *st);
int stage_forward(struct cuda_exec *c, struct fh_status *st) { return cuda_dqn_forward(&c->x, st); }
int stage_backward(struct cuda_exec *c, struct fh_status *st) { return cuda_dqn_backward(&c->x, st); }
const struct { stage run; int first, groups; } stages[] = {
	{stage_forward, PRODUCT_FORWARD, 4}, {cuda_policy_forward, PRODUCT_POLICY, 4}, {stage_backward, PRODUCT_BACK, 4},
};

double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

int measure_stage(struct cuda_exec *c, stage run, int first, int groups, unsigned *taken, struct fh_status *st)
{
	struct products *p = c->products;
	const auto timed = [&](struct fh_status *s) { return run(c, s); };
	double ours = 0, theirs = 0;
	int rc = 0;

	if (!(p->offered >> first & ((1u << groups) - 1)))
		return 0;
	p->taken = 0;
	rc = product_time(c, timed, &ours, st);
	for (int i = first; !rc && i < first + groups; i++) {
		p->taken = 1u << i;
		if (!(p->offered & p->taken))
			continue;
		rc = product_time(c, timed, &theirs, st);
		if (!rc && theirs < ours * (1 - GAIN))
			*taken |= p->taken;
	}
	return rc;
}

/* Of one trial, as a fused step goes. */
int over_stages(struct cuda_exec *c, enum product_mode mode, unsigned *taken, struct fh_status *st)
{
	const int trials = c->dims.P, sync = c->sync;
	int rc = 0;

	c->dims.P = 1, c->sync = 0;
	c->products->mode = mode;
	for (unsigned i = 0; !rc && i < sizeof stages / sizeof stages[0]; i++)
		rc = mode != PRODUCT_RUN ? stages[i].run(c, st) : measure_stage(c, stages[i].run, stages[i].first, stages[i].groups, taken, st);
	c->products->mode = PRODUCT_RUN;
	c->dims.P = trials, c->sync = sync;
	return rc;
}

/* The most that a group of this layout has. */
double largest(const struct dqn_dims *d)
{
	double most = 0, sum = 0, layer[DQN_LAYER_MAX] = {};

	for (int l = 0; l < d->layers; l++) {
		layer[l < DQN_V1 ? l : DQN_V1 + (l - DQN_V1) % 2] += (double)d->layer[l].out * d->layer[l].in; /* the heads' layers go together */
		sum += (double)d->layer[l].out * d->layer[l].in;
	}
	for (int l = 0; l < d->layers; l++)
		most = fmax(most, layer[l] * fmax(3.0 * d->B, d->N));
	return fmax(most, sum * d->B);
}

/* Every group that is taken runs once: what the library loads at first use must not be loaded in a capture. */
int warm(struct cuda_exec *c, struct fh_status *st)
{
	const int sync = c->sync;
	int rc = 0;

	c->sync = 0;
	for (unsigned i = 0; !rc && i < sizeof stages / sizeof stages[0]; i++)
		if (c->products->taken >> stages[i].first & ((1u << stages[i].groups) - 1))
			rc = stages[i].run(c, st);
	c->sync = sync;
	c->products->warm |= c->products->taken;
	return rc;
}

/* Fills pick and taken. */
int measure(struct cuda_exec *c, struct fh_status *st)
{
	unsigned taken = 0;
	int rc = over_stages(c, PRODUCT_TIME, NULL, st);

	if (!rc)
		rc = over_stages(c, PRODUCT_RUN, &taken, st);
	c->products->taken = taken;
	return rc;
}

} // namespace

/* In a graph, as a job would run it. */
int product_time(struct cuda_exec *c, const std::function<int(struct fh_status *)> &run, double *us, struct fh_status *st)
{
	cudaGraph_t g = NULL;
	cudaGraphExec_t exec = NULL;
	int rc = run(st); /* what is loaded at first use is loaded now */
	cudaError_t e;

	if (rc)
		return rc;
	CUDA_TRY(cudaStreamSynchronize(c->stream));
	CUDA_TRY(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal));
	for (int i = 0; i < REPEATS && !rc; i++)
		rc = run(st);
	e = cudaStreamEndCapture(c->stream, &g);
	if (!rc && e == cudaSuccess)
		e = cudaGraphInstantiate(&exec, g, 0);
	*us = 1e30;
	for (int i = 0; i <= ROUNDS && !rc && e == cudaSuccess; i++) { /* the first is not counted */
		const double began = now_us();

		e = cudaGraphLaunch(exec, c->stream);
		if (e == cudaSuccess)
			e = cudaStreamSynchronize(c->stream);
		if (i && (now_us() - began) / REPEATS < *us)
			*us = (now_us() - began) / REPEATS;
	}
	if (exec)
		cudaGraphExecDestroy(exec);
	if (g)
		cudaGraphDestroy(g);
	return rc ? rc : e == cudaSuccess ? 0 : cuda_fail(st, e, "timing of products");
}

/* FH_GPU_PRODUCTS, for tests and measurements: own, lt (every group that the library can do), or 0x and which groups: nothing is measured or
 * remembered then; measure: as without it. In all of them small products are asked about too. */
int product_choose(struct cuda_exec *c, struct fh_status *st)
{
	struct cuda_state *s = cuda_state_of(c->x.backend);
	const char *asked = getenv("FH_GPU_PRODUCTS"), *why;
	const int any = asked && *asked, forced = any && strcmp(asked, "measure") != 0;
	char key[KEY_MAX], text[TEXT_MAX];
	int rc = 0;

	if (!cuda_layered(&c->dims) || (forced && !strcmp(asked, "own")) || (!any && largest(&c->dims) < LEAST))
		return 0;
	std::lock_guard<std::mutex> hold(s->taking);
	const size_t before = cuda_free_now();
	const struct lt *lt = lt_open(&why);
	if (!lt && forced)
		return fh_fail(st, FH_UNAVAILABLE, "FH_GPU_PRODUCTS is %.20s, but %s", asked, why);
	if (!lt)
		return 0;
	struct products *p = c->products = (struct products *)calloc(1, sizeof *p);
	if (!p)
		return fh_fail(st, FH_EXHAUSTED, "out of host memory for a trainer");
	p->lt = lt;
	p->least = any ? 0 : LEAST;
	rc = over_stages(c, PRODUCT_ASK, NULL, st);
	key_of(c, lt, key);
	if (!rc && forced) {
		p->taken = p->offered & (strcmp(asked, "lt") ? (unsigned)strtoul(asked, NULL, 16) : ~0u);
	} else if (!rc && p->offered && !(look_up(key, text) && read_text(p, text))) {
		rc = measure(c, st);
		write_text(p, text, sizeof text);
		if (!rc)
			remember(key, text);
	}
	if (!rc)
		rc = warm(c, st);
	p->first = p->taken;
	memcpy(p->first_pick, p->pick, sizeof p->pick);
	CUDA_TRY(cudaStreamSynchronize(c->stream));
	const size_t now = cuda_free_now(), more = before > now ? before - now : 0;
	if (more < LIBRARY_MOST) /* else somebody else came in between */
		cuda_own(&s->context, more, 0); /* the library stays, with its kernels */
	return rc;
}

/* What lies behind the columns of a row is read, and cuBLASLt does not write it. */
int product_clear(struct cuda_exec *c, struct fh_status *st)
{
	const struct cuda_scratch *s = &c->s;
	const struct cuda_array *const all[] = {&s->h1, &s->h2, &s->head, &s->out, &s->dhead, &s->dh2, &s->dh1, &s->stack, &s->ph1, &s->ph2, &s->phead, &s->pout};

	for (const struct cuda_array *a : all)
		CUDA_TRY(cudaMemsetAsync(cuda_at<void>(c, a), 0, a->stride * c->dims.P, c->stream));
	return 0;
}

void product_text(const struct cuda_exec *c, char *text, size_t size)
{
	if (c->products && c->products->taken)
		write_text(c->products, text, size);
	else
		snprintf(text, size, "%s", cuda_layered(&c->dims) ? "own" : "");
}

int product_keep(struct cuda_exec *c, const char *text, int *changed, struct fh_status *st)
{
	struct products *p = c->products;
	const char *asked = getenv("FH_GPU_PRODUCTS");

	*changed = 0;
	if (asked && *asked && strcmp(asked, "measure") != 0)
		return 0; /* whoever says so knows that a job goes on with other bits */
	if (!p && text && strcmp(text, "own") != 0)
		return fh_fail(st, FH_CONFLICT, "the checkpoint's products are \"%.90s\", and there is no such library here: the job cannot go on with the same bits "
		               "(with others: FH_GPU_PRODUCTS=own)", text);
	if (!p)
		return 0;
	const struct products before = *p;
	if (!text) {
		p->taken = p->first;
		memcpy(p->pick, p->first_pick, sizeof p->pick);
	} else if (!strcmp(text, "own")) {
		p->taken = 0;
	} else if (!read_text(p, text)) {
		return fh_fail(st, FH_CONFLICT, "the checkpoint's products are \"%.90s\", which cuBLASLt %zu does not do here: the job cannot go on with the same bits "
		               "(with others: FH_GPU_PRODUCTS=own)", text, p->lt->version);
	}
	*changed = p->taken != before.taken || (p->taken && memcmp(p->pick, before.pick, sizeof p->pick) != 0);
	return *changed ? warm(c, st) : 0;
}
