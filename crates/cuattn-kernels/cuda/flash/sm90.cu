// Fused attention on Hopper: TMA loads, wgmma products, warpgroups of different roles, persistent blocks. sm_90a only.
//
// Constants: ELEMENT, HEAD_DIM, V_HEAD_DIM (multiples of 8), PACK, WARPGROUPS, BLOCK_KEYS, Q_STAGES, KV_STAGES, CONSUMER_REGISTERS,
// PRODUCER_REGISTERS, BLOCKS_PER_SM, BIAS, LEFT_EDGE and RIGHT_EDGE (whether what a row sees begins or ends at a key that moves with the
// row); options: PING_PONG, HALF_FIRST, RESCALE_BEFORE, DIRECT_STORE, SOFTCAP, SCORE_MOD, NATURAL.
#include "numeric.cuh"
#include "params.cuh"
#include "flash/sm90_consumer.cuh"

constexpr int BLOCK_THREADS = CONSUMERS + 128;

DEVICE void run_block(const Sm90Params& params, const Maps& maps) {
  if (threadIdx.x == CONSUMERS) prefetch_maps(maps);
  extern __shared__ __align__(1024) unsigned char dynamic[];
  __shared__ TileRecord records[RECORDS];
  __shared__ SecondPass second_pass;
  const Block block{params, maps, SharedMap(warp_uniform(shared_address(dynamic))), records, second_pass, TileSource()};
  if (threadIdx.x == 0) {
    block.shared.init_barriers();
    second_pass.clear();
  }
  if (threadIdx.x >> 5 == 1) block.source.prepare(params.flash);
  __syncthreads();

  const int group = warp_uniform(threadIdx.x >> 7);
  if (group < WARPGROUPS) {
    raise_registers<CONSUMER_REGISTERS>();
    Consumer(block, group).run();
  } else {
    lower_registers<PRODUCER_REGISTERS>();
    const int warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31;
    if (warp == 0 && lane < LOADER_LANES) Loader{block}.run();
#ifndef DIRECT_STORE
    else if (warp > 0 && warp <= Q_SLICES && lane == 0) store_outputs(block, warp - 1);
#endif
  }
}

#ifndef VARLEN
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS_PER_SM)
    flash_sm90(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
               const __grid_constant__ TensorMap o_map, const __grid_constant__ TensorMap bias_map, const __grid_constant__ Sm90Params params) {
  run_block(params, {&q_map, &k_map, &v_map, &o_map, &bias_map});
}
#endif
