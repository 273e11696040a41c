// flash/simt.cu over packed sequences. Constants and options as there, and PAGED.
#define VARLEN
#include "varlen/find_tile.cuh"
#include "flash/simt.cu"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) varlen_simt(const __grid_constant__ FlashParams p) {
  extern __shared__ __align__(128) float shared[];
  __shared__ BlockPlace place;
  bool found = false;
  const BlockPlace here = BlockPlace::of(p, blockIdx.x, [&](int number) {
    Tile tile;
    found = find_tile(tile, p, number, BLOCK_ROWS);
    return tile;
  });
  if (!found) return;
  if (threadIdx.x == 0) place = here;
  __syncthreads();
  compute_block(p, shared, [&] { return place; });
}
