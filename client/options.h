/* The command line: which command, which options, which operands. Inside fhctl only; cmd.h is for the commands. */
#ifndef FH_CLIENT_OPTIONS_H
#define FH_CLIENT_OPTIONS_H

#include <stdio.h>

#include "client/cmd.h"

extern const struct opt global_options[];

/* Every command of every table; index from 0, NULL at the end. */
const struct command *command_at(int i);
/* By its one or two words; *words gets how many of `word` belong to its name. NULL when unknown. */
const struct command *command_find(char *const *word, int n, int *words);

/* What the command line asks for beside running a command. */
enum ask { ASK_RUN, ASK_HELP, ASK_VERSION };
/* Fills the context (command, operands, options). FH_INVALID with a sentence for the person; ctx->cmd is set as far as
 * it is known. With ASK_HELP the operands are the words after `help`. */
int options_parse(int argc, char **argv, struct ctx *c, enum ask *ask, struct fh_status *st);

void usage_all(FILE *f);
void usage_command(FILE *f, const struct command *cmd);
/* Commands whose first word is `group` ("dataset"); 0 when there is none. */
int usage_group(FILE *f, const char *group);

#endif
