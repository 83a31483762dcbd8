/* Promises of event files: records that check out, the event of the format's version first, every finite value of a sample under its
 * tag, and a second run that replaces the first. */
#include "client/tfevents.h"
#include "tests/unit/golden.h"

#include <sys/stat.h>

/* Published check value of CRC-32C, and the 32 zero bytes of RFC 3720. */
static void the_crc_is_castagnoli(void **arg)
{
	static const unsigned char zero[32];

	assert_int_equal(crc32c("123456789", 9), 0xe3069283u);
	assert_int_equal(crc32c(zero, sizeof zero), 0x8a9136aau);
	assert_int_equal(crc32c("", 0), 0);
}

static uint64_t little(const unsigned char *p, int bytes)
{
	uint64_t v = 0;

	for (int i = bytes; i-- > 0;)
		v = v << 8 | p[i];
	return v;
}

/* Checks every record; returns how many there are and the data of record `want`. */
static int records(const unsigned char *p, size_t n, int want, const unsigned char **data, size_t *len)
{
	int k = 0;

	for (size_t at = 0; at < n; k++) {
		assert_true(n - at >= 16);
		size_t size = (size_t)little(p + at, 8);
		assert_true(size <= n - at - 16);
		assert_int_equal(little(p + at + 8, 4), crc32c_masked(p + at, 8));
		assert_int_equal(little(p + at + 12 + size, 4), crc32c_masked(p + at + 12, size));
		if (k == want) {
			*data = p + at + 12;
			*len = size;
		}
		at += 16 + size;
	}
	return k;
}

static float value_of(const unsigned char *p, size_t n, const char *tag)
{
	size_t len = strlen(tag);
	float v = NAN;

	for (size_t i = 0; i + len + 7 <= n; i++)
		if (p[i] == 0x0a && p[i + 1] == len && !memcmp(p + i + 2, tag, len) && p[i + 2 + len] == 0x15) {
			uint32_t bits = (uint32_t)little(p + i + 3 + len, 4);
			memcpy(&v, &bits, 4);
		}
	return v;
}

static void a_file_holds_what_was_given(void **arg)
{
	char dir[] = "/tmp/fh-events-XXXXXX", path[256], run[128];
	Fh__V1__Job job = FH__V1__JOB__INIT;
	Fh__V1__Sample s = FH__V1__SAMPLE__INIT;
	Fh__V1__MetricValue v[3], *list[3] = {&v[0], &v[1], &v[2]};
	struct fh_status st = FH_STATUS_INIT;
	struct tfevents *t;
	static unsigned char file[4096];
	const unsigned char *data = NULL;
	size_t len = 0, n = 0;

	assert_non_null(mkdtemp(dir));
	job.id = 7;
	job.name = "mine";
	job.created_ns = 1704186000000000000u;
	static const double number[3] = {0.5, NAN, -3e39};
	static char *const name[3] = {"loss", "q", "grad_norm"};
	for (int i = 0; i < 3; i++) {
		fh__v1__metric_value__init(&v[i]);
		v[i].name = name[i];
		v[i].has_value = 1;
		v[i].value = number[i];
	}
	for (int round = 0; round < 2; round++) { /* the second replaces the first */
		assert_int_equal(tfevents_open(dir, &job, &t, &st), 0);
		snprintf(path, sizeof path, "%s", tfevents_path(t));
		s.kind = FH__V1__SAMPLE_KIND__REPORT;
		s.step = 300;
		s.time_ns = 1704186001500000000u;
		s.n_value = 3;
		s.value = list;
		assert_int_equal(tfevents_add(t, &s, &st), 0);
		s.kind = FH__V1__SAMPLE_KIND__STATE_CHANGE;
		assert_int_equal(tfevents_add(t, &s, &st), 0);
		s.kind = FH__V1__SAMPLE_KIND__VALIDATION;
		s.split = "test";
		s.has_policy = 1;
		s.policy = FH__V1__POLICY__ONLINE;
		s.trial = 2;
		assert_int_equal(tfevents_add(t, &s, &st), 0);
		s.trial = 0;
		assert_int_equal(tfevents_scalars(t), 2); /* one finite value as a float each */
		assert_int_equal(tfevents_close(t, &st), 0);
		FILE *f = fopen(path, "rb");
		assert_non_null(f);
		n = fread(file, 1, sizeof file, f);
		fclose(f);
	}
	assert_non_null(strstr(path, "/mine/events.out.tfevents.1704186000.fhd.7"));
	assert_int_equal(records(file, n, 0, &data, &len), 3);
	assert_true(len == 24 && !memcmp(data + len - 13, "brain.Event:2", 13));
	records(file, n, 1, &data, &len);
	double seconds;
	uint64_t bits = little(data + 1, 8);
	memcpy(&seconds, &bits, 8);
	assert_true(data[0] == 0x09 && seconds == 1704186001.5 && data[9] == 0x10 && data[10] == ((300 & 127) | 128) && data[11] == 300 >> 7);
	assert_true(value_of(data, len, "report/loss") == 0.5f && isnan(value_of(data, len, "report/q")));
	records(file, n, 2, &data, &len);
	assert_true(value_of(data, len, "trial_2_test_online/loss") == 0.5f);
	assert_int_equal(unlink(path), 0);
	snprintf(run, sizeof run, "%s/mine", dir);
	assert_int_equal(rmdir(run), 0);
	assert_int_equal(rmdir(dir), 0);
}

static void places_that_cannot_be_written_are_refused(void **arg)
{
	char dir[] = "/tmp/fh-events-XXXXXX", inner[64], place[128];
	Fh__V1__Job job = FH__V1__JOB__INIT;
	struct fh_status st = FH_STATUS_INIT;
	struct tfevents *t;

	assert_non_null(mkdtemp(dir));
	job.id = 3;
	snprintf(inner, sizeof inner, "%s/no/such", dir);
	assert_int_equal(tfevents_open(inner, &job, &t, &st), FH_IO);
	assert_string_equal(st.field, "--tensorboard");
	snprintf(inner, sizeof inner, "%s/job-3", dir);
	snprintf(place, sizeof place, "%s/events.out.tfevents.0000000000.fhd.3", inner);
	assert_int_equal(mkdir(inner, 0777), 0);
	assert_int_equal(mkfifo(place, 0666), 0); /* never opened, never replaced */
	assert_int_equal(tfevents_open(dir, &job, &t, &st), FH_INVALID);
	assert_int_equal(unlink(place), 0);
	assert_int_equal(rmdir(inner), 0);
	assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_crc_is_castagnoli), cmocka_unit_test(a_file_holds_what_was_given),
		cmocka_unit_test(places_that_cannot_be_written_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
