/* The promises of proto/wire.h: nothing hostile is unpacked, nothing grows past its cap, errors keep code and text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "proto/wire.h"

struct bytes { uint8_t data[4096]; size_t len; };

static void put(struct bytes *b, const void *p, size_t n)
{
	assert_true(b->len + n <= sizeof b->data);
	if (n)
		memcpy(b->data + b->len, p, n);
	b->len += n;
}

static void put_varint(struct bytes *b, uint64_t x)
{
	do {
		uint8_t c = (uint8_t)(x & 0x7f) | (x > 0x7f ? 0x80 : 0);

		put(b, &c, 1);
		x >>= 7;
	} while (x);
}

static void put_tag(struct bytes *b, unsigned number, unsigned type) { put_varint(b, number << 3 | type); }

static void put_len(struct bytes *b, unsigned number, const void *p, size_t n)
{
	put_tag(b, number, 2);
	put_varint(b, n);
	put(b, p, n);
}

static void envelope(struct bytes *b, uint32_t magic, uint32_t protocol)
{
	b->len = 0;
	put_tag(b, 1, 0);
	put_varint(b, magic);
	put_tag(b, 2, 0);
	put_varint(b, protocol);
	put_len(b, 3, "r-1", 3);
}

/* The code that unpacking gives; a success is released. */
static int try_bytes(const struct bytes *b, struct fh_status *st)
{
	struct fh_arena a;
	Fh__V1__Request *r = NULL;
	int rc = fh_request_unpack(b->data, b->len, &a, &r, st);

	if (rc == 0)
		assert_non_null(r);
	else
		assert_null(a.chunk);
	fh_arena_release(&a);
	return rc;
}

static void a_request_survives_the_way(void **state)
{
	Fh__V1__Request req, *back;
	Fh__V1__StopJobRequest stop = FH__V1__STOP_JOB_REQUEST__INIT;
	struct fh_status st = FH_STATUS_INIT;
	struct fh_arena a;
	struct fh_peek k;
	size_t size = 0;
	uint8_t *buf;

	fh_request_init(&req);
	req.request_id = "abc-1";
	req.token = "secret";
	req.call_case = FH__V1__REQUEST__CALL_STOP_JOB;
	req.stop_job = &stop;
	stop.job = "my-job";
	assert_int_equal(fh_pack_size(&req.base, &size, &st), 0);
	buf = malloc(size);
	assert_non_null(buf);
	assert_int_equal(fh_pack(&req.base, buf), size);
	assert_int_equal(fh_peek(buf, size, &k, &st), 0);
	assert_int_equal(k.call, 13);
	assert_string_equal(k.request_id, "abc-1");
	assert_int_equal(k.token_len, 6);
	assert_memory_equal(k.token, "secret", 6);
	assert_int_equal(fh_request_unpack(buf, size, &a, &back, &st), 0);
	assert_int_equal(back->call_case, FH__V1__REQUEST__CALL_STOP_JOB);
	assert_string_equal(back->stop_job->job, "my-job");
	fh_arena_release(&a);
	/* Every cut of it is refused or is another whole message; none crashes. */
	for (size_t n = 0; n < size; n++) {
		if (fh_request_unpack(buf, n, &a, &back, &st) == 0)
			fail_msg("a request cut to %zu of %zu bytes was taken", n, size);
		fh_arena_release(&a);
	}
	free(buf);
}

static void envelopes_of_others_are_told_apart(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct bytes b;

	b.len = 0;
	assert_int_equal(try_bytes(&b, &st), FH_CORRUPT);
	envelope(&b, 0x12345678, FH_PROTOCOL);
	assert_int_equal(try_bytes(&b, &st), FH_CORRUPT);
	envelope(&b, FH_MAGIC, FH_PROTOCOL + 1);
	assert_int_equal(try_bytes(&b, &st), FH_VERSION);
	assert_non_null(strstr(st.text, "2"));
	assert_non_null(strstr(st.text, "1"));
	envelope(&b, FH_MAGIC, FH_PROTOCOL);
	assert_int_equal(try_bytes(&b, &st), FH_INVALID); /* no call */
	put_len(&b, 900, "", 0);
	assert_int_equal(try_bytes(&b, &st), FH_UNIMPLEMENTED);
	envelope(&b, FH_MAGIC, FH_PROTOCOL);
	put_len(&b, 10, "", 0);
	assert_int_equal(try_bytes(&b, &st), 0);
}

static void unknown_fields_are_let_through(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct bytes b;

	envelope(&b, FH_MAGIC, FH_PROTOCOL);
	put_len(&b, 9, "new", 3); /* below the calls: a newer envelope field */
	put_len(&b, 10, "\x92\x3f\x01x", 4);
	assert_int_equal(try_bytes(&b, &st), 0);
}

static void texts_must_be_utf8_without_nul(void **state)
{
	static const struct { const char *bytes; size_t len; int ok; } row[] = {
		{"job", 3, 1}, {"a\0b", 3, 0}, {"\xc3\xa4", 2, 1}, {"\xc3", 1, 0}, {"\xff", 1, 0}, {"\xc0\x80", 2, 0},
		{"\xed\xa0\x80", 3, 0}, {"\xf4\x90\x80\x80", 4, 0}, {"\xf0\x9f\x98\x80", 4, 1}, {"\x80", 1, 0},
		{"\xe2\x82", 2, 0},
	};

	for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
		struct fh_status st = FH_STATUS_INIT;
		struct bytes call = {.len = 0}, b;

		put_len(&call, 1, row[i].bytes, row[i].len);
		envelope(&b, FH_MAGIC, FH_PROTOCOL);
		put_len(&b, 17, call.data, call.len);
		assert_int_equal(try_bytes(&b, &st), row[i].ok ? 0 : FH_INVALID);
		if (!row[i].ok)
			assert_string_equal(st.field, "show_job.job");
	}
}

static void enums_must_be_known(void **state)
{
	static const struct { uint64_t number; int ok; } row[] = {{1, 1}, {2, 1}, {0, 0}, {127, 0}, {UINT64_MAX, 0}};

	for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
		struct fh_status st = FH_STATUS_INIT;
		struct bytes learn = {.len = 0}, spec = {.len = 0}, start = {.len = 0}, b;

		put_tag(&learn, 1, 0);
		put_varint(&learn, row[i].number);
		put_len(&spec, 4, learn.data, learn.len);
		put_len(&start, 1, spec.data, spec.len);
		envelope(&b, FH_MAGIC, FH_PROTOCOL);
		put_len(&b, 12, start.data, start.len);
		assert_int_equal(try_bytes(&b, &st), row[i].ok ? 0 : FH_INVALID);
		if (!row[i].ok)
			assert_string_equal(st.field, "start_job.spec.learn.loss");
	}
}

static void wrong_wire_types_and_groups_are_refused(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct bytes b;

	envelope(&b, FH_MAGIC, FH_PROTOCOL);
	put_tag(&b, 10, 0); /* ping as a number */
	put_varint(&b, 1);
	put_len(&b, 10, "", 0);
	assert_int_equal(try_bytes(&b, &st), FH_CORRUPT);
	envelope(&b, FH_MAGIC, FH_PROTOCOL);
	put_tag(&b, 60, 3); /* a group of unknown number */
	put_tag(&b, 60, 4);
	put_len(&b, 10, "", 0);
	assert_int_equal(try_bytes(&b, &st), FH_CORRUPT);
	envelope(&b, FH_MAGIC, FH_PROTOCOL);
	put(&b, "\x52\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 11); /* a length of more than 64 bits */
	assert_int_equal(try_bytes(&b, &st), FH_CORRUPT);
	envelope(&b, FH_MAGIC, FH_PROTOCOL);
	put(&b, "\x52\xff\xff\xff\xff\x0f", 6); /* a length of 4 GiB */
	assert_int_equal(try_bytes(&b, &st), FH_CORRUPT);
}

static void random_bytes_never_pass(void **state)
{
	uint32_t x = 12345;
	int taken = 0;

	for (int round = 0; round < 20000; round++) {
		struct fh_status st = FH_STATUS_INIT;
		struct bytes b;
		size_t flips;

		envelope(&b, FH_MAGIC, FH_PROTOCOL);
		put_len(&b, 12, "\x0a\x06\x22\x04\x08\x01\x10\x03\x12\x03" "abc\x1a\x04\x0a\x02kk", 19);
		x = x * 1664525u + 1013904223u;
		flips = x >> 30;
		for (size_t i = 0; i <= flips; i++) {
			x = x * 1664525u + 1013904223u;
			b.data[(x >> 8) % b.len] = (uint8_t)(x >> 24);
		}
		taken += try_bytes(&b, &st) == 0;
	}
	/* Some flips only change a letter of a name; most must be noticed or harmless, and none may crash. */
	assert_in_range(taken, 1, 19999);
}

static void size_limits_hold_for_each_kind(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_arena a;
	Fh__V1__Request *r;
	size_t size = FH_WIRE_MAX + 64;
	uint8_t *big = calloc(1, FH_WIRE_DATA_MAX + 1);
	struct bytes head;

	assert_non_null(big);
	/* ping with an unknown field of one MiB: too large for a control call, … */
	envelope(&head, FH_MAGIC, FH_PROTOCOL);
	put_len(&head, 10, "", 0);
	put_tag(&head, 9, 2);
	put_varint(&head, size - 32);
	memcpy(big, head.data, head.len);
	assert_int_equal(fh_request_unpack(big, head.len + size - 32, &a, &r, &st), FH_EXHAUSTED);
	/* … fine with bars. */
	envelope(&head, FH_MAGIC, FH_PROTOCOL);
	put_len(&head, 30, "", 0);
	put_tag(&head, 9, 2);
	put_varint(&head, size - 32);
	memcpy(big, head.data, head.len);
	assert_int_equal(fh_request_unpack(big, head.len + size - 32, &a, &r, &st), 0);
	fh_arena_release(&a);
	assert_int_equal(fh_request_unpack(big, FH_WIRE_DATA_MAX + 1, &a, &r, &st), FH_EXHAUSTED);
	free(big);
}

static void unpacking_stays_below_its_cap(void **state)
{
	/* Many labels without content: two bytes on the wire, a pointer and a struct in memory. */
	struct fh_status st = FH_STATUS_INIT;
	size_t n = 400000, at, i;
	uint8_t *big = malloc(2 * n + 64), *p;
	struct bytes head;
	struct fh_arena a;
	Fh__V1__Request *r;
	int rc;

	assert_non_null(big);
	envelope(&head, FH_MAGIC, FH_PROTOCOL);
	put_tag(&head, 12, 2);
	put_varint(&head, 2 * n);
	memcpy(big, head.data, head.len);
	at = head.len;
	for (i = 0, p = big + at; i < n; i++) {
		*p++ = 3 << 3 | 2;
		*p++ = 0;
	}
	rc = fh_request_unpack(big, at + 2 * n, &a, &r, &st);
	assert_int_equal(rc, FH_EXHAUSTED);
	assert_null(a.chunk);
	free(big);
}

static void the_arena_never_passes_its_cap(void **state)
{
	struct fh_arena a;
	size_t given = 0;
	unsigned char *p;

	fh_arena_init(&a, 100000);
	while ((p = fh_arena_alloc(&a, 1000))) {
		for (int i = 0; i < 1000; i++)
			assert_int_equal(p[i], 0);
		memset(p, 0xff, 1000);
		given += 1000;
	}
	assert_true(a.full);
	assert_true(a.used <= a.cap);
	assert_true(given > 80000);
	assert_null(fh_arena_alloc(&a, SIZE_MAX));
	assert_null(fh_arena_alloc(&a, SIZE_MAX - 8));
	assert_null(fh_arena_array(&a, SIZE_MAX / 2, 3));
	fh_arena_release(&a);
	assert_string_equal(fh_arena_strdup(&a, "again"), "again");
	assert_null(fh_arena_strdup(&a, NULL));
	fh_arena_release(&a);
}

static void names_and_ids(void **state)
{
	char long_name[66];
	uint64_t id = 0;
	struct fh_status st = FH_STATUS_INIT;

	memset(long_name, 'a', 65);
	long_name[65] = 0;
	assert_false(fh_name_ok(long_name));
	long_name[64] = 0;
	assert_true(fh_name_ok(long_name));
	assert_true(fh_name_ok("EURUSD_1h.v2-x"));
	assert_false(fh_name_ok(""));
	assert_false(fh_name_ok("."));
	assert_false(fh_name_ok(".."));
	assert_true(fh_name_ok("..."));
	assert_false(fh_name_ok("a/b"));
	assert_false(fh_name_ok("a b"));
	assert_false(fh_name_ok("\xc3\xa4"));
	assert_true(fh_id_parse("42", &id));
	assert_int_equal(id, 42);
	assert_false(fh_id_parse("0", &id));
	assert_false(fh_id_parse("-1", &id));
	assert_false(fh_id_parse("4x", &id));
	assert_false(fh_id_parse("99999999999999999999", &id));
	assert_true(fh_id_parse("18446744073709551615", &id));
	assert_int_equal(fh_job_name_check("name", "123", &st), FH_INVALID);
	assert_int_equal(fh_job_name_check("name", "12a", &st), 0);
	assert_int_equal(fh_name_check("dataset", "a\033[31mb", &st), FH_INVALID);
	assert_string_equal(st.field, "dataset");
	assert_null(strchr(st.text, '\033'));
}

static void labels_are_checked(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	Fh__V1__Label one = FH__V1__LABEL__INIT, two = FH__V1__LABEL__INIT, *list[FH_LABELS_MAX + 1];

	one.key = "team";
	one.value = "a";
	two = one;
	list[0] = &one;
	list[1] = &two;
	assert_int_equal(fh_labels_check(list, 1, &st), 0);
	assert_int_equal(fh_labels_check(list, 2, &st), FH_INVALID);
	assert_string_equal(st.field, "labels.team");
	one.value = "a\nb";
	assert_int_equal(fh_labels_check(list, 1, &st), FH_INVALID);
	one.key = NULL;
	assert_int_equal(fh_labels_check(list, 1, &st), FH_INVALID);
	for (int i = 0; i <= FH_LABELS_MAX; i++)
		list[i] = &two;
	assert_int_equal(fh_labels_check(list, FH_LABELS_MAX + 1, &st), FH_INVALID);
}

static void errors_travel_with_code_field_and_text(void **state)
{
	for (int code = -1; code >= FH_INTERNAL; code--) {
		struct fh_status st = FH_STATUS_INIT, back = FH_STATUS_INIT;
		Fh__V1__Error e;

		fh_fail_field(&st, code, "learn.lr", "learn.lr is %d", 7);
		fh_error_from_status(&e, &st);
		assert_int_equal(fh_error_to_status(&e, &back), code);
		assert_string_equal(back.field, "learn.lr");
		assert_string_equal(back.text, "learn.lr is 7");
	}
	Fh__V1__Error odd = FH__V1__ERROR__INIT;
	struct fh_status st = FH_STATUS_INIT;

	assert_int_equal(fh_error_to_status(&odd, &st), FH_INTERNAL);
	odd.has_code = 1;
	odd.code = (Fh__V1__ErrorCode)99;
	assert_int_equal(fh_error_to_status(&odd, &st), FH_INTERNAL);
}

static void request_ids_differ(void **state)
{
	char a[FH_REQUEST_ID_SIZE], b[FH_REQUEST_ID_SIZE];

	fh_request_id_new(a);
	fh_request_id_new(b);
	assert_int_equal(strlen(a), 32);
	assert_string_not_equal(a, b);
	assert_true(fh_name_ok(a));
}

/* No message contains itself: unpacking, checking and printing may recurse along the types. */
static int depth_of(const ProtobufCMessageDescriptor *d, int level)
{
	int most = level;

	if (level > FH_WIRE_DEPTH_MAX)
		return level;
	for (unsigned i = 0; i < d->n_fields; i++)
		if (d->fields[i].type == PROTOBUF_C_TYPE_MESSAGE) {
			int n = depth_of(d->fields[i].descriptor, level + 1);

			most = n > most ? n : most;
		}
	return most;
}

static void no_message_contains_itself(void **state)
{
	assert_in_range(depth_of(&fh__v1__request__descriptor, 1), 3, FH_WIRE_DEPTH_MAX);
	assert_in_range(depth_of(&fh__v1__reply__descriptor, 1), 3, FH_WIRE_DEPTH_MAX);
	assert_in_range(depth_of(&fh__v1__event__descriptor, 1), 3, FH_WIRE_DEPTH_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_request_survives_the_way), cmocka_unit_test(envelopes_of_others_are_told_apart),
		cmocka_unit_test(unknown_fields_are_let_through), cmocka_unit_test(texts_must_be_utf8_without_nul),
		cmocka_unit_test(enums_must_be_known), cmocka_unit_test(wrong_wire_types_and_groups_are_refused),
		cmocka_unit_test(random_bytes_never_pass), cmocka_unit_test(size_limits_hold_for_each_kind),
		cmocka_unit_test(unpacking_stays_below_its_cap), cmocka_unit_test(the_arena_never_passes_its_cap),
		cmocka_unit_test(names_and_ids), cmocka_unit_test(labels_are_checked),
		cmocka_unit_test(errors_travel_with_code_field_and_text), cmocka_unit_test(request_ids_differ),
		cmocka_unit_test(no_message_contains_itself),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
