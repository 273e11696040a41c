// Softmax of rows that fit in registers: one read of the scores, one write of the probabilities.
//
// TEAM threads share a row and hold VALUES of it each; a block has ROWS teams. Scores are read whole before anything is
// written, so the probabilities may lie in the scores' own memory.
#include "softmax/row.cuh"
#include "softmax/team.cuh"

constexpr int VECTORS = VALUES / 4;

extern "C" __global__ void __launch_bounds__(TEAM * ROWS, 1) softmax_registers(const __grid_constant__ SoftmaxParams p) {
  const int index = blockIdx.x * ROWS + threadIdx.x / TEAM;
  if (index >= p.chunk.total_rows) return;
  const int first_key = threadIdx.x % TEAM * 4;
  const Row row = load_row(p, index);
  float* const scores = scores_of(p.chunk, index);

  float x[VECTORS][4];
  UNROLL for (int i = 0; i < VECTORS; i++) {
    const int key = first_key + i * TEAM * 4;
    UNROLL for (int j = 0; j < 4; j++) x[i][j] = -INFINITY_F32;
    if (key < p.chunk.leading) load_scores(scores, key, x[i]);
  }

  float max = sink_of(p, row);
  UNROLL for (int i = 0; i < VECTORS; i++) {
    UNROLL for (int j = 0; j < 4; j++) {
      const int key = first_key + i * TEAM * 4 + j;
      const float qk = x[i][j];
      x[i][j] = masked_score(p, row, key, qk);
      store_score_stage(p, row, key, qk, x[i][j]);
      max = Max::join(max, x[i][j]);
    }
  }
  max = subtracted(reduce_team<Max, TEAM>(max));

  float sum = 0.f;
  UNROLL for (int i = 0; i < VECTORS; i++) {
    UNROLL for (int j = 0; j < 4; j++) {
      x[i][j] = exponential(x[i][j], max);
      sum += x[i][j];
    }
  }
  sum = reduce_team<Sum, TEAM>(sum) + exp_of(sink_of(p, row) - max);
  if (first_key == 0) store_log_sum_exp(p, row, max, sum);

  const Normaliser normaliser(sum, p.probability_scale);
  UNROLL for (int i = 0; i < VECTORS; i++) {
    const int key = first_key + i * TEAM * 4;
    UNROLL for (int j = 0; j < 4; j++) {
      store_probability_stage(p, row, normaliser, key + j, x[i][j]);
      x[i][j] = Normaliser::times(x[i][j], normaliser.stored);
    }
    if (key < p.chunk.leading) store_probabilities(scores, key, x[i]);
  }
}
