/* The file format: what is written opens again, and hostile files are refused by name without touching memory. */
#include <sys/stat.h>
#include "gpu/hash.h"
#include "gpu/philox.h"
#include "tests/unit/golden.h"

#define FILE_MAX 4096

/* A file from header text and data bytes 0, 1, 2, …, in an 8-byte aligned buffer. */
static size_t file_make(unsigned char *out, const char *header, size_t data)
{
	size_t n = strlen(header), padded = (n + 7) / 8 * 8;

	memset(out, 0, 8);
	out[0] = (unsigned char)padded;
	out[1] = (unsigned char)(padded >> 8);
	memcpy(out + 8, header, n);
	memset(out + 8 + n, ' ', padded - n);
	for (size_t i = 0; i < data; i++)
		out[8 + padded + i] = (unsigned char)i;
	return 8 + padded + data;
}

static int open_text(const char *header, size_t data, struct st_file **f, struct fh_status *st)
{
	static unsigned char file[FILE_MAX] __attribute__((aligned(8)));

	*st = (struct fh_status)FH_STATUS_INIT;
	*f = NULL;
	return st_open_memory(file, file_make(file, header, data), f, st);
}

static char *temporary(void)
{
	static char path[256];
	const char *dir = getenv("TMPDIR");

	snprintf(path, sizeof(path), "%s/fh-st-%ld.safetensors", dir ? dir : "/tmp", (long)getpid());
	return path;
}

/* ---------------------------------------------------------------- round trip */

static const float f32[6] = {1, 2, 3, 4, 5, 6};
static const double f64[2] = {7, 8};
static const uint16_t bf16[3] = {9, 10, 11};
static const unsigned char u8[5] = {1, 2, 3, 4, 5};
static const int64_t i64[1] = {-12};

static int sample_tensors(struct st_tensor *t)
{
	const struct st_tensor all[] = {
		{"bytes", ST_U8, 1, {5}, sizeof(u8), u8}, {"half", ST_BF16, 1, {3}, sizeof(bf16), bf16},
		{"matrix", ST_F32, 2, {2, 3}, sizeof(f32), f32}, {"pair", ST_F64, 1, {2}, sizeof(f64), f64},
		{"scalar", ST_I64, 0, {0}, sizeof(i64), i64}, {"empty", ST_F32, 2, {0, 7}, 0, NULL},
	};

	memcpy(t, all, sizeof(all));
	return sizeof(all) / sizeof(all[0]);
}

static const char *const sample_meta[] = {
	"plain", "value", "quoted \"key\"", "back\\slash\nline\ttab", "umlaut \xC3\xA4", "\xE2\x82\xAC \xF0\x9F\x98\x80", NULL,
};

static void check_sample(struct st_file *f)
{
	static const int64_t shape[2] = {2, 3};
	const struct st_tensor *t;
	struct fh_status st;

	assert_int_equal(st_count(f), 6);
	assert_string_equal(st_at(f, 0)->name, "pair"); /* element size descending, empty ones lie where they are */
	assert_int_equal(st_need(f, "matrix", ST_F32, 2, shape, &t, &st), 0);
	assert_memory_equal(t->data, f32, sizeof(f32));
	assert_memory_equal(st_find(f, "pair")->data, f64, sizeof(f64));
	assert_memory_equal(st_find(f, "half")->data, bf16, sizeof(bf16));
	assert_memory_equal(st_find(f, "bytes")->data, u8, sizeof(u8));
	assert_memory_equal(st_find(f, "scalar")->data, i64, sizeof(i64));
	assert_int_equal(st_find(f, "scalar")->rank, 0);
	assert_int_equal(st_find(f, "empty")->bytes, 0);
	assert_null(st_find(f, "absent"));
	assert_null(st_at(f, 6));
	assert_null(st_at(f, -1));
	for (int i = 0; sample_meta[i]; i += 2)
		assert_string_equal(st_meta(f, sample_meta[i]), sample_meta[i + 1]);
	assert_null(st_meta(f, "absent"));
}

static void image_reads_back(void **state)
{
	struct st_tensor t[8];
	struct fh_status st = FH_STATUS_INIT;
	struct st_image img = {NULL, 0};
	struct st_file *f = NULL;
	int n = sample_tensors(t);

	(void)state;
	assert_int_equal(st_image_make(t, n, sample_meta, &img, &st), 0);
	assert_int_equal(st_open_memory(img.data, img.bytes, &f, &st), 0);
	check_sample(f);
	st_close(f);
	st_image_release(&img);
	assert_null(img.data);
	assert_int_equal(st_image_make(t, 0, NULL, &img, &st), 0); /* nothing at all is a file too */
	assert_int_equal(st_open_memory(img.data, img.bytes, &f, &st), 0);
	assert_int_equal(st_count(f), 0);
	st_close(f);
	st_image_release(&img);
}

static void files_appear_whole(void **state)
{
	struct st_tensor t[8];
	struct fh_status st = FH_STATUS_INIT;
	struct st_image img = {NULL, 0};
	struct st_file *f = NULL;
	char hex[2][HASH_HEX_SIZE], tmp[300];
	char *path = temporary();
	int n = sample_tensors(t);

	(void)state;
	assert_int_equal(st_image_make(t, n, sample_meta, &img, &st), 0);
	assert_int_equal(st_image_write(&img, path, &st), 0);
	assert_int_equal(st_open(path, &f, &st), 0);
	check_sample(f);
	assert_int_equal(hash_file(path, hex[0], &st), 0);
	/* a new file takes the name while the old one is still read */
	assert_int_equal(st_save(t, n, sample_meta, path, &st), 0);
	check_sample(f);
	st_close(f);
	assert_int_equal(hash_file(path, hex[1], &st), 0);
	assert_string_equal(hex[0], hex[1]);
	assert_int_equal(hash_bytes(img.data, img.bytes, hex[1], &st), 0);
	assert_string_equal(hex[0], hex[1]);
	snprintf(tmp, sizeof(tmp), "%s.tmp", path);
	assert_int_equal(access(tmp, F_OK), -1);
	st_image_release(&img);
	unlink(path);
}

static void failed_writes_leave_nothing(void **state)
{
	struct st_tensor t[8];
	struct fh_status st = FH_STATUS_INIT;
	char dir[300], tmp[310];
	int n = sample_tensors(t);

	(void)state;
	assert_int_equal(st_save(t, n, NULL, "/nonexistent-directory/x", &st), FH_IO);
	assert_non_null(strstr(st.text, "/nonexistent-directory/x"));
	snprintf(dir, sizeof(dir), "%s.d", temporary()); /* a directory cannot be replaced by a file */
	assert_int_equal(mkdir(dir, 0700), 0);
	assert_int_equal(st_save(t, n, NULL, dir, &st), FH_IO);
	snprintf(tmp, sizeof(tmp), "%s.tmp", dir);
	assert_int_equal(access(tmp, F_OK), -1);
	rmdir(dir);
	assert_int_equal(st_open("/nonexistent", &(struct st_file *){NULL}, &st), FH_NOT_FOUND);
	assert_int_equal(st_open("/dev/null", &(struct st_file *){NULL}, &st), FH_CORRUPT);
	assert_int_equal(hash_file("/nonexistent", tmp, &st), FH_NOT_FOUND);
}

/* Pieces of one byte to all of it, from the last tensor to the first, each from its end: the same file as in one call. */
static void pieces_make_the_same_file(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct st_tensor t[8];
	int n = sample_tensors(t);
	char *path = temporary(), whole[65], part[320];
	struct st_writer *w = NULL;

	(void)state;
	assert_int_equal(hash_file(path, whole, &st), FH_NOT_FOUND);
	assert_int_equal(st_save(t, n, sample_meta, path, &st), 0);
	assert_int_equal(hash_file(path, whole, &st), 0);
	for (size_t piece = 1; piece < 100; piece = piece * 2 + 1) {
		char hash[65], name[320];

		unlink(path);
		snprintf(name, sizeof(name), "%s.k%zu.tmp", path, piece);
		snprintf(part, sizeof(part), "k%zu", piece);
		assert_int_equal(st_writer_begin(t, n, sample_meta, path, part, &w, &st), 0);
		assert_int_equal(access(name, F_OK), 0);
		for (int i = n - 1; i >= 0; i--)
			for (size_t end = t[i].bytes; end;) {
				size_t bytes = end < piece ? end : piece;

				end -= bytes;
				assert_int_equal(st_writer_put(w, i, end, (const char *)t[i].data + end, bytes, &st), 0);
			}
		assert_int_equal(st_writer_put(w, n, 0, "", 0, &st), FH_INTERNAL);
		assert_int_equal(st_writer_put(w, 0, 0, t[0].data, t[0].bytes + 1, &st), FH_INTERNAL);
		assert_int_equal(access(path, F_OK), -1);
		assert_int_equal(st_writer_end(w, &st), 0);
		assert_int_equal(access(name, F_OK), -1);
		assert_int_equal(hash_file(path, hash, &st), 0);
		assert_string_equal(hash, whole);
	}
	unlink(path);
	assert_int_equal(st_writer_begin(t, n, sample_meta, path, NULL, &w, &st), 0);
	st_writer_abandon(w);
	st_writer_abandon(NULL);
	snprintf(part, sizeof(part), "%s.tmp", path);
	assert_int_equal(access(part, F_OK), -1);
	assert_int_equal(access(path, F_OK), -1);
}

static void wrong_tensors_are_not_written(void **state)
{
	struct st_tensor t[8];
	struct fh_status st = FH_STATUS_INIT;
	struct st_image img = {NULL, 0};
	int n = sample_tensors(t);

	(void)state;
	strcpy(t[1].name, "bytes");
	assert_int_equal(st_image_make(t, n, NULL, &img, &st), FH_INVALID);
	sample_tensors(t);
	t[2].bytes--;
	assert_int_equal(st_image_make(t, n, NULL, &img, &st), FH_INVALID);
	assert_non_null(strstr(st.text, "matrix"));
	sample_tensors(t);
	t[2].dim[0] = -2;
	assert_int_equal(st_image_make(t, n, NULL, &img, &st), FH_INVALID);
	assert_null(img.data);
}

static void known_hashes(void **state)
{
	char hex[HASH_HEX_SIZE];
	struct hash *h = NULL;

	(void)state;
	assert_int_equal(hash_bytes("", 0, hex, NULL), 0);
	assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
	assert_int_equal(hash_new(&h, NULL), 0);
	hash_add(h, "a", 1);
	hash_add(h, "bc", 2);
	hash_finish(h, hex);
	assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

/* ---------------------------------------------------------------- hostile headers */

#define T(name, dtype, shape, begin, end) \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #begin "," #end "]}"

static void good_headers_open(void **state)
{
	static const struct { const char *header; size_t data; int tensors; } good[] = {
		{"{}", 0, 0},
		{" { } ", 0, 0},
		{"{\"__metadata__\":{}}", 0, 0},
		{"{" T("a", "F32", "2", 0, 8) "}", 8, 1},
		{"{" T("b", "F32", "2", 8, 16) "," T("a", "F32", "2", 0, 8) "}", 16, 2},
		{"{\"a\" : { \"data_offsets\" : [ 0 , 4 ] , \"shape\" : [ ] , \"dtype\" : \"F32\" } }", 4, 1},
		{"{" T("a", "U8", "3", 0, 3) "," T("e", "U8", "0", 3, 3) "," T("g", "U8", "5,0", 3, 3) "}", 3, 3},
		{"{\"__metadata__\":{\"\\u00e4\\ud83d\\ude00\":\"\\/\\b\"}," T("\\u0061", "U8", "1", 0, 1) "}", 1, 1},
	};

	(void)state;
	for (size_t k = 0; k < sizeof(good) / sizeof(good[0]); k++) {
		struct fh_status st;
		struct st_file *f;

		if (open_text(good[k].header, good[k].data, &f, &st))
			fail_msg("%s: %s", good[k].header, st.text);
		assert_int_equal(st_count(f), good[k].tensors);
		st_close(f);
	}
}

static void hostile_headers_are_refused(void **state)
{
	static const struct { const char *header; size_t data; const char *says; } bad[] = {
		{"", 0, "'{' expected"},
		{"[]", 0, "'{' expected"},
		{"{", 0, "'\"' expected"},
		{"{}x", 0, "text behind"},
		{"{}{}", 0, "text behind"},
		{"{\"a\"}", 0, "':' expected"},
		{"{\"a\":1}", 0, "'{' expected"},
		{"{\"a\":{}}", 0, "'\"' expected"},
		{"{" T("a", "F32", "2", 0, 8) ",}", 8, "'\"' expected"},
		{"{" T("a", "F32", "2", 0, 8), 8, "'}' expected"},
		{"{" T("a", "F33", "2", 0, 8) "}", 8, "F33"},
		{"{" T("a", "F32", "2", 0, 12) "}", 12, "needs 8 bytes"},
		{"{" T("a", "F32", "2", 0, 8) "}", 4, "data section of 4"},
		{"{" T("a", "F32", "2", 8, 0) "}", 8, "offsets 8 to 0"},
		{"{" T("a", "F32", "2", 0, 8) "}", 9, "1 bytes behind"},
		{"{" T("a", "F32", "2", 4, 12) "}", 12, "leaves a gap"},
		{"{" T("a", "F32", "2", 0, 8) "," T("b", "F32", "2", 4, 12) "}", 12, "overlaps"},
		{"{" T("a", "F32", "2", 0, 8) "," T("b", "F32", "2", 0, 8) "}", 8, "overlaps"},
		{"{" T("a", "F32", "2", 0, 8) "," T("b", "F32", "0", 4, 4) "}", 8, "overlaps"},
		{"{" T("a", "F32", "2", 0, 8) "," T("a", "F32", "2", 8, 16) "}", 16, "two tensors named a"},
		{"{" T("a", "U8", "1", 0, 1) "," T("b", "F32", "1", 1, 5) "}", 5, "not aligned"},
		{"{" T("a", "F32", "-2", 0, 8) "}", 8, "whole number"},
		{"{" T("a", "F32", "2.0", 0, 8) "}", 8, "']' expected"},
		{"{" T("a", "F32", "1e3", 0, 8) "}", 8, "']' expected"},
		{"{" T("a", "F32", "4611686018427387904,4", 0, 0) "}", 0, "too large"},
		{"{" T("a", "F32", "4611686018427387905", 0, 4) "}", 4, "too large"},
		{"{" T("a", "F32", "9223372036854775808", 0, 8) "}", 8, "number too large"},
		{"{" T("a", "F32", "99999999999999999999999999", 0, 8) "}", 8, "number too large"},
		{"{" T("a", "F32", "1,1,1,1,1,1,1", 0, 4) "}", 4, "too many dimensions"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4, "two offsets"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "two offsets"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "without dtype"},
		{"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "repeated key"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, "unknown or repeated"},
		{"{\"__metadata__\":{\"a\":1}}", 0, "'\"' expected"},
		{"{\"__metadata__\":{\"a\":{}}}", 0, "'\"' expected"},
		{"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "metadata key a twice"},
		{"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "second __metadata__"},
		{"{\"__metadata__\":{\"a\":\"\\u0000\"}}", 0, "\\u escape"},
		{"{\"__metadata__\":{\"a\":\"\\ud800\"}}", 0, "surrogate"},
		{"{\"__metadata__\":{\"a\":\"\\udc00\"}}", 0, "\\u escape"},
		{"{\"__metadata__\":{\"a\":\"\\u12g4\"}}", 0, "\\u escape"},
		{"{\"__metadata__\":{\"a\":\"\\x\"}}", 0, "bad escape"},
		{"{\"__metadata__\":{\"a\":\"\n\"}}", 0, "control character"},
		{"{\"__metadata__\":{\"a\":\"\\", 0, "without an end"},
		{"{\"__metadata__\":{\"a\":\"\xFF\"}}", 0, "UTF-8"},
		{"{\"__metadata__\":{\"a\":\"\xC0\x80\"}}", 0, "UTF-8"},
		{"{\"__metadata__\":{\"a\":\"\xED\xA0\x80\"}}", 0, "UTF-8"},
		{"{" T("", "F32", "2", 0, 8) "}", 8, "name of 0 bytes"},
		{"{" T("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "U8", "1", 0, 1) "}", 1,
		 "name of 96 bytes"},
	};

	(void)state;
	for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++) {
		struct fh_status st;
		struct st_file *f;

		if (open_text(bad[k].header, bad[k].data, &f, &st) != FH_CORRUPT)
			fail_msg("accepted: %s", bad[k].header);
		assert_null(f);
		if (!strstr(st.text, bad[k].says))
			fail_msg("%s: says \"%s\", not \"%s\"", bad[k].header, st.text, bad[k].says);
	}
}

static void header_lengths_are_checked(void **state)
{
	unsigned char file[24] __attribute__((aligned(8))) = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
	struct st_file *f = NULL;
	struct fh_status st;

	(void)state;
	assert_int_equal(st_open_memory(file, 10, &f, &st), 0);
	st_close(f);
	f = NULL;
	for (size_t n = 0; n < 10; n++)
		assert_int_equal(st_open_memory(file, n, &f, &st), FH_CORRUPT);
	for (int byte = 0; byte < 8; byte++) { /* 2 + 255 << 8 byte, up to nearly 2^64 */
		unsigned char keep = file[byte];

		file[byte] = 255;
		assert_int_equal(st_open_memory(file, 10, &f, &st), FH_CORRUPT);
		file[byte] = keep;
	}
	assert_null(f);
}

static void shapes_that_do_not_fit_are_named(void **state)
{
	static const int64_t shape[2] = {2, 4};
	const struct st_tensor *t = NULL;
	struct fh_status st;
	struct st_file *f;

	(void)state;
	assert_int_equal(open_text("{" T("a", "F32", "2,3", 0, 24) "}", 24, &f, &st), 0);
	assert_int_equal(st_need(f, "a", ST_F32, 2, shape, &t, &st), FH_CORRUPT);
	assert_string_equal(st.text, "tensor a is F32 [2, 3], not F32 [2, 4]");
	assert_int_equal(st_need(f, "a", ST_F64, -1, NULL, &t, &st), FH_CORRUPT);
	assert_string_equal(st.text, "tensor a is F32 [2, 3], not F64");
	assert_int_equal(st_need(f, "b", ST_F32, -1, NULL, &t, &st), FH_CORRUPT);
	assert_int_equal(st_need(f, "a", ST_F32, 1, shape, &t, &st), FH_CORRUPT);
	assert_null(t);
	assert_int_equal(st_need(f, "a", ST_F32, -1, NULL, &t, &st), 0);
	st_close(f);
}

/* Reads everything a file offers; under a sanitizer a pointer outside the file ends the test. */
static unsigned touch(const struct st_file *f)
{
	unsigned sum = 0;

	for (int i = 0; i < st_count(f); i++) {
		const struct st_tensor *t = st_at(f, i);

		assert_ptr_equal(st_find(f, t->name), t);
		for (size_t k = 0; k < t->bytes; k++)
			sum += ((const unsigned char *)t->data)[k];
	}
	return sum;
}

/* Every truncation and thousands of changed bytes of a real file: opened or refused, never a stray read. Each trial has
 * a heap block of its exact size, so that a sanitizer sees the first byte beyond. */
static void damaged_files_never_read_astray(void **state)
{
	struct st_tensor t[8];
	struct st_image img = {NULL, 0};
	int n = sample_tensors(t), opened = 0, refused = 0;

	(void)state;
	assert_int_equal(st_image_make(t, n, sample_meta, &img, NULL), 0);
	for (uint32_t k = 0; k < 20000; k++) {
		struct philox_words w = philox_block(1, PHILOX_SYNTH, 8, k);
		size_t bytes = k < img.bytes ? k : img.bytes;
		unsigned char *file = malloc(bytes + (bytes == 0));
		struct st_file *f = NULL;
		struct fh_status st;

		memcpy(file, img.data, bytes);
		for (uint32_t c = 0; k >= img.bytes && c <= k % 3; c++)
			file[philox_below(w.w[c], (uint32_t)bytes)] = (unsigned char)(w.w[3] >> (8 * c));
		if (st_open_memory(file, bytes, &f, &st)) {
			refused++;
		} else {
			touch(f);
			opened++;
			st_close(f);
		}
		free(file);
	}
	assert_true(opened > 100 && refused > 10000);
	st_image_release(&img);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(image_reads_back), cmocka_unit_test(files_appear_whole), cmocka_unit_test(failed_writes_leave_nothing),
		cmocka_unit_test(wrong_tensors_are_not_written), cmocka_unit_test(pieces_make_the_same_file), cmocka_unit_test(known_hashes), cmocka_unit_test(good_headers_open),
		cmocka_unit_test(hostile_headers_are_refused), cmocka_unit_test(header_lengths_are_checked),
		cmocka_unit_test(shapes_that_do_not_fit_are_named), cmocka_unit_test(damaged_files_never_read_astray),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
