/* Where a tensor of BF16 lies in memory and how large the boxes of it are that ptx_box_load() and ptx_box_store() move (ptx.cuh). A map is
 * a kernel's argument (const __grid_constant__), at a multiple of 64 bytes.
 *
 * Compiled by another compiler than nvcc the map is the emulator's (tests/gpu/emu). */
#ifndef FH_GPU_CUDA_TENSOR_MAP_CUH
#define FH_GPU_CUDA_TENSOR_MAP_CUH

#include "gpu/cuda/exec.h"
#ifdef __CUDACC__
#include <cuda.h>
typedef CUtensorMap tensor_map;
#else
#include <emu_ptx.h>
typedef struct emu_tensor_map tensor_map;
#endif

enum { TENSOR_MAP_MOST = 5, TENSOR_MAP_ROW = 64 /* elements */ };

/* Of n dimensions, innermost first: size in elements, stride in bytes from one to the next, of all but the first, multiples of 16; box in
 * elements, at most 256, TENSOR_MAP_ROW of the first. base: at a multiple of 16. Any thread. 0: there is no such map. */
static inline int cuda_tensor_map(tensor_map *map, const void *base, int n, const uint64_t *size, const uint64_t *stride, const uint32_t *box)
{
#ifdef __CUDACC__
	typedef CUresult (*encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
				   CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
	static const encode call = [] {
		cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
		void *p = nullptr;

		if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault, &found) != cudaSuccess)
			(void)cudaGetLastError();
		return found == cudaDriverEntryPointSuccess ? (encode)p : (encode) nullptr;
	}();
	static const cuuint32_t step[TENSOR_MAP_MOST] = {1, 1, 1, 1, 1};
	cuuint64_t sizes[TENSOR_MAP_MOST], strides[TENSOR_MAP_MOST];
	cuuint32_t boxes[TENSOR_MAP_MOST];

	for (int i = 0; i < n; i++)
		sizes[i] = size[i], strides[i] = i + 1 < n ? stride[i] : 0, boxes[i] = box[i];
	return call && call(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)n, (void *)base, sizes, strides, boxes, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
	                    CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
#else
	return emu_tensor_map_make(map, base, n, size, stride, box);
#endif
}

#endif
