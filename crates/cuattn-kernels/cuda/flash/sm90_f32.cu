// Fused attention in float32 on Hopper: flash/sm90.cu with each product made of three f16 ones. sm_90a only.
//
// Constants: HEAD_DIM, V_HEAD_DIM (multiples of 8 up to 128), WARPGROUPS, BLOCK_KEYS, KV_STAGES, CONSUMER_REGISTERS,
// PRODUCER_REGISTERS, BIAS; ELEMENT is that of float32; options: SOFTCAP, SCORE_MOD, NATURAL.
#define ROW_TILES 1
#define WARPS (4 * WARPGROUPS)
#define Q_STAGES 1
#define HALVES
#define PACK 1
#define BIAS_BY_COPY_ENGINE
#define DIRECT_STORE
#define EXACT_MAXIMUM
#define EXACT_SOFTCAP
#include "numeric.cuh"
#include "params.cuh"
#include "flash/sm90_f32_consumer.cuh"

extern "C" __global__ void __launch_bounds__(128 * (WARPGROUPS + 1), 1)
    flash_sm90_f32(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
                   const __grid_constant__ TensorMap bias_map, const __grid_constant__ Sm90F32Params params) {
  extern __shared__ __align__(1024) unsigned char dynamic[];
  __shared__ TileRecord records[RECORDS];
  __shared__ TileUnits units[RECORDS];
  const Block block{params, {&q_map, &k_map, &v_map, &bias_map}, SharedMap(warp_uniform(shared_address(dynamic))), records, units};
  if (threadIdx.x == 0) block.shared.init_barriers();
  __syncthreads();

  const int group = warp_uniform(threadIdx.x >> 7);
  if (group < WARPGROUPS) {
    raise_registers<CONSUMER_REGISTERS>();
    Consumer(block, group).run();
  } else {
    lower_registers<PRODUCER_REGISTERS>();
    if (threadIdx.x == CONSUMERS) Loader{block}.run();
  }
}
