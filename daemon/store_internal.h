/* What store.c (file, schema, start-up reads), store_txn.c (transactions, loop) and store_writer.c (its thread) share. */
#ifndef FHD_STORE_INTERNAL_H
#define FHD_STORE_INTERNAL_H

#include <pthread.h>
#include <sqlite3.h>
#include "daemon/store.h"
#include "proto/status.h"

enum store_stmt {
	STMT_PUT_JOB, STMT_PUT_DATASET, STMT_DROP_DATASET, STMT_PUT_CHECKPOINT,
	STMT_DROP_CHECKPOINT, STMT_PUT_SAMPLE, STMT_THIN_REPORTS, STMT_THIN_ALL, STMT_PUT_REQUEST, STMT_TRIM_REQUESTS,
	STMT_READ_SAMPLES, STMT_COUNT
};

enum txn_kind { TXN_WRITE, TXN_SAMPLES };
struct txn_hook { store_done done; void *arg; };
#define TXN_HOOKS_MAX 8

struct store_txn {
	struct store_txn *next;
	enum txn_kind kind;
	unsigned char *code;               /* statements and values */
	size_t bytes, room;
	struct txn_hook hook[TXN_HOOKS_MAX];
	int hooks;
	int result;
	struct fh_status status;
	/* reads */
	uint64_t job, since;
	uint32_t limit;
	int more;
	size_t rows;
	struct store_sample *sample;       /* packed bytes behind the array's end */
	store_samples samples_done;
	void *arg;
};

struct store_list { struct store_txn *head, *tail; };

struct store {
	sqlite3 *db;                       /* the writer's once it runs */
	sqlite3_stmt *stmt[STMT_COUNT];    /* prepared on first use, writer thread */
	char *path;
	int fresh;                         /* made by this store_open */
	uv_loop_t *loop;
	uv_async_t *async;                 /* freed by its close callback */
	int running;                       /* loop: writer thread exists */
	pthread_t thread;

	pthread_mutex_t lock;              /* guards todo, done, ending, groups, failed, error */
	pthread_cond_t work, answered;
	struct store_list todo, done;
	int ending;
	uint64_t groups, failed;
	char error[256];

	uint64_t pending, transactions;    /* loop thread only */
};

/* Fills st with what the database says about its last failure. */
int store_fail(struct store *s, int rc, const char *what, struct fh_status *st);

void store_list_push(struct store_list *l, struct store_txn *t);
/* Runs the callbacks of all that is done; loop thread. */
void store_drain(struct store *s);

#endif
