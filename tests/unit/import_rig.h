/* Shared by the tests of the client's readers: text to a file to bars, and what must hold of any result. */
#ifndef FH_TESTS_IMPORT_RIG_H
#define FH_TESTS_IMPORT_RIG_H

#include "client/import/import.h"
#include "client/import/timestamp.h"
#include "tests/unit/golden.h"

/* A file with these bytes; the caller unlinks it. */
GOLDEN_UNUSED static void file_of(const void *bytes, size_t n, char path[64])
{
	snprintf(path, 64, "/tmp/fh-import-XXXXXX");
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, n), (ssize_t)n);
	assert_int_equal(close(fd), 0);
}

GOLDEN_UNUSED static int import_bytes(const void *bytes, size_t n, const struct import_options *o, struct import **out,
				      struct fh_status *st)
{
	char path[64];

	file_of(bytes, n, path);
	int rc = import_file(path, o, out, st);
	unlink(path);
	return rc;
}

/* Whatever was read: at least one bar, strictly increasing times, finite consistent bars. */
GOLDEN_UNUSED static void assert_sound(const struct import *m)
{
	struct market_bars b = bars_view(&m->bars);

	assert_true(b.bars > 0);
	for (int64_t i = 0; i < b.bars; i++) {
		assert_true(isfinite(b.open[i]) && isfinite(b.high[i]) && isfinite(b.low[i]) && isfinite(b.close[i]));
		assert_true(isfinite(b.volume[i]) && b.volume[i] >= 0);
		assert_true(b.high[i] >= b.open[i] && b.high[i] >= b.close[i] && b.low[i] <= b.open[i] && b.low[i] <= b.close[i]);
		assert_true(i == 0 || b.ts[i] > b.ts[i - 1]);
	}
}

/* A text that is taken: the bars, freed by the caller. */
GOLDEN_UNUSED static struct import *taken(const char *text, const struct import_options *o)
{
	struct fh_status st = FH_STATUS_INIT;
	struct import *m = NULL;

	if (import_bytes(text, strlen(text), o, &m, &st))
		fail_msg("refused: %s %s\n%s", st.field, st.text, text);
	assert_sound(m);
	return m;
}

/* A text that is refused with `code` and a message that has all of `words` (separated by |) in it. */
GOLDEN_UNUSED static void refused_bytes(const void *bytes, size_t n, const struct import_options *o, int code, const char *words)
{
	struct fh_status st = FH_STATUS_INIT;
	struct import *m = NULL;
	char list[256], both[FH_TEXT_MAX + FH_FIELD_MAX + 2], *save = NULL;

	int rc = import_bytes(bytes, n, o, &m, &st);
	if (rc != code)
		fail_msg("code %d and not %d: %s", rc, code, st.text);
	assert_null(m);
	assert_int_equal(st.code, code);
	snprintf(both, sizeof both, "%s %s", st.field, st.text);
	snprintf(list, sizeof list, "%s", words);
	for (char *w = strtok_r(list, "|", &save); w; w = strtok_r(NULL, "|", &save))
		if (!strstr(both, w))
			fail_msg("'%s' does not say '%s'", both, w);
	for (const char *p = st.text; *p; p++)
		assert_true((unsigned char)*p >= ' ' && (unsigned char)*p < 0x7f);
}

GOLDEN_UNUSED static void refused(const char *text, const struct import_options *o, const char *words)
{
	refused_bytes(text, strlen(text), o, FH_INVALID, words);
}

GOLDEN_UNUSED static int has_note(const struct import *m, const char *words)
{
	for (int i = 0; i < m->notes; i++)
		if (strstr(m->note[i], words))
			return 1;
	return 0;
}

#define HEADER "timestamp,open,high,low,close,volume\n"

#endif
