// flash/mma.cu over packed sequences. Constants and options as there, and PAGED.
#define VARLEN
#include "varlen/find_tile.cuh"
#include "flash/mma.cu"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) varlen_mma(const __grid_constant__ FlashParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ BlockContext context;
  Tile tile;
  if (!find_tile(tile, p, blockIdx.x, BLOCK_ROWS)) return;
  context.fill(p, tile);
  __syncthreads();
  compute_tile(p, context, shared);
}
