/* Roles of peers on ipc sockets; see roles.h. */
#include "daemon/roles.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/log.h"

#define WORD_MAX 128
#define GROUPS_MAX 1024
#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59 /* Linux 4.13 */
#endif

enum who { WHO_USER, WHO_GROUP, WHO_ANYBODY };

struct rule { enum rpc_role role; enum who who; unsigned id; };
struct roles { int n; struct rule rule[ROLES_MAX]; };

struct peer { unsigned uid, gid; gid_t group[GROUPS_MAX]; int groups; };

/* ---------------------------------------------------------------- the setting */

static enum rpc_role role_named(const char *word)
{
	static const char *const name[] = {"", "read", "submit", "admin"};

	for (int i = ROLE_READ; i <= ROLE_ADMIN; i++)
		if (!strcmp(word, name[i]))
			return (enum rpc_role)i;
	return ROLE_NONE;
}

static int number(const char *text, unsigned *out)
{
	char *end;
	unsigned long v;

	errno = 0;
	v = strtoul(text, &end, 10);
	*out = (unsigned)v;
	return text[0] >= '0' && text[0] <= '9' && !*end && !errno && v < 0xffffffffu;
}

static int parse_who(const char *text, struct rule *rule)
{
	const struct passwd *user;
	const struct group *group;

	rule->who = !strcmp(text, "*") ? WHO_ANYBODY : text[0] == '@' ? WHO_GROUP : WHO_USER;
	if (rule->who == WHO_ANYBODY)
		return 1;
	if (number(text + (rule->who == WHO_GROUP), &rule->id))
		return 1;
	if (rule->who == WHO_USER) {
		user = getpwnam(text);
		rule->id = user ? (unsigned)user->pw_uid : 0;
		return user != NULL;
	}
	group = getgrnam(text + 1);
	rule->id = group ? (unsigned)group->gr_gid : 0;
	return group != NULL;
}

static int parse_rule(char *word, struct rule *rule, struct fh_status *st)
{
	char *who = strchr(word, ':');

	if (!who)
		return fh_fail_field(st, FH_INVALID, "roles", "\"%s\": expected role:who, like submit:@traders", word);
	*who++ = 0;
	rule->role = role_named(word);
	if (rule->role == ROLE_NONE)
		return fh_fail_field(st, FH_INVALID, "roles", "\"%s\" is none of read, submit, admin", word);
	if (!parse_who(who, rule))
		return fh_fail_field(st, FH_INVALID, "roles", "there is no %s \"%s\" on this machine", *who == '@' ? "group" : "user",
				     who + (*who == '@'));
	return 0;
}

int roles_parse(const char *text, struct roles **out, struct fh_status *st)
{
	struct roles *r;
	int rc = 0;

	*out = NULL;
	if (!*text)
		return 0;
	r = calloc(1, sizeof *r);
	if (!r)
		return fh_fail(st, FH_EXHAUSTED, "no memory for roles");
	while (!rc && *(text += strspn(text, ", "))) {
		size_t n = strcspn(text, ", ");
		char word[WORD_MAX];

		if (r->n == ROLES_MAX)
			rc = fh_fail_field(st, FH_INVALID, "roles", "more than %d of them", ROLES_MAX);
		else if (n >= sizeof word)
			rc = fh_fail_field(st, FH_INVALID, "roles", "\"%.40s…\" is too long", text);
		if (!rc) {
			snprintf(word, sizeof word, "%.*s", (int)n, text);
			rc = parse_rule(word, &r->rule[r->n++], st);
		}
		text += n;
	}
	if (rc) {
		free(r);
		return rc;
	}
	*out = r;
	return 0;
}

void roles_free(struct roles *r)
{
	free(r);
}

/* ---------------------------------------------------------------- peers */

static int look(int fd, struct peer *p)
{
	struct ucred cred;
	socklen_t bytes = sizeof cred;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &bytes))
		return 0;
	p->uid = (unsigned)cred.uid;
	p->gid = (unsigned)cred.gid;
	bytes = sizeof p->group;
	p->groups = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, p->group, &bytes) ? 0 : (int)(bytes / sizeof p->group[0]);
	return 1;
}

static int in_group(const struct peer *p, unsigned gid)
{
	for (int i = 0; i < p->groups; i++)
		if ((unsigned)p->group[i] == gid)
			return 1;
	return p->gid == gid;
}

static int fits(const struct rule *r, const struct peer *p)
{
	return r->who == WHO_ANYBODY || (r->who == WHO_USER ? r->id == p->uid : in_group(p, r->id));
}

enum rpc_role roles_of_peer(const struct roles *r, int fd)
{
	struct peer p;

	if (!r)
		return ROLE_ADMIN;
	if (!look(fd, &p))
		return ROLE_NONE;
	for (int i = 0; i < r->n; i++)
		if (fits(&r->rule[i], &p))
			return r->rule[i].role;
	log_warn("a user without a role was not let in", "uid=%u gid=%u", p.uid, p.gid);
	return ROLE_NONE;
}
