/* Where the bytes come from: plain, gzip, zstd and zip files, damaged ones, forms that are no text, files that are not there. */
#include <zlib.h>
#include <zstd.h>

#include "tests/unit/import_rig.h"

static const struct import_options plain;

/* ---- plain, gzip, zstd */

#define MANY 60000

/* About 3.4 MB: lines lie across the ends of the reader's blocks. */
static char *many_rows(size_t *size)
{
	char *text = malloc(MANY * 64), t[TIMESTAMP_TEXT_MAX], *p = text;

	assert_non_null(text);
	p += sprintf(p, HEADER);
	for (int64_t i = 0; i < MANY; i++)
		p += sprintf(p, "%s,%lld.25,%lld.5,%lld,%lld.5,%lld\n", timestamp_format((1704186000 + 60 * i) * NS_PER_SECOND, t), (long long)(i % 977),
			     (long long)(i % 977) + 1, (long long)(i % 977), (long long)(i % 977), (long long)i);
	*size = (size_t)(p - text);
	return text;
}

static void check_many(const void *bytes, size_t n, const struct import_options *o)
{
	struct fh_status st = FH_STATUS_INIT;
	struct import *m = NULL;

	if (import_bytes(bytes, n, o, &m, &st))
		fail_msg("%s", st.text);
	struct market_bars b = bars_view(&m->bars);
	assert_int_equal(b.bars, MANY);
	for (int64_t i = 0; i < MANY; i++)
		assert_true(b.ts[i] == (1704186000 + 60 * i) * NS_PER_SECOND && b.open[i] == (double)(i % 977) + 0.25 &&
			    b.high[i] == (double)(i % 977) + 1.5 && b.low[i] == (double)(i % 977) && b.volume[i] == (double)i);
	import_free(m);
}

static size_t deflated(const void *in, size_t n, void *out, size_t room, int window)
{
	z_stream z = {.next_in = (void *)in, .avail_in = (unsigned)n, .next_out = out, .avail_out = (unsigned)room};

	assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, window, 8, Z_DEFAULT_STRATEGY), Z_OK);
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	deflateEnd(&z);
	return z.total_out;
}

static void refused_corrupt(const void *bytes, size_t n, const char *words)
{
	refused_bytes(bytes, n, &plain, FH_CORRUPT, words);
}

static void blocks_gzip_and_zstd(void **arg)
{
	size_t n, k;
	char *text = many_rows(&n), *packed = malloc(n + 4096);

	check_many(text, n, &plain);
	k = deflated(text, n, packed, n + 4096, 15 + 16);
	check_many(packed, k, &plain);
	refused_corrupt(packed, k / 2, "cut short");
	refused_corrupt(packed, k - 4, "cut short");
	packed[k - 6] ^= 1; /* in the CRC */
	refused_bytes(packed, k, &plain, FH_CORRUPT, "gzip");
	k = deflated(text, n / 2, packed, n, 15 + 16); /* two members, one file */
	k += deflated(text + n / 2, n - n / 2, packed + k, n + 4096 - k, 15 + 16);
	check_many(packed, k, &plain);
	k = ZSTD_compress(packed, n + 4096, text, n, 3);
	assert_false(ZSTD_isError(k));
	check_many(packed, k, &plain);
	refused_corrupt(packed, k / 2, "zstd");
	k = ZSTD_compress(packed, n, text, n / 3, 3); /* two frames, one file */
	k += ZSTD_compress(packed + k, n + 4096 - k, text + n / 3, n - n / 3, 3);
	check_many(packed, k, &plain);
	free(packed);
	free(text);
}

/* ---- zip: written by hand, one stored and one deflated member */

static char *put(char *p, uint64_t v, int bytes)
{
	for (int i = 0; i < bytes; i++)
		*p++ = (char)(v >> 8 * i);
	return p;
}

struct member { const char *name; const char *data; size_t packed, unpacked; uint32_t crc; int method; size_t at; };

static size_t zip_of(struct member *m, int n, char *out)
{
	char *p = out;

	for (int i = 0; i < n; i++) {
		m[i].at = (size_t)(p - out);
		p = put(put(put(put(put(p, 0x04034b50, 4), 20, 2), 0, 2), (uint64_t)m[i].method, 2), 0, 4);
		p = put(put(put(p, m[i].crc, 4), m[i].packed, 4), m[i].unpacked, 4);
		p = put(put(p, strlen(m[i].name), 2), 0, 2);
		p += sprintf(p, "%s", m[i].name);
		memcpy(p, m[i].data, m[i].packed);
		p += m[i].packed;
	}
	char *dir = p;
	for (int i = 0; i < n; i++) {
		p = put(put(put(put(put(put(p, 0x02014b50, 4), 20, 2), 20, 2), 0, 2), (uint64_t)m[i].method, 2), 0, 4);
		p = put(put(put(p, m[i].crc, 4), m[i].packed, 4), m[i].unpacked, 4);
		p = put(put(put(put(put(put(p, strlen(m[i].name), 2), 0, 2), 0, 2), 0, 2), 0, 2), 0, 4);
		p = put(p, m[i].at, 4);
		p += sprintf(p, "%s", m[i].name);
	}
	size_t size = (size_t)(p - dir);
	p = put(put(put(put(put(p, 0x06054b50, 4), 0, 4), (uint64_t)n, 2), (uint64_t)n, 2), size, 4);
	p = put(put(p, (uint64_t)(dir - out), 4), 0, 2);
	return (size_t)(p - out);
}

static void zip_members(void **arg)
{
	static const char other[] = HEADER "2024-01-02,1,2,1,2,5\n";
	size_t n;
	char *text = many_rows(&n), *packed = malloc(n + 4096), *zip = malloc(2 * n + 8192);
	size_t k = deflated(text, n, packed, n + 4096, -15);
	struct member m[2] = {
		{"big.csv", packed, k, n, (uint32_t)crc32(0, (void *)text, (unsigned)n), 8, 0},
		{"small.csv", other, sizeof other - 1, sizeof other - 1, (uint32_t)crc32(0, (const void *)other, sizeof other - 1), 0, 0}
	};
	struct import_options o = plain;

	check_many(zip, zip_of(m, 1, zip), &plain);
	size_t size = zip_of(m, 2, zip);
	refused_bytes(zip, size, &plain, FH_INVALID, "2 files|--member|big.csv, small.csv");
	o.member = "big.csv";
	check_many(zip, size, &o);
	o.member = "none.csv";
	refused_bytes(zip, size, &o, FH_NOT_FOUND, "none.csv|big.csv");
	o.member = "small.csv";
	struct import *one = NULL;
	assert_int_equal(import_bytes(zip, size, &o, &one, NULL), 0);
	assert_int_equal(one->bars.count, 1);
	import_free(one);
	m[0].crc ^= 1;
	refused_corrupt(zip, zip_of(m, 1, zip), "big.csv|damaged");
	m[0].crc ^= 1;
	m[0].unpacked++;
	refused_corrupt(zip, zip_of(m, 1, zip), "damaged");
	m[0].unpacked--;
	size = zip_of(m, 1, zip);
	refused_corrupt(zip, size / 2, "cut short");
	refused_bytes(other, sizeof other - 1, &o, FH_INVALID, "--member|zip");
	for (int i = 0; i < 3000; i++) { /* any damage: an answer, never a crash */
		struct import *d = NULL;
		struct fh_status st = FH_STATUS_INIT;
		size_t at = (size_t)i * 7919 % size;
		char was = zip[at];
		zip[at] = (char)(was ^ (1 << i % 8));
		if (i % 97 == 0 || at > size - 200 || at < 60) {
			if (!import_bytes(zip, size, &plain, &d, &st))
				assert_sound(d);
			import_free(d);
		}
		zip[at] = was;
	}
	free(zip);
	free(packed);
	free(text);
}

static void forms_that_are_no_text_say_what_they_are(void **arg)
{
#ifdef FH_ARROW
	refused_bytes("PAR1xxxxxxxx", 12, &plain, FH_CORRUPT, "Parquet");
#else
	refused_bytes("PAR1xxxxxxxx", 12, &plain, FH_UNIMPLEMENTED, "without Parquet|pyarrow|ARROW=");
#endif
	refused_bytes("DBN\1\0\0\0\0", 8, &plain, FH_CORRUPT, "DBN|metadata");
	refused_bytes("\x50\x2a\x4d\x18zzzz", 8, &plain, FH_INVALID, "DBZ");
	refused_bytes("\xff\xfet\0i\0m\0e\0", 10, &plain, FH_INVALID, "UTF-16");
	refused_bytes("\0\1\2\3\0\1\2\3\n", 9, &plain, FH_INVALID, ":1: |NUL");
}

/* ---- progress and failing files */

static int stop_at_once(void *arg, uint64_t read, uint64_t bytes, int64_t bars)
{
	*(uint64_t *)arg = bytes;
	return read > 0 && bars > 0;
}

static void progress_can_stop_it(void **arg)
{
	uint64_t total = 0;
	struct import_options o = {.progress = stop_at_once, .progress_arg = &total};
	size_t n;
	char *text = many_rows(&n);

	refused_bytes(text, n, &o, FH_INTERRUPTED, "stopped at line");
	assert_int_equal(total, n);
	free(text);
}

static void files_that_are_not_there(void **arg)
{
	struct fh_status st = FH_STATUS_INIT;
	struct import *m = NULL;

	assert_int_equal(import_file("/tmp/no/such/file.csv", &plain, &m, &st), FH_NOT_FOUND);
	assert_non_null(strstr(st.text, "/tmp/no/such/file.csv"));
	assert_int_equal(import_file("/tmp", &plain, &m, &st), FH_INVALID);
	assert_non_null(strstr(st.text, "folder"));
	assert_null(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blocks_gzip_and_zstd), cmocka_unit_test(zip_members), cmocka_unit_test(forms_that_are_no_text_say_what_they_are),
		cmocka_unit_test(progress_can_stop_it), cmocka_unit_test(files_that_are_not_there)
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
