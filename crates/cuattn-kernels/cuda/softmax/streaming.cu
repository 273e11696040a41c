// Softmax of rows of any length: the scores are read twice, first for maximum and sum, then for the probabilities.
//
// A block of TEAM threads does one row, a tile of 4 * TEAM keys at a time.
#include "softmax/row.cuh"
#include "softmax/team.cuh"

constexpr int TILE = TEAM * 4;

extern "C" __global__ void __launch_bounds__(TEAM, 1) softmax_streaming(const __grid_constant__ SoftmaxParams p) {
  const Row row = load_row(p, blockIdx.x);
  float* const scores = scores_of(p.chunk, blockIdx.x);
  const int first_key = threadIdx.x * 4;
  const int leading = (int)p.chunk.leading;

  // Each thread's own maximum and sum, rescaled when its maximum grows.
  float own_max = -INFINITY_F32, own_sum = 0.f;
  for (int key = first_key; key < leading; key += TILE) {
    float x[4];
    load_scores(scores, key, x);
    float tile_max = own_max;
    UNROLL for (int j = 0; j < 4; j++) {
      const float qk = x[j];
      x[j] = masked_score(p, row, key + j, qk);
      store_score_stage(p, row, key + j, qk, x[j]);
      tile_max = Max::join(tile_max, x[j]);
    }
    own_sum *= exp_of(own_max - subtracted(tile_max));
    own_max = tile_max;
    UNROLL for (int j = 0; j < 4; j++) own_sum += exponential(x[j], subtracted(own_max));
  }

  const float sink = sink_of(p, row);
  const float max = subtracted(reduce_team<Max, TEAM>(Max::join(own_max, sink)));
  // A NaN has no maximum but spoils the sum, which must then reach every thread: 0 * NaN is still NaN.
  const float sum = reduce_team<Sum, TEAM>(own_sum * exp_of(own_max - max)) + exp_of(sink - max);
  if (threadIdx.x == 0) store_log_sum_exp(p, row, max, sum);

  const Normaliser normaliser(sum, p.probability_scale);
  for (int tile = 0; tile < leading; tile += TILE) {
    const int key = tile + first_key;
    float x[4];
    if (key < leading) load_scores(scores, key, x);
    __syncthreads();  // 16-bit probabilities of this tile overwrite scores that other threads read just now
    if (key >= leading) continue;
    UNROLL for (int j = 0; j < 4; j++) {
      x[j] = exponential(masked_score(p, row, key + j, x[j]), max);
      store_probability_stage(p, row, normaliser, key + j, x[j]);
      x[j] = Normaliser::times(x[j], normaliser.stored);
    }
    store_probabilities(scores, key, x);
  }
}
