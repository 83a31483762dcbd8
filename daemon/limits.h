/* Every bound of the daemon in one place: what may come in, what may be kept, how long anything may take.
 * Bounds of the wire format itself (message sizes, name lengths) that the client shares are in proto/wire.h and
 * gpu/spec.h; these are the daemon's own. Pure constants, any thread. */
#ifndef FHD_LIMITS_H
#define FHD_LIMITS_H

/* ---- calls (message sizes: proto/wire.h) */
#define LIMIT_CONTEXTS 128                  /* requests in work at once; the next one waits in its client's pipe */
#define LIMIT_CONNECTIONS 512               /* per socket, refused above */
#define LIMIT_HALF_OPEN 256                 /* of them without a hello; the oldest goes */
#define LIMIT_REQUEST_ID 64                 /* characters [A-Za-z0-9._-] */
#define LIMIT_TOKEN 256                     /* characters of a token */
#define LIMIT_TOKENS 64                     /* lines of a token file */
#define LIMIT_ANSWERS 4096                  /* answers kept for repeated request ids … */
#define LIMIT_ANSWERS_BYTES (8u << 20)      /* … and their bytes together */
#define LIMIT_ANSWER_BYTES (256u << 10)     /* a larger answer is not kept */
#define LIMIT_LISTENERS 8

/* ---- jobs */
#define LIMIT_JOBS 65536                    /* all states; a job is about 2 KiB of memory */
#define LIMIT_JOBS_QUEUED 16384
#define LIMIT_REASON 256
#define LIMIT_LIST 1000                     /* jobs in one ListJobs reply */
#define LIMIT_LIST_DEFAULT 100
#define LIMIT_INTERRUPTIONS 3               /* restarts of a job whose daemon died under it */
#define LIMIT_SLOTS 16

/* ---- worker */
#define LIMIT_SLICE_NS 5000000              /* 5 ms: how long the trainer works before it looks for commands */
#define LIMIT_COMMANDS 64                   /* ring loop -> worker */
#define LIMIT_SAMPLES 256                   /* ring worker -> loop (mailbox.h) */
#define LIMIT_EVENTS 64                     /* ring worker -> loop; never drops, the worker waits */
#define LIMIT_PARKED 8                      /* trainers kept for re-use */
#define LIMIT_TRAINERS (LIMIT_PARKED + LIMIT_SLOTS + 1) /* one is parked before another goes */
#define LIMIT_DEVICE_LOOK_S 1               /* between two looks at the device's memory */
#define LIMIT_SNAPSHOTS 1                   /* checkpoint images of one job on their way to disk */
#define LIMIT_IMAGES 4                      /* of all jobs: with more on their way no further job starts */

/* ---- time, in ms unless the name says otherwise */
#define LIMIT_HELLO_MS 10000                /* a connection without its SP hello */
#define LIMIT_JOIN_MS 3000                  /* the handshake with NNG behind the gate */
#define LIMIT_FLUSH_MS 1000                 /* replies on their way when the daemon stops */
#define LIMIT_STORE_RETRY_MS 5000           /* after a row that could not be written (disk full): try again */
#define LIMIT_LONG_PHASE_S 600              /* start of a job or a snapshot may take this long before the watchdog bites */
#define LIMIT_STALL_S 30                    /* a running slice without an end for this long: worker counts as hung */

/* ---- log */
#define LIMIT_LOG_BURST 20                  /* lines of one kind in a second; the rest is counted */
#define LIMIT_LOG_LINE 2048

#endif
