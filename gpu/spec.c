/* Values of a job specification: defaults, text in and out, ranges, rules between keys, splits. Pure, any thread.
 *
 * Invariant: a struct fh_spec that passed spec_check() and spec_resolve() holds a number in every field that a
 * trainer reads, except env.reward_scale = 0 (auto), which needs the market. The keys are in spec_keys.c. */
#include "gpu/spec_keys.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/market.h"
#include "proto/status.h"

#define FRACTION_SLACK 1e-9 /* 0.7 + 0.15 + 0.15 is a little above 1 */
#define EXACT_INT 9007199254740992.0 /* 2^53: a real such as 1e6 is taken for an integer up to here */
#define WHOLE_MAX 1e9 /* whole reals below it are written without an exponent */

static int64_t *int_at(const struct fh_spec *s, const struct spec_key *k) { return (int64_t *)((char *)s + k->offset); }
static double *real_at(const struct fh_spec *s, const struct spec_key *k) { return (double *)((char *)s + k->offset); }
static int *enum_at(const struct fh_spec *s, const struct spec_key *k) { return (int *)((char *)s + k->offset); }
static char *name_at(const struct fh_spec *s, const struct spec_key *k) { return (char *)s + k->offset; }

/* "0 < learn.lr <= 1" and the like, for messages. */
static void range_text(const struct spec_key *k, char *out, size_t size)
{
	snprintf(out, size, "%.16g %s value <= %.16g%s%s", k->lo, k->flags & SPEC_OPEN_LO ? "<" : "<=", k->hi,
		 k->flags & SPEC_POW2 ? ", a power of two" : "", k->flags & SPEC_AUTO ? ", or auto" : "");
}

static int out_of_range(const struct spec_key *k, const char *text, struct fh_status *st)
{
	char range[160];
	range_text(k, range, sizeof range);
	return fh_fail_field(st, FH_INVALID, k->path, "%s is %s, allowed: %s", k->path, text, range);
}

static int in_range(const struct spec_key *k, double v)
{
	return v <= k->hi && (k->flags & SPEC_OPEN_LO ? v > k->lo : v >= k->lo);
}

static int set_int(struct fh_spec *spec, const struct spec_key *k, const char *text, struct fh_status *st)
{
	char *end;
	errno = 0;
	long long v = strtoll(text, &end, 10);
	if (end == text || *end || isspace((unsigned char)*text)) {
		double d = strtod(text, &end);
		if (end == text || *end || isspace((unsigned char)*text) || !(fabs(d) <= EXACT_INT) || d != floor(d))
			return fh_fail_field(st, FH_INVALID, k->path, "%s is \"%.64s\", an integer is needed%s", k->path, text,
					     k->flags & SPEC_AUTO ? " (or auto)" : "");
		v = (long long)d;
		errno = 0;
	}
	if (errno == ERANGE)
		return out_of_range(k, text, st);
	if (!(v == 0 && k->flags & SPEC_AUTO)) {
		if (!in_range(k, (double)v) || (k->flags & SPEC_POW2 && v & (v - 1)))
			return out_of_range(k, text, st);
	}
	*int_at(spec, k) = v;
	return 0;
}

static int set_real(struct fh_spec *spec, const struct spec_key *k, const char *text, struct fh_status *st)
{
	char *end;
	double v = strtod(text, &end);
	if (end == text || *end || isspace((unsigned char)*text) || !isfinite(v))
		return fh_fail_field(st, FH_INVALID, k->path, "%s is \"%.64s\", a finite number is needed%s", k->path, text,
				     k->flags & SPEC_AUTO ? " (or auto)" : "");
	if (!(v == 0 && k->flags & SPEC_AUTO) && !in_range(k, v))
		return out_of_range(k, text, st);
	*real_at(spec, k) = v;
	return 0;
}

static int set_enum(struct fh_spec *spec, const struct spec_key *k, const char *text, struct fh_status *st)
{
	char words[160];
	size_t at = 0;
	words[0] = 0;
	for (const struct spec_choice *c = k->choice; c->word; c++) {
		if (strcmp(c->word, text) == 0) {
			*enum_at(spec, k) = c->value;
			return 0;
		}
		at += (size_t)snprintf(words + at, sizeof words - at, "%s%s", at ? ", " : "", c->word);
	}
	return fh_fail_field(st, FH_INVALID, k->path, "%s is \"%.64s\", allowed: %s", k->path, text, words);
}

static int name_ok(const char *text)
{
	size_t n = 0;
	for (; text[n]; n++)
		if (n + 1 >= FH_NAME_MAX || !(isalnum((unsigned char)text[n]) || strchr("._-", text[n])))
			return 0;
	return 1;
}

static int set_name(struct fh_spec *spec, const struct spec_key *k, const char *text, struct fh_status *st)
{
	if (!name_ok(text))
		return fh_fail_field(st, FH_INVALID, k->path, "%s is \"%.80s\", allowed: 1 to %d of A-Z a-z 0-9 . _ -", k->path,
				     text, FH_NAME_MAX - 1);
	snprintf(name_at(spec, k), FH_NAME_MAX, "%s", text);
	return 0;
}

int spec_set(struct fh_spec *spec, const struct spec_key *key, const char *text, struct fh_status *st)
{
	if (key->flags & SPEC_AUTO && strcmp(text, "auto") == 0) {
		if (key->type == SPEC_INT)
			*int_at(spec, key) = 0;
		else
			*real_at(spec, key) = 0;
		return 0;
	}
	switch (key->type) {
	case SPEC_INT: return set_int(spec, key, text, st);
	case SPEC_REAL: return set_real(spec, key, text, st);
	case SPEC_ENUM: return set_enum(spec, key, text, st);
	case SPEC_NAME: return set_name(spec, key, text, st);
	}
	return fh_fail_field(st, FH_INTERNAL, key->path, "key %s has type %d", key->path, (int)key->type);
}

/* Whole numbers as people write them, others as the shortest of %.1g … %.17g that reads back to the same bits. */
static void real_text(double v, char *text, size_t size)
{
	if (v == floor(v) && fabs(v) < WHOLE_MAX) {
		snprintf(text, size, "%.0f", v);
		return;
	}
	for (int digits = 1; digits <= 17; digits++) {
		snprintf(text, size, "%.*g", digits, v);
		if (strtod(text, NULL) == v)
			return;
	}
}

void spec_get(const struct fh_spec *spec, const struct spec_key *key, char *text, size_t size)
{
	if (key->flags & SPEC_AUTO && (key->type == SPEC_INT ? *int_at(spec, key) == 0 : *real_at(spec, key) == 0)) {
		snprintf(text, size, "auto");
		return;
	}
	switch (key->type) {
	case SPEC_INT:
		snprintf(text, size, "%lld", (long long)*int_at(spec, key));
		return;
	case SPEC_REAL:
		real_text(*real_at(spec, key), text, size);
		return;
	case SPEC_NAME:
		snprintf(text, size, "%s", name_at(spec, key));
		return;
	case SPEC_ENUM:
		for (const struct spec_choice *c = key->choice; c->word; c++)
			if (c->value == *enum_at(spec, key)) {
				snprintf(text, size, "%s", c->word);
				return;
			}
		snprintf(text, size, "%d", *enum_at(spec, key)); /* not a choice: spec_check() refuses it */
	}
}

void spec_defaults(struct fh_spec *spec)
{
	int n;
	const struct spec_key *key = spec_keys(&n);
	memset(spec, 0, sizeof *spec);
	for (int i = 0; i < n; i++)
		if (key[i].def)
			spec_set(spec, key + i, key[i].def, NULL);
}

/* A name of any content may sit in the struct, so it is looked at before it is printed. */
static int check_key(const struct fh_spec *spec, const struct spec_key *k, struct fh_status *st)
{
	char text[FH_NAME_MAX + 32];
	struct fh_spec scratch;

	if (k->type == SPEC_NAME) {
		if (!memchr(name_at(spec, k), 0, FH_NAME_MAX))
			return fh_fail_field(st, FH_INVALID, k->path, "%s is longer than %d characters", k->path, FH_NAME_MAX - 1);
		if (k->flags & SPEC_REQUIRED && !*name_at(spec, k))
			return fh_fail_field(st, FH_INVALID, k->path, "%s is missing: %s", k->path, k->help);
	}
	spec_get(spec, k, text, sizeof text);
	return spec_set(&scratch, k, text, st);
}

static int check_shell(const struct fh_spec *s, struct fh_status *st)
{
	double sum = s->data.train + s->data.validation + s->data.test;

	if (sum > 1 + FRACTION_SLACK)
		return fh_fail_field(st, FH_INVALID, "data.train",
				     "data.train %g + data.validation %g + data.test %g is %g, it must not be above 1", s->data.train,
				     s->data.validation, s->data.test, sum);
	if (s->env.lot > s->env.max_position)
		return fh_fail_field(st, FH_INVALID, "env.lot", "env.lot is %g, it must not be above env.max_position, which is %g",
				     s->env.lot, s->env.max_position);
	if (s->env.ruin_fraction >= 1)
		return fh_fail_field(st, FH_INVALID, "env.ruin_fraction",
				     "env.ruin_fraction is %g: every episode would end at its first bar with env.initial_cash %g",
				     s->env.ruin_fraction, s->env.initial_cash);
	if (s->init.from == FH_INIT_CHECKPOINT && !s->init.checkpoint[0])
		return fh_fail_field(st, FH_INVALID, "init.checkpoint", "init.checkpoint is missing, init.from is checkpoint");
	if (s->init.from != FH_INIT_CHECKPOINT && s->init.checkpoint[0])
		return fh_fail_field(st, FH_INVALID, "init.checkpoint", "init.checkpoint is %s, but init.from is %s",
				     s->init.checkpoint, s->init.from == FH_INIT_WARM ? "warm" : "fresh");
	return 0;
}

int spec_check(const struct fh_spec *spec, struct fh_status *st)
{
	int n, rc;
	const struct spec_key *key = spec_keys(&n);

	for (int i = 0; i < n; i++) {
		rc = check_key(spec, key + i, st);
		if (rc)
			return rc;
	}
	const struct spec_model *model = spec_model_find(spec->model);
	if (!model)
		return fh_fail_field(st, FH_INVALID, "model", "model is \"%s\", known: dqn", spec->model);
	rc = check_shell(spec, st);
	return rc ? rc : model->check(spec, st);
}

void spec_resolve(struct fh_spec *spec, enum fh_device device)
{
	int cuda = device == FH_DEVICE_CUDA;

	spec->run.device = cuda ? FH_DEVICE_CUDA : FH_DEVICE_HOST;
	if (spec->run.precision == FH_PRECISION_AUTO)
		spec->run.precision = cuda ? FH_PRECISION_BF16 : FH_PRECISION_F32;
	if (spec->learn.batch == 0)
		spec->learn.batch = cuda ? 256 : 128;
	if (spec->replay.capacity == 0)
		spec->replay.capacity = cuda ? 131072 : 32768;
}

int64_t spec_planned_steps(const struct fh_spec *spec)
{
	return spec->run.epochs * spec->run.steps_per_epoch;
}

/* floor(f*T), where 0.85*20000 counts as 17000 although it is a little less. */
static int64_t cut(double fraction, int64_t bars)
{
	int64_t at = (int64_t)floor(fraction * (double)bars + 1e-6);
	return at > bars ? bars : at;
}

static int check_split(const char *field, double fraction, struct fh_split s, int64_t bars, int64_t embargo,
		       struct fh_status *st)
{
	int64_t first = s.begin > MARKET_WARMUP ? s.begin : MARKET_WARMUP;
	if (s.end - first >= 2)
		return 0;
	return fh_fail_field(st, FH_INVALID, field,
			     "%s %g of %lld bars with data.embargo %lld gives bars %lld to %lld, of which %lld come after the %d "
			     "warm-up bars; at least 2 are needed",
			     field, fraction, (long long)bars, (long long)embargo, (long long)s.begin, (long long)s.end,
			     (long long)(s.end > first ? s.end - first : 0), MARKET_WARMUP);
}

/* Every window of an evaluation has a step at least. */
static int check_windows(const char *field, struct fh_split s, int64_t windows, struct fh_status *st)
{
	int64_t first = s.begin > MARKET_WARMUP ? s.begin : MARKET_WARMUP;

	if (windows <= s.end - first - 1)
		return 0;
	return fh_fail_field(st, FH_INVALID, "run.validate_windows", "run.validate_windows is %lld, %s has only %lld steps", (long long)windows,
			     field, (long long)(s.end - first - 1));
}

int spec_splits(const struct fh_spec *spec, int64_t bars, struct fh_split split[FH_SPLITS], struct fh_status *st)
{
	static const char *const field[FH_SPLITS] = {"data.train", "data.validation", "data.test"};
	const double fraction[FH_SPLITS] = {spec->data.train, spec->data.validation, spec->data.test};
	struct fh_split out[FH_SPLITS];
	double sum = 0;
	int64_t at = 0;

	for (int i = 0; i < FH_SPLITS; i++) {
		sum += fraction[i];
		out[i].begin = at;
		out[i].end = cut(sum, bars);
		if (fraction[i] == 0) {
			out[i].begin = out[i].end = at; /* not asked for: empty, and no second embargo behind it */
			continue;
		}
		int rc = check_split(field[i], fraction[i], out[i], bars, spec->data.embargo, st);
		if (rc == 0 && i != FH_SPLIT_TRAIN)
			rc = check_windows(field[i], out[i], spec->run.validate_windows, st);
		if (rc)
			return rc;
		at = out[i].end + spec->data.embargo;
	}
	memcpy(split, out, sizeof out);
	return 0;
}
