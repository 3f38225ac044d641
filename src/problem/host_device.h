// Marks functions that compile for the host and for a GPU.
#pragma once

#if defined(__CUDACC__)
#define DR_HD __host__ __device__
// Long ones that are used in several places. A kernel that runs once meets every instruction for the first time: there a call
// costs less than fetching another copy.
#define DR_HD_CALL __host__ __device__ __noinline__
#else
#define DR_HD
#define DR_HD_CALL
#endif
