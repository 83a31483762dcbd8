/* Settings; see config.h. The table below is the only place that knows keys: parsing, checking and the commented
 * default file all walk it. */
#include "daemon/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/dataset.h"
#include "daemon/log.h"
#include "proto/spec.h"
#include "proto/text.h"

#define AT(member) offsetof(struct config, member)

enum config_type { CONFIG_TEXT, CONFIG_INT, CONFIG_BYTES, CONFIG_BOOL, CONFIG_LIST };
struct config_key {
	const char *key;
	enum config_type type;
	size_t offset;
	double lo, hi;
	const char *def;  /* NULL: see help */
	const char *help;
};

static const struct config_key keys[] = {
	{"state_dir", CONFIG_TEXT, AT(state_dir), 0, 0, NULL,
	 "directory of jobs, data sets and checkpoints; default: $STATE_DIRECTORY, as root /var/lib/fhd, else ~/.local/state/fhd"},
	{"listen", CONFIG_LIST, AT(listen), 0, 0, NULL,
	 "URLs for calls, ipc:///path or tcp://127.0.0.1:port; default: fhd.sock in $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR or /run/fhd"},
	{"publish", CONFIG_TEXT, AT(publish), 0, 0, NULL,
	 "URL where samples and state changes are published; none: nowhere; default: fhd.pub beside the first ipc socket"},
	{"device", CONFIG_TEXT, AT(device), 0, 0, "auto", "auto, host, cuda or cuda:N; auto takes a GPU when there is one"},
	{"slots", CONFIG_INT, AT(slots), 1, LIMIT_SLOTS, "1", "jobs that train at the same time"},
	{"park", CONFIG_INT, AT(park), 0, LIMIT_PARKED, "8",
	 "trainers kept with their memory for the next job of the same layout; 0: a job gives its memory back when it ends"},
	{"threads", CONFIG_INT, AT(threads), 0, 256, "0", "CPU threads for training, shared by the slots; 0: all this process may use"},
	{"memory", CONFIG_BYTES, AT(memory), 0, 1e15, "0",
	 "bytes for training, suffix K, M, G or T allowed; 0: four fifths of the device's memory"},
	{"stop_timeout", CONFIG_INT, AT(stop_timeout), 1, 3600, "60",
	 "s, how long stopping may take (checkpoints of running jobs) before the process just ends"},
	{"dataset_bars", CONFIG_INT, AT(dataset_bars), 2, (double)DATASET_BARS_MAX, "20000000", "bars of one data set"},
	{"dataset_quota", CONFIG_BYTES, AT(dataset_quota), 0, 1e15, "0",
	 "bytes that the files of all data sets may take together, suffix K, M, G or T allowed; 0: what the disk has"},
	{"upload_idle", CONFIG_INT, AT(upload_idle), 1, 86400, "120",
	 "s, how long a broken upload is kept: the same import command goes on with it until then"},
	{"token_file", CONFIG_TEXT, AT(token_file), 0, 0, "",
	 "file of lines \"read|submit|admin TOKEN\"; empty: whoever may open the socket may do everything"},
	{"roles", CONFIG_TEXT, AT(roles), 0, 0, "",
	 "what users may do on ipc sockets: role:who, role:who, …; role is read, submit or admin, who a user, @group or *; the first that "
	 "fits counts, nobody else is let in; empty: whoever may open the socket may do everything"},
	{"http", CONFIG_TEXT, AT(http), 0, 0, "",
	 "address of /metrics, /healthz and /readyz, like 127.0.0.1:9178 or [::1]:9178; empty: nowhere"},
	{"insecure_tcp", CONFIG_BOOL, AT(insecure_tcp), 0, 0, "false",
	 "true allows tcp:// and http on addresses other than loopback"},
	{"log_level", CONFIG_TEXT, AT(log_level), 0, 0, "info", "debug, info, warn or error"},
};
#define KEYS ((int)(sizeof keys / sizeof keys[0]))

static size_t text_size(const struct config_key *k)
{
	return k->offset == AT(log_level) ? sizeof ((struct config *)0)->log_level : CONFIG_TEXT_MAX;
}

void config_defaults(struct config *c)
{
	memset(c, 0, sizeof *c);
	for (int i = 0; i < KEYS; i++)
		if (keys[i].def && *keys[i].def)
			config_set(c, keys[i].key, keys[i].def, NULL);
}

/* ---------------------------------------------------------------- one value */

static int set_text(struct config *c, const struct config_key *k, const char *value, struct fh_status *st)
{
	char *to = (char *)c + k->offset;

	if (strlen(value) >= text_size(k))
		return fh_fail_field(st, FH_INVALID, k->key, "%zu characters, at most %zu are taken", strlen(value),
				     text_size(k) - 1);
	if (k->offset == AT(log_level) && log_level_parse(value) < 0)
		return fh_fail_field(st, FH_INVALID, k->key, "\"%s\" is none of debug, info, warn, error", value);
	strcpy(to, value);
	return 0;
}

static int set_number(struct config *c, const struct config_key *k, const char *value, struct fh_status *st)
{
	static const char suffix[] = "KMGT";
	char *end;
	long long v;

	errno = 0;
	v = strtoll(value, &end, 10);
	if (k->type == CONFIG_BYTES && *end && strchr(suffix, *end) && v >= 0 && v < 1 << 20) {
		v <<= 10 * (strchr(suffix, *end) - suffix + 1);
		end++;
	}
	if (end == value || *end || errno)
		return fh_fail_field(st, FH_INVALID, k->key, "\"%s\" is no whole number", value);
	if ((double)v < k->lo || (double)v > k->hi)
		return fh_fail_field(st, FH_INVALID, k->key, "%lld is not in %.0f to %.0f", v, k->lo, k->hi);
	*(int64_t *)((char *)c + k->offset) = v;
	return 0;
}

static int set_bool(struct config *c, const struct config_key *k, const char *value, struct fh_status *st)
{
	int yes = !strcmp(value, "true"), no = !strcmp(value, "false");

	if (!yes && !no)
		return fh_fail_field(st, FH_INVALID, k->key, "\"%s\" is neither true nor false", value);
	*(int64_t *)((char *)c + k->offset) = yes;
	return 0;
}

static int add_listen(struct config *c, const struct config_key *k, const char *value, struct fh_status *st)
{
	int i = 0;

	while (i < LIMIT_LISTENERS && c->listen[i][0])
		i++;
	if (i == LIMIT_LISTENERS)
		return fh_fail_field(st, FH_INVALID, k->key, "more than %d URLs", LIMIT_LISTENERS);
	if (!*value || strlen(value) >= CONFIG_TEXT_MAX)
		return fh_fail_field(st, FH_INVALID, k->key, "a URL has 1 to %d characters", CONFIG_TEXT_MAX - 1);
	strcpy(c->listen[i], value);
	return 0;
}

static const struct config_key *find_key(const char *name)
{
	for (int i = 0; i < KEYS; i++)
		if (!strcmp(keys[i].key, name))
			return &keys[i];
	return NULL;
}

static int unknown(const char *name, struct fh_status *st)
{
	const char *nearest = NULL;
	int best = 4; /* farther away nobody means it */

	for (int i = 0; i < KEYS; i++) {
		int distance = fh_edit_distance(name, keys[i].key);

		if (distance < best) {
			best = distance;
			nearest = keys[i].key;
		}
	}
	return fh_unknown_key(name, nearest, st);
}

int config_set(struct config *c, const char *key, const char *value, struct fh_status *st)
{
	const struct config_key *k = find_key(key);

	if (!k)
		return unknown(key, st);
	switch (k->type) {
	case CONFIG_TEXT:
		return set_text(c, k, value, st);
	case CONFIG_INT:
	case CONFIG_BYTES:
		return set_number(c, k, value, st);
	case CONFIG_BOOL:
		return set_bool(c, k, value, st);
	case CONFIG_LIST:
		return add_listen(c, k, value, st);
	}
	return 0;
}

/* ---------------------------------------------------------------- file */

static int apply_node(struct config *c, const struct fh_node *node, const char *path, struct fh_status *st)
{
	const struct config_key *k = find_key(node->key);
	int rc = 0;

	if (!k)
		rc = unknown(node->key, st);
	else if (node->kind == FH_NODE_SCALAR)
		rc = config_set(c, node->key, node->text, st);
	else if (node->kind == FH_NODE_MAP || k->type != CONFIG_LIST)
		rc = fh_fail_field(st, FH_INVALID, node->key, "one value is expected here");
	else
		for (const struct fh_node *i = node->child; i && !rc; i = i->next)
			rc = i->kind == FH_NODE_SCALAR ? config_set(c, node->key, i->text, st)
						       : fh_fail_field(st, FH_INVALID, node->key, "texts are expected here");
	return rc ? fh_prefix(st, "%s:%d", path, node->line) : 0;
}

int config_load(struct config *c, const char *path, struct fh_status *st)
{
	struct fh_arena a;
	struct fh_node *root;
	struct config next = *c;
	char *text;
	size_t len;
	int rc;

	fh_arena_init(&a, 4u << 20);
	rc = fh_file_read(path, &a, &text, &len, st);
	if (!rc)
		rc = fh_tree_read(text, len, path, &a, &root, st);
	for (const struct fh_node *n = rc ? NULL : root->child; n && !rc; n = n->next)
		rc = apply_node(&next, n, path, st);
	fh_arena_release(&a);
	if (!rc)
		*c = next;
	return rc;
}

/* ---------------------------------------------------------------- what depends on the machine */

static int default_state_dir(struct config *c, struct fh_status *st)
{
	const char *dir = getenv("STATE_DIRECTORY"), *home = getenv("HOME"), *xdg = getenv("XDG_STATE_HOME");
	int n;

	if (dir && *dir) /* systemd may give several, parted by colons: the first is ours */
		n = snprintf(c->state_dir, sizeof c->state_dir, "%.*s", (int)strcspn(dir, ":"), dir);
	else if (geteuid() == 0)
		n = snprintf(c->state_dir, sizeof c->state_dir, "/var/lib/fhd");
	else if (xdg && *xdg)
		n = snprintf(c->state_dir, sizeof c->state_dir, "%s/fhd", xdg);
	else if (home && *home)
		n = snprintf(c->state_dir, sizeof c->state_dir, "%s/.local/state/fhd", home);
	else
		return fh_fail_field(st, FH_INVALID, "state_dir", "not given, and neither STATE_DIRECTORY nor HOME is set");
	if (n >= (int)sizeof c->state_dir)
		return fh_fail_field(st, FH_INVALID, "state_dir", "the default is longer than %d characters", CONFIG_TEXT_MAX - 1);
	return 0;
}

static int default_listen(struct config *c, struct fh_status *st)
{
	const char *dir = getenv("RUNTIME_DIRECTORY"), *xdg = getenv("XDG_RUNTIME_DIR");
	int len;

	if (!dir || !*dir)
		dir = xdg && *xdg ? xdg : "/run/fhd";
	len = (int)strcspn(dir, ":");
	if (len > CONFIG_TEXT_MAX - 32)
		return fh_fail_field(st, FH_INVALID, "listen", "the runtime directory's path has %d characters", len);
	snprintf(c->listen[0], sizeof c->listen[0], "ipc://%.*s/fhd.sock", len, dir);
	return 0;
}

/* fhd.sock -> fhd.pub; other names get .pub behind them. */
static void default_publish(struct config *c)
{
	const char *url = c->listen[0];
	size_t len = strlen(url);

	if (strncmp(url, "ipc://", 6))
		return;
	if (len > 5 && !strcmp(url + len - 5, ".sock"))
		len -= 5;
	if (len + 5 > sizeof c->publish)
		return;
	memcpy(c->publish, url, len);
	strcpy(c->publish + len, ".pub");
}

int config_finish(struct config *c, struct fh_status *st)
{
	int rc = 0;

	if (!c->state_dir[0])
		rc = default_state_dir(c, st);
	if (!rc && c->state_dir[0] != '/') {
		char cwd[CONFIG_TEXT_MAX], joined[2 * CONFIG_TEXT_MAX];

		if (!getcwd(cwd, sizeof cwd) ||
		    snprintf(joined, sizeof joined, "%s/%s", cwd, c->state_dir) >= CONFIG_TEXT_MAX)
			return fh_fail_field(st, FH_INVALID, "state_dir", "%s: the path is too long", c->state_dir);
		memcpy(c->state_dir, joined, sizeof c->state_dir);
	}
	if (!rc && !c->listen[0][0])
		rc = default_listen(c, st);
	if (rc)
		return rc;
	if (!c->publish[0])
		default_publish(c);
	if (!strcmp(c->publish, "none"))
		c->publish[0] = 0;
	return 0;
}

/* ---------------------------------------------------------------- printing */

/* Comment lines of at most 100 characters. */
static void print_help(FILE *f, const char *help)
{
	size_t column = 0;

	fputs("#", f);
	while (*help) {
		size_t word = strcspn(help, " ");

		if (column && column + word + 1 > 98) {
			fputs("\n#", f);
			column = 0;
		}
		fprintf(f, " %.*s", (int)word, help);
		column += word + 1;
		help += word + (help[word] == ' ');
	}
	fputc('\n', f);
}

void config_print(FILE *f)
{
	fputs("# Settings of fhd. Every key is optional; what is commented out shows the default.\n", f);
	for (int i = 0; i < KEYS; i++) {
		const struct config_key *k = &keys[i];

		fputc('\n', f);
		print_help(f, k->help);
		if (k->type == CONFIG_INT || k->type == CONFIG_BYTES)
			fprintf(f, "# range %.0f to %.0f\n", k->lo, k->hi);
		if (k->type == CONFIG_LIST)
			fprintf(f, "# %s: [\"ipc:///run/fhd/fhd.sock\"]\n", k->key);
		else if (k->type == CONFIG_TEXT && (!k->def || !*k->def))
			fprintf(f, "# %s: \"\"\n", k->key);
		else
			fprintf(f, "# %s: %s\n", k->key, k->def);
	}
}
