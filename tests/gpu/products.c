/* Products through cuBLASLt (gpu/cuda/product.cuh; on the emulator its stand-in): beside the host, fused beside staged, a trial alone and among others,
 * and the choice between them and ours: remembered from process to process, kept by a job, refused where it cannot be kept. Which groups of a layout the
 * library takes is forced here (FH_GPU_PRODUCTS); what is measured is only whether it is remembered.
 *
 *     products say      how the products of a small layout are computed, on one line: run by the test as another process
 *     products learn    a step's products, and what went wrong */
#include "tests/gpu/rig.h"
#include "gpu/trainer_impl.h"
#include "tests/unit/training.h"

static const struct rig_shape shapes[] = {
	{.B = 64, .SD = 300, .H1 = 272, .H2 = 320, .VH = 40, .AH = 24, .NA = 21, .D = 3, .A = {5, 3, 3}, .C = 1024, .N = 33, .n = 1, .P = 3, .precision = FH_PRECISION_BF16},
	{.B = 40, .SD = 47, .H1 = 33, .H2 = 61, .VH = 19, .AH = 21, .NA = 11, .D = 2, .A = {3, 2}, .C = 512, .N = 20, .n = 1, .P = 3, .precision = FH_PRECISION_TF32},
	{.B = 1536, .SD = 9, .H1 = 16, .H2 = 24, .VH = 8, .AH = 8, .NA = 11, .D = 2, .A = {3, 2}, .C = 2048, .N = 4, .n = 1, .P = 2, .precision = FH_PRECISION_F32},
	{.B = 1100, .SD = 9, .H1 = 16, .H2 = 24, .VH = 8, .AH = 8, .NA = 11, .D = 2, .A = {3, 2}, .C = 2048, .N = 4, .n = 1, .P = 2, .precision = FH_PRECISION_F32}, /* weights are ours */
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], SMALL = 1 };

static const int learnt[] = {T_PARAM, T_TARGET, T_M, T_V, T_GRAD, T_TREE, T_CLOCK, T_ERROR, T_CE};

static void make_as(struct rig *r, const struct rig_shape *s, const char *products, int staged)
{
	struct rig_shape shape = *s;

	shape.loss = FH_LOSS_C51;
	setenv("FH_GPU_PRODUCTS", products, 1);
	setenv("FH_GPU_SYNC", staged ? "1" : "0", 1);
	rig_make(r, &shape);
	setenv("FH_GPU_SYNC", "0", 1);
	unsetenv("FH_GPU_PRODUCTS");
	rig_fill(r, 21);
}

static void learn(struct rig *r, int steps)
{
	const struct run run = {DQN_PHASE_LEARN, steps};

	RIG_OK(r->x[1]->backend->run(r->x[1], &run, 1, &r->st));
	RIG_OK(r->x[1]->backend->finish(r->x[1], &r->st));
}

/* Trial p of a has the bits of trial q of b. */
static void same(struct rig *a, int p, struct rig *b, int q, const char *what)
{
	for (unsigned i = 0; i < sizeof learnt / sizeof learnt[0]; i++) {
		struct rig *r = a;
		const struct plan_tensor *t = &a->plan[1].tensor[learnt[i]];
		unsigned char *x = malloc(t->stride), *y = malloc(t->stride);

		RIG_OK(a->x[1]->backend->read(a->x[1], learnt[i], (size_t)p * t->stride, x, t->stride, &r->st));
		RIG_OK(b->x[1]->backend->read(b->x[1], learnt[i], (size_t)q * t->stride, y, t->stride, &r->st));
		if (memcmp(x, y, t->stride) != 0)
			fail_msg("%s: %s differs", what, t->name);
		free(x);
		free(y);
	}
}
static int differs(struct rig *a, struct rig *b)
{
	struct rig *r = a;
	const struct plan_tensor *t = &a->plan[1].tensor[T_PARAM];
	unsigned char *x = malloc(t->bytes), *y = malloc(t->bytes);

	RIG_OK(a->x[1]->backend->read(a->x[1], T_PARAM, 0, x, t->bytes, &r->st));
	RIG_OK(b->x[1]->backend->read(b->x[1], T_PARAM, 0, y, t->bytes, &r->st));
	const int n = memcmp(x, y, t->bytes) != 0;
	free(x);
	free(y);
	return n;
}

static void text_of(struct rig *r, char *text, size_t size)
{
	r->x[1]->backend->products(r->x[1], text, size);
}

/* Forward and backward beside the host's. */
static void as_the_host(void **state)
{
	(void)state;
	if (!rig_cuda)
		skip();
	for (int s = 0; s < SHAPES; s++) {
		struct rig rig, *r = &rig;
		const double forward = shapes[s].precision == FH_PRECISION_BF16 ? 2e-2 : shapes[s].precision == FH_PRECISION_TF32 ? 2e-3 : 1e-5;
		char text[128];

		make_as(r, &shapes[s], "lt", 0);
		text_of(r, text, sizeof text);
		assert_non_null(strstr(text, "cublasLt"));
		if (strchr(text, '-') && s + 1 < SHAPES)
			fail_msg("the library does not take all of shape %d: %s", s, text);
		for (int stage = STAGE_ADVANCE; stage <= STAGE_LOSS; stage++)
			rig_stage(r, stage);
		rig_within(r, T_LOGITS, forward);
		rig_stage(r, STAGE_BACKWARD);
		rig_stage(r, STAGE_NORM);
		if (shapes[s].precision == FH_PRECISION_F32) {
			rig_within(r, T_GRAD, 1e-4);
			for (int p = 0; p < shapes[s].P; p++) { /* the sum of squares that stands beside the gradient */
				struct dqn_clock now;

				RIG_OK(r->x[1]->backend->read(r->x[1], T_CLOCK, (size_t)p * sizeof now, &now, sizeof now, &r->st));
				assert_true(fabs(now.grad_norm / ((struct dqn_clock *)rig_host(r, T_CLOCK, p))->grad_norm - 1) < 1e-4);
			}
		}
		rig_free(r);
	}
}

static void fused_is_staged(void **state)
{
	(void)state;
	if (!rig_cuda)
		skip();
	for (int s = 0; s < SHAPES; s++) {
		struct rig a, b;

		make_as(&a, &shapes[s], "lt", 0);
		make_as(&b, &shapes[s], "lt", 1);
		learn(&a, RIG_MANY(20, 2));
		learn(&b, RIG_MANY(20, 2));
		for (int p = 0; p < shapes[s].P; p++)
			same(&a, p, &b, p, "fused and staged");
		rig_free(&a);
		rig_free(&b);
	}
}

static void trial_alone(void **state)
{
	(void)state;
	if (!rig_cuda)
		skip();
	for (int s = 0; s < 3; s++) {
		struct rig all, one, *r = &one;
		struct rig_shape alone = shapes[s];
		const int last = shapes[s].P - 1;

		alone.P = 1;
		make_as(&all, &shapes[s], "lt", 0);
		make_as(&one, &alone, "lt", 0);
		for (int t = 0; t < DQN_TENSORS; t++)
			if (rig_shared(t))
				RIG_OK(one.x[1]->backend->write(one.x[1], t, 0, rig_host(&all, t, last), one.plan[1].tensor[t].bytes, &r->st));
		learn(&all, RIG_MANY(20, 2));
		learn(&one, RIG_MANY(20, 2));
		same(&one, 0, &all, last, "a trial alone and among others");
		rig_free(&all);
		rig_free(&one);
	}
}

/* A trainer goes from one way to the other and back, as jobs are resumed on it, and each has the bits of a trainer that was made so. */
static void a_job_keeps_them(void **state)
{
	struct rig ours, theirs, rig, *r = &rig;
	char text[128], now[128];

	(void)state;
	if (!rig_cuda)
		skip();
	make_as(&ours, &shapes[SMALL], "own", 0);
	make_as(&theirs, &shapes[SMALL], "lt", 0);
	make_as(r, &shapes[SMALL], "lt", 0);
	const struct backend *b = r->x[1]->backend;
	text_of(r, text, sizeof text);
	learn(&ours, 2);
	learn(&theirs, 2);
	assert_true(differs(&ours, &theirs));
	learn(r, 2);
	same(r, 0, &theirs, 0, "as made");
	RIG_OK(b->keep_products(r->x[1], "own", &r->st));
	text_of(r, now, sizeof now);
	assert_string_equal(now, "own");
	rig_send(r);
	learn(r, 2);
	same(r, 0, &ours, 0, "a job with our products");
	RIG_OK(b->keep_products(r->x[1], text, &r->st));
	rig_send(r);
	learn(r, 2);
	same(r, 0, &theirs, 0, "a job with theirs");
	static const char *const wrong[] = {"cublasLt 1 0.0.0.0.0.0.0.0.0.0.0.0", "cublasLt 130000 9.-.-.-.-.-.-.-.-.-.-.-", "something", ""};
	for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		assert_int_equal(b->keep_products(r->x[1], wrong[i], &r->st), FH_CONFLICT);
		text_of(r, now, sizeof now);
		assert_string_equal(now, text);
	}
	assert_int_equal(b->keep_products(ours.x[1], text, &r->st), FH_CONFLICT);
	RIG_OK(b->keep_products(ours.x[1], NULL, &r->st));
	RIG_OK(b->keep_products(r->x[1], "own", &r->st));
	RIG_OK(b->keep_products(r->x[1], NULL, &r->st));
	text_of(r, now, sizeof now);
	assert_string_equal(now, text);
	rig_free(&ours);
	rig_free(&theirs);
	rig_free(r);
}

static struct trainer *trainer_of(const struct fh_spec *spec, const char *products)
{
	struct fh_status st = FH_STATUS_INIT;
	struct trainer *t = NULL;

	setenv("FH_GPU_PRODUCTS", products, 1);
	if (trainer_new(rig_cuda, spec, &t, &st))
		fail_msg("%s", st.text);
	unsetenv("FH_GPU_PRODUCTS");
	return t;
}

/* A checkpoint says how, and a job goes on from it on a trainer that would choose otherwise; the next job there is as that chose. */
static void a_checkpoint_keeps_them(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_spec spec = small_spec(), made;
	struct st_file *file;
	struct st_image image;
	char path[256], all[128], first[128], kept[128], now[128], was[65], is[65];

	(void)state;
	if (!rig_cuda)
		skip();
	spec.run.device = FH_DEVICE_AUTO, spec.run.precision = FH_PRECISION_F32, spec.run.validate_every = 0;
	spec_resolve(&spec, FH_DEVICE_CUDA);
	struct market *m = synth_market(SYNTH_MOMENTUM, 1200, 5);
	struct trainer *a = trainer_of(&spec, "lt");
	rig_cuda->products(a->x, all, sizeof all);
	trainer_free(a);
	a = trainer_of(&spec, "measure");
	rig_cuda->products(a->x, first, sizeof first);
	snprintf(kept, sizeof kept, "%s", strcmp(first, "own") ? "own" : all);
	if (trainer_begin(a, &spec, m, NULL, &st) || rig_cuda->keep_products(a->x, kept, &st))
		fail_msg("%s", st.text);
	struct trainer_state at;
	do
		if (trainer_run(a, SLICE_NS, &at, &st))
			fail_msg("%s", st.text);
	while (!at.checkpoint_due && !at.done);
	assert_true(at.step > 0 && !at.done);
	temp_path(path, sizeof path, "products");
	snapshot(a, &image);
	save_image(&image, path);
	st_image_release(&image);
	if (checkpoint_open(path, &file, &made, &st))
		fail_msg("%s", st.text);
	assert_string_equal(st_meta(file, "products"), kept);
	st_close(file);
	run_to_end(a, NULL);
	state_hash(a, was);
	struct trainer *b = trainer_of(&spec, "measure");
	rig_cuda->products(b->x, now, sizeof now);
	assert_string_equal(now, first);
	if (trainer_resume(b, &spec, m, path, &st))
		fail_msg("%s", st.text);
	rig_cuda->products(b->x, now, sizeof now);
	assert_string_equal(now, kept);
	run_to_end(b, NULL);
	state_hash(b, is);
	assert_string_equal(was, is);
	if (trainer_begin(b, &spec, m, NULL, &st))
		fail_msg("%s", st.text);
	rig_cuda->products(b->x, now, sizeof now);
	assert_string_equal(now, first);
	unlink(path);
	trainer_free(a);
	trainer_free(b);
	market_unref(m);
}

/* What another process says: its first line. */
static void other(const char *what, const char *environment, char *line, size_t size)
{
	char command[1024];

	snprintf(command, sizeof command, "env %s /proc/%d/exe %s 2>&1", environment, (int)getpid(), what);
	FILE *f = popen(command, "r");
	assert_non_null(f);
	line[0] = 0;
	while (fgets(line, (int)size, f) && strncmp(line, "products: ", 10))
		;
	pclose(f);
	line[strcspn(line, "\n")] = 0;
	if (strncmp(line, "products: ", 10))
		fail_msg("%s: \"%s\"", command, line);
	memmove(line, line + 10, strlen(line + 10) + 1);
}

static void remembered(void **state)
{
	char path[] = "/tmp/fh-products-XXXXXX", environment[256], measured[128], all[128], line[1024], key[1024];

	(void)state;
	if (!rig_cuda)
		skip();
	const int fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	snprintf(environment, sizeof environment, "FH_GPU_PRODUCTS=measure FH_GPU_CHOICES=%s", path);
	other("say", environment, measured, sizeof measured);
	FILE *f = fopen(path, "r");
	assert_non_null(fgets(line, sizeof line, f));
	assert_null(fgets(key, sizeof key, f)); /* one line a layout */
	fclose(f);
	char *equals = strstr(line, " = ");
	assert_non_null(equals);
	equals[strcspn(equals, "\n")] = 0;
	if (strcmp(measured, "own"))
		assert_string_equal(equals + 3, measured);
	snprintf(key, sizeof key, "%.*s", (int)(equals - line), line);
	/* whatever stands there is taken by the next process, */
	other("say", "FH_GPU_PRODUCTS=lt", all, sizeof all);
	f = fopen(path, "w");
	fprintf(f, "%s = %s\n", key, all);
	fclose(f);
	other("say", environment, line, sizeof line);
	assert_string_equal(line, all);
	/* and what the library cannot do is measured again */
	f = fopen(path, "w");
	fprintf(f, "%s = cublasLt 5 0.0\n", key);
	fclose(f);
	other("say", environment, line, sizeof line);
	assert_true(!strcmp(line, "own") || strstr(line, "cublasLt"));
	unlink(path);
	/* small layouts are never asked about, nor where there is no library */
	other("say", "FH_GPU_CUBLASLT=none", line, sizeof line);
	assert_string_equal(line, "own");
	other("say", "FH_GPU_CUBLASLT=none FH_GPU_PRODUCTS=measure", line, sizeof line);
	assert_string_equal(line, "own");
	other("say", "FH_GPU_CUBLASLT=none FH_GPU_PRODUCTS=lt", line, sizeof line);
	assert_non_null(strstr(line, "libcublasLt"));
}

/* A call that fails is named. */
static void failures(void **state)
{
	char line[512];

	(void)state;
	if (!rig_cuda || !rig_emulated)
		skip();
	other("learn", "FH_GPU_PRODUCTS=lt", line, sizeof line);
	assert_string_equal(line, "ok");
	other("learn", "FH_GPU_PRODUCTS=lt FH_EMU_FAULT=cublasLtMatmul:60:1", line, sizeof line);
	assert_non_null(strstr(line, "cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED"));
	other("learn", "FH_GPU_PRODUCTS=lt FH_EMU_FAULT=cublasLtMatmul:1:1", line, sizeof line);
	assert_non_null(strstr(line, "cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED"));
	other("say", "FH_GPU_PRODUCTS=lt FH_EMU_FAULT=cublasLtMatmulAlgoGetHeuristic:3:1", line, sizeof line); /* that group is ours, then */
	assert_non_null(strstr(line, "-"));
}

/* "say" and "learn": one rig_make() by hand, for its errors are to be said. */
static int process(int learning)
{
	static struct rig rig;
	struct rig *r = &rig;
	struct fh_spec spec;
	const struct rig_shape *s = &shapes[SMALL];
	char text[128];

	rig_open(NULL);
	if (!rig_cuda)
		return 3;
	spec_defaults(&spec);
	spec.net.trunk1 = s->H1, spec.net.trunk2 = s->H2, spec.net.value_hidden = s->VH, spec.net.advantage_hidden = s->AH, spec.net.atoms = s->NA;
	spec.learn.batch = s->B, spec.learn.n_step = s->n, spec.learn.loss = s->loss;
	spec.replay.capacity = s->C, spec.collect.envs = s->N, spec.run.population = s->P;
	spec.run.device = FH_DEVICE_CUDA;
	spec_resolve(&spec, FH_DEVICE_CUDA);
	spec.run.precision = s->precision;
	struct plan *p = &r->plan[1];
	int rc = dqn_dims_make(&spec, s->SD, s->A, s->D, &r->d, &r->st);
	p->program = &dqn_program, p->spec = spec, p->population = s->P;
	if (!rc) {
		dqn_plan_tensors(p, &r->d, FH_DEVICE_CUDA);
		rc = plan_place(p, &r->st);
	}
	if (!rc)
		rc = rig_cuda->exec_new(rig_cuda, p, &r->x[1], &r->st);
	if (!rc)
		rig_cuda->products(r->x[1], text, sizeof text);
	static const int products[] = {STAGE_FORWARD, STAGE_BACKWARD}; /* of whatever lies there */
	for (int k = 0; !rc && learning && k < 2; k++)
		rc = rig_cuda->stage(r->x[1], &dqn_stage_table[products[k]], &r->st);
	printf("products: %s\n", rc ? r->st.text : learning ? "ok" : text);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(as_the_host),
		cmocka_unit_test(fused_is_staged),
		cmocka_unit_test(trial_alone),
		cmocka_unit_test(a_job_keeps_them),
		cmocka_unit_test(a_checkpoint_keeps_them),
		cmocka_unit_test(remembered),
		cmocka_unit_test(failures),
	};

	if (argc > 1)
		return process(!strcmp(argv[1], "learn"));
	return cmocka_run_group_tests(tests, rig_open, NULL);
}
