// The running softmax of the lane's rows.
//
// Scores come either as plain q.k, to be multiplied by scale * log2(e) inside the exponential (scale > 0, nothing added); or, with
// SOFTCAP alone, in units of the cap, likewise; or, with NATURAL, finished in natural units. The running maximum is raised only when a row
// has outgrown it by 2^8: o and the sum share the stale one, so the quotient stays exact, and most blocks need no rescale.
//
// To look for the largest score of a block before the exponentials would take a fifth of the softmax's instructions. Once a warp's rows
// have a maximum, it is not looked for any more (`take`): the exponentials' sum shows whether it has been outgrown, and what was computed
// is scaled down. Only where that sum is close to infinite, at scores 83 above any before in natural units, is it too late: such a tile
// is done again, carefully.
#include "flash/fragments.cuh"
#include "score.cuh"

#ifdef EXACT_MAXIMUM
constexpr float LAZY_RESCALE_LOG2 = 0.f;  // probabilities must not exceed 1
#else
constexpr float LAZY_RESCALE_LOG2 = 8.f;
#endif
// Whether settled rows have their biases only added (`biased` in mask.cuh).
#if defined(BIAS_BY_COPY_ENGINE) && (BIAS == BIAS_ELEMENT || BIAS == BIAS_F32)
constexpr bool ADDS_BIAS = true;
#else
constexpr bool ADDS_BIAS = false;
#endif
// A lane's sum of a block that shows a maximum outgrown: more than the above allows it. Its parts must fit float16.
constexpr float OUTGROWN_SUM = 32768.f;
static_assert(BLOCK_KEYS / 4 * 256 <= 32768, "a maximum that was looked for is not outgrown");
// The largest such sum that can be scaled back to 1: the factor must be a normal number, or it is flushed to 0.
constexpr float SAVABLE_SUM = 0x1p120f;
// A maximum below this comes from a bias of huge negatives. Multiplied by log2(e) it may overflow, so it is subtracted first.
constexpr float HUGE_NEGATIVE = -1e37f;
constexpr int MAX_CHAINS = KEY_TILES < 4 ? KEY_TILES : ROW_TILES == 1 ? 4 : 2;  // independent maxima, for latency

// What a row is multiplied with at the end, and its natural log-sum-exp.
struct RowResult {
  float factor[LANE_ROWS], log_sum_exp[LANE_ROWS];
};

DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(WARP_MASK, x, 1));
  return fmaxf(x, __shfl_xor_sync(WARP_MASK, x, 2));
}
DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(WARP_MASK, x, 1);
  return x + __shfl_xor_sync(WARP_MASK, x, 2);
}

struct SoftmaxState {
  float maximum[LANE_ROWS];  // in the units of the scores; -inf: nothing seen yet
  float sum[LANE_ROWS];      // of the lane's own keys

  DEVICE void clear() {
    UNROLL for (int r = 0; r < LANE_ROWS; ++r) {
      maximum[r] = -INFINITY_F32;
      sum[r] = 0.f;
    }
  }

  // What a score of 1 is in natural units.
  static DEVICE float natural_units(const ScoreParams& p) {
#if defined(NATURAL)
    return 1.f;
#elif defined(SOFTCAP)
    return p.softcap;
#else
    return p.scale;
#endif
  }
  static DEVICE float log2_units(const ScoreParams& p) { return natural_units(p) * LOG2E; }

  // A block's scores become probabilities, and part of the sum. True, for the whole warp, if o must be multiplied, row r by the factor in
  // `rescale(r, factor)`, before they are. `settled`: the block does without its largest score; becomes what `is_settled` says, unless the
  // tile is `careful`. `lose()` is called where that was a mistake that cannot be made good. FIRST: see `raise_maximum`.
  template <bool FIRST, int TILES = KEY_TILES, typename Flag, typename Rescale, typename Lose>
  DEVICE bool take(Scores& s, const ScoreParams& p, bool& settled, const Flag& careful, Rescale rescale, Lose lose) {
    bool due = false;
    if (FIRST || !settled) {
      due = raise_maximum<FIRST, TILES>(s, p, rescale);
      settled = !careful && is_settled();
    }
    float added[LANE_ROWS];
    exponentiate<TILES>(s, p, added, settled);
    if (!FIRST && (!ADDS_BIAS || settled) && is_outgrown(added)) {
      if (!raise_afterwards<TILES>(s, p, added, rescale)) lose();
      due = true;
    }
    add(added);
    return due;
  }

  // Raises the running maximum of rows that have outgrown it. True, for the whole warp, if any has: then o must be multiplied, row r
  // by the factor in `rescale(r, factor)`, before anything is added to it. FIRST: nothing was seen before, so nothing is rescaled.
  template <bool FIRST, int TILES = KEY_TILES, typename Rescale> DEVICE bool raise_maximum(const Scores& s, const ScoreParams& p, Rescale rescale) {
    const float units = log2_units(p);
    float block_max[LANE_ROWS];
    bool outgrown = false;
    UNROLL for (int r = 0; r < LANE_ROWS; ++r) {
      float x[MAX_CHAINS];
      UNROLL for (int n = 0; n < TILES; ++n) {
        const float pair = fmaxf(s.at[r >> 1][n][(r & 1) * 2], s.at[r >> 1][n][(r & 1) * 2 + 1]);
        x[n % MAX_CHAINS] = n < MAX_CHAINS ? pair : fmaxf(x[n % MAX_CHAINS], pair);
      }
      float top = x[0];
      UNROLL for (int c = 1; c < MAX_CHAINS; ++c) top = fmaxf(top, x[c]);
      block_max[r] = FIRST ? quad_max(top) : fmaxf(maximum[r], quad_max(top));
      if (FIRST) maximum[r] = block_max[r];
      else outgrown |= (block_max[r] - maximum[r]) * units > LAZY_RESCALE_LOG2;
    }
    if constexpr (!FIRST) {
      if (__any_sync(WARP_MASK, outgrown)) {
        UNROLL for (int r = 0; r < LANE_ROWS; ++r) {
          const float factor = exp2_approx((maximum[r] - finite_or_zero(block_max[r])) * units);
          maximum[r] = block_max[r];
          sum[r] *= factor;
          rescale(r, factor);
        }
        return true;
      }
    }
    return false;
  }

  // Turns the scores into probabilities relative to the running maximum. `added` is what they add to the sum.
  // `settled`: as below.
  template <int TILES = KEY_TILES> DEVICE void exponentiate(Scores& s, const ScoreParams& p, float (&added)[LANE_ROWS], bool settled = false) const {
    const float units = log2_units(p);
    float base[LANE_ROWS];
    UNROLL for (int r = 0; r < LANE_ROWS; ++r) base[r] = finite_or_zero(maximum[r]);
#ifdef NATURAL
    if (!settled && !is_settled()) {
      exponentiate_each<TILES>(s, added, [&](float x, int r) { return (x - base[r]) * units; });
      return;
    }
#endif
    UNROLL for (int r = 0; r < LANE_ROWS; ++r) base[r] *= units;
    exponentiate_each<TILES>(s, added, [&](float x, int r) { return fmaf(x, units, -base[r]); });
  }

  DEVICE void add(const float (&added)[LANE_ROWS]) {
    UNROLL for (int r = 0; r < LANE_ROWS; ++r) sum[r] += added[r];
  }

  // Whether every row of the warp has a maximum from some key, and none so low that exponents would overflow on their way.
  DEVICE bool is_settled() const {
    bool settled = true;
    UNROLL for (int r = 0; r < LANE_ROWS; ++r) settled &= !(maximum[r] < HUGE_NEGATIVE);
    return __all_sync(WARP_MASK, settled);
  }

  // Whether what a block adds to the sums shows that a row's maximum lies far below the block's largest score; or, where biases are only
  // added, that some sum with one is not a number.
  static DEVICE bool is_outgrown(const float (&added)[LANE_ROWS]) {
    bool outgrown = false;
    UNROLL for (int r = 0; r < LANE_ROWS; ++r) outgrown |= ADDS_BIAS ? !(added[r] <= OUTGROWN_SUM) : added[r] > OUTGROWN_SUM;
    return __any_sync(WARP_MASK, outgrown);
  }

  // What a tile must be done again for, marked where no register is needed for it.
  DEVICE void spoil() { sum[0] = __int_as_float(0x7fffffff); }
  DEVICE bool is_spoilt() const { return sum[0] != sum[0]; }

  // Raises the maximum to the block's largest score after the exponentials, and scales everything that was computed with the old one; o
  // must be multiplied too, row r by the factor in `rescale(r, factor)`. False where their sum is so large that this cannot be undone.
  template <int TILES, typename Rescale> DEVICE bool raise_afterwards(Scores& s, const ScoreParams& p, float (&added)[LANE_ROWS], Rescale rescale) {
    const float units = log2_units(p);
    bool savable = true;
    UNROLL for (int r = 0; r < LANE_ROWS; ++r) {
      float top = 1.f;
      UNROLL for (int n = 0; n < TILES; ++n)
        UNROLL for (int e = 0; e < 2; ++e) top = fmaxf(top, s.at[r >> 1][n][(r & 1) * 2 + e]);
      top = quad_max(top);
      savable &= added[r] <= SAVABLE_SUM;
      const float raised = maximum[r] + __fdividef(log2_approx(top), units), factor = exp2_approx((maximum[r] - raised) * units);
      maximum[r] = raised;
      sum[r] *= factor;
      added[r] *= factor;
      UNROLL for (int n = 0; n < TILES; ++n)
        UNROLL for (int e = 0; e < 2; ++e) s.at[r >> 1][n][(r & 1) * 2 + e] *= factor;
      rescale(r, factor);
    }
    return __all_sync(WARP_MASK, savable);
  }

  // The same with the maximum subtracted before the change to base 2: where one product rounds, the maximum's own rounding would
  // differ from block to block.
  DEVICE void exponentiate_exactly(Scores& s, const ScoreParams& p, float (&added)[LANE_ROWS]) const {
    const float units = log2_units(p);
    float base[LANE_ROWS];
    UNROLL for (int r = 0; r < LANE_ROWS; ++r) base[r] = finite_or_zero(maximum[r]);
    exponentiate_each<KEY_TILES>(s, added, [&](float x, int r) { return (x - base[r]) * units; });
  }

  template <int TILES, typename Exponent> static DEVICE void exponentiate_each(Scores& s, float (&added)[LANE_ROWS], Exponent exponent) {
    UNROLL for (int r = 0; r < LANE_ROWS; ++r) {
      float partial[2] = {0.f, 0.f};
      UNROLL for (int n = 0; n < TILES; ++n)
        UNROLL for (int e = 0; e < 2; ++e) {
          float& x = s.at[r >> 1][n][(r & 1) * 2 + e];
          x = exp2_approx(exponent(x, r));
          partial[e] += x;
        }
      added[r] = partial[0] + partial[1];
    }
  }

  // The rows' quotient and log-sum-exp, the sink included. A row that has seen nothing gives 0 and -inf.
  DEVICE RowResult finish(const FlashParams& p, const LanePlace& place) const {
    RowResult result;
    UNROLL for (int r = 0; r < LANE_ROWS; ++r) {
      float total = quad_sum(sum[r]);
      float top = maximum[r] * natural_units(p.score);
      float weight = 1.f;
      if (p.sinks != nullptr) {
        const float sink = p.sinks[place.row(p, r).head];
        const float joint = fmaxf(top, sink), base = finite_or_zero(joint);
        weight = exp2_approx((top - base) * LOG2E);
        total = total * weight + exp2_approx((sink - base) * LOG2E);
        top = joint;
      }
      result.factor[r] = total == 0.f ? 0.f : __fdividef(weight, total);
      result.log_sum_exp[r] = total == 0.f ? -INFINITY_F32 : top + LN2 * log2_approx(total);
    }
    return result;
  }

  // The maximum to subtract: a row of nothing but -inf subtracts 0, so that its probabilities are 0 and not NaN.
  static DEVICE float finite_or_zero(float maximum) { return maximum == -INFINITY_F32 ? 0.f : maximum; }
};
