/* The token file; see tokens.h. */
#include "daemon/tokens.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct tokens {
	int n, open;              /* open: no file, everybody is admin */
	struct { enum rpc_role role; size_t len; char text[LIMIT_TOKEN + 1]; } token[LIMIT_TOKENS];
};

static enum rpc_role role_parse(const char *word)
{
	static const char *const name[] = {"", "read", "submit", "admin"};

	for (int i = ROLE_READ; i <= ROLE_ADMIN; i++)
		if (!strcmp(word, name[i]))
			return (enum rpc_role)i;
	return ROLE_NONE;
}

static int parse_line(struct tokens *t, char *line, const char *path, int number, struct fh_status *st)
{
	char *save, *role = strtok_r(line, " \t\r\n", &save), *token = role ? strtok_r(NULL, " \t\r\n", &save) : NULL;

	if (!role || *role == '#')
		return 0;
	if (role_parse(role) == ROLE_NONE || !token || strtok_r(NULL, " \t\r\n", &save))
		return fh_fail(st, FH_INVALID, "%s line %d: expected \"read|submit|admin TOKEN\"", path, number);
	if (t->n == LIMIT_TOKENS)
		return fh_fail(st, FH_INVALID, "%s line %d: more than %d tokens", path, number, LIMIT_TOKENS);
	t->token[t->n].len = strlen(token);
	if (t->token[t->n].len > LIMIT_TOKEN)
		return fh_fail(st, FH_INVALID, "%s line %d: the token has more than %d characters", path, number,
			       LIMIT_TOKEN);
	t->token[t->n].role = role_parse(role);
	memcpy(t->token[t->n++].text, token, strlen(token));
	return 0;
}

static int parse_file(struct tokens *t, FILE *f, const char *path, struct fh_status *st)
{
	char line[LIMIT_TOKEN + 64];
	struct stat sb;
	int number = 0, rc = 0;

	if (fstat(fileno(f), &sb) == 0 && sb.st_mode & S_IRWXO)
		return fh_fail_field(st, FH_DENIED, "token_file", "%s may be read by everybody (mode %03o): chmod o= it",
				     path, (unsigned)sb.st_mode & 0777);
	while (!rc && fgets(line, sizeof line, f)) {
		number++;
		if (!strchr(line, '\n') && !feof(f))
			return fh_fail(st, FH_INVALID, "%s line %d is too long", path, number);
		rc = parse_line(t, line, path, number, st);
	}
	if (!rc && t->n == 0)
		rc = fh_fail_field(st, FH_INVALID, "token_file", "%s holds no token, so nobody could do anything", path);
	return rc;
}

int tokens_load(const char *path, struct tokens **out, struct fh_status *st)
{
	struct tokens *t = calloc(1, sizeof *t);
	FILE *f;
	int rc;

	if (!t)
		return fh_fail(st, FH_EXHAUSTED, "no memory for tokens");
	if (!*path) {
		t->open = 1;
		*out = t;
		return 0;
	}
	f = fopen(path, "re");
	if (!f) {
		free(t);
		return fh_fail_field(st, FH_INVALID, "token_file", "%s: %s", path, strerror(errno));
	}
	rc = parse_file(t, f, path, st);
	fclose(f);
	if (rc) {
		tokens_free(t);
		return rc;
	}
	*out = t;
	return 0;
}

void tokens_free(struct tokens *t)
{
	if (t)
		explicit_bzero(t, sizeof *t);
	free(t);
}

enum rpc_role tokens_role(const struct tokens *t, const char *token, size_t len)
{
	enum rpc_role role = ROLE_NONE;
	char padded[LIMIT_TOKEN + 1] = "";

	if (t->open)
		return ROLE_ADMIN;
	if (!token || len == 0 || len > LIMIT_TOKEN)
		return ROLE_NONE;
	memcpy(padded, token, len);
	for (int i = 0; i < t->n; i++) {
		unsigned differs = (unsigned)(t->token[i].len ^ len);

		for (size_t k = 0; k < sizeof padded; k++)
			differs |= (unsigned char)(padded[k] ^ t->token[i].text[k]);
		role = differs ? role : t->token[i].role;
	}
	return role;
}

int tokens_are_open(const struct tokens *t)
{
	return t->open;
}
