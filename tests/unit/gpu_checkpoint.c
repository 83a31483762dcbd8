/* Promises about checkpoints: a resumed job gives the bits of an uninterrupted one wherever it was cut, a file that is
 * damaged or belongs to something else is refused and changes nothing, weights start another job. */
#include "gpu/dqn/dqn.h"
#include "gpu/trainer_impl.h"
#include "tests/unit/bars.h"
#include "tests/unit/training.h"

static char path[256], path2[256];

static struct market *the_market(void)
{
	return synth_market(SYNTH_MOMENTUM, 2000, 5);
}

/* The job with this spec, cut after `calls` slices, saved, loaded into a new trainer and run to its end there. */
static int cut_after(const struct fh_spec *s, struct market *m, int calls, const char *end_hash, const struct samples *whole)
{
	struct fh_status st = FH_STATUS_INIT;
	struct samples got = {0};
	struct st_image image;
	char hash[65], was[65], is[65];
	struct trainer *t = begin_job(s, m), *u = new_trainer(s);
	int made = run_slices(t, calls, &got);

	snapshot(t, &image);
	save_image(&image, path);
	st_image_release(&image);
	state_hash(t, was);
	trainer_free(t);
	if (trainer_resume(u, s, m, path, &st))
		fail_msg("%s", st.text);
	state_hash(u, is);
	assert_string_equal(was, is); /* loaded is what was saved */
	run_to_end(u, &got);
	state_hash(u, hash);
	assert_string_equal(hash, end_hash);
	assert_int_equal(got.n, whole->n);
	assert_memory_equal(got.s, whole->s, sizeof(*got.s) * (size_t)got.n);
	trainer_free(u);
	free(got.s);
	return made;
}

static void check_resume(const struct fh_spec *s, int every)
{
	struct market *m = the_market();
	struct samples whole = {0};
	char end[65];
	struct trainer *t = begin_job(s, m);
	int calls = 0;

	run_to_end(t, &whole);
	state_hash(t, end);
	trainer_free(t);
	while (cut_after(s, m, calls, end, &whole) == calls) /* until a cut lies behind the end */
		calls += every;
	assert_true(calls > 60);
	free(whole.s);
	market_unref(m);
}

/* Every slice of the job: inside the warm-up, before and behind reports, in the middle of evaluations, at the end. */
static void test_resume_anywhere(void **state)
{
	struct fh_spec s = small_spec();

	check_resume(&s, cuts_apart());
}

static void test_resume_other_shapes(void **state)
{
	struct fh_spec s = small_spec();

	s.learn.steps_per_collect = 4;
	s.learn.n_step = 1;
	s.learn.lr_schedule = FH_SCHEDULE_LINEAR;
	check_resume(&s, 7);
	s = small_spec();
	s.run.precision = FH_PRECISION_BF16;
	s.learn.loss = FH_LOSS_MSE;
	s.learn.target_period = 9;
	check_resume(&s, 11);
	s = small_spec();
	s.run.population = 2;
	check_resume(&s, 17);
}

/* ---------------------------------------------------------------- contents */

static void test_named_tensors_and_metadata(void **state)
{
	static const char *const names[] = {"param.s1.w", "target.b22.b", "adam.m.v1.w", "adam.v.b01.w", "replay.s", "replay.tree",
					    "env.cash", "env.t", "pending.s", "clock", "accum", "trainer.position"};
	struct fh_spec s = small_spec(), back;
	struct fh_status st = FH_STATUS_INIT;
	struct market *m = the_market();
	struct trainer *t = begin_job(&s, m);
	const char *const meta[] = {"job", "j7", NULL};
	struct st_image image;
	struct st_file *f = NULL;

	run_slices(t, 30, NULL);
	assert_int_equal(trainer_snapshot(t, meta, &image, &st), 0);
	save_image(&image, path);
	st_image_release(&image);
	assert_int_equal(checkpoint_open(path, &f, &back, &st), 0);
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!st_find(f, names[i]))
			fail_msg("no tensor %s", names[i]);
	const struct st_tensor *w = st_find(f, "param.s1.w");
	assert_true(w->dtype == ST_F32 && w->rank == 2 && w->dim[0] == 16 && w->dim[1] == 48);
	assert_string_equal(st_meta(f, "job"), "j7");
	assert_string_equal(st_meta(f, "market"), m->hash);
	assert_string_equal(st_meta(f, "seed"), "1");
	assert_string_equal(st_meta(f, "format"), "fhd-checkpoint");
	assert_true(strtoll(st_meta(f, "step"), NULL, 10) > 0);
	assert_memory_equal(&back, &t->spec, sizeof(back)); /* the whole specification, reward_scale resolved */
	st_close(f);
	trainer_free(t);
	market_unref(m);
}

static void test_spec_text_round_trip(void **state)
{
	struct fh_spec s = small_spec(), back;
	struct fh_status st = FH_STATUS_INIT;
	char text[SPEC_TEXT_MAX];

	s.learn.gamma = 1.0 / 3;
	s.run.seed = INT64_MIN;
	spec_to_text(&s, text);
	assert_int_equal(spec_from_text(text, &back, &st), 0);
	assert_memory_equal(&s, &back, sizeof(s));
	assert_int_equal(spec_from_text("learn.lrr=1\n", &back, &st), FH_CORRUPT);
	assert_int_equal(spec_from_text("learn.lr\n", &back, &st), FH_CORRUPT);
	assert_int_equal(spec_from_text("learn.lr=7\n", &back, &st), FH_INVALID);
}

static void test_policy_of_a_checkpoint(void **state)
{
	struct fh_spec s = small_spec(), back;
	struct fh_status st = FH_STATUS_INIT;
	struct market *m = the_market();
	struct trainer *t = begin_job(&s, m);
	struct st_image image;
	struct policy *p = NULL, *q = NULL;
	char hash[65];
	float x[5 * FH_STATE_DIM], qa[5 * 11], qb[5 * 11];
	int32_t a[15], b[15];
	int actions[FH_BRANCH_MAX];

	run_to_end(t, NULL);
	snapshot(t, &image);
	save_image(&image, path);
	st_image_release(&image);
	assert_int_equal(policy_load(path, FH_POLICY_ONLINE, 0, &p, &back, hash, &st), 0);
	assert_string_equal(hash, m->hash);
	assert_true(policy_state_dim(p) == FH_STATE_DIM && policy_branches(p, actions) == 3);
	assert_true(actions[0] == 5 && actions[1] == 3 && actions[2] == 3);
	assert_int_equal(policy_new(&s, FH_STATE_DIM, t->x->tensor[T_PARAM], &q, &st), 0);
	for (int i = 0; i < 5 * FH_STATE_DIM; i++)
		x[i] = sinf((float)i);
	policy_act(p, x, 5, a, qa);
	policy_act(q, x, 5, b, qb);
	assert_memory_equal(a, b, sizeof(a));
	assert_memory_equal(qa, qb, sizeof(qa));
	policy_set(q, t->x->tensor[T_TARGET]);
	policy_act(q, x, 5, NULL, qb);
	assert_memory_not_equal(qa, qb, sizeof(qa));
	policy_free(p);
	assert_int_equal(policy_load(path, FH_POLICY_TARGET, 0, &p, NULL, NULL, &st), 0);
	policy_act(p, x, 5, NULL, qa);
	assert_memory_equal(qa, qb, sizeof(qa));
	policy_free(p);
	policy_free(q);
	assert_int_equal(policy_load("/nonexistent", FH_POLICY_ONLINE, 0, &p, NULL, NULL, &st), FH_NOT_FOUND);
	trainer_free(t);
	market_unref(m);
}

/* Two tapes that are equal on bars 0..59: what a policy does there is equal, too, to the bit. */
static void test_a_policy_does_not_see_the_future(void **state)
{
	static const char *const name[2] = {"future_a", "future_b"};
	struct fh_spec s = small_spec();
	struct fh_status st = FH_STATUS_INIT;
	struct plan *plan = malloc(sizeof(*plan));
	struct policy *p = NULL;
	int32_t action[2][80 * 3];
	float q[2][80 * 11];

	assert_non_null(plan);
	assert_int_equal(plan_make(&s, plan, &st), 0);
	float *param = malloc(plan->tensor[T_PARAM].bytes);
	assert_non_null(param);
	dqn_init_params((const struct dqn_dims *)plan->dims, 4, param);
	assert_int_equal(policy_new(&s, FH_STATE_DIM, param, &p, &st), 0);
	for (int k = 0; k < 2; k++) {
		struct bars b;
		struct market *m = NULL;
		float x[80 * FH_STATE_DIM] = {0};
		bars_csv(&b, name[k]);
		assert_int_equal(market_build(&b.view, 0.25, &m, &st), 0);
		assert_int_equal(m->bars, 80);
		for (int t = 0; t < 80; t++)
			memcpy(x + t * FH_STATE_DIM, m->feature + t * FH_MARKET_FEATURES, FH_MARKET_FEATURES * sizeof(*x));
		policy_act(p, x, 80, action[k], q[k]);
		market_unref(m);
		bars_free(&b);
	}
	assert_memory_equal(action[0], action[1], sizeof(int32_t) * 60 * 3);
	assert_memory_equal(q[0], q[1], sizeof(float) * 60 * 11);
	assert_memory_not_equal(q[0] + 60 * 11, q[1] + 60 * 11, sizeof(float) * 20 * 11);
	policy_free(p);
	free(param);
	free(plan);
}

static void test_init_from_checkpoint(void **state)
{
	struct fh_spec s = small_spec(), from = s;
	struct fh_status st = FH_STATUS_INIT;
	struct market *m = the_market(), *m2 = synth_market(SYNTH_REGIME, 2500, 9);
	struct trainer *t = begin_job(&s, m), *u;
	struct st_image image;

	run_to_end(t, NULL);
	snapshot(t, &image);
	save_image(&image, path);
	st_image_release(&image);
	from.init.from = FH_INIT_CHECKPOINT;
	snprintf(from.init.checkpoint, sizeof(from.init.checkpoint), "c1");
	from.run.seed = 8;
	from.learn.lr = 1e-4; /* other scalars, other bars: only the weights are taken */
	u = new_trainer(&from);
	assert_int_equal(trainer_begin(u, &from, m2, NULL, &st), FH_INVALID);
	assert_string_equal(st.field, "init.checkpoint");
	assert_int_equal(trainer_begin(u, &from, m2, path, &st), 0);
	static const int carried[] = {T_PARAM, T_TARGET, T_M, T_V};
	for (int i = 0; i < 4; i++)
		assert_memory_equal(u->x->tensor[carried[i]], t->x->tensor[carried[i]], t->plan.tensor[carried[i]].bytes);
	const struct dqn_clock *c = u->x->tensor[T_CLOCK];
	assert_true(c->applied == 60 && c->step == 0 && c->stored == 0 && c->seed == 8);
	run_to_end(u, NULL);
	trainer_free(u);
	from.net.trunk1 = 17; /* another net: shapes do not match */
	u = new_trainer(&from);
	assert_int_equal(trainer_begin(u, &from, m2, path, &st), FH_CORRUPT);
	trainer_free(u);
	trainer_free(t);
	market_unref(m);
	market_unref(m2);
}

/* ---------------------------------------------------------------- refusals */

struct victim { struct trainer *t; struct market *m; struct fh_spec s; char hash[65]; };

static struct victim victim_open(struct fh_spec s)
{
	struct victim v = {.m = the_market(), .s = s};

	v.t = begin_job(&s, v.m);
	run_slices(v.t, 45, NULL);
	state_hash(v.t, v.hash);
	return v;
}

/* The trainer still stands where it stood. */
static void victim_untouched(struct victim *v)
{
	char now[65];

	state_hash(v->t, now);
	assert_string_equal(now, v->hash);
}

static void victim_close(struct victim *v)
{
	trainer_free(v->t);
	market_unref(v->m);
}

static void write_bytes(const void *data, size_t bytes)
{
	FILE *f = fopen(path2, "wb");

	assert_non_null(f);
	assert_int_equal(fwrite(data, 1, bytes, f), bytes);
	fclose(f);
}

static int resume_bytes(struct victim *v, const void *data, size_t bytes, struct fh_status *st)
{
	*st = (struct fh_status)FH_STATUS_INIT;
	write_bytes(data, bytes);
	return trainer_resume(v->t, &v->s, v->m, path2, st);
}

static void test_truncated_files_are_refused(void **state)
{
	struct victim v = victim_open(small_spec());
	struct fh_status st;
	struct st_image image;

	snapshot(v.t, &image);
	for (size_t n = 0; n < image.bytes; n += n < 300 ? 1 : 1 + image.bytes / 97)
		assert_int_equal(resume_bytes(&v, image.data, n, &st), FH_CORRUPT);
	assert_int_equal(resume_bytes(&v, image.data, image.bytes - 1, &st), FH_CORRUPT);
	victim_untouched(&v);
	assert_int_equal(resume_bytes(&v, image.data, image.bytes, &st), 0);
	victim_untouched(&v); /* from its own checkpoint it stands where it stood, too */
	st_image_release(&image);
	victim_close(&v);
}

/* One tensor of a good file gets other contents: damage that sizes cannot show. */
struct damage { const char *tensor; size_t offset; double value; };

static void put(char *data, enum st_dtype type, size_t i, double value)
{
	switch (type) {
	case ST_F64: ((double *)data)[i] = value; break;
	case ST_F32: ((float *)data)[i] = (float)value; break;
	case ST_I32: ((int32_t *)data)[i] = (int32_t)value; break;
	case ST_I64: ((int64_t *)data)[i] = (int64_t)value; break;
	default: ((uint8_t *)data)[i] = (uint8_t)value;
	}
}

static void test_impossible_contents_are_refused(void **state)
{
	static const struct damage list[] = {
		{"env.t", 0, -1}, {"env.t", 1, 2000}, {"env.t", 2, 100}, {"env.t", 0, 1e9}, {"env.steps", 0, 24}, {"env.steps", 1, -1},
		{"env.entry_bar", 0, 1e9}, {"env.cash", 0, NAN}, {"env.q", 3, INFINITY}, {"env.obs", 7, NAN}, {"pending.count", 0, 3},
		{"pending.count", 0, -1}, {"pending.head", 2, 3}, {"pending.head", 2, -7}, {"pending.a", 0, 5}, {"replay.a", 1, 3},
		{"replay.a", 300, 200}, {"replay.r", 0, INFINITY}, {"replay.s", 5, NAN}, {"replay.tree", 1, 1e9}, {"replay.tree", 128, -1},
		{"replay.tree", 200, NAN}, {"param.s1.w", 0, NAN}, {"adam.v.v1.w", 3, INFINITY}, {"trainer.position", 0, 61},
		{"trainer.position", 0, 3}, {"trainer.position", 1, -1}, {"trainer.position", 2, 9}, {"trainer.position", 3, -1},
		{"clock", 0, 200}, {"clock", 40, 17},
	};
	struct victim v = victim_open(small_spec());
	struct fh_status st = FH_STATUS_INIT;
	struct st_image image;
	struct st_file *f = NULL;

	snapshot(v.t, &image);
	save_image(&image, path);
	assert_int_equal(st_open(path, &f, &st), 0);
	const char *first = st_at(f, 0)->data; /* the data section begins with the tensor at the lowest address */
	uint64_t header;
	for (int i = 1; i < st_count(f); i++)
		if ((const char *)st_at(f, i)->data < first)
			first = st_at(f, i)->data;
	memcpy(&header, image.data, sizeof(header));
	for (unsigned i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
		const struct st_tensor *t = st_find(f, list[i].tensor);
		char *copy = malloc(image.bytes);
		assert_true(t && copy);
		memcpy(copy, image.data, image.bytes);
		put(copy + 8 + header + ((const char *)t->data - first), t->dtype, list[i].offset, list[i].value);
		int rc = resume_bytes(&v, copy, image.bytes, &st);
		if (rc != FH_CORRUPT || strncmp(st.text, "checkpoint: ", 12) != 0)
			fail_msg("%s[%zu] = %g: %d %s", list[i].tensor, list[i].offset, list[i].value, rc, st.text);
		free(copy);
	}
	victim_untouched(&v);
	st_close(f);
	st_image_release(&image);
	victim_close(&v);
}

/* Bytes anywhere turned over: refused, or the same course of training as far as the program can tell; never a crash. */
static void test_flipped_bytes_never_crash(void **state)
{
	struct victim v = victim_open(small_spec());
	struct fh_status st;
	struct st_image image;
	uint32_t r = 1;
	int refused = 0;

	snapshot(v.t, &image);
	for (int i = 0; i < 300; i++) {
		r = r * 1664525 + 1013904223;
		size_t at = i < 200 ? r % 6000 : r % image.bytes; /* mostly header and small tensors */
		unsigned char *b = (unsigned char *)image.data + at, was = *b;
		*b ^= (unsigned char)(1u << (r >> 29));
		int rc = resume_bytes(&v, image.data, image.bytes, &st);
		*b = was;
		if (rc == 0) {
			struct trainer_state now;
			assert_int_equal(trainer_run(v.t, 0, &now, &st), 0);
			samples_take(v.t, NULL);
		}
		refused += rc != 0;
	}
	assert_true(refused > 100);
	st_image_release(&image);
	victim_close(&v);
}

static void test_strangers_are_refused(void **state)
{
	struct victim v = victim_open(small_spec());
	struct fh_status st = FH_STATUS_INIT;
	struct market *other = synth_market(SYNTH_MOMENTUM, 2000, 6);
	struct st_image image;
	struct fh_spec s;

	snapshot(v.t, &image);
	save_image(&image, path);
	st_image_release(&image);
	assert_int_equal(trainer_resume(v.t, &v.s, other, path, &st), FH_CONFLICT);
	s = v.s;
	s.learn.lr = 2e-3;
	assert_int_equal(trainer_resume(v.t, &s, v.m, path, &st), FH_CONFLICT);
	assert_string_equal(st.field, "learn.lr");
	s = v.s;
	s.run.seed = 2;
	assert_int_equal(trainer_resume(v.t, &s, v.m, path, &st), FH_CONFLICT);
	s = v.s;
	s.net.atoms = 13;
	assert_int_equal(trainer_resume(v.t, &s, v.m, path, &st), FH_INVALID);
	assert_int_equal(trainer_resume(v.t, &v.s, v.m, "/nonexistent", &st), FH_NOT_FOUND);
	assert_int_equal(market_save(v.m, path2, NULL, &st), 0); /* a good safetensors file, but no checkpoint */
	assert_int_equal(trainer_resume(v.t, &v.s, v.m, path2, &st), FH_CORRUPT);
	victim_untouched(&v);
	s = v.s; /* these change what is kept, not what is computed */
	s.run.keep_checkpoints = 9;
	s.run.checkpoint_every = 40;
	s.run.priority = 5;
	assert_int_equal(trainer_resume(v.t, &s, v.m, path, &st), 0);
	market_unref(other);
	victim_close(&v);
}

static int remove_files(void **state)
{
	remove(path);
	remove(path2);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_resume_anywhere), cmocka_unit_test(test_resume_other_shapes),
		cmocka_unit_test(test_named_tensors_and_metadata), cmocka_unit_test(test_spec_text_round_trip),
		cmocka_unit_test(test_policy_of_a_checkpoint), cmocka_unit_test(test_a_policy_does_not_see_the_future),
		cmocka_unit_test(test_init_from_checkpoint),
		cmocka_unit_test(test_truncated_files_are_refused), cmocka_unit_test(test_impossible_contents_are_refused),
		cmocka_unit_test(test_flipped_bytes_never_crash), cmocka_unit_test(test_strangers_are_refused),
	};

	temp_path(path, sizeof(path), "a.safetensors");
	temp_path(path2, sizeof(path2), "b.safetensors");
	return cmocka_run_group_tests(tests, NULL, remove_files);
}
