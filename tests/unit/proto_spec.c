/* The promises of proto/spec.h: key table and wire format agree one to one, every value survives the way, and what is
 * wrong is refused by name. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "proto/spec.h"

static void good(struct fh_spec *s)
{
	spec_defaults(s);
	assert_int_equal(fh_spec_set(s, "data.dataset", "eurusd", NULL), 0);
}

static ProtobufCType wire_type(enum spec_type t)
{
	switch (t) {
	case SPEC_INT: return PROTOBUF_C_TYPE_INT64;
	case SPEC_REAL: return PROTOBUF_C_TYPE_DOUBLE;
	case SPEC_ENUM: return PROTOBUF_C_TYPE_ENUM;
	case SPEC_NAME: return PROTOBUF_C_TYPE_STRING;
	}
	return PROTOBUF_C_TYPE_MESSAGE;
}

static void check_field(const char *path, const ProtobufCFieldDescriptor *f)
{
	const struct spec_key *k = spec_key_find(path);

	if (!k)
		fail_msg("%s is in fh.proto and not in the key table", path);
	assert_int_equal(f->type, wire_type(k->type));
	assert_int_equal(f->label, PROTOBUF_C_LABEL_OPTIONAL);
	if (k->type != SPEC_ENUM)
		return;
	/* Every choice is a number of the enum, and every number but UNSPECIFIED is a choice. */
	const ProtobufCEnumDescriptor *d = f->descriptor;
	unsigned choices = 0;

	for (const struct spec_choice *c = k->choice; c->word; c++, choices++)
		assert_non_null(protobuf_c_enum_descriptor_get_value(d, c->value));
	assert_int_equal(choices + 1, d->n_values);
}

static void table_and_wire_format_agree(void **state)
{
	const ProtobufCMessageDescriptor *d = &fh__v1__job_spec__descriptor;
	int fields = 0, keys;

	for (unsigned i = 0; i < d->n_fields; i++) {
		const ProtobufCMessageDescriptor *s = d->fields[i].descriptor;

		if (d->fields[i].type != PROTOBUF_C_TYPE_MESSAGE) {
			check_field(d->fields[i].name, d->fields + i);
			fields++;
			continue;
		}
		for (unsigned j = 0; j < s->n_fields; j++, fields++) {
			char path[128];

			snprintf(path, sizeof path, "%s.%s", d->fields[i].name, s->fields[j].name);
			check_field(path, s->fields + j);
		}
	}
	spec_keys(&keys);
	assert_int_equal(fields, keys);
}

static void there_and_back(const struct fh_spec *s)
{
	struct fh_status st = FH_STATUS_INIT;
	Fh__V1__JobSpec *m, *m2;
	struct fh_spec back;
	struct fh_arena a, b;
	uint8_t buf[4096];
	size_t size;

	fh_arena_init(&a, 1 << 20);
	if (fh_spec_to_message(s, &a, &m, &st))
		fail_msg("%s", st.text);
	assert_int_equal(fh_pack_size(&m->base, &size, &st), 0);
	assert_true(size <= sizeof buf);
	fh_pack(&m->base, buf);
	assert_int_equal(fh_message_unpack(&fh__v1__job_spec__descriptor, buf, size, 1, &b, (ProtobufCMessage **)&m2, &st), 0);
	if (fh_spec_from_message(m2, &back, &st))
		fail_msg("%s", st.text);
	if (fh_spec_difference(s, &back))
		fail_msg("%s changed on the way", fh_spec_difference(s, &back)->path);
	fh_arena_release(&a);
	fh_arena_release(&b);
}

static void every_value_survives_the_way(void **state)
{
	int n;
	const struct spec_key *key = spec_keys(&n);
	struct fh_spec s;

	good(&s);
	there_and_back(&s);
	for (int i = 0; i < n; i++) {
		for (const struct spec_choice *c = key[i].type == SPEC_ENUM ? key[i].choice : NULL; c && c->word; c++) {
			if (!strcmp(c->word, "checkpoint"))
				continue; /* needs init.checkpoint: below */
			good(&s);
			if (fh_spec_set(&s, key[i].path, c->word, NULL) || spec_check(&s, NULL))
				continue;
			there_and_back(&s);
		}
	}
	good(&s);
	assert_int_equal(fh_spec_set(&s, "init.from", "checkpoint", NULL), 0);
	assert_int_equal(fh_spec_set(&s, "init.checkpoint", "ck-1", NULL), 0);
	assert_int_equal(fh_spec_set(&s, "learn.lr", "0.00012345678901234567", NULL), 0);
	assert_int_equal(fh_spec_set(&s, "run.seed", "-9223372036854775808", NULL), 0);
	assert_int_equal(fh_spec_set(&s, "env.half_spread", "0.1", NULL), 0);
	assert_int_equal(s.run.seed, INT64_MIN);
	there_and_back(&s);
}

static void missing_keys_take_their_default(void **state)
{
	Fh__V1__JobSpec m = FH__V1__JOB_SPEC__INIT;
	Fh__V1__DataSpec data = FH__V1__DATA_SPEC__INIT;
	struct fh_status st = FH_STATUS_INIT;
	struct fh_spec s, want;

	assert_int_equal(fh_spec_from_message(NULL, &s, &st), FH_INVALID); /* data.dataset has no default */
	assert_string_equal(st.field, "data.dataset");
	m.data = &data;
	data.dataset = "eurusd";
	good(&want);
	assert_int_equal(fh_spec_from_message(&m, &s, &st), 0);
	assert_null(fh_spec_difference(&s, &want));
}

static void wrong_values_are_refused_by_name(void **state)
{
	Fh__V1__JobSpec m = FH__V1__JOB_SPEC__INIT;
	Fh__V1__DataSpec data = FH__V1__DATA_SPEC__INIT;
	Fh__V1__LearnSpec learn = FH__V1__LEARN_SPEC__INIT;
	Fh__V1__NetSpec net = FH__V1__NET_SPEC__INIT;
	struct fh_status st = FH_STATUS_INIT;
	struct fh_spec s;
	static const double odd[] = {NAN, INFINITY, -INFINITY, -1, 1e300};

	memset(&s, 0x5a, sizeof s);
	m.data = &data;
	m.learn = &learn;
	data.dataset = "eurusd";
	for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
		learn.has_lr = 1;
		learn.lr = odd[i];
		assert_int_equal(fh_spec_from_message(&m, &s, &st), FH_INVALID);
		assert_string_equal(st.field, "learn.lr");
	}
	learn.has_lr = 0;
	learn.has_loss = 1;
	learn.loss = (Fh__V1__Loss)0;
	assert_int_equal(fh_spec_from_message(&m, &s, &st), FH_INVALID);
	assert_string_equal(st.field, "learn.loss");
	learn.loss = (Fh__V1__Loss)127;
	assert_int_equal(fh_spec_from_message(&m, &s, &st), FH_INVALID);
	assert_string_equal(st.field, "learn.loss");
	learn.has_loss = 0;
	data.dataset = "a/../b";
	assert_int_equal(fh_spec_from_message(&m, &s, &st), FH_INVALID);
	assert_string_equal(st.field, "data.dataset");
	data.dataset = "eurusd";
	m.net = &net;
	net.has_v_min = net.has_v_max = 1;
	net.v_min = 3;
	net.v_max = 3;
	assert_int_equal(fh_spec_from_message(&m, &s, &st), FH_INVALID);
	assert_int_equal(strncmp(st.field, "net.v_", 6), 0);
	/* Outputs of a failed call are untouched. */
	for (size_t i = 0; i < sizeof s; i++)
		assert_int_equal(((unsigned char *)&s)[i], 0x5a);
}

static void a_key_of_another_version_is_not_dropped_in_silence(void **state)
{
	/* data { dataset: "eurusd", field 77: 1 } */
	static const uint8_t bytes[] = "\x12\x0b\x0a\x06" "eurusd" "\xe8\x04\x01";
	struct fh_status st = FH_STATUS_INIT;
	Fh__V1__JobSpec *m;
	struct fh_arena a;
	struct fh_spec s;

	assert_int_equal(fh_message_unpack(&fh__v1__job_spec__descriptor, bytes, sizeof bytes - 1, 1, &a,
					   (ProtobufCMessage **)&m, &st), 0);
	assert_int_equal(fh_spec_from_message(m, &s, &st), FH_INVALID);
	assert_string_equal(st.field, "data");
	assert_non_null(strstr(st.text, "77"));
	fh_arena_release(&a);
}

static void misspelt_keys_name_the_nearest(void **state)
{
	static const struct { const char *typed, *meant; } row[] = {
		{"learn.lrr", "learn.lr"}, {"lern.lr", "learn.lr"}, {"lr", "learn.lr"}, {"learn.epochs", "run.epochs"},
		{"replay.capasity", "replay.capacity"}, {"learn.btach", "learn.batch"}, {"env.halfspread", "env.half_spread"},
		{"Learn.LR", "learn.lr"}, {"atoms", "net.atoms"}, {"model", "model"},
	};
	struct fh_status st = FH_STATUS_INIT;
	struct fh_spec s;

	good(&s);
	for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
		const char *found = fh_spec_nearest(row[i].typed);

		if (!found || strcmp(found, row[i].meant))
			fail_msg("%s: %s instead of %s", row[i].typed, found ? found : "nothing", row[i].meant);
	}
	assert_null(fh_spec_nearest("wibble.wobble.very_far_away"));
	assert_int_equal(fh_spec_set(&s, "learn.lrr", "1", &st), FH_INVALID);
	assert_string_equal(st.field, "learn.lrr");
	assert_non_null(strstr(st.text, "learn.lr?"));
	assert_int_equal(fh_spec_set(&s, "x\033[2Jy", "1", &st), FH_INVALID);
	assert_null(strchr(st.text, '\033'));
}

static void pairs_of_set(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_spec s;
	char huge[400];

	good(&s);
	assert_int_equal(fh_spec_set_pair(&s, "learn.lr=1e-3", &st), 0);
	assert_true(s.learn.lr == 1e-3);
	assert_int_equal(fh_spec_set_pair(&s, "replay.capacity=auto", &st), 0);
	assert_int_equal(s.replay.capacity, 0);
	assert_int_equal(fh_spec_set_pair(&s, "learn.loss=MSE", &st), 0);
	assert_int_equal(s.learn.loss, FH_LOSS_MSE);
	assert_int_equal(fh_spec_set_pair(&s, "run.precision=PRECISION_AUTO", &st), 0);
	assert_int_equal(s.run.precision, FH_PRECISION_AUTO);
	assert_int_equal(fh_spec_set_pair(&s, "learn.lr", &st), FH_INVALID);
	assert_int_equal(fh_spec_set_pair(&s, "=3", &st), FH_INVALID);
	assert_int_equal(fh_spec_set_pair(&s, "learn.lr=", &st), FH_INVALID);
	assert_int_equal(fh_spec_set_pair(&s, "learn.lr=fast", &st), FH_INVALID);
	assert_string_equal(st.field, "learn.lr");
	memset(huge, 'a', sizeof huge - 1);
	huge[sizeof huge - 1] = 0;
	assert_int_equal(fh_spec_set_pair(&s, huge, &st), FH_INVALID);
}

static void differences_are_found(void **state)
{
	struct fh_spec a, b;

	good(&a);
	b = a;
	assert_null(fh_spec_difference(&a, &b));
	b.learn.lr = nextafter(b.learn.lr, 1);
	assert_string_equal(fh_spec_difference(&a, &b)->path, "learn.lr");
}

static void edit_distances(void **state)
{
	assert_int_equal(fh_edit_distance("", ""), 0);
	assert_int_equal(fh_edit_distance("abc", ""), 3);
	assert_int_equal(fh_edit_distance("kitten", "sitting"), 3);
	assert_int_equal(fh_edit_distance("batch", "btach"), 1);
	assert_int_equal(fh_edit_distance("LR", "lr"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(table_and_wire_format_agree), cmocka_unit_test(every_value_survives_the_way),
		cmocka_unit_test(missing_keys_take_their_default), cmocka_unit_test(wrong_values_are_refused_by_name),
		cmocka_unit_test(a_key_of_another_version_is_not_dropped_in_silence),
		cmocka_unit_test(misspelt_keys_name_the_nearest), cmocka_unit_test(pairs_of_set),
		cmocka_unit_test(differences_are_found), cmocka_unit_test(edit_distances),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
