// Fused attention on Hopper: TMA loads, wgmma products, warpgroups of different roles, persistent blocks. sm_90a only.
//
// Constants: ELEMENT, HEAD_DIM, V_HEAD_DIM (multiples of 8), WARPGROUPS, BLOCK_KEYS, Q_STAGES, KV_STAGES, CONSUMER_REGISTERS,
// PRODUCER_REGISTERS, BIAS, LEFT_EDGE and RIGHT_EDGE (whether what a row sees begins or ends at a key that moves with the row),
// POLYNOMIAL (flash/exp2.cuh); options: PING_PONG, HALF_FIRST, RESCALE_BEFORE, DIRECT_STORE, SOFTCAP, SCORE_MOD, NATURAL.
#define ROW_TILES 1
#define WARPS (4 * WARPGROUPS)
#define UNPACKED
#define BIAS_BY_COPY_ENGINE
#include "numeric.cuh"
#include "params.cuh"
#include "flash/sm90_consumer.cuh"

extern "C" __global__ void __launch_bounds__(128 * (WARPGROUPS + 1), 1)
    flash_sm90(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
               const __grid_constant__ TensorMap o_map, const __grid_constant__ TensorMap bias_map, const __grid_constant__ Sm90Params params) {
  extern __shared__ __align__(1024) unsigned char dynamic[];
  __shared__ TileRecord records[RECORDS];
  const Block block{params, {&q_map, &k_map, &v_map, &o_map, &bias_map}, SharedMap(warp_uniform(shared_address(dynamic))), records};
  if (threadIdx.x == 0) block.shared.init_barriers();
  __syncthreads();

  const int group = warp_uniform(threadIdx.x >> 7);
  if (group < WARPGROUPS) {
    raise_registers<CONSUMER_REGISTERS>();
    Consumer(block, group).run();
  } else {
    lower_registers<PRODUCER_REGISTERS>();
    const int warp = (threadIdx.x >> 5) & 3;
    if ((threadIdx.x & 31) == 0) {
      if (warp == 0) Loader{block}.run();
#ifndef DIRECT_STORE
      else if (warp <= Q_SLICES) store_outputs(block, warp - 1);
#endif
    }
  }
}
