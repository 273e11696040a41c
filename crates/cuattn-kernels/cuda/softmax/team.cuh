// Reductions over the threads that share a row: a warp, or a whole block. The order is fixed, so results repeat bit for bit.
#include "types.cuh"

struct Max {
  static DEVICE float join(float a, float b) { return fmaxf(a, b); }  // ignores NaN; the sum keeps it
  static DEVICE float none() { return -INFINITY_F32; }
};
struct Sum {
  static DEVICE float join(float a, float b) { return a + b; }
  static DEVICE float none() { return 0.f; }
};

template <typename Operation> DEVICE float reduce_warp(float x) {
  UNROLL for (int distance = 16; distance > 0; distance /= 2) {
    x = Operation::join(x, __shfl_xor_sync(WARP_MASK, x, distance));
  }
  return x;
}

// Every thread of the team gets the result. THREADS is 32 or the block's size.
template <typename Operation, int THREADS> DEVICE float reduce_team(float x) {
  x = reduce_warp<Operation>(x);
  if (THREADS > 32) {
    __shared__ float partial[32];
    __syncthreads();  // the previous reduction has been read
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    const int lane = threadIdx.x % 32;
    x = reduce_warp<Operation>(lane < THREADS / 32 ? partial[lane] : Operation::none());
  }
  return x;
}
