/* What a job asks of the trainer, as plain numbers, and the table that describes every key of it.
 *
 * The table is the one place where a key has its type, range, default and help text. proto/spec.c walks it to move
 * values between the protobuf JobSpec (same dotted path), YAML/JSON text and this struct; `fhctl spec` prints it.
 * A key is SHAPE when another value means another tensor layout (a new trainer), else SCALAR: it lives in device
 * memory and a parked trainer takes a new value without re-allocation. Pure data, any thread. */
#ifndef FH_GPU_SPEC_H
#define FH_GPU_SPEC_H

#include <stddef.h>
#include <stdint.h>

struct fh_status;

enum fh_loss { FH_LOSS_C51 = 1, FH_LOSS_MSE = 2 };
enum fh_precision { FH_PRECISION_AUTO = 1, FH_PRECISION_F32 = 2, FH_PRECISION_TF32 = 3, FH_PRECISION_BF16 = 4 };
enum fh_device { FH_DEVICE_AUTO = 1, FH_DEVICE_HOST = 2, FH_DEVICE_CUDA = 3 };
enum fh_init { FH_INIT_FRESH = 1, FH_INIT_WARM = 2, FH_INIT_CHECKPOINT = 3 };
enum fh_carry { FH_CARRY_CLEAR = 1, FH_CARRY_KEEP = 2 };
enum fh_schedule { FH_SCHEDULE_CONSTANT = 1, FH_SCHEDULE_LINEAR = 2 };
enum fh_policy { FH_POLICY_TARGET = 1, FH_POLICY_ONLINE = 2 };
enum fh_gap_returns { FH_GAP_RETURNS_NO = 1, FH_GAP_RETURNS_YES = 2 }; /* a long gap's return is one bar's for the features */
enum fh_roll { FH_ROLL_NO = 1, FH_ROLL_YES = 2 };
enum fh_interrupt { FH_INTERRUPT_RESUME = 1, FH_INTERRUPT_FAIL = 2 };

#define FH_NAME_MAX 65       /* [A-Za-z0-9._-]{1,64} and the terminator */
#define FH_BRANCH_MAX 4
#define FH_MARKET_FEATURES 40
#define FH_PORTFOLIO_FEATURES 8
#define FH_STATE_DIM (FH_MARKET_FEATURES + FH_PORTFOLIO_FEATURES)

/* 0 stands for `auto` in fields whose key has SPEC_AUTO; spec_resolve() puts the number there. */
struct fh_spec {
	char model[FH_NAME_MAX]; /* "dqn" */
	struct {
		char dataset[FH_NAME_MAX];
		double train, validation, test; /* fractions of the bars after each other, sum <= 1 */
		int64_t embargo;                /* bars left out between two splits */
	} data;
	struct {
		int64_t trunk1, trunk2;              /* H1, H2 */
		int64_t value_hidden, advantage_hidden; /* VH, AH */
		int64_t atoms;                       /* NA */
		double v_min, v_max;
	} net;
	struct {
		int loss; /* enum fh_loss */
		int64_t n_step, batch, warmup; /* warmup: transitions stored before the first learn step */
		int64_t steps_per_collect;     /* learn steps after each vector environment step */
		double gamma, lr, lr_end;
		int lr_schedule; /* enum fh_schedule */
		double max_grad_norm, weight_decay, tau;
		int64_t target_period; /* 0: moving average with tau; else hard copy every so many applied updates */
	} learn;
	struct {
		int64_t capacity; /* power of two */
		double alpha, beta, beta_end;
	} replay;
	struct {
		int64_t envs, eps_steps; /* eps_steps in vector steps */
		double eps_start, eps_end;
	} collect;
	struct {
		double tick, multiplier, half_spread, fee, max_position, lot, initial_cash, reward_scale;
		int64_t episode_length, horizon;
		double pt, sl, ruin_fraction;
		double max_gap;  /* seconds; 0: none */
		int gap_returns; /* enum fh_gap_returns */
		int roll_on_symbol_change; /* enum fh_roll */
	} env;
	struct {
		int64_t epochs, steps_per_epoch; /* planned learn steps = product */
		int64_t validate_every, report_every, checkpoint_every, keep_checkpoints; /* learn steps; 0 = never */
		int64_t seed; /* any 64-bit pattern */
		int precision, device; /* enum fh_precision, enum fh_device */
		int64_t population, slots, priority;
		int validate_policy; /* enum fh_policy */
		int64_t validate_windows; /* episodes that an evaluation during training cuts a split into */
		int on_interrupt;    /* enum fh_interrupt */
	} run;
	struct {
		int from; /* enum fh_init */
		char checkpoint[FH_NAME_MAX]; /* id, when from = checkpoint */
		int replay;                   /* enum fh_carry */
	} init;
};

enum spec_type { SPEC_INT, SPEC_REAL, SPEC_ENUM, SPEC_NAME };
enum { SPEC_SHAPE = 1, SPEC_AUTO = 2, SPEC_POW2 = 4, SPEC_REQUIRED = 8, SPEC_OPEN_LO = 16 /* value > lo, not >= */ };

struct spec_choice { const char *word; int value; };

struct spec_key {
	const char *path;        /* "learn.lr": the protobuf field path and the YAML path */
	enum spec_type type;
	size_t offset;           /* into struct fh_spec */
	double lo, hi;           /* inclusive range of numbers (SPEC_OPEN_LO: lo is excluded) */
	const char *def;         /* default as text, "auto" with SPEC_AUTO, NULL for none (required or empty) */
	unsigned flags;
	const struct spec_choice *choice; /* SPEC_ENUM: ends with {NULL, 0} */
	const char *help;        /* one line; unit first where there is one */
};

/* All keys in print order: the shell's own and the model's. `*n` gets the count. Static storage. */
const struct spec_key *spec_keys(int *n);
const struct spec_key *spec_key_find(const char *path);
/* Every key at its default ("auto" as 0). */
void spec_defaults(struct fh_spec *spec);
/* One key from text ("3e-4", "auto", "c51"); checks type and range. FH_INVALID with field = path. */
int spec_set(struct fh_spec *spec, const struct spec_key *key, const char *text, struct fh_status *st);
/* One key to text that spec_set() reads back to the same bits. */
void spec_get(const struct fh_spec *spec, const struct spec_key *key, char *text, size_t size);
/* Ranges of every key and the rules between keys (v_min < v_max, fractions <= 1, warmup <= capacity, batch <=
 * warmup, population only with slots that …). FH_INVALID names the first key at fault. Accepts `auto`. */
int spec_check(const struct fh_spec *spec, struct fh_status *st);
/* Replaces every `auto` but env.reward_scale (that one needs the market) for the device that will run the job:
 * batch 128/256, capacity 32768/131072, precision f32/bf16, device itself. */
void spec_resolve(struct fh_spec *spec, enum fh_device device);
/* spec.run.epochs * spec.run.steps_per_epoch. */
int64_t spec_planned_steps(const struct fh_spec *spec);
/* The splits of T bars: train, validation, test [begin, end), `embargo` bars left out between two of them. */
struct fh_split { int64_t begin, end; };
enum { FH_SPLIT_TRAIN, FH_SPLIT_VALIDATION, FH_SPLIT_TEST, FH_SPLITS };
/* FH_INVALID naming data.* when a split that is asked for (fraction > 0) is too short: the training split needs
 * warm-up 144 + 2 bars, the others 2 bars after max(begin, 144). Names both numbers. */
int spec_splits(const struct fh_spec *spec, int64_t bars, struct fh_split split[FH_SPLITS], struct fh_status *st);

#endif
