/* Jobs as commands need them: look one up, say its name, print it. One thread. */
#ifndef FH_CLIENT_JOB_REF_H
#define FH_CLIENT_JOB_REF_H

#include "client/cmd.h"

/* ShowJob. JOB is checked here first, so that a mistyped path is a usage error. */
int job_show(struct ctx *c, const char *job, struct fh_answer *out, struct fh_status *st);
/* "3 (trial-1)"; the name alone says enough where it is one of the daemon's (job-3). */
#define JOB_LABEL_MAX 96
char *job_label(const Fh__V1__Job *j, char buf[JOB_LABEL_MAX]);
/* The name to type for it: its name, else its number. */
char *job_handle(const Fh__V1__Job *j, char buf[JOB_LABEL_MAX]);
/* Exit code of a job that has ended: EXIT_DONE, EXIT_JOB, EXIT_RESUMABLE when an interrupt of the daemon ended it. */
int job_exit_code(const Fh__V1__Job *j);
/* One sentence on stdout: how it ended or where it is. */
void job_print_line(const Fh__V1__Job *j);
int job_is_final(Fh__V1__JobState s);

#endif
