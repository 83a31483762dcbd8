/* cuBLASLt, as far as this backend uses it: loaded when a trainer first asks (it is half a gigabyte, and most never do), so a machine without
 * it runs everything else. Declared here, not included: names, values and meanings are the library's stable interface (versions 12 and 13), which
 * lt.cu holds against its header where that is there.
 *
 * Thread: lt_open() under cuda_state.taking; the calls any thread. */
#ifndef FH_GPU_CUDA_LT_H
#define FH_GPU_CUDA_LT_H

#include "gpu/cuda/exec.h"

typedef struct lt_opaque *lt_handle_t, *lt_desc_t, *lt_layout_t, *lt_preference_t;
struct lt_algo { uint64_t data[8]; };
struct lt_found { struct lt_algo algo; size_t workspace; int state; float waves; int reserved[4]; };

enum { LT_F32 = 0, LT_BF16 = 14 };                                /* cudaDataType */
enum { LT_COMPUTE_F32 = 68, LT_COMPUTE_TF32 = 77 };               /* cublasComputeType_t */
enum { LT_TRANSA = 3, LT_TRANSB = 4, LT_EPILOGUE = 7, LT_BIAS = 8, LT_BIAS_BATCH = 10, LT_BIAS_TYPE = 26 };
enum { LT_INVALID = 7, LT_NOT_SUPPORTED = 15 };                    /* cublasStatus_t */
enum { LT_EPILOGUE_BIAS = 4, LT_EPILOGUE_RELU_BIAS = 6 };
enum { LT_BATCH_COUNT = 5, LT_BATCH_OFFSET = 6 };                 /* of a layout */
enum { LT_MAX_WORKSPACE = 1, LT_REDUCTIONS = 3, LT_ALIGN_A = 5, LT_ALIGN_B = 6, LT_ALIGN_C = 7, LT_ALIGN_D = 8 }; /* of a preference */

struct lt {
	size_t version;
	lt_handle_t handle;
	int (*create)(lt_handle_t *);
	size_t (*get_version)(void);
	const char *(*status_name)(int);
	int (*desc_create)(lt_desc_t *, int compute, int scale);
	int (*desc_set)(lt_desc_t, int attribute, const void *, size_t);
	int (*desc_destroy)(lt_desc_t);
	int (*layout_create)(lt_layout_t *, int type, uint64_t rows, uint64_t cols, int64_t ld);
	int (*layout_set)(lt_layout_t, int attribute, const void *, size_t);
	int (*layout_destroy)(lt_layout_t);
	int (*preference_create)(lt_preference_t *);
	int (*preference_set)(lt_preference_t, int attribute, const void *, size_t);
	int (*preference_destroy)(lt_preference_t);
	int (*heuristic)(lt_handle_t, lt_desc_t, lt_layout_t a, lt_layout_t b, lt_layout_t c, lt_layout_t d, lt_preference_t, int asked, struct lt_found *, int *found);
	int (*matmul)(lt_handle_t, lt_desc_t, const void *alpha, const void *a, lt_layout_t la, const void *b, lt_layout_t lb, const void *beta, const void *c,
		      lt_layout_t lc, void *d, lt_layout_t ld, const struct lt_algo *, void *workspace, size_t bytes, cudaStream_t);
};

/* The library with a handle for the current device, made at the first call; NULL where there is none, and *why says so. */
const struct lt *lt_open(const char **why);

/* FH_DEVICE, or what CUDA says of the device, with the call's name. */
int lt_fail(const struct lt *lt, struct fh_status *st, int status, const char *call);
#define LT_TRY(call)                                                                                                    \
	do {                                                                                                            \
		const int s_ = lt->call;                                                                                \
		if (s_ != 0)                                                                                            \
			return lt_fail(lt, st, s_, "cublasLt " #call);                                                  \
	} while (0)

#endif
