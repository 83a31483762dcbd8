/* The network over few rows in one launch (section 1), BF16: which blocks of a cluster own which columns and where they lie, how many
 * blocks and rows a cluster has, the launches. The kernel is in cluster_tile.cuh. */
#include <string.h>
#include "gpu/cuda/cluster_tile.cuh"
#include "gpu/cuda/shared.cuh"

namespace {

void add_part(struct layer *l, const struct dqn_layer *q, int a)
{
	l->part[l->parts++] = {l->strips, (int)q->w, (int)q->b, q->out, q->in, cuda_tiles(q->in, STRIP), a, 0, 0};
	l->strips += cuda_tiles(q->out, STRIP);
	l->slot = max(l->slot, cuda_tiles(q->in, 64) * 4 * (int)PIECE);
}

/* Who has which strips: as many each, or of heads and outputs whole heads. */
void deal(struct cluster_args *x)
{
	for (int i = 0; i < LAYERS; i++) {
		struct layer *l = &x->layer[i];

		for (int rank = 0; rank < x->size; rank++) {
			int edge[2];

			for (int k = 0; k < 2; k++) {
				const int head = cuda_tiles((rank + k) * l->parts, x->size);

				edge[k] = !x->whole || i < L_HEAD ? (rank + k) * l->strips / x->size : head < l->parts ? l->part[head].first : l->strips;
			}
			l->begin[rank] = edge[0], l->count[rank] = edge[1] - edge[0];
			l->each = max(l->each, l->count[rank]);
		}
	}
}

int end_of(const struct layer *l, int part) { return part + 1 < l->parts ? l->part[part + 1].first : l->strips; }
int shared_by(const struct layer *l, int rank, int from, int to) { return max(0, min(to, l->begin[rank] + l->count[rank]) - max(from, l->begin[rank])); }

/* Who goes on with what: all with the trunk, with a head those that have some of its outputs; and how much each is sent. */
void name_readers(struct cluster_args *x)
{
	const struct layer *next = &x->layer[L_OUT];

	for (int i = 0; i < HIDDEN; i++) {
		struct layer *l = &x->layer[i];

		for (int q = 0; q < l->parts; q++) {
			struct part *p = &l->part[q];

			p->from = CLUSTER_MOST, p->to = -1;
			for (int rank = 0; rank < x->size; rank++)
				if (i < L_HEAD || shared_by(next, rank, next->part[q].first, end_of(next, q))) {
					p->from = min(p->from, rank), p->to = rank;
					l->come[rank] += end_of(l, q) - p->first - shared_by(l, rank, p->first, end_of(l, q));
				}
		}
	}
}

/* Shared memory: weights and biases, then h1 and behind it x, later heads in the place of both; then h2. */
void place(struct cluster_args *x, int mi, int states)
{
	const int strip = mi * PIECE, heads = x->whole ? x->layer[L_HEAD].each : x->layer[L_HEAD].strips;
	int at = 0, turn = 0;

	for (int i = 0; i < LAYERS; i++) {
		struct layer *l = &x->layer[i];

		l->weights = at, at += l->each * l->slot;
		l->turn = turn, turn = (turn + l->each) % WARPS;
	}
	for (int i = 0; i < LAYERS; i++)
		x->layer[i].bias = at, at += x->layer[i].each * BIAS;
	x->layer[L_H1].out = x->layer[L_H2].in = x->layer[L_HEAD].out = x->layer[L_OUT].in = at;
	x->layer[L_H1].in = at + x->layer[L_H1].strips * strip;
	at += max(x->layer[L_H1].strips + states, heads) * strip;
	x->layer[L_H2].out = x->layer[L_HEAD].in = at;
	at += x->layer[L_H2].strips * strip;
	x->barriers = at, at += HIDDEN * 8;
	x->shared = at;
}

/* What depends on the network and on how it is divided. */
void describe(struct cuda_exec *c, int size, int whole, int mi, struct cluster_args *x)
{
	const struct dqn_dims *d = &c->dims;

	*x = {};
	x->size = size, x->whole = whole;
	x->sd = d->SD, x->ldx = c->s.ldx;
	add_part(&x->layer[L_H1], &d->layer[DQN_S1], 0);
	add_part(&x->layer[L_H2], &d->layer[DQN_S2], 0);
	for (int h = 0, a = 0; h <= d->D; h++) {
		const struct dqn_layer *l = &d->layer[DQN_V1 + 2 * h];

		add_part(&x->layer[L_HEAD], l, 0);
		add_part(&x->layer[L_OUT], l + 1, a);
		a += cuda_tiles(l->out, STRIP);
	}
	deal(x);
	name_readers(x);
	place(x, mi, cuda_tiles(d->SD, STRIP));
	x->weight[0] = cuda_tensor<bf16>(c, T_PARAM_LP), x->weight[1] = cuda_tensor<bf16>(c, T_TARGET_LP);
	x->bias[0] = cuda_tensor<float>(c, T_PARAM), x->bias[1] = cuda_tensor<float>(c, T_TARGET);
	x->params = (size_t)d->params;
}

int tiles_of(const struct mlp_pass *pass, int passes, int rows)
{
	int tiles = 0;

	for (int i = 0; i < passes; i++)
		tiles += cuda_tiles(pass[i].rows, rows);
	return tiles;
}

/* Where a cluster of several blocks lies in a part of the machine, some multiprocessors are left over: an H200 has 132, and holds 30 of
 * four blocks, 15 of eight. */
int at_once(const struct cuda_exec *c, int size) { return max(1, size == 1 ? c->multiprocessors : c->multiprocessors * 10 / 11 / size); }

/* Clocks of a wave, after measurements on an H200: weights at 64 bytes a clock, half of it beside other work; a step of the sum at what its
 * products, its fragments of rows or one after the other take; between layers, and what a block is sent on average at 10 bytes a clock. */
long wave_cost(const struct cluster_args *x, int mi)
{
	enum { PER_PRODUCT = 7, CHAIN = 40, BETWEEN = 700, SENT = 10, FRAGMENT = PIECE / 128 };
	long weights = 0, work = 0;

	for (int i = 0; i < LAYERS; i++) {
		const struct layer *l = &x->layer[i];
		int come = 0;

		weights += (long)l->each * l->slot / 64;
		for (int left = l->each; left > 0; left -= WARPS) {
			const int warps = min(left, (int)WARPS), step = max(max((int)CHAIN, cuda_tiles(warps, 4) * 2 * mi * PER_PRODUCT), warps * mi * FRAGMENT);

			work += (long)l->slot / PIECE * step;
		}
		for (int rank = 0; rank < x->size; rank++)
			come += l->come[rank];
		work += BETWEEN + come * mi * PIECE / SENT / x->size;
	}
	return weights / 2 + work;
}

/* Clusters of 1, 2, 4, 8 blocks for tiles of 16, 32, 64 rows. */
enum { DIVISIONS = 4 * 3 };

/* FH_GPU_WIDE as 100 * blocks + rows; 0: nothing like that is asked for. */
int asked_for(int size, int mi) { return cuda_wide_asked() == 100 * size + STRIP * mi; }
int any_asked(void)
{
	for (int k = 0; k < DIVISIONS; k++)
		if (asked_for(1 << k / 3, 1 << k % 3))
			return 1;
	return 0;
}

/* The fastest division that fits, and its waves: 0, none does. Bits do not depend on it. */
long choose(struct cuda_exec *c, int trials, const struct mlp_pass *pass, int passes, struct cluster_args *best, int *best_mi)
{
	const int asked = any_asked();
	long least = 0, best_waves = 0;
	struct cluster_args x;

	if (c->dims.precision != FH_PRECISION_BF16 || c->dims.params > INT32_MAX || !c->clusters)
		return 0;
	for (int k = 0; k < DIVISIONS; k++)
		for (int whole = 0; whole < 2; whole++) {
			const int size = 1 << k / 3, mi = 1 << k % 3;

			describe(c, size, whole, mi, &x);
			/* a block without a strip of h2 might still write h1 where others send it heads */
			if ((size_t)x.shared > cuda_shared_most(c) || x.layer[L_H2].strips < size || (asked && !asked_for(size, mi)))
				continue;
			const long clusters = (long)tiles_of(pass, passes, mi * STRIP) * trials, waves = (clusters + at_once(c, size) - 1) / at_once(c, size);
			const long cost = waves * wave_cost(&x, mi);

			if (!best_waves || cost < least)
				least = cost, best_waves = waves, *best = x, *best_mi = mi;
		}
	return best_waves;
}

template <int MI> int launch(struct cuda_exec *c, const struct cluster_args *x, int trials, const char *what, struct fh_status *st)
{
	const dim3 grid((unsigned)(x->tiles * x->size), 1, (unsigned)trials);

	CUDA_TRY(cuda_allow_shared(c, k_cluster<MI>));
	/* With observations it is the first launch of a step: what was in front may have written the weights. */
	const cudaError_t e = x->obs ? cuda_launch_cluster_plain(c->stream, k_cluster<MI>, grid, x->size, THREADS, (size_t)x->shared, *x) :
	                               cuda_launch_cluster(c, k_cluster<MI>, grid, x->size, THREADS, (size_t)x->shared, *x);
	return e == cudaSuccess ? 0 : cuda_fail(st, e, what);
}

int start(struct cuda_exec *c, struct cluster_args *x, int mi, const struct mlp_pass *pass, int passes, const char *what, struct fh_status *st)
{
	memcpy(x->pass, pass, sizeof *pass * (size_t)passes);
	x->first_tile = cuda_tiles(pass[0].rows, mi * STRIP);
	x->tiles = tiles_of(pass, passes, mi * STRIP);
	return mi == 1 ? launch<1>(c, x, c->dims.P, what, st) : mi == 2 ? launch<2>(c, x, c->dims.P, what, st) : launch<4>(c, x, c->dims.P, what, st);
}

} // namespace

int cluster_asked(void) { return cuda_wide_asked() == 8 || any_asked(); }

int cluster_takes(struct cuda_exec *c, int trials, const struct mlp_pass *pass, int passes, int early)
{
	enum { WAVES = 2 };
	struct cluster_args x;
	int mi;

	if (c->sync || (cuda_wide_asked() >= 0 && !cluster_asked()))
		return 0;
	const long waves = choose(c, trials, pass, passes, &x, &mi);
	return waves && (cuda_wide_asked() > 0 || (early ? waves <= WAVES : waves == 1 && mi == 1));
}

int cluster_forward(struct cuda_exec *c, const struct mlp_pass *pass, int passes, struct fh_status *st)
{
	const struct cuda_scratch *s = &c->s;
	const struct cuda_array *hidden[HIDDEN] = {&s->h1, &s->h2, &s->head};
	const int ld[HIDDEN] = {s->ldh1, s->ldh2, s->ldhead};
	struct cluster_args x;
	int mi;

	if (!choose(c, c->dims.P, pass, passes, &x, &mi))
		return fh_fail(st, FH_INTERNAL, "forward: no cluster fits"); /* cluster_takes() said otherwise */
	x.x = cuda_at<bf16>(c, &s->x), x.x_trial = s->x.stride;
	for (int i = 0; i < HIDDEN; i++)
		x.hidden[i] = cuda_at<bf16>(c, hidden[i]), x.hidden_trial[i] = hidden[i]->stride, x.ldhidden[i] = ld[i];
	x.out = cuda_at<float>(c, &s->out), x.out_trial = s->out.stride, x.ldo = s->ldo;
	return start(c, &x, mi, pass, passes, "launch of the forward pass", st);
}

int cluster_outputs(struct cuda_exec *c, struct fh_status *st)
{
	const struct dqn_dims *d = &c->dims;
	const struct mlp_pass pass = {0, d->N, 0, 0, 0};
	struct cluster_args x;
	int mi;

	if (!choose(c, d->P, &pass, 1, &x, &mi))
		return fh_fail(st, FH_INTERNAL, "policy: no cluster fits");
	x.obs = cuda_tensor<float>(c, T_OBS), x.x_trial = (size_t)d->N * d->SD * sizeof(float);
	x.out = cuda_at<float>(c, &c->s.pout), x.out_trial = c->s.pout.stride, x.ldo = c->s.ldo;
	return start(c, &x, mi, &pass, 1, "launch of the policy's outputs", st);
}
