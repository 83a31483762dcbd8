/* The directory of a zip archive: where one member's bytes lie. One thread; nothing is kept. */
#ifndef FH_IMPORT_ZIP_H
#define FH_IMPORT_ZIP_H

#include <stdint.h>

struct fh_status;

#define ZIP_NAME_MAX 256

struct zip_member {
	char name[ZIP_NAME_MAX];
	uint64_t offset;   /* of its first byte in the file */
	uint64_t packed, unpacked;
	uint32_t crc;
	int deflated;      /* else stored */
};

/* The member called `want`, or the only one when NULL. FH_INVALID lists the names when there are several, FH_NOT_FOUND,
 * FH_CORRUPT (directory damaged), FH_IO. Encrypted archives and those with a zip64 directory (more than 65,534 members, or 4 GiB in) are refused. */
int zip_find(int fd, const char *want, struct zip_member *out, struct fh_status *st);

#endif
