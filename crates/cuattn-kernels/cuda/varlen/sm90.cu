// flash/sm90.cu over packed sequences. Constants and options as there, but without biases; and RAGGED_MAPS; PAGED
// and PAGE_SIZE (flash/sm90_boxes.cuh).
#define VARLEN
#include "varlen/tile_source.cuh"
#include "flash/sm90.cu"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS_PER_SM)
    varlen_sm90(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
                const __grid_constant__ TensorMap o_map, const __grid_constant__ Sm90Params params) {
  run_block(params, {&q_map, &k_map, &v_map, &o_map, nullptr});
}
