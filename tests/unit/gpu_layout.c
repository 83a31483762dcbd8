/* Promises of gpu/layout.h and of the tensors and stages that the DQN registers. */
#include "gpu/dqn/model.h"
#include "gpu/layout.h"
#include "tests/unit/training.h"

static struct plan *plan_of(const struct fh_spec *spec)
{
	struct fh_status st = FH_STATUS_INIT;
	struct plan *p = malloc(sizeof(*p));

	assert_non_null(p);
	if (plan_make(spec, p, &st))
		fail_msg("%s", st.text);
	return p;
}

static struct fh_spec default_spec(void)
{
	struct fh_spec s;

	spec_defaults(&s);
	snprintf(s.data.dataset, sizeof(s.data.dataset), "synth");
	spec_resolve(&s, FH_DEVICE_HOST);
	return s;
}

static void test_arena(void **state)
{
	struct fh_spec s = default_spec();
	struct plan *p = plan_of(&s);
	size_t end = 0;

	assert_int_equal(p->tensors, DQN_TENSORS);
	for (int i = 0; i < p->tensors; i++) {
		const struct plan_tensor *t = p->tensor + i;
		int64_t n = 1;
		for (int k = 0; k < t->desc.rank; k++)
			n *= t->desc.dim[k];
		assert_true(t->elements == n && t->bytes == (size_t)n * st_dtype_size(t->desc.dtype) && t->stride == t->bytes);
		assert_true(t->offset % 256 == 0 && t->offset >= end);
		end = t->offset + t->bytes;
		for (int k = 0; k < i; k++)
			assert_string_not_equal(p->tensor[k].name, t->name);
	}
	assert_true(p->arena_bytes >= end && p->arena_bytes < end + 256);
	free(p);
}

/* The views of a flat buffer are the 20 tensors of the network, none overlapping, 288,868 numbers at the defaults. */
static void test_views(void **state)
{
	struct fh_spec s = default_spec();
	struct plan *p = plan_of(&s);
	static const int flat[] = {T_PARAM, T_TARGET, T_M, T_V};

	for (int k = 0; k < 4; k++) {
		int64_t sum = 0, end = 0;
		int views = 0;
		for (int i = 0; i < p->views; i++) {
			const struct tensor_view *v = p->view + i;
			if (v->tensor != flat[k])
				continue;
			assert_true(v->offset >= end && v->offset % 64 == 0);
			end = v->offset + v->dim[0] * v->dim[1];
			sum += v->dim[0] * v->dim[1];
			views++;
		}
		assert_int_equal(views, 20);
		assert_int_equal(sum, 288868);
		assert_true(end <= p->tensor[flat[k]].elements);
	}
	assert_string_equal(p->view[0].name, "param.s1.w");
	assert_true(p->view[0].dim[0] == 256 && p->view[0].dim[1] == 48);
	assert_string_equal(p->view[19].name, "param.b22.b");
	free(p);
}

static void test_population_is_the_leading_axis(void **state)
{
	struct fh_spec s = default_spec();
	struct plan *one = plan_of(&s), *three;

	s.run.population = 3;
	three = plan_of(&s);
	for (int i = 0; i < one->tensors; i++) {
		assert_true(three->tensor[i].bytes == 3 * one->tensor[i].bytes);
		assert_true(three->tensor[i].stride == one->tensor[i].bytes);
	}
	free(one);
	free(three);
}

static void test_same_layout_is_decided_by_shape_keys(void **state)
{
	struct fh_spec a = default_spec(), b = a;
	int n, shapes = 0;
	const struct spec_key *key = spec_keys(&n);

	b.learn.lr = 1e-3;
	b.run.seed = 9;
	b.net.v_max = 20;
	snprintf(b.data.dataset, sizeof(b.data.dataset), "other");
	assert_true(spec_same_layout(&a, &b));
	for (int i = 0; i < n; i++)
		if (key[i].flags & SPEC_SHAPE && key[i].type == SPEC_INT) {
			char text[64];
			b = a;
			int64_t *field = (int64_t *)((char *)&b + key[i].offset);
			snprintf(text, sizeof(text), "%lld", (long long)(key[i].flags & SPEC_POW2 ? *field * 2 : *field + 1));
			assert_int_equal(spec_set(&b, key + i, text, NULL), 0);
			assert_false(spec_same_layout(&a, &b));
			shapes++;
		}
	assert_true(shapes >= 8);
}

static void test_memory_plan(void **state)
{
	struct fh_spec s = default_spec();
	struct plan *p = plan_of(&s);
	struct memory_plan m, more;
	size_t parts;

	plan_memory(p, 20000, &m);
	parts = m.parameters + m.optimizer + m.replay + m.environments + m.scratch;
	assert_true(parts <= p->arena_bytes && parts + 256 * (size_t)p->tensors >= p->arena_bytes);
	assert_true(m.total == p->arena_bytes + m.market);
	assert_true(m.replay >= (size_t)32768 * 48 * 4 * 2);
	plan_memory(p, 40000, &more);
	assert_true(more.market == 2 * m.market && more.replay == m.replay);
	free(p);
}

/* The lists of step.c: stages stand at their own id, phases are slices without a hole, every index is a tensor, and what
 * the collect and learn phases hand on is written by one and read by another. */
static void test_stage_lists(void **state)
{
	int written[DQN_TENSORS] = {0}, read[DQN_TENSORS] = {0}, at = 0;

	for (int p = 0; p < dqn_program.phases; p++)
		for (int i = 0; i < dqn_program.phase[p].stages; i++, at++) {
			const struct stage *s = dqn_program.phase[p].stage + i;
			assert_int_equal(s->id, at);
			for (const short *r = s->reads; *r >= 0; r++) {
				assert_true(*r < DQN_TENSORS);
				read[*r] = 1;
			}
			for (const short *w = s->writes; *w >= 0; w++) {
				assert_true(*w < DQN_TENSORS);
				written[*w] = 1;
			}
		}
	assert_int_equal(at, DQN_STAGES);
	for (int t = 0; t < DQN_TENSORS; t++)
		if (read[t] && t != T_CONFIG)
			assert_true(written[t]);
}

static void test_refused_plans(void **state)
{
	struct fh_spec s = default_spec();
	struct fh_status st = FH_STATUS_INIT;
	struct memory_plan m;

	assert_int_equal(trainer_plan(backend_host(), &s, 20000, &m, &st), 0);
	assert_int_equal(trainer_plan(backend_host(), &s, 700, &m, &st), FH_INVALID);
	assert_string_equal(st.field, "data.validation");
	s.replay.capacity = 1 << 26; /* 13 TB for the states alone */
	s.run.population = 1024;
	assert_int_equal(trainer_plan(backend_host(), &s, 20000, &m, &st), FH_EXHAUSTED);
	assert_non_null(strstr(st.text, "bytes"));
	s = default_spec();
	s.run.device = FH_DEVICE_CUDA;
	assert_int_equal(trainer_plan(backend_host(), &s, 20000, &m, &st), FH_INVALID);
	assert_string_equal(st.field, "run.device");
}

static void test_backend_names(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	const struct backend *b = NULL;
	char note[FH_TEXT_MAX];

	assert_int_equal(backend_open("host", &b, note, &st), 0);
	assert_ptr_equal(b, backend_host());
	b = NULL;
	assert_int_equal(backend_open("gpu", &b, note, &st), FH_INVALID);
	assert_int_equal(backend_open("cuda:x", &b, note, &st), FH_INVALID);
	assert_int_equal(backend_open("cuda:64", &b, note, &st), FH_INVALID);
	assert_null(b);
	setenv("FHD_LIBDIR", "/nonexistent", 1);
	assert_int_equal(backend_open("cuda", &b, note, &st), FH_UNAVAILABLE);
	assert_int_equal(backend_open("auto", &b, note, &st), 0);
	assert_ptr_equal(b, backend_host());
	assert_true(strlen(note) > 0);
	unsetenv("FHD_LIBDIR");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_arena), cmocka_unit_test(test_views), cmocka_unit_test(test_population_is_the_leading_axis),
		cmocka_unit_test(test_same_layout_is_decided_by_shape_keys), cmocka_unit_test(test_memory_plan),
		cmocka_unit_test(test_stage_lists), cmocka_unit_test(test_refused_plans), cmocka_unit_test(test_backend_names),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
