/* Following a job on a terminal or into a file, until it ends, the deadline, a signal or the loss of the daemon. */
#ifndef FH_CLIENT_WATCH_H
#define FH_CLIENT_WATCH_H

#include "client/cmd.h"
#include "client/tfevents.h"

enum watch_rows {
	WATCH_NO_ROWS,     /* wait: nothing but the end */
	WATCH_VALIDATIONS, /* start -f: validations and changes of state as lines, reports in the progress line */
	WATCH_EVERY_SAMPLE /* metrics -f: every report and validation as a line, CSV row or JSON object */
};

struct watch {
	enum watch_rows rows;
	uint64_t since;        /* samples after this one */
	int64_t deadline_ms;   /* of the whole, from now; 0: none */
	int64_t patience_ms;   /* with a daemon that is away; 0: WATCH_PATIENCE_MS */
	struct tfevents *events; /* samples go there too, or NULL */
};

#define WATCH_PATIENCE_MS 60000

/* `job` is copied where needed. Returns the exit code; everything has been said. */
int watch_job(struct ctx *c, const struct watch *w, const Fh__V1__Job *job);

/* ---- one sample as a line, CSV row or object; also for `metrics` without -f */
struct sample_columns;
/* The columns of a model's reports and validations (CSV): fixed before the first row. NULL when out of memory. */
struct sample_columns *sample_columns_new(const char *model);
void sample_columns_free(struct sample_columns *s);
void sample_print_csv_head(const struct sample_columns *s);
void sample_print_csv(const struct sample_columns *s, const Fh__V1__Sample *m);
/* "validation  step 500  return 0.012  sharpe 1.2 …" */
void sample_print_line(const Fh__V1__Sample *m);
/* The network that a validation used: "target", "online" or "". */
const char *sample_policy(const Fh__V1__Sample *m);
/* Something the numbers of a report warn of, said once per warning; `said` are the warnings given so far. */
void sample_warn(const struct ctx *c, const struct sample_columns *s, const Fh__V1__Sample *m, uint64_t *said);

#endif
