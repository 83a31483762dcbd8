/* The data sets alone, on a loop that the test turns by hand and a store in a folder of its own; opened and closed as often as a
 * test restarts. What the including file wants of the configuration it gives at each opening. */
#ifndef TESTS_DATASETS_RIG_H
#define TESTS_DATASETS_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "daemon/dataset.h"
#include "daemon/log.h"
#include "daemon/store.h"
#include "proto/status.h"
#include "tests/unit/loop.h"

static char dir[64], path[128], sets[128]; /* the folder, the database in it, the data sets in it */
static uv_loop_t loop;
static struct store *store;
static struct datasets *ds;

static void sets_folder(const char *name)
{
	log_level_set(LOG_ERROR);
	snprintf(dir, sizeof dir, "/tmp/fhd-%s-XXXXXX", name);
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/fhd.db", dir);
	snprintf(sets, sizeof sets, "%s/datasets", dir);
}

/* loop, store and dir of cfg are filled in here. */
static void sets_open(struct datasets_config cfg)
{
	struct fh_status st = FH_STATUS_INIT;

	assert_int_equal(uv_loop_init(&loop), 0);
	if (store_open(path, &store, &st))
		fail_msg("%s", st.text);
	cfg.loop = &loop;
	cfg.store = store;
	cfg.dir = sets;
	assert_int_equal(datasets_new(&cfg, &ds, NULL), 0);
	assert_int_equal(datasets_load(ds, NULL), 0);
	assert_int_equal(store_start(store, &loop, NULL), 0);
}

static void close_all(void)
{
	datasets_stop(ds);
	while (datasets_busy(ds))
		uv_run(&loop, UV_RUN_ONCE);
	store_stop(store);
	datasets_free(ds);
	store_free(store);
	uv_run(&loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&loop), 0);
}

#endif
