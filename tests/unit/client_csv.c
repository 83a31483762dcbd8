/* Bar files: the small inputs that broke other tools, every rule of order, duplicates and bad rows, hostile bytes. */
#include "tests/unit/import_rig.h"

static const struct import_options plain;

/* ---- files of tests/cases */

static struct import *case_file(const char *name, const struct import_options *o)
{
	char path[128];
	struct fh_status st = FH_STATUS_INIT;
	struct import *m = NULL;

	snprintf(path, sizeof path, "tests/cases/%s", name);
	if (import_file(source_path(path), o, &m, &st))
		fail_msg("%s", st.text);
	assert_sound(m);
	return m;
}

static void case_refused(const char *name, const char *words)
{
	char path[128], list[256], *save = NULL;
	struct fh_status st = FH_STATUS_INIT;
	struct import *m = NULL;

	snprintf(path, sizeof path, "tests/cases/%s", name);
	assert_int_equal(import_file(source_path(path), &plain, &m, &st), FH_INVALID);
	assert_null(m);
	snprintf(list, sizeof list, "%s", words);
	for (char *w = strtok_r(list, "|", &save); w; w = strtok_r(NULL, "|", &save))
		if (!strstr(st.text, w))
			fail_msg("'%s' does not say '%s'", st.text, w);
}

static void the_same_bars_from_four_spellings(void **arg)
{
	static const char *const name[] = {"bom_crlf.csv", "plain_lf.csv", "no_final_newline.csv", "blank_lines_cr_tail.csv"};

	for (size_t i = 0; i < 4; i++) {
		struct import *m = case_file(name[i], &plain);
		struct market_bars b = bars_view(&m->bars);
		assert_int_equal(b.bars, 6);
		assert_int_equal(m->notes, 0);
		for (int k = 0; k < 6; k++) {
			assert_true(b.ts[k] == (1704186000 + 60 * k) * NS_PER_SECOND);
			assert_true(b.open[k] == 100 + k && b.high[k] == 100 + k && b.low[k] == 100 + k && b.close[k] == 100 + k && b.volume[k] == 10);
		}
		import_free(m);
	}
}

static void klines_with_and_without_header(void **arg)
{
	static const char *const name[] = {"klines_header.csv", "klines_no_header.csv"};

	for (size_t i = 0; i < 2; i++) {
		struct import *m = case_file(name[i], &plain);
		struct market_bars b = bars_view(&m->bars);
		assert_int_equal(b.bars, 3);
		assert_true(b.ts[0] == 1704186000 * NS_PER_SECOND && b.close[0] == 42010.50 && b.volume[0] == 12.5 && b.low[2] == 41980);
		import_free(m);
	}
}

static void bad_rows_are_refused_or_dropped_and_counted(void **arg)
{
	struct import_options drop = {.on_bad_row = BAD_ROW_DROP};

	case_refused("nan_rows.csv", "nan_rows.csv:3: |column 2 (open)|NaN");
	struct import *m = case_file("nan_rows.csv", &drop);
	assert_int_equal(m->bars.count, 4);
	assert_int_equal(m->dropped, 3);
	assert_int_equal(m->rows, 7);
	assert_true(has_note(m, "bad rows dropped: 3"));
	import_free(m);
}

static void one_time_has_one_bar(void **arg)
{
	struct import_options o = {.on_duplicate = DUPLICATE_FIRST};

	case_refused("dup_ts.csv", "dup_ts.csv:4: |line 3|--on-duplicate");
	struct import *m = case_file("dup_ts.csv", &o);
	assert_int_equal(m->bars.count, 4);
	assert_true(m->bars.value[3][1] == 100.50 && m->bars.value[4][1] == 700);
	assert_int_equal(m->bars.repeats, 1);
	assert_int_equal(m->bars.conflicts, 1);
	import_free(m);
	o.on_duplicate = DUPLICATE_LAST;
	m = case_file("dup_ts.csv", &o);
	assert_true(m->bars.count == 4 && m->bars.value[3][1] == 100.75 && m->bars.value[4][1] == 950);
	assert_true(has_note(m, "exact repeats") && has_note(m, "the last was taken"));
	import_free(m);
}

static void odd_prices_are_prices(void **arg)
{
	struct import *m = case_file("negative_price.csv", &plain);
	assert_true(m->bars.count == 4 && m->bars.value[3][2] == -37.63 && m->bars.value[2][2] == -40.30);
	import_free(m);
	m = case_file("zero_price.csv", &plain);
	assert_true(m->bars.count == 5 && m->bars.value[3][2] == 0);
	import_free(m);
	m = case_file("zero_volume.csv", &plain);
	assert_true(m->bars.count == 5 && m->bars.value[4][0] == 0 && m->has_volume);
	import_free(m);
	m = case_file("flat_fee.csv", &plain);
	assert_int_equal(m->bars.count, 40);
	import_free(m);
	m = case_file("mdd_first_bar.csv", &plain);
	assert_true(m->bars.count == 5 && m->bars.value[3][3] == 75);
	import_free(m);
}

/* ---- columns */

static void columns_by_name_in_any_order_and_case(void **arg)
{
	static const char *const text[] = {
		"timestamp,open,high,low,close,volume\n2024-01-02,2,4,1,3,5\n",
		"VOLUME,Close,LOW,High,oPeN,extra,Timestamp\n5,3,1,4,2,zz,2024-01-02\n",
		"Date,Open,High,Low,Close,Adj Close,Volume\n2024-01-02,2,4,1,3,99,5\n",
		",Open,High,Low,Close,Volume\n2024-01-02,2,4,1,3,5\n",
		"<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\t<VOL>\t<SPREAD>\n2024.01.02\t00:00:00\t2\t4\t1\t3\t5\t0\t7\n",
		"Gmt time;Open;High;Low;Close;Volume\n02.01.2024 00:00:00.000;2;4;1;3;5\n",
		"\"time\",\"open\",\"high\",\"low\",\"close\",\"volume\"\n\"2024-01-02\",\"2\",\"4\",\"1\",\"3\",\"5\"\n",
		"ticker,window_start,open,close,high,low,volume\nX,1704153600000000000,2,3,4,1,5\n",
		"ts_recv,ts_event,open,high,low,close,volume\nx,1704153600000000000,2,4,1,3,5\n",
		"open_time|open|high|low|close|volume|close_time\n1704153600000|2|4|1|3|5|1704153659999\n",
		"Date,Time,Open,High,Low,Close,Volume,OpenInterest\r\n2024-01-02,00:00:00,2,4,1,3,5,0\r\n",
		"1704153600,2,4,1,3,5\n", "20240102 00:00,2,4,1,3,5\n", "2024.01.02,00:00,2,4,1,3,5\n",
		"ts,open,high,low,close,volume\r2024-01-02,2,4,1,3,5\r", "time,o,h,l,c,v\n\n\n  \n2024-01-02,2,4,1,3,5\n\r\n"
	};

	for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
		struct import *m = taken(text[i], &plain);
		struct market_bars b = bars_view(&m->bars);
		if (b.bars != 1 || b.ts[0] != 1704153600 * NS_PER_SECOND || b.open[0] != 2 || b.high[0] != 4 || b.low[0] != 1 ||
		    b.close[0] != 3 || b.volume[0] != 5)
			fail_msg("%s", text[i]);
		import_free(m);
	}
}

static void no_volume_is_zero_with_a_notice(void **arg)
{
	struct import *m = taken("time,open,high,low,close\n2024-01-02,2,4,1,3\n", &plain);
	assert_true(m->bars.value[4][0] == 0 && !m->has_volume && has_note(m, "no volume"));
	import_free(m);
	m = taken("2024-01-02,2,4,1,3\n", &plain);
	assert_true(!m->has_volume);
	import_free(m);
}

static void headers_that_do_not_fit_are_refused(void **arg)
{
	refused("Date,Open,High,Low,Close,Volume,OI\n2006-01-02,09:01:00,1,2,1,2,5,0\n", &plain, ":2: |8 fields|names 7|--columns");
	refused("Date,Price\n2024-01-02,5\n", &plain, ":1: |one price|open, high, low|Date, Price|--columns ts,close");
	refused("open,high,low,close\n1,2,1,2\n", &plain, "time");
	refused("time,open,open,high,low,close\n2024-01-02,1,1,2,1,2\n", &plain, "two columns|open");
	refused("2024-01-02,1,2,1\n", &plain, ":1: |4 fields|--columns");
	refused("2024-01-02,1,2,1,2,5,6,7\n", &plain, "8 fields");
	refused("hello\n", &plain, "no column");
	refused("", &plain, "empty");
	refused("\n\n\r\n", &plain, "empty");
	refused(HEADER, &plain, "no bars");
	refused(HEADER "2024-01-02,1,2,1,2,5\n2024-01-03,1,2,1\n", &plain, ":3: |4 fields");
	refused(HEADER "2024-01-02,1,2,1,2,5\n2024-01-03,1,2,1,2,5,9\n", &plain, ":3: |7 fields");
}

static void a_list_of_columns_overrules_the_header(void **arg)
{
	struct import_options o = {.columns = "date,time,open,high,low,close,volume,-"};
	struct import *m = taken("Date,Open,High,Low,Close,Volume,OI\n2006-01-02,09:01:00,1,2,1,2,5,0\n", &o);
	assert_true(m->bars.value[1][0] == 2 && m->bars.value[4][0] == 5);
	import_free(m);
	o.columns = "_,close,open,high,low,ts";
	m = taken("x,2,1,3,1,2024-01-02\n", &o);
	assert_true(m->bars.value[3][0] == 2 && m->bars.value[0][0] == 1);
	import_free(m);
	o.columns = "ts,open,high,low";
	refused("2024-01-02,1,2,1\n", &o, "--columns|close");
	o.columns = "ts,open,open,high,low,close";
	refused("2024-01-02,1,1,2,1,2\n", &o, "--columns|twice");
	o.columns = "ts,open,high,low,close,wolume";
	refused("2024-01-02,1,2,1,2,5\n", &o, "--columns|wolume");
	o.columns = "ts,open,high,low,close";
	refused("2024-01-02,1,2,1,2,5\n", &o, "--columns|5 fields|has 6");
}

/* ---- values */

static void values_that_are_none_name_line_and_column(void **arg)
{
	static const struct { const char *row, *words; } bad[] = {
		{"2024-01-03,NaN,2,1,2,5", ":3: |column 2 (open)|NaN"}, {"2024-01-03,1,2,,2,5", ":3: |column 4 (low)|empty"},
		{"2024-01-03,1,inf,1,2,5", ":3: |column 3 (high)|inf|finite"}, {"2024-01-03,1,2,1,2,", ":3: |column 6 (volume)|empty"},
		{"2024-01-03,1,2,1,x,5", ":3: |column 5 (close)|'x'"}, {"2024-01-03,1,2,1,1e999,5", "finite"},
		{"2024-01-03,\"1,234\",2,1,2,5", "column 2|separators"}, {"2024-13-03,1,2,1,2,5", ":3: |column 1 (timestamp)|2024-13-03|calendar"},
		{",1,2,1,2,5", "column 1 (timestamp) is empty"}, {"03/04/2024,1,2,1,2,5", "day or month"},
		{"2024-01-03,1,0.5,1,1,5", ":3: |impossible|high 0.5"}, {"2024-01-03,1,2,1.5,1,5", "impossible|low 1.5"},
		{"2024-01-03,1,2,1,3,5", "high 2|close 3"}, {"2024-01-03,1,2,1,2,-5", "volume -5"},
		{"2024-01-03,1,2,1,2,5\xc3", "'5?'"}, {"2024-01-03,1,2,\x1b[31m1,2,5", "?[31m1"}
	};
	char text[256];

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		snprintf(text, sizeof text, HEADER "2024-01-02,1,2,1,2,5\n%s\n", bad[i].row);
		refused(text, &plain, bad[i].words);
	}
}

static void large_and_fractional_volumes_are_kept(void **arg)
{
	struct import *m = taken(HEADER "2024-01-02,1,2,1,2,163000000000.25\n2024-01-03,1,2,1,2,0.00000001\n2024-01-04,1,2,1,2,1e15\n", &plain);
	assert_true(m->bars.value[4][0] == 163000000000.25 && m->bars.value[4][1] == 0.00000001 && m->bars.value[4][2] == 1e15);
	import_free(m);
}

static void impossible_bars_are_widened_when_asked(void **arg)
{
	struct import_options o = {.on_bad_row = BAD_ROW_REPAIR};
	struct import *m = taken(HEADER "2024-01-02,3,2,1.5,1,5\n2024-01-03,1,2,1,2,5\n", &o);
	assert_true(m->bars.value[1][0] == 3 && m->bars.value[2][0] == 1 && m->bars.repaired == 1 && has_note(m, "widened"));
	import_free(m);
	refused(HEADER "2024-01-02,3,nan,1.5,1,5\n", &o, "column 3");
	o.on_bad_row = BAD_ROW_DROP;
	refused(HEADER "2024-01-02,3,2,1.5,1,5\n2024-01-03,x,2,1,2,5\n", &o, "no bar is left|2 rows|line 2");
}

static void scaled_prices(void **arg)
{
	struct import_options o = {.price_scale = 10000};
	struct import *m = taken("19980102 00:00,973100,975300,965300,973600,2150000\n", &o);
	assert_true(m->bars.value[0][0] == 97.31 && m->bars.value[3][0] == 97.36 && m->bars.value[4][0] == 2150000);
	import_free(m);
}

static void decimal_commas_only_when_they_are_clear(void **arg)
{
	struct import_options o = plain;
	struct import *m = taken("time;open;high;low;close;volume\n2024-01-02;1,25;1,5;1,125;1,5;1000\n", &plain);
	assert_true(m->bars.value[0][0] == 1.25 && m->bars.value[2][0] == 1.125 && has_note(m, "decimal commas"));
	import_free(m);
	m = taken("time;open;high;low;close;volume\n2024-01-02;1.25;1.5;1.125;1.5;1000\n", &plain);
	assert_true(m->bars.value[0][0] == 1.25);
	import_free(m);
	refused("time;open;high;low;close\n2024-01-02;113,123;113,456;113,001;113,200\n", &plain, "decimal comma|--decimal");
	refused("time;open;high;low;close\n2024-01-02;1,113.5;1,114.5;1,113.0;1,114.0\n", &plain, ":2: |separators");
	o.point = ',';
	m = taken("time;open;high;low;close\n2024-01-02;113,123;113,456;113,001;113,200\n", &o);
	assert_true(m->bars.value[0][0] == 113.123);
	import_free(m);
}

/* ---- order, duplicates, symbols */

static void order_and_duplicates(void **arg)
{
	struct import_options sort = {.sort = 1}, both = {.sort = 1, .on_duplicate = DUPLICATE_LAST};
	static const char mixed[] = HEADER "2024-01-04,1,2,1,2,5\n2024-01-02,3,4,3,4,5\n2024-01-03,1,2,1,2,6\n2024-01-02,3,4,3,4,5\n";
	static const char conflict[] = HEADER "2024-01-04,1,2,1,2,5\n2024-01-02,3,4,3,4,5\n2024-01-02,3,4,3,4,7\n";

	refused(mixed, &plain, ":3: |line 2|--sort");
	struct import *m = taken(mixed, &sort);
	assert_true(m->bars.count == 3 && m->bars.value[0][0] == 3 && m->bars.value[4][1] == 6 && m->bars.repeats == 1);
	assert_true(has_note(m, "put in order: 3") && has_note(m, "exact repeats"));
	import_free(m);
	refused(conflict, &sort, ":4: |line 3|--on-duplicate");
	m = taken(conflict, &both);
	assert_true(m->bars.count == 2 && m->bars.value[4][0] == 7 && m->bars.conflicts == 1);
	import_free(m);
	m = taken(HEADER "2024-01-02,1,2,1,2,5\n2024-01-02,1,2,1,2,5\n2024-01-02,1,2,1,2,5\n", &plain);
	assert_true(m->bars.count == 1 && m->bars.repeats == 2);
	import_free(m);
	refused(HEADER "2024-01-02,1,2,1,2,5\n2024-01-03,1,2,1,2,5\n2024-01-02,1,2,1,2,5\n", &plain, ":4: |line 3");
}

static void symbols(void **arg)
{
	static const char two[] = "ts,open,high,low,close,symbol\n2024-01-02,1,2,1,2,A\n2024-01-02,3,4,3,4,B\n2024-01-03,1,2,1,2,A\n";
	static const char roll[] = "ts,open,high,low,close,symbol\n2024-01-02,1,2,1,2,H4\n2024-01-03,3,4,3,4,M4\n";
	struct import_options o = {.symbol = "B"};

	refused(two, &plain, "several symbols|A, B|--symbol");
	struct import *m = taken(two, &o);
	assert_true(m->bars.count == 1 && m->bars.value[0][0] == 3 && has_note(m, "other symbols"));
	import_free(m);
	o.symbol = "C";
	refused(two, &o, "no row has the symbol 'C'");
	m = taken(roll, &plain);
	assert_true(m->bars.count == 2 && has_note(m, "H4, M4"));
	import_free(m);
}

static void zones_and_days(void **arg)
{
	struct import_options o = {.date = "2024-01-02"};
	struct import *m = taken("0,1,2,1,2,5\n60000,1,2,1,2,5\n", &o);
	assert_true(m->bars.ts[0] == 1704153600 * NS_PER_SECOND && m->bars.ts[1] == 1704153660 * NS_PER_SECOND);
	import_free(m);
	refused("0,1,2,1,2,5\n60000,1,2,1,2,5\n", &plain, ":1: |--date");
	o.date = "2024-02-30";
	refused("0,1,2,1,2,5\n", &o, "--date|2024-02-30");
	m = taken(HEADER "1704186000,1,2,1,2,5\n1704186001000,1,2,1,2,5\n1704186002000000,1,2,1,2,5\n1704186003000000000,1,2,1,2,5\n", &plain);
	for (int i = 0; i < 4; i++)
		assert_true(m->bars.ts[i] == (1704186000 + i) * NS_PER_SECOND); /* the unit may change from row to row */
	import_free(m);
	if (access("/usr/share/zoneinfo/Europe/Berlin", R_OK))
		skip(); /* no tzdata on this machine */
	o = (struct import_options){.tz = "Europe/Berlin"};
	m = taken(HEADER "2024-07-01 12:00,1,2,1,2,5\n2024-07-01T10:30:00Z,1,2,1,2,5\n", &o);
	assert_true(m->bars.ts[0] == 1719828000 * NS_PER_SECOND && m->bars.ts[1] == 1719829800 * NS_PER_SECOND);
	import_free(m);
	refused(HEADER "2024-03-31 02:30,1,2,1,2,5\n", &o, ":2: |column 1|put forward");
	refused(HEADER "2024-10-27 02:30,1,2,1,2,5\n", &o, ":2: |twice|--dst");
	o.fold = ZONE_SECOND;
	m = taken(HEADER "2024-10-27 02:30,1,2,1,2,5\n", &o);
	assert_true(m->bars.ts[0] == 1729992600 * NS_PER_SECOND);
	import_free(m);
}

/* ---- JSON */

static void json_arrays(void **arg)
{
	struct import *m = taken("[[1704186000000, 1, 2, 1, 2, 5.5], [1704186060000, \"1\", \"2\", 1, 2, 6]]", &plain);
	assert_true(m->bars.count == 2 && m->bars.value[4][0] == 5.5 && m->bars.value[0][1] == 1);
	import_free(m);
	m = taken(" [\n [1704186000000,\n1,2,1,2,5]\n]\n", &plain);
	assert_int_equal(m->bars.count, 1);
	import_free(m);
	refused("[[1704186000000,1,2,1,2,5],[1704186060000,1,2,1", &plain, ":2: |does not end");
	refused("[[1704186000000,1,2,1,2,5]", &plain, "cut short");
	refused("[[1704186000000,1,2,1,2,5],[1704186060000,1,null,1,2,5]]", &plain, ":2: |column 3");
	refused("[]", &plain, "empty");
	refused("[1,2,3]", &plain, "no array");
	refused("[[1704186000000,1,2,[1],2,5]]", &plain, "flat");
	refused("[{\"ts\": 1}]", &plain, "no array");
}

/* ---- hostile */

static void long_lines_and_many_columns(void **arg)
{
	size_t n = 3 << 20;
	char *text = malloc(n + 1);

	memset(text, '7', n);
	refused_bytes(text, n, &plain, FH_INVALID, ":1: |longer than");
	memcpy(text, HEADER "2024-01-02,1,2,1,2,5\n2024-01-03,", sizeof HEADER - 1 + 33);
	refused_bytes(text, n, &plain, FH_INVALID, ":3: |longer than");
	memset(text, ',', 20000);
	text[10000] = '\n';
	text[20000] = '\0';
	refused_bytes(text, 20000, &plain, FH_INVALID, ":1: |more than 1024 fields");
	memset(text, '"', n);
	refused_bytes(text, 1000, &plain, FH_INVALID, ":1: ");
	memset(text, '1', 900000);
	memcpy(text + 900000, ",1,2,1,2\n", 9);
	refused_bytes(text, 900009, &plain, FH_INVALID, ":1: |column 1");
	free(text);
}

static void nul_bytes_and_open_quotes(void **arg)
{
	static const char nul[] = HEADER "2024-01-02,1,2,1,2,5\n2024-01-03,1,2,1\0,2,5\n";

	refused_bytes(nul, sizeof nul - 1, &plain, FH_INVALID, ":3: |NUL");
	refused(HEADER "2024-01-02,1,2,1,2,\"5\n", &plain, ":2: |field 6|quote");
	refused(HEADER "2024-01-02,\"1\"x,2,1,2,5\n", &plain, ":2: |field 2|closing quote");
	refused("time,open,high,low,close,\"no\nte\"\n2024-01-02,1,2,1,2,x\n", &plain, ":1: |quote");
	struct import *m = taken("time,\"open\",high,low,close,\"a \"\"note\"\", with comma\"\n2024-01-02, \"1\" ,2,1,2,\"x,y\"\n", &plain);
	assert_true(m->bars.value[0][0] == 1);
	import_free(m);
}

/* Random damage to a good file, and plain noise: taken or refused, never anything else. */
static void noise(void **arg)
{
	static const char good[] = "time,open,high,low,close,volume,symbol\n2024-01-02 09:00,1.5,2,1,1.75,10,A\n"
				   "2024-01-02 09:01,1.75,2.25,1.5,2,11,A\n2024-01-02 09:02,2,2.5,1.75,2.25,12,A\n";
	static const char letters[] = ",;|\t\"\n\r.-+e0123456789[] :TZN\xef\xbb\xbf\xc3";
	uint64_t s = 0x9e3779b97f4a7c15ULL;
	int took = 0;

	for (int i = 0; i < 4000; i++) {
		char text[512];
		size_t n = sizeof good - 1;
		memcpy(text, good, n);
		int changes = 1 + i % 6;
		if (i % 4 == 3)
			n = (size_t)(s % 400), changes = (int)n;
		for (int k = 0; k < changes; k++) {
			s = s * 6364136223846793005ULL + 1442695040888963407ULL;
			size_t at = i % 4 == 3 ? (size_t)k : (size_t)(s >> 33) % n;
			text[at] = (s >> 20) % 8 ? letters[(s >> 24) % (sizeof letters - 1)] : (char)(s >> 40);
		}
		struct import_options o = {.sort = i & 1, .on_bad_row = (enum on_bad_row)(i % 3), .on_duplicate = (enum on_duplicate)(i / 3 % 3)};
		struct fh_status st = FH_STATUS_INIT;
		struct import *m = NULL;
		int rc = import_bytes(text, n, &o, &m, &st);
		if (rc == 0) {
			assert_sound(m);
			took++;
		} else {
			assert_true(rc == FH_INVALID || rc == FH_CORRUPT);
			assert_true(st.text[0] && !m);
		}
		import_free(m);
	}
	assert_true(took > 100); /* the damage is not always fatal, so both ways were tried */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_same_bars_from_four_spellings), cmocka_unit_test(klines_with_and_without_header),
		cmocka_unit_test(bad_rows_are_refused_or_dropped_and_counted), cmocka_unit_test(one_time_has_one_bar),
		cmocka_unit_test(odd_prices_are_prices), cmocka_unit_test(columns_by_name_in_any_order_and_case),
		cmocka_unit_test(no_volume_is_zero_with_a_notice), cmocka_unit_test(headers_that_do_not_fit_are_refused),
		cmocka_unit_test(a_list_of_columns_overrules_the_header), cmocka_unit_test(values_that_are_none_name_line_and_column),
		cmocka_unit_test(large_and_fractional_volumes_are_kept), cmocka_unit_test(impossible_bars_are_widened_when_asked),
		cmocka_unit_test(scaled_prices), cmocka_unit_test(decimal_commas_only_when_they_are_clear),
		cmocka_unit_test(order_and_duplicates), cmocka_unit_test(symbols), cmocka_unit_test(zones_and_days),
		cmocka_unit_test(json_arrays), cmocka_unit_test(long_lines_and_many_columns),
		cmocka_unit_test(nul_bytes_and_open_quotes), cmocka_unit_test(noise)
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
