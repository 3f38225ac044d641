// Marks functions that compile for the host and for a GPU.
#pragma once

#if defined(__CUDACC__)
#define DR_HD __host__ __device__
// For long functions with several call sites. A kernel that runs once fetches every instruction for the first time, so
// a call is cheaper than a second inlined copy.
#define DR_HD_CALL __host__ __device__ __noinline__
#else
#define DR_HD
#define DR_HD_CALL
#endif
