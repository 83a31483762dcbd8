/* Small YAML and JSON files as a tree, with every bound checked while reading; see text.h.
 *
 * libfyaml's parser delivers events in order and keeps its own stack on the heap; the tree is built here with an explicit
 * stack of FH_TEXT_DEPTH_MAX levels, so that no input can recurse. Anchors, aliases and tags end the reading at once. */
#include "proto/text.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <libfyaml.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WHAT_MAX 128       /* bytes of the source's name in messages */
#define KEY_MAX 128        /* bytes of one key */

struct level {
	struct fh_node *node, *last; /* the open mapping or list and its newest child */
	const char *key;             /* of a mapping: key that waits for its value */
	int key_line;
};

struct builder {
	const char *what;
	struct fh_arena *arena;
	struct level level[FH_TEXT_DEPTH_MAX];
	int depth, nodes, documents;
	struct fh_node *root;
	struct fh_status *st;
};

static int refuse(const struct builder *b, int line, const char *text)
{
	return fh_fail(b->st, FH_INVALID, "%.*s:%d: %s", WHAT_MAX, b->what, line, text);
}

static int line_of(struct fy_event *e)
{
	const struct fy_mark *m = fy_event_start_mark(e);

	return m ? m->line + 1 : 1;
}

static int take_key(struct builder *b, struct level *l, const struct fh_node *n)
{
	if (n->kind != FH_NODE_SCALAR || !n->text[0])
		return refuse(b, n->line, "a key must be a word");
	if (strlen(n->text) > KEY_MAX)
		return refuse(b, n->line, "a key of more than 128 bytes");
	for (const struct fh_node *c = l->node->child; c; c = c->next)
		if (!strcmp(c->key, n->text))
			return fh_fail_field(b->st, FH_INVALID, n->text, "%.*s:%d: key %s is there twice, first in line %d",
					     WHAT_MAX, b->what, n->line, n->text, c->line);
	l->key = n->text;
	l->key_line = n->line;
	return 0;
}

/* A new node at its place: the root, a key, a value or an element. */
static int place(struct builder *b, struct fh_node *n)
{
	struct level *l = b->depth ? &b->level[b->depth - 1] : NULL;

	if (!l) {
		if (n->kind == FH_NODE_SCALAR && !n->text[0])
			n->kind = FH_NODE_MAP; /* an empty file */
		if (n->kind != FH_NODE_MAP)
			return refuse(b, n->line, "\"key: value\" lines are needed at the top");
		b->root = n;
		return 0;
	}
	assert(l->node); /* open_level() put it there */
	if (l->node->kind == FH_NODE_MAP && !l->key)
		return take_key(b, l, n);
	if (l->node->kind == FH_NODE_MAP) {
		n->key = l->key;
		n->line = l->key_line;
		l->key = NULL;
	}
	if (l->last)
		l->last->next = n;
	else
		l->node->child = n;
	l->last = n;
	l->node->children++;
	return 0;
}

static int open_level(struct builder *b, struct fh_node *n)
{
	/* A mapping as a key was refused by place(); what is here is in the tree. */
	if (b->depth == FH_TEXT_DEPTH_MAX)
		return refuse(b, n->line, "nested deeper than 8 levels");
	b->level[b->depth++] = (struct level){.node = n};
	return 0;
}

static int scalar_text(struct builder *b, struct fy_token *value, struct fh_node *n)
{
	size_t len = 0;
	const char *text = value ? fy_token_get_text(value, &len) : "";
	char *copy;

	if (!text || memchr(text, 0, len) || !fh_utf8_ok(text, len))
		return refuse(b, n->line, "a text that is not UTF-8 or has a NUL byte");
	copy = fh_arena_alloc(b->arena, len + 1);
	if (!copy)
		return fh_fail(b->st, FH_EXHAUSTED, "%.*s: too large", WHAT_MAX, b->what);
	memcpy(copy, text, len);
	n->text = copy;
	n->quoted = value && fy_token_scalar_style(value) != FYSS_PLAIN;
	return 0;
}

static int add_node(struct builder *b, struct fy_event *e, enum fh_node_kind kind, struct fy_token *anchor,
		    struct fy_token *tag, struct fy_token *value)
{
	struct fh_node *n;
	int line = line_of(e), rc;

	if (anchor)
		return refuse(b, line, "anchors (&name) are not allowed here");
	if (tag)
		return refuse(b, line, "tags (!name) are not allowed here");
	if (++b->nodes > FH_TEXT_NODES_MAX)
		return refuse(b, line, "more than 4096 keys and values");
	n = fh_arena_alloc(b->arena, sizeof *n);
	if (!n)
		return fh_fail(b->st, FH_EXHAUSTED, "%.*s: too large", WHAT_MAX, b->what);
	n->kind = kind;
	n->line = line;
	n->text = "";
	rc = kind == FH_NODE_SCALAR ? scalar_text(b, value, n) : 0;
	if (rc == 0)
		rc = place(b, n);
	return rc || kind == FH_NODE_SCALAR ? rc : open_level(b, n);
}

static int take_event(struct builder *b, struct fy_event *e)
{
	switch (e->type) {
	case FYET_DOCUMENT_START:
		return b->documents++ ? refuse(b, line_of(e), "a second document; one is allowed") : 0;
	case FYET_ALIAS: return refuse(b, line_of(e), "aliases (*name) are not allowed here");
	case FYET_SCALAR:
		return add_node(b, e, FH_NODE_SCALAR, e->scalar.anchor, e->scalar.tag, e->scalar.value);
	case FYET_MAPPING_START:
		return add_node(b, e, FH_NODE_MAP, e->mapping_start.anchor, e->mapping_start.tag, NULL);
	case FYET_SEQUENCE_START:
		return add_node(b, e, FH_NODE_LIST, e->sequence_start.anchor, e->sequence_start.tag, NULL);
	case FYET_MAPPING_END: case FYET_SEQUENCE_END:
		b->depth--;
		return 0;
	default: return 0;
	}
}

/* libfyaml's own words for a syntax error, with its line. */
static int syntax_error(struct builder *b, struct fy_diag *diag)
{
	void *at = NULL;
	struct fy_diag_error *e = fy_diag_errors_iterate(diag, &at);

	if (!e || !e->msg)
		return fh_fail(b->st, FH_INVALID, "%.*s: not readable as YAML or JSON", WHAT_MAX, b->what);
	return fh_fail(b->st, FH_INVALID, "%.*s:%d: not readable as YAML or JSON: %.200s", WHAT_MAX, b->what, e->line, e->msg);
}

static int run_parser(struct builder *b, struct fy_parser *parser, struct fy_diag *diag, const char *text, size_t len)
{
	struct fy_event *e;
	int rc = 0;

	if (fy_parser_set_string(parser, text, len))
		return syntax_error(b, diag);
	while (rc == 0 && (e = fy_parser_parse(parser))) {
		rc = take_event(b, e);
		fy_parser_event_free(parser, e);
	}
	if (rc == 0 && fy_parser_get_stream_error(parser))
		rc = syntax_error(b, diag);
	return rc;
}

/* Whether there is nothing but comments, empty lines and document marks: all that may give no tree. */
static int only_comments(const char *text, size_t len)
{
	for (size_t i = 0, n; i < len; i += n + 1) {
		size_t skip;
		const char *line = text + i, *end = memchr(line, '\n', len - i);

		n = end ? (size_t)(end - line) : len - i;
		for (skip = 0; skip < n && strchr(" \t\r", line[skip]);)
			skip++;
		if (skip < n && line[skip] != '#' && (n < 3 || (memcmp(line, "---", 3) && memcmp(line, "...", 3))))
			return 0;
	}
	return 1;
}

int fh_tree_read(const char *text, size_t len, const char *what, struct fh_arena *a, struct fh_node **root,
		 struct fh_status *st)
{
	struct builder b = {.what = what, .arena = a, .st = st};
	struct fy_parse_cfg cfg = {.flags = FYPCF_QUIET | FYPCF_COLLECT_DIAG | FYPCF_JSON_NONE};
	struct fy_parser *parser;
	int rc;

	if (len > FH_TEXT_FILE_MAX)
		return fh_fail(st, FH_EXHAUSTED, "%.*s: %zu bytes, at most %u are allowed", WHAT_MAX, what, len, FH_TEXT_FILE_MAX);
	if (len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) {
		text += 3;
		len -= 3;
	}
	if (!fh_utf8_ok(text, len))
		return fh_fail(st, FH_INVALID, "%.*s: not UTF-8 text", WHAT_MAX, what);
	cfg.diag = fy_diag_create(NULL);
	if (!cfg.diag)
		return fh_fail(st, FH_EXHAUSTED, "no memory to read %.*s", WHAT_MAX, what);
	fy_diag_set_collect_errors(cfg.diag, true);
	parser = fy_parser_create(&cfg);
	rc = parser ? run_parser(&b, parser, cfg.diag, text, len)
		    : fh_fail(st, FH_EXHAUSTED, "no memory to read %.*s", WHAT_MAX, what);
	if (parser)
		fy_parser_destroy(parser);
	fy_diag_destroy(cfg.diag);
	if (rc == 0 && !b.root && !only_comments(text, len))
		rc = fh_fail(st, FH_INVALID, "%.*s: not readable as YAML or JSON", WHAT_MAX, what);
	if (rc == 0 && !b.root) {
		b.root = fh_arena_alloc(a, sizeof *b.root);
		if (!b.root)
			return fh_fail(st, FH_EXHAUSTED, "%.*s: too large", WHAT_MAX, what);
		*b.root = (struct fh_node){.kind = FH_NODE_MAP, .line = 1, .text = ""};
	}
	if (rc == 0)
		*root = b.root;
	return rc;
}

static int read_all(int fd, char *buf, size_t size, size_t *len)
{
	size_t n = 0;

	while (n < size) {
		ssize_t got = read(fd, buf + n, size - n);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -1;
		if (got == 0)
			break;
		n += (size_t)got;
	}
	*len = n;
	return 0;
}

int fh_file_read(const char *path, struct fh_arena *a, char **text, size_t *len, struct fh_status *st)
{
	int from_stdin = !strcmp(path, "-"), fd = from_stdin ? 0 : open(path, O_RDONLY | O_CLOEXEC), bad;
	char *buf;
	size_t n = 0;

	if (fd < 0)
		return fh_fail(st, FH_INVALID, "cannot read %.200s: %s", path, strerror(errno));
	buf = fh_arena_alloc(a, FH_TEXT_FILE_MAX + 1);
	bad = buf ? read_all(fd, buf, FH_TEXT_FILE_MAX + 1, &n) : 0;
	if (bad)
		fh_fail(st, FH_INVALID, "cannot read %.200s: %s", from_stdin ? "standard input" : path, strerror(errno));
	if (!from_stdin)
		close(fd);
	if (bad)
		return FH_INVALID;
	if (!buf)
		return fh_fail(st, FH_EXHAUSTED, "no memory to read %.200s", path);
	if (n > FH_TEXT_FILE_MAX)
		return fh_fail(st, FH_EXHAUSTED, "%.200s: more than %u bytes", path, FH_TEXT_FILE_MAX);
	*text = buf;
	*len = n;
	return 0;
}
