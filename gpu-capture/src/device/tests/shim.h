// The few words of CUDA that kernel.cu uses, for a C++ compiler: a thread is a thread, a barrier a barrier.
#pragma once
#include <barrier>

#define __global__
#define __launch_bounds__(threads)
#define SHARED_COUNTS(bins) unsigned *const bins = shim_shared

struct shim_dim3 {
    unsigned x, y, z;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

static thread_local shim_dim3 threadIdx, blockIdx;
static shim_dim3 blockDim, gridDim;
static std::barrier<> *shim_barrier;
static unsigned *shim_shared;

static inline void __syncthreads() { shim_barrier->arrive_and_wait(); }

static inline unsigned atomicAdd(unsigned *at, unsigned add) { return __atomic_fetch_add(at, add, __ATOMIC_RELAXED); }
