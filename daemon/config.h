/* The daemon's settings: one table with key, type, range, default and help (config.c); a YAML file, then the command
 * line over it. Owned by daemon.c, written before the loop starts, read only afterwards, so any thread may read it. */
#ifndef FHD_CONFIG_H
#define FHD_CONFIG_H

#include <stdint.h>
#include <stdio.h>
#include "daemon/limits.h"

struct fh_status;

#define CONFIG_TEXT_MAX 512

struct config {
	char state_dir[CONFIG_TEXT_MAX];
	char listen[LIMIT_LISTENERS][CONFIG_TEXT_MAX]; /* URLs, "" ends */
	char publish[CONFIG_TEXT_MAX];  /* URL of the PUB socket, "" = none */
	char http[CONFIG_TEXT_MAX];     /* ADDRESS:PORT of the HTTP pages, "" = none */
	char device[CONFIG_TEXT_MAX];   /* auto, host, cuda, cuda:N */
	char token_file[CONFIG_TEXT_MAX]; /* "" = whoever may connect is admin, unless roles say otherwise */
	char roles[CONFIG_TEXT_MAX];    /* of users on ipc sockets, see roles.h */
	char log_level[16];
	int64_t park;                   /* trainers kept without a job */
	int64_t slots, threads;         /* threads 0 = all cores, shared between the slots */
	int64_t memory;                 /* bytes for trainers, 0 = four fifths of the device's */
	int64_t stop_timeout;           /* s */
	int64_t dataset_bars;           /* of one data set */
	int64_t dataset_quota;          /* bytes of all data sets' files, 0 = no bound */
	int64_t upload_idle;            /* s */
	int64_t insecure_tcp;           /* 1: tcp:// on addresses other than loopback is allowed */
};

void config_defaults(struct config *c);
/* One setting from text; FH_INVALID names key and value. LIST: adds. */
int config_set(struct config *c, const char *key, const char *value, struct fh_status *st);
/* A YAML mapping of keys to scalars or lists. Unknown keys are refused with the nearest match and the line. */
int config_load(struct config *c, const char *path, struct fh_status *st);
/* Fills the places that depend on the machine (state directory, socket paths) where they are still empty. */
int config_finish(struct config *c, struct fh_status *st);
/* The default configuration with comments; systemd/fhd.yaml is its output. */
void config_print(FILE *f);

#endif
