/* The keys every model shares (data, env, run, init) and the list of models, put together once into one table.
 *
 * Owns the merged table, written once under pthread_once and read only afterwards; any thread. Print order: model and
 * data, then what the model brings (net, learn, replay, collect), then env, run and init. */
#include "gpu/spec_keys.h"
#include "gpu/evaluate.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#define INT64_LO -9223372036854775808.0
#define INT64_HI 9223372036854775807.0

static const struct spec_choice precision_words[] = {
	{"auto", FH_PRECISION_AUTO}, {"f32", FH_PRECISION_F32}, {"tf32", FH_PRECISION_TF32},
	{"bf16", FH_PRECISION_BF16}, {NULL, 0},
};
static const struct spec_choice device_words[] = {
	{"auto", FH_DEVICE_AUTO}, {"host", FH_DEVICE_HOST}, {"cuda", FH_DEVICE_CUDA}, {NULL, 0},
};
static const struct spec_choice policy_words[] = {
	{"target", FH_POLICY_TARGET}, {"online", FH_POLICY_ONLINE}, {NULL, 0},
};
static const struct spec_choice interrupt_words[] = {
	{"resume", FH_INTERRUPT_RESUME}, {"fail", FH_INTERRUPT_FAIL}, {NULL, 0},
};
static const struct spec_choice init_words[] = {
	{"fresh", FH_INIT_FRESH}, {"warm", FH_INIT_WARM}, {"checkpoint", FH_INIT_CHECKPOINT}, {NULL, 0},
};
static const struct spec_choice roll_words[] = {{"no", FH_ROLL_NO}, {"yes", FH_ROLL_YES}, {NULL, 0}};
static const struct spec_choice gap_words[] = {{"no", FH_GAP_RETURNS_NO}, {"yes", FH_GAP_RETURNS_YES}, {NULL, 0}};
static const struct spec_choice carry_words[] = {
	{"clear", FH_CARRY_CLEAR}, {"keep", FH_CARRY_KEEP}, {NULL, 0},
};

static const struct spec_key head_keys[] = {
	{"model", SPEC_NAME, KEY_AT(model), 0, 0, "dqn", SPEC_SHAPE, NULL, "which program trains; dqn is the only one"},
	{"data.dataset", SPEC_NAME, KEY_AT(data.dataset), 0, 0, NULL, SPEC_REQUIRED, NULL,
	 "name of a registered data set (fhctl dataset list)"},
	{"data.train", SPEC_REAL, KEY_AT(data.train), 0, 1, "0.7", SPEC_OPEN_LO, NULL,
	 "fraction of the bars, first in time, that the agent learns from"},
	{"data.validation", SPEC_REAL, KEY_AT(data.validation), 0, 1, "0.15", 0, NULL,
	 "fraction of the bars after that, evaluated during training; 0 = none"},
	{"data.test", SPEC_REAL, KEY_AT(data.test), 0, 1, "0.15", 0, NULL,
	 "fraction of the bars after that, evaluated once at the end; 0 = none"},
	{"data.embargo", SPEC_INT, KEY_AT(data.embargo), 0, 1e6, "144", 0, NULL,
	 "bars left out between two splits, taken from the start of the later one"},
};

static const struct spec_key tail_keys[] = {
	{"env.tick", SPEC_REAL, KEY_AT(env.tick), 1e-12, 1e9, "0.01", 0, NULL,
	 "price units; smallest price step, also the floor of |price| in denominators"},
	{"env.multiplier", SPEC_REAL, KEY_AT(env.multiplier), 0, 1e9, "1", SPEC_OPEN_LO, NULL,
	 "money per price unit and contract"},
	{"env.half_spread", SPEC_REAL, KEY_AT(env.half_spread), 0, 1e9, "0", 0, NULL,
	 "price units paid on market and ioc fills and on stop and horizon exits"},
	{"env.fee", SPEC_REAL, KEY_AT(env.fee), 0, 1e9, "0", 0, NULL, "money per contract and side"},
	{"env.max_position", SPEC_REAL, KEY_AT(env.max_position), 0, 1e12, "1", SPEC_OPEN_LO, NULL,
	 "contracts; position at full exposure"},
	{"env.lot", SPEC_REAL, KEY_AT(env.lot), 0, 1e12, "1", 0, NULL,
	 "contracts; smallest quantity, 0 = any fraction"},
	{"env.initial_cash", SPEC_REAL, KEY_AT(env.initial_cash), 0, 1e15, "100000", SPEC_OPEN_LO, NULL,
	 "money at the start of every episode"},
	{"env.reward_scale", SPEC_REAL, KEY_AT(env.reward_scale), 0, 1e18, "auto", SPEC_AUTO, NULL,
	 "reward per (equity change / initial_cash); auto = a bar at full size has a reward std near 1"},
	{"env.episode_length", SPEC_INT, KEY_AT(env.episode_length), 1, 1e7, "256", 0, NULL,
	 "bars after which a training episode is cut (it still bootstraps)"},
	{"env.horizon", SPEC_INT, KEY_AT(env.horizon), 1, 1e7, "60", 0, NULL,
	 "bars after which a position is closed; barriers scale with its square root"},
	{"env.pt", SPEC_REAL, KEY_AT(env.pt), 0, 1e6, "2", SPEC_OPEN_LO, NULL,
	 "sigma*sqrt(horizon); distance of the profit barrier, large = off"},
	{"env.sl", SPEC_REAL, KEY_AT(env.sl), 0, 1e6, "2", SPEC_OPEN_LO, NULL,
	 "sigma*sqrt(horizon); distance of the stop, large = off"},
	{"env.ruin_fraction", SPEC_REAL, KEY_AT(env.ruin_fraction), 0, 1, "0.5", 0, NULL,
	 "the episode ends when equity <= this * initial_cash"},
	{"env.max_gap", SPEC_REAL, KEY_AT(env.max_gap), 0, 1e10, "0", 0, NULL,
	 "seconds; no order is filled across a longer gap between two bars, 0 = any gap"},
	{"env.gap_returns", SPEC_ENUM, KEY_AT(env.gap_returns), 0, 0, "no", 0, gap_words,
	 "whether features take the return over a gap longer than max_gap for one bar's"},
	{"env.roll_on_symbol_change", SPEC_ENUM, KEY_AT(env.roll_on_symbol_change), 0, 0, "yes", 0, roll_words,
	 "where the contract changes a position is closed at the old close and opened at the new open; no = it earns the step"},

	{"run.epochs", SPEC_INT, KEY_AT(run.epochs), 1, 1e6, "10", 0, NULL, "epochs; learn steps = epochs * steps_per_epoch"},
	{"run.steps_per_epoch", SPEC_INT, KEY_AT(run.steps_per_epoch), 1, 1e9, "300", 0, NULL, "learn steps of one epoch"},
	{"run.validate_every", SPEC_INT, KEY_AT(run.validate_every), 0, 1e12, "250", 0, NULL,
	 "learn steps between validations; 0 = only at the end"},
	{"run.report_every", SPEC_INT, KEY_AT(run.report_every), 0, 1e12, "100", 0, NULL,
	 "learn steps between training reports; 0 = never"},
	{"run.checkpoint_every", SPEC_INT, KEY_AT(run.checkpoint_every), 0, 1e12, "1000", 0, NULL,
	 "learn steps between checkpoints; 0 = only at the end"},
	{"run.keep_checkpoints", SPEC_INT, KEY_AT(run.keep_checkpoints), 1, 1000, "3", 0, NULL,
	 "newest checkpoints of the job that are kept (saved ones are never dropped)"},
	{"run.seed", SPEC_INT, KEY_AT(run.seed), INT64_LO, INT64_HI, "1", 0, NULL,
	 "any 64-bit number; the same seed gives the same bits"},
	{"run.precision", SPEC_ENUM, KEY_AT(run.precision), 0, 0, "auto", SPEC_SHAPE, precision_words,
	 "auto (f32 on the host, bf16 on a GPU), f32, tf32, bf16"},
	{"run.device", SPEC_ENUM, KEY_AT(run.device), 0, 0, "auto", SPEC_SHAPE, device_words, "auto, host, cuda"},
	{"run.population", SPEC_INT, KEY_AT(run.population), 1, 1024, "1", SPEC_SHAPE, NULL,
	 "independent trials side by side; trial p uses seed + p"},
	{"run.slots", SPEC_INT, KEY_AT(run.slots), 1, 64, "1", 0, NULL, "worker slots the job takes"},
	{"run.priority", SPEC_INT, KEY_AT(run.priority), -100, 100, "0", 0, NULL, "higher runs first"},
	{"run.validate_policy", SPEC_ENUM, KEY_AT(run.validate_policy), 0, 0, "target", 0, policy_words,
	 "network that validation uses: target (smoother) or online"},
	{"run.validate_windows", SPEC_INT, KEY_AT(run.validate_windows), 1, EVAL_WINDOWS_MAX, "1", 0, NULL,
	 "equal parts of a split that evaluations during training play as episodes of their own, side by side; 1 = the whole split"},
	{"run.on_interrupt", SPEC_ENUM, KEY_AT(run.on_interrupt), 0, 0, "resume", 0, interrupt_words,
	 "after a daemon restart: resume from the last checkpoint or fail"},

	{"init.from", SPEC_ENUM, KEY_AT(init.from), 0, 0, "fresh", 0, init_words,
	 "fresh (by seed), warm (last job of the same layout), checkpoint"},
	{"init.checkpoint", SPEC_NAME, KEY_AT(init.checkpoint), 0, 0, NULL, 0, NULL, "checkpoint id, with init.from = checkpoint"},
	{"init.replay", SPEC_ENUM, KEY_AT(init.replay), 0, 0, "clear", 0, carry_words,
	 "clear, or keep the transitions of the last job on the same market"},
};

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

static const struct spec_model *const models[] = {&spec_model_dqn};

static struct spec_key table[SPEC_KEY_MAX];
static int table_keys;
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void append(const struct spec_key *key, int n)
{
	assert(table_keys + n <= SPEC_KEY_MAX);
	memcpy(table + table_keys, key, sizeof *key * (size_t)n);
	table_keys += n;
}

static void table_make(void)
{
	append(head_keys, COUNT(head_keys));
	for (int i = 0; i < COUNT(models); i++)
		append(models[i]->key, models[i]->keys);
	append(tail_keys, COUNT(tail_keys));
}

const struct spec_key *spec_keys(int *n)
{
	pthread_once(&table_once, table_make);
	if (n)
		*n = table_keys;
	return table;
}

const struct spec_key *spec_key_find(const char *path)
{
	int n;
	const struct spec_key *key = spec_keys(&n);
	for (int i = 0; i < n; i++)
		if (strcmp(key[i].path, path) == 0)
			return key + i;
	return NULL;
}

const struct spec_model *spec_model_find(const char *name)
{
	for (int i = 0; i < COUNT(models); i++)
		if (strcmp(models[i]->name, name) == 0)
			return models[i];
	return NULL;
}
