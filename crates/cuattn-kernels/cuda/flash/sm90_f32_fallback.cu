// flash/simt.cu for the heads that flash/sm90_f32.cu leaves out. Launched always, after it; blocks of other heads return at once.
#define OTHER_ENTRY
#include "flash/simt.cu"
#include "flash/sm90_f32_halves.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) flash_sm90_f32_fallback(const __grid_constant__ Sm90F32Params p) {
  extern __shared__ __align__(128) float shared[];
  const auto find_place = [&] {
    return BlockPlace::of(p.flash, computed_here(blockIdx.x), [&](int number) { return tile_at(p.flash, number, BLOCK_ROWS); });
  };
  const Tile tile = find_place().tile;
  bool sound = true;
  for (int head = 0; head < pack_of(p.flash); ++head) sound &= HeadRanges(p, tile.batch, tile.head + head).are_sound(p.flash.score.scale);
  if (!sound) compute_block(p.flash, shared, find_place);
}
