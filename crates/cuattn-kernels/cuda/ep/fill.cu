// Sets every one of `count` integers: offsets that are the same for each sequence, where a kernel wants an array.
#include "types.cuh"

constexpr int THREADS = 256;

// Mirrored by FillParams in src/ep.rs.
struct FillParams {
  i64* target;
  i64 value;
  i32 count;
  i32 reserved;
};

extern "C" __global__ void __launch_bounds__(THREADS) fill(const __grid_constant__ FillParams p) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < p.count) p.target[i] = p.value;
}
