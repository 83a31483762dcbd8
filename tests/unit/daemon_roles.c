/* Roles of users on ipc sockets: the setting, and who a peer is. */
#include <grp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/roles.h"

static void refused(const char *text, const char *why)
{
	struct fh_status st = FH_STATUS_INIT;
	struct roles *r = (struct roles *)&st;

	assert_int_equal(roles_parse(text, &r, &st), FH_INVALID);
	assert_string_equal(st.field, "roles");
	if (!strstr(st.text, why))
		fail_msg("%s: %s", text, st.text);
	assert_null(r);
}

/* What this process would be to a daemon with that setting. */
static enum rpc_role own_role(const char *text)
{
	struct fh_status st = FH_STATUS_INIT;
	enum rpc_role role;
	struct roles *r;
	int fd[2];

	if (roles_parse(text, &r, &st))
		fail_msg("%s", st.text);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	role = roles_of_peer(r, fd[0]);
	close(fd[0]);
	close(fd[1]);
	roles_free(r);
	return role;
}

static void settings_that_are_wrong_are_named(void **state)
{
	char many[ROLES_MAX * 8 + 32] = "";

	refused("admin", "expected role:who");
	refused("king:root", "\"king\" is none of");
	refused("read:nobody-of-that-name", "no user \"nobody-of-that-name\"");
	refused("read:@no-such-group", "no group \"no-such-group\"");
	refused("read:", "no user");
	refused("read:12x", "no user");
	for (int i = 0; i <= ROLES_MAX; i++)
		strcat(many, "read:*,");
	refused(many, "more than 64");
}

static void the_first_that_fits_counts(void **state)
{
	char text[128];
	unsigned uid = (unsigned)getuid(), gid = (unsigned)getgid();

	snprintf(text, sizeof text, "submit:%u, admin:*", uid);
	assert_int_equal(own_role(text), ROLE_SUBMIT);
	snprintf(text, sizeof text, "admin:%u,read:%u", uid + 1, uid);
	assert_int_equal(own_role(text), ROLE_READ);
	snprintf(text, sizeof text, "admin:@%u read:*", gid);
	assert_int_equal(own_role(text), ROLE_ADMIN);
	snprintf(text, sizeof text, "admin:@4294967294 read:*");
	assert_int_equal(own_role(text), ROLE_READ);
}

static void nobody_else_has_a_role(void **state)
{
	char text[64];

	snprintf(text, sizeof text, "admin:%u", (unsigned)getuid() + 1);
	assert_int_equal(own_role(text), ROLE_NONE);
	assert_int_equal(own_role(""), ROLE_ADMIN);
}

static void groups_beside_the_first_count(void **state)
{
	gid_t all[64];
	int n = getgroups(64, all);
	char text[64];

	if (n < 1 && setgroups(1, (gid_t[]){4242}) == 0)
		n = getgroups(64, all);
	if (n < 1)
		skip(); /* this process is in no other group and may not join one */
	snprintf(text, sizeof text, "submit:@%u", (unsigned)all[n - 1]);
	assert_int_equal(own_role(text), ROLE_SUBMIT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(settings_that_are_wrong_are_named), cmocka_unit_test(the_first_that_fits_counts),
		cmocka_unit_test(nobody_else_has_a_role), cmocka_unit_test(groups_beside_the_first_count),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
