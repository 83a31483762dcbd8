/* The network over many rows in one launch (section 1), BF16: what is computed in which order, how many rows a block takes, the
 * launches. The kernels are in mlp_tile.cuh and, by warpgroups, in mlp_group.cuh. */
#include <string.h>
#include "gpu/cuda/mlp_group.cuh"
#include "gpu/cuda/shared.cuh"

namespace {

int units_of(int n) { return cuda_tiles(n, UNIT); }

/* The columns of one layer, in units, behind those that the last chunk holds already. a, c, g: where its input and results
 * begin. 0: too many. */
int add_layer(struct mlp_args *x, const struct dqn_dims *d, int layer, int to, int a, int c, int g)
{
	const struct dqn_layer *l = &d->layer[layer];

	for (int i = 0; i < units_of(l->out); i++) {
		struct mlp_chunk *q = x->chunks ? &x->chunk[x->chunks - 1] : NULL;

		if (!q || q->to != to || q->k != l->in || q->units == UNITS) {
			if (x->chunks == CHUNKS)
				return 0;
			q = &x->chunk[x->chunks++];
			q->k = l->in, q->to = to, q->units = 0;
		}
		const int at = i * UNIT, n = l->out - at, padded = cuda_pad16(l->out) - at;
		q->unit[q->units++] = {(int)(l->w + (int64_t)at * l->in), (int)(l->b + at), n < UNIT ? n : UNIT, a, c + at, g + at,
		                       padded < UNIT ? padded : UNIT};
	}
	return 1;
}

/* Fills what depends on the network alone. greedy: its last layer is not in chunks. 0: the network does not fit. */
int describe(struct cuda_exec *c, int greedy, struct mlp_args *x)
{
	const struct dqn_dims *d = &c->dims;
	const struct cuda_scratch *s = &c->s;
	const int trunk = max(max(units_of(d->SD), units_of(d->H1)), units_of(d->H2));
	const int value = max(units_of(d->VH), greedy && d->NA > 32 ? 2 : 1); /* V of a row comes in the place of its hidden columns */
	const int heads = units_of(d->VH) + d->D * units_of(d->AH), gap = value - units_of(d->VH);
	/* the last chunk of the heads takes h2's place, those before it may not touch it */
	const int columns = (gap + max(heads, trunk + (cuda_tiles(heads, UNITS) - 1) * UNITS)) * UNIT;

	*x = {};
	if (d->precision != FH_PRECISION_BF16 || trunk > UNITS || d->params > INT32_MAX)
		return 0;
	x->sd = d->SD;
	x->trunk = columns - trunk * UNIT;
	x->ld = columns + 8;
	x->branches = d->D, x->atoms = d->NA;
	if (!add_layer(x, d, DQN_S1, TO_H1, x->trunk, x->trunk, 0) || !add_layer(x, d, DQN_S2, TO_H2, x->trunk, x->trunk, 0))
		return 0;
	for (int h = 0, c_col = 0, g = 0; h <= d->D; h++) {
		const int n = h ? d->AH : d->VH;

		if (!add_layer(x, d, DQN_V1 + 2 * h, TO_HEAD, x->trunk, c_col, g))
			return 0;
		c_col += (h ? units_of(n) : value) * UNIT, g += cuda_pad16(n);
	}
	for (int h = 0, a = 0; h <= d->D; h++) {
		const struct dqn_layer *l = &d->layer[DQN_V1 + 2 * h + 1];

		x->head[h] = {l->in, (int)l->w, (int)l->b, a, h ? d->A[h - 1] : 1};
		if (greedy && x->head[h].actions > PICKS)
			return 0;
		if (!greedy && !add_layer(x, d, DQN_V1 + 2 * h + 1, TO_OUT, a, 0, s->seg[h]))
			return 0;
		a += (h ? units_of(l->in) : value) * UNIT;
	}
	x->weight[0] = cuda_tensor<bf16>(c, T_PARAM_LP), x->weight[1] = cuda_tensor<bf16>(c, T_TARGET_LP);
	x->bias[0] = cuda_tensor<float>(c, T_PARAM), x->bias[1] = cuda_tensor<float>(c, T_TARGET);
	x->params = (size_t)d->params;
	x->ldx = s->ldx;
	x->clock = cuda_tensor<struct dqn_clock>(c, T_CLOCK);
	x->trials = d->P;
	return 1;
}
/* Eights of atoms that the kernel keeps apart by action, 0: too many. */
int eights_of(int atoms) { return atoms <= 32 ? 4 : atoms <= 56 ? 7 : 0; }

/* Blocks, and what one takes, in 1000 clocks of an H200: measured. The last goes by warpgroups: tiles of 128 rows, or of 64. */
enum { BLOCKS = 6, GROUP = BLOCKS - 1, LOW = GROUP_ROWS, TALL = GROUPS * GROUP_ROWS, LOW_COST = 30 };
const struct { int rows, stages, cost; } block[BLOCKS] = {
	{shape<1, 4>::ROWS, shape<1, 4>::STAGES, 38}, {shape<2, 4>::ROWS, shape<2, 4>::STAGES, 47}, {shape<2, 8>::ROWS, shape<2, 8>::STAGES, 64},
	{shape<3, 8>::ROWS, shape<3, 8>::STAGES, 75}, {shape<4, 8>::ROWS, shape<4, 8>::STAGES, 92}, {TALL, 0, 45},
};
/* The same for its weights from L2, when every multiprocessor wants them. */
enum { WEIGHTS_COST = 16 };

/* Rows of all trials from which on one launch is faster than four, measured on an H200 with the backward pass (768 rows: 63 us a learn step
 * against 46; 1,536: 68 and 68; 3,072: 79 and 100). Down to actions blocks are larger, and most warps of the last layer's idle where rows are few. */
enum { OUTPUTS_ENOUGH = 1536, GREEDY_ENOUGH = 2048 };
/* In a crowd: four tiles of warpgroups. */
enum { CROWD_ENOUGH = 256 };

size_t shared_bytes(const struct mlp_args *x, int b, int eights)
{
	if (b == GROUP)
		return eights == 7 ? (size_t)group_shape<7>::BYTES : eights == 4 ? (size_t)group_shape<4>::BYTES : (size_t)group_shape<0>::BYTES;
	const int size = eights == 7 ? (int)stage<7>::SIZE : eights == 4 ? (int)stage<4>::SIZE : (int)stage<0>::SIZE;

	return ((size_t)block[b].rows * x->ld + (size_t)block[b].stages * size) * sizeof(bf16) + size / BK * sizeof(float);
}

long tiles_of(const struct mlp_args *x, int rows)
{
	long tiles = 0;

	for (int i = 0; i < x->passes; i++)
		tiles += cuda_tiles(x->pass[i].rows, rows);
	return tiles * x->trials;
}

/* What tiles of so many rows take by warpgroups: block i has tiles i, i + machine, …, those of the first pass in front. */
long heights_cost(const struct cuda_exec *c, const struct mlp_args *x, const int height[2])
{
	const int machine = c->multiprocessors, first = x->trials * cuda_tiles(x->pass[0].rows, height[0]);
	const int all = first + (x->passes > 1 ? x->trials * cuda_tiles(x->pass[1].rows, height[1]) : 0);
	const auto cost = [&](int rows) { return rows == TALL ? block[GROUP].cost : (int)LOW_COST; };
	long most = 0;

	for (int i = 0; i < machine && i < all; i++) {
		const int mine = cuda_tiles(all - i, machine), in_front = i < first ? cuda_tiles(first - i, machine) : 0;

		most = max(most, (long)in_front * cost(height[0]) + (long)(mine - in_front) * cost(height[1]));
	}
	return most;
}

/* Rows of each pass's tiles: of low ones a warpgroup is idle. */
long choose_heights(const struct cuda_exec *c, const struct mlp_args *x, int height[2])
{
	enum { BOTH = 3 };
	static const int both[BOTH][2] = {{TALL, TALL}, {TALL, LOW}, {LOW, LOW}}, asked[BOTH] = {GROUP_ASKED + TALL, GROUP_ASKED + TALL + LOW, GROUP_ASKED + LOW};
	long least = 0;

	for (int i = 0; i < BOTH; i++) {
		const long cost = heights_cost(c, x, both[i]);

		if (!least || cost < least || cuda_wide_asked() == asked[i])
			least = cost, memcpy(height, both[i], sizeof both[i]);
		if (cuda_wide_asked() == asked[i])
			break;
	}
	return least;
}

/* Do warpgroups take the network? Rows of weights are multiples of 16 bytes for them, and target parameters lie behind the online ones. */
int group_takes(const struct cuda_exec *c)
{
	const struct dqn_dims *d = &c->dims;

	for (int l = 0; l < d->layers; l++)
		if (d->layer[l].in % 8 || d->layer[l].w % 8)
			return 0;
	return cuda_warpgroups(c) && d->SD <= GROUP_DEEP && max(d->H1, d->H2) <= GROUP_PANELS * GROUP_DEEP && max(d->VH, d->AH) <= HEAD_PANELS * GROUP_DEEP && c->x.tensor[T_TARGET_LP] > c->x.tensor[T_PARAM_LP];
}

/* Which block, -1: none fits. Bits do not depend on it. */
int block_of(struct cuda_exec *c, const struct mlp_args *x, int eights)
{
	const size_t shared = cuda_shared_most(c);
	const int asked = cuda_wide_asked();
	int best = -1, height[2];
	long least = 0;

	for (int b = 0; b < BLOCKS; b++) {
		const long tiles = tiles_of(x, block[b].rows), busy = min(tiles, (long)c->multiprocessors);
		const long waves = (tiles + c->multiprocessors - 1) / c->multiprocessors;
		const long cost = b == GROUP ? choose_heights(c, x, height) : waves * max((long)block[b].cost, WEIGHTS_COST * busy / c->multiprocessors);

		/* for actions a warp takes 16 rows: fewer than 64 would leave most idle */
		if (eights && b < 2)
			continue;
		if ((b == GROUP && !group_takes(c)) || shared_bytes(x, b, eights) > shared)
			continue;
		if (b == GROUP ? asked > GROUP_ASKED : block[b].rows == asked)
			return b;
		if (best < 0 || cost < least)
			best = b, least = cost;
	}
	return best;
}

typedef void (*mlp_kernel)(struct mlp_args);
template <int J> mlp_kernel kernel_of(int b)
{
	if constexpr (J == 0) {
		static const mlp_kernel kernel[GROUP] = {k_mlp<shape<1, 4>, J>, k_mlp<shape<2, 4>, J>, k_mlp<shape<2, 8>, J>, k_mlp<shape<3, 8>, J>, k_mlp<shape<4, 8>, J>};
		return kernel[b];
	} else {
		static const mlp_kernel kernel[GROUP] = {NULL, NULL, k_mlp<shape<2, 8>, J>, k_mlp<shape<3, 8>, J>, k_mlp<shape<4, 8>, J>};
		return kernel[b];
	}
}

/* The maps of what the kernel by warpgroups reads and writes, and its layers. 0: there are no such maps. */
int group_describe(struct cuda_exec *c, const struct mlp_args *a, int eights, struct mlp_group_args *x)
{
	const struct dqn_dims *d = &c->dims;
	const char *const weight = (const char *)a->weight[0]; /* of the first trial */
	const uint64_t trial = (uint64_t)d->params * sizeof(bf16), trials = (uint64_t)a->trials;
	const int both = a->passes > 1 || a->pass[0].target; /* else weight[1] is not looked at */
	const uint64_t network = both ? (uint64_t)((const char *)a->weight[1] - weight) : trial;

	for (int l = 0; l < d->layers; l++) {
		const struct dqn_layer *q = &d->layer[l];
		const int action = eights && l > 2 && l % 2 == 1, actions = !action || l == 3 ? 1 : d->A[(l - 5) / 2];
		const int most = eights == 7 ? (int)part<7>::MOST : (int)part<4>::MOST, rows = action ? d->NA : q->out;
		const uint64_t row = (uint64_t)q->in * sizeof(bf16), size[5] = {(uint64_t)q->in, (uint64_t)rows, (uint64_t)actions, trials, both ? 2u : 1u};
		const uint64_t stride[4] = {row, row * (uint64_t)rows, trial, network};
		const uint32_t box[5] = {GROUP_DEEP, action ? (uint32_t)eights * 8 : (uint32_t)GROUP_HALF, action ? (uint32_t)most : 1, 1, 1};

		x->layer[l] = {q->in, q->out, (int)q->b};
		if (!cuda_tensor_map(&x->weight[l], weight + q->w * (int64_t)sizeof(bf16), 5, size, stride, box))
			return 0;
		if (l < 2)
			x->stages += 2 * (l == 0 ? 1 : (int)GROUP_PANELS);
		else
			x->stages += l % 2 == 0 ? (int)GROUP_PANELS : HEAD_PANELS * (action ? cuda_tiles(actions, most) : cuda_tiles(q->out, GROUP_HALF));
	}
	for (int i = 0, col = 0; a->out && a->hidden[0] && i < 3 + d->D; i++) {
		const int to = i < 2 ? i : 2, n = i == 0 ? d->H1 : i == 1 ? d->H2 : i == 2 ? d->VH : d->AH, columns = cuda_pad16(n);
		const uint64_t rows = (uint64_t)(a->pass[0].row + a->pass[0].keep), size[3] = {(uint64_t)columns, rows, trials};
		const uint64_t stride[2] = {(uint64_t)a->ldhidden[to] * sizeof(bf16), a->hidden_trial[to]};
		static const uint32_t box[3] = {GROUP_DEEP, GROUP_ROWS, 1};

		if (!cuda_tensor_map(&x->keep[i], a->hidden[to] + col, 3, size, stride, box))
			return 0;
		col = i < 2 ? 0 : col + columns;
	}
	for (int h = 0; h <= d->D; h++)
		x->seg[h] = c->s.seg[h];
	for (int i = 0; i < d->D; i++)
		x->actions[i] = d->A[i];
	x->x = a->x, x->obs = a->obs, x->x_trial = a->x_trial, x->ldx = a->ldx;
	x->bias[0] = a->bias[0], x->bias[1] = a->bias[1], x->params = a->params;
	x->out = a->out, x->out_trial = a->out_trial, x->ldo = a->ldo;
	x->action = a->action, x->action_trial = a->action_trial, x->clock = a->clock, x->random = a->random;
	x->tiles = a->tiles, x->trials = a->trials, x->passes = a->passes, x->first_tile = a->first_tile;
	memcpy(x->pass, a->pass, sizeof x->pass);
	x->branches = d->D, x->atoms = d->NA;
	return 1;
}

template <typename Args>
int launch(struct cuda_exec *c, void (*kernel)(Args), unsigned threads, int plain, const Args &x, size_t bytes, const char *what, struct fh_status *st)
{
	const dim3 grid(min(x.tiles * x.trials, c->multiprocessors));
	cudaError_t e;

	CUDA_TRY(cuda_allow_shared(c, kernel));
	e = plain ? cuda_launch_plain(c->stream, kernel, grid, threads, bytes, x) : cuda_launch(c, kernel, grid, threads, bytes, x);
	return e == cudaSuccess ? 0 : cuda_fail(st, e, what);
}

int start(struct cuda_exec *c, struct mlp_args *x, int greedy, const char *what, struct fh_status *st)
{
	const int eights = greedy ? eights_of(x->atoms) : 0, b = block_of(c, x, eights);
	const int plain = greedy || x->obs; /* the first launch of a step: what was in front may have written the weights */
	int height[2] = {};

	if (b < 0)
		return fh_fail(st, FH_INTERNAL, "%s: no tile fits", what); /* mlp_takes() said otherwise */
	height[0] = height[1] = block[b].rows;
	if (b == GROUP)
		choose_heights(c, x, height);
	x->first_tile = cuda_tiles(x->pass[0].rows, height[0]); /* of the second pass, where there is one */
	x->tiles = x->first_tile + (x->passes > 1 ? cuda_tiles(x->pass[1].rows, height[1]) : 0);
	if (b < GROUP)
		return launch(c, eights == 7 ? kernel_of<7>(b) : eights == 4 ? kernel_of<4>(b) : kernel_of<0>(b), THREADS, plain, *x, shared_bytes(x, b, eights), what, st);
	struct mlp_group_args group = {};

	if (!group_describe(c, x, eights, &group))
		return fh_fail(st, FH_DEVICE, "%s: no map of its tensors", what);
	memcpy(group.height, height, sizeof height);
	return launch(c, eights == 7 ? k_mlp_group<7> : eights == 4 ? k_mlp_group<4> : k_mlp_group<0>, GROUP_THREADS, plain, group, shared_bytes(x, b, eights), what, st);
}

} // namespace

int mlp_takes(struct cuda_exec *c, int trials, int rows, int greedy)
{
	struct mlp_args x;

	const int enough = greedy ? (int)GREEDY_ENOUGH : c->crowded && cuda_warpgroups(c) ? (int)CROWD_ENOUGH : (int)OUTPUTS_ENOUGH;

	if (c->sync || !cuda_wide((long)trials * rows >= enough))
		return 0;
	if ((greedy && !eights_of(c->dims.NA)) || !describe(c, greedy, &x))
		return 0;
	x.trials = trials;
	x.passes = 1;
	x.pass[0].rows = rows;
	const int b = block_of(c, &x, greedy ? eights_of(c->dims.NA) : 0);
	/* Where no larger block fits, many small ones would read the weights too often. */
	return b >= 0 && (block[b].rows > 32 || cuda_wide_asked() > 0 || tiles_of(&x, block[b].rows) <= 2L * c->multiprocessors);
}

int mlp_forward(struct cuda_exec *c, const struct mlp_pass *pass, int passes, struct fh_status *st)
{
	const struct cuda_scratch *s = &c->s;
	const struct cuda_array *hidden[3] = {&s->h1, &s->h2, &s->head};
	const int ld[3] = {s->ldh1, s->ldh2, s->ldhead};
	struct mlp_args x;

	if (!describe(c, 0, &x))
		return fh_fail(st, FH_INTERNAL, "forward: the network does not fit");
	x.x = cuda_at<bf16>(c, &s->x), x.x_trial = s->x.stride;
	for (int i = 0; i < 3; i++)
		x.hidden[i] = cuda_at<bf16>(c, hidden[i]), x.hidden_trial[i] = hidden[i]->stride, x.ldhidden[i] = ld[i];
	x.out = cuda_at<float>(c, &s->out), x.out_trial = s->out.stride, x.ldo = s->ldo;
	x.passes = passes;
	memcpy(x.pass, pass, sizeof *pass * (size_t)passes);
	return start(c, &x, 0, "launch of the forward pass", st);
}

int mlp_outputs(struct cuda_exec *c, struct fh_status *st)
{
	const struct dqn_dims *d = &c->dims;
	struct mlp_args x;

	if (!describe(c, 0, &x))
		return fh_fail(st, FH_INTERNAL, "policy: the network does not fit");
	x.obs = cuda_tensor<float>(c, T_OBS), x.x_trial = (size_t)d->N * d->SD * sizeof(float);
	x.out = cuda_at<float>(c, &c->s.pout), x.out_trial = c->s.pout.stride, x.ldo = c->s.ldo;
	x.passes = 1;
	x.pass[0].rows = d->N;
	return start(c, &x, 0, "launch of the policy's outputs", st);
}

int mlp_policy(struct cuda_exec *c, struct fh_status *st)
{
	const struct dqn_dims *d = &c->dims;
	struct mlp_args x;

	if (!describe(c, 1, &x))
		return fh_fail(st, FH_INTERNAL, "policy: the network does not fit");
	x.obs = cuda_tensor<float>(c, T_OBS), x.x_trial = (size_t)d->N * d->SD * sizeof(float);
	x.action = cuda_tensor<int32_t>(c, T_ACTION), x.action_trial = (size_t)d->N * d->D * sizeof(int32_t);
	x.random = 1;
	x.passes = 1;
	x.pass[0].rows = d->N;
	return start(c, &x, 1, "launch of the policy", st);
}

int mlp_rows_greedy(struct cuda_exec *c, int whose, int trial, int trials, int rows, const void *states, int32_t *action, struct fh_status *st)
{
	struct mlp_args x;

	if (!mlp_takes(c, trials, rows, 1))
		return 1;
	if (!describe(c, 1, &x))
		return fh_fail(st, FH_INTERNAL, "actions: the network does not fit");
	x.x = (const bf16 *)states, x.x_trial = (size_t)rows * x.ldx * sizeof(bf16);
	x.action = action, x.action_trial = (size_t)rows * c->dims.D * sizeof *action;
	x.trials = trials;
	x.weight[0] = (const bf16 *)cuda_weights(c, whose) + trial * x.params;
	x.bias[0] = cuda_params(c, whose) + trial * x.params;
	x.clock += trial;
	x.passes = 1;
	x.pass[0].rows = rows;
	return start(c, &x, 1, "launch of the actions", st);
}
