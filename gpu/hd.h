/* FH_HD marks functions compiled for host and device from one source. */
#ifndef FH_GPU_HD_H
#define FH_GPU_HD_H

#ifdef __CUDACC__
#define FH_HD static __host__ __device__ __forceinline__
#else
#define FH_HD static inline
#endif

#endif
