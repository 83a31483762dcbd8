/* What the DQN adds to a job specification: sections net, learn, replay and collect. Pure data, any thread. */
#include "gpu/dqn/dqn.h"
#include "gpu/spec_keys.h"

#include "proto/status.h"

static const struct spec_choice loss_words[] = {{"c51", FH_LOSS_C51}, {"mse", FH_LOSS_MSE}, {NULL, 0}};
static const struct spec_choice schedule_words[] = {
	{"constant", FH_SCHEDULE_CONSTANT}, {"linear", FH_SCHEDULE_LINEAR}, {NULL, 0},
};

static const struct spec_key keys[] = {
	{"net.trunk1", SPEC_INT, KEY_AT(net.trunk1), 1, 4096, "256", SPEC_SHAPE, NULL, "units of the first trunk layer"},
	{"net.trunk2", SPEC_INT, KEY_AT(net.trunk2), 1, 4096, "256", SPEC_SHAPE, NULL, "units of the second trunk layer"},
	{"net.value_hidden", SPEC_INT, KEY_AT(net.value_hidden), 1, 4096, "128", SPEC_SHAPE, NULL,
	 "units of the value head's hidden layer"},
	{"net.advantage_hidden", SPEC_INT, KEY_AT(net.advantage_hidden), 1, 4096, "128", SPEC_SHAPE, NULL,
	 "units of each branch's hidden layer"},
	{"net.atoms", SPEC_INT, KEY_AT(net.atoms), 2, 1001, "51", SPEC_SHAPE, NULL, "points of the return distribution"},
	{"net.v_min", SPEC_REAL, KEY_AT(net.v_min), -1e9, 1e9, "-10", 0, NULL,
	 "reward; lowest return the distribution can hold"},
	{"net.v_max", SPEC_REAL, KEY_AT(net.v_max), -1e9, 1e9, "10", 0, NULL,
	 "reward; highest return the distribution can hold"},

	{"learn.loss", SPEC_ENUM, KEY_AT(learn.loss), 0, 0, "c51", SPEC_SHAPE, loss_words,
	 "c51 (distribution, cross-entropy) or mse (its mean, squared error)"},
	{"learn.n_step", SPEC_INT, KEY_AT(learn.n_step), 1, 64, "1", SPEC_SHAPE, NULL, "rewards summed before bootstrapping"},
	{"learn.batch", SPEC_INT, KEY_AT(learn.batch), 1, 65536, "auto", SPEC_SHAPE | SPEC_AUTO, NULL,
	 "transitions of one learn step; auto = 128 on the host, 256 on a GPU"},
	{"learn.warmup", SPEC_INT, KEY_AT(learn.warmup), 1, 1e9, "2000", 0, NULL,
	 "transitions stored before the first learn step"},
	{"learn.steps_per_collect", SPEC_INT, KEY_AT(learn.steps_per_collect), 1, 1024, "1", 0, NULL,
	 "learn steps after each step of all environments"},
	{"learn.gamma", SPEC_REAL, KEY_AT(learn.gamma), 0, 1, "0.9", 0, NULL, "discount per bar"},
	{"learn.lr", SPEC_REAL, KEY_AT(learn.lr), 0, 1, "3e-4", SPEC_OPEN_LO, NULL, "learning rate of Adam"},
	{"learn.lr_end", SPEC_REAL, KEY_AT(learn.lr_end), 0, 1, "3e-5", 0, NULL,
	 "learning rate at the last planned step, used when lr_schedule = linear"},
	{"learn.lr_schedule", SPEC_ENUM, KEY_AT(learn.lr_schedule), 0, 0, "constant", 0, schedule_words,
	 "constant, or linear from lr to lr_end"},
	{"learn.max_grad_norm", SPEC_REAL, KEY_AT(learn.max_grad_norm), 0, 1e9, "1", SPEC_OPEN_LO, NULL,
	 "gradients with a larger norm are scaled down to it"},
	{"learn.weight_decay", SPEC_REAL, KEY_AT(learn.weight_decay), 0, 1, "0", 0, NULL, "decoupled from the gradient, times lr"},
	{"learn.tau", SPEC_REAL, KEY_AT(learn.tau), 0, 1, "0.005", SPEC_OPEN_LO, NULL,
	 "share of the new parameters that enters the target network each step"},
	{"learn.target_period", SPEC_INT, KEY_AT(learn.target_period), 0, 1e12, "0", 0, NULL,
	 "applied updates between hard copies to the target network; 0 = moving average with tau"},

	{"replay.capacity", SPEC_INT, KEY_AT(replay.capacity), 16, 67108864, "auto", SPEC_SHAPE | SPEC_AUTO | SPEC_POW2, NULL,
	 "transitions, a power of two; auto = 32768 on the host, 131072 on a GPU"},
	{"replay.alpha", SPEC_REAL, KEY_AT(replay.alpha), 0, 2, "0.6", 0, NULL,
	 "how much the error decides what is sampled; 0 = uniform"},
	{"replay.beta", SPEC_REAL, KEY_AT(replay.beta), 0, 1, "0.4", 0, NULL, "importance correction at the first step"},
	{"replay.beta_end", SPEC_REAL, KEY_AT(replay.beta_end), 0, 1, "1", 0, NULL,
	 "importance correction at the last planned step"},

	{"collect.envs", SPEC_INT, KEY_AT(collect.envs), 1, 65536, "32", SPEC_SHAPE, NULL, "environments side by side"},
	{"collect.eps_steps", SPEC_INT, KEY_AT(collect.eps_steps), 1, 1e12, "1000", 0, NULL,
	 "vector steps over which exploration goes from eps_start to eps_end"},
	{"collect.eps_start", SPEC_REAL, KEY_AT(collect.eps_start), 0, 1, "1", 0, NULL,
	 "share of random actions at the first step, per branch"},
	{"collect.eps_end", SPEC_REAL, KEY_AT(collect.eps_end), 0, 1, "0.05", 0, NULL,
	 "share of random actions from eps_steps on, per branch"},
};

/* Where batch or capacity is still `auto`, the most permissive of the two defaults counts; the resolved specification
 * is checked again before a trainer is made. */
static int check(const struct fh_spec *s, struct fh_status *st)
{
	int64_t batch = s->learn.batch ? s->learn.batch : 1;
	int64_t capacity = s->replay.capacity ? s->replay.capacity : INT64_MAX;

	if (!(s->net.v_min < s->net.v_max))
		return fh_fail_field(st, FH_INVALID, "net.v_min", "net.v_min is %g, it must be below net.v_max, which is %g",
				     s->net.v_min, s->net.v_max);
	if (s->run.device == FH_DEVICE_CUDA && s->net.atoms > DQN_CUDA_ATOMS_MAX)
		return fh_fail_field(st, FH_INVALID, "net.atoms",
				     "net.atoms is %lld, it must not be above %d where run.device is cuda (host takes any)",
				     (long long)s->net.atoms, DQN_CUDA_ATOMS_MAX);
	if (s->learn.warmup > capacity)
		return fh_fail_field(st, FH_INVALID, "learn.warmup",
				     "learn.warmup is %lld, it must not be above replay.capacity, which is %lld",
				     (long long)s->learn.warmup, (long long)capacity);
	if (batch > s->learn.warmup)
		return fh_fail_field(st, FH_INVALID, "learn.batch",
				     "learn.batch is %lld, it must not be above learn.warmup, which is %lld",
				     (long long)batch, (long long)s->learn.warmup);
	/* One vector step stores at most n transitions per environment; they must not overwrite each other. */
	if (s->collect.envs * s->learn.n_step > capacity)
		return fh_fail_field(st, FH_INVALID, "collect.envs",
				     "collect.envs * learn.n_step is %lld, it must not be above replay.capacity, which is %lld",
				     (long long)(s->collect.envs * s->learn.n_step), (long long)capacity);
	return 0;
}

const struct spec_model spec_model_dqn = {"dqn", keys, sizeof keys / sizeof keys[0], check};
