/* What checkpoints.c (the list, removal, life) and checkpoints_io.c (files written and read) share. Loop thread. */
#ifndef FHD_CHECKPOINTS_INTERNAL_H
#define FHD_CHECKPOINTS_INTERNAL_H

#include <limits.h>
#include "daemon/checkpoints.h"
#include "daemon/files.h"

#define FILE_NAME_MAX (FH_NAME_MAX + sizeof FILES_SUFFIX)

struct entry {
	struct checkpoint c;
	unsigned holds;
	int writing;               /* its row is not durable yet */
	int dropping, gone;        /* its row is being removed; is removed */
};

struct checkpoints {
	struct checkpoints_config cfg;
	char *dir;
	struct entry **entry;
	size_t n, room;
	struct write *queue, **queue_end; /* checkpoints_io.c; the first one is being written */
	unsigned pending;
	int in_flight;             /* writes, reads and rows */
	int stopping;
};

void checkpoint_file_name(const char *id, char file[FILE_NAME_MAX]);
/* Also one whose row is on its way, or going; NULL when there is none. */
struct entry *entry_find(const struct checkpoints *cs, const char *id);
struct entry *entry_add(struct checkpoints *cs, const struct checkpoint *c);
void entry_remove(struct checkpoints *cs, struct entry *e);
/* The oldest of a job beyond `keep` go, with rows and files, but not those that are pinned or needed. */
void checkpoints_prune(struct checkpoints *cs, uint64_t job, int64_t keep);

#endif
