// From q.k to probabilities, and the running softmax of the lane's rows.
//
// Scores are finished in natural units, and the maximum is subtracted before the change to base 2: a row of huge negatives that is
// still finite is then a softmax like any other.
#include "flash/simt_lanes.cuh"
#if ELEMENT == ELEMENT_F32
#define EXACT_SOFTCAP
#endif
#include "score.cuh"

#if BIAS != BIAS_NONE || defined(SCORE_MOD)
// Something is read for each pair of row and key, so keys that a row does not see must not even be asked for.
constexpr bool SCORES_READ_MEMORY = true;
#else
constexpr bool SCORES_READ_MEMORY = false;
#endif

// What is added to the scores of one of the lane's rows.
struct RowBias {
#if BIAS != BIAS_NONE
  float at[LANE_KEYS];  // arbitrary where the row does not see the key
#endif

  DEVICE void load(const MaskParams& mask, int batch, const RowPlace& place, int lane_key) {
#if BIAS != BIAS_NONE
    const BiasScalar* row = bias_row(mask, batch, place.head, place.row) + lane_key * mask.bias_key;
    BiasScalar loaded[LANE_KEYS] = {};
    UNROLL for (int j = 0; j < LANE_KEYS; ++j)
      if (place.keys.contains(lane_key + j * COLUMN_LANES)) loaded[j] = row[j * COLUMN_LANES * mask.bias_key];
    UNROLL for (int j = 0; j < LANE_KEYS; ++j) at[j] = bias_value(loaded[j]);
#endif
  }
  DEVICE float add_to(float score, int j) const {
#ifdef SCORE_MOD
    if (score == -INFINITY_F32) return score;  // the user masks the key, and no bias brings it back
#endif
#if BIAS != BIAS_NONE
    score = add_bias(score, at[j]);
#endif
    return score;
  }
};

// Rows whose biases are loaded together: as many as registers allow, for each such wait is as long as memory is far.
constexpr int BIAS_ROWS = min_of(LANE_ROWS, (80 - LANE_ROWS * LANE_KEYS) / LANE_KEYS);

// Turns q.k into the score of what the row sees, and into -inf, whatever it was, of what it does not.
template <bool MASKED>
DEVICE void finish_scores(Scores& s, const FlashParams& p, const Tile& tile, const RowPlace* places, const Lane& lane, int first_key) {
  const int lane_key = first_key + lane.column;
  UNROLL for (int first = 0; first < LANE_ROWS; first += BIAS_ROWS) {
    RowBias bias[BIAS_ROWS];
    UNROLL for (int i = 0; i < BIAS_ROWS; ++i)
      bias[i].load(p.mask, tile.batch, places[lane.first_row + (first + i) * ROW_LANES], lane_key);
    UNROLL for (int i = 0; i < BIAS_ROWS; ++i) {
      const RowPlace place = places[lane.first_row + (first + i) * ROW_LANES];
      UNROLL for (int j = 0; j < LANE_KEYS; ++j) {
        float& x = s.at[first + i][j];
        const int key = lane_key + j * COLUMN_LANES;
        if (!MASKED || place.keys.contains(key))
          x = bias[i].add_to(finished_score(p.score, x, tile.batch, place.head, place.row, key), j);
        else
          x = -INFINITY_F32;
      }
    }
  }
}

// Which of the lane's scores are -inf: masked, by position or by value.
struct MaskedKeys {
  u64 bits;

  static DEVICE MaskedKeys of(const Scores& s) {
    MaskedKeys masked = {0};
    UNROLL for (int i = 0; i < LANE_ROWS; ++i)
      UNROLL for (int j = 0; j < LANE_KEYS; ++j) masked.bits |= (u64)(s.at[i][j] == -INFINITY_F32) << (i * LANE_KEYS + j);
    return masked;
  }
  DEVICE void mark(Scores& s, u32 left_out) const {
    UNROLL for (int i = 0; i < LANE_ROWS; ++i)
      UNROLL for (int j = 0; j < LANE_KEYS; ++j)
        if (bits >> (i * LANE_KEYS + j) & 1) s.at[i][j] = __uint_as_float(left_out);
  }
};

// What a row of o is multiplied with at the end, and the row's natural log-sum-exp.
struct RowResult {
  float factor, log_sum_exp;
};

struct SoftmaxState {
  float maximum[LANE_ROWS];  // -inf: nothing seen yet
  float sum[LANE_ROWS];      // of the lane's own keys

  DEVICE void clear() {
    UNROLL for (int i = 0; i < LANE_ROWS; ++i) {
      maximum[i] = -INFINITY_F32;
      sum[i] = 0.f;
    }
  }

  // Turns scores into probabilities relative to the new maximum, and brings o and the sum to it.
  DEVICE void step(Scores& s, Output& o) {
    float risen[LANE_ROWS];
    bool rises = false;
    UNROLL for (int i = 0; i < LANE_ROWS; ++i) {
      float x = s.at[i][0];
      UNROLL for (int j = 1; j < LANE_KEYS; ++j) x = fmaxf(x, s.at[i][j]);
      risen[i] = fmaxf(maximum[i], row_max(x));
      rises |= risen[i] > maximum[i];
    }
    if (__any_sync(WARP_MASK, rises)) {
      UNROLL for (int i = 0; i < LANE_ROWS; ++i) {
        const float factor = exp2_approx((maximum[i] - finite_or_zero(risen[i])) * LOG2E);
        maximum[i] = risen[i];
        sum[i] *= factor;
        o.scale_row(i, factor);
      }
    }
    UNROLL for (int i = 0; i < LANE_ROWS; ++i) {
      const float base = finite_or_zero(maximum[i]);
      UNROLL for (int j = 0; j < LANE_KEYS; ++j) {
        s.at[i][j] = exp2_approx((s.at[i][j] - base) * LOG2E);
        sum[i] += s.at[i][j];
      }
    }
  }

  // The sink of the row's head, -inf where there is none, joins the sum. A row of nothing gives 0 and -inf.
  DEVICE RowResult finish(int i, float sink) const {
    const float top = fmaxf(maximum[i], sink), base = finite_or_zero(top);
    const float weight = exp2_approx((maximum[i] - base) * LOG2E);
    const float total = row_sum(sum[i]) * weight + exp2_approx((sink - base) * LOG2E);
    if (total == 0.f) return {0.f, -INFINITY_F32};
    return {weight / total, top + LN2 * log2_approx(total)};
  }

  // The maximum to subtract: a row of nothing but -inf subtracts 0, so that its probabilities are 0 and not NaN.
  static DEVICE float finite_or_zero(float maximum) { return maximum == -INFINITY_F32 ? 0.f : maximum; }
};
