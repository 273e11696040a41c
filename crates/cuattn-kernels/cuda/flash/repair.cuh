// Rows whose output is not finite although their softmax is: V holds NaN or infinity at some key of the tile.
//
// A tensor core multiplies a masked key's probability, 0, with whatever V holds, and 0 * NaN is NaN. Checking V beforehand would cost
// every launch. Instead a warp looks at its finished accumulators, and computes such a row again, key by key, leaving out the masked
// ones. Slow, rare, and it needs no shared memory: a lane computes one key's weight, then all lanes add that key to their columns.
#include "flash/online_softmax.cuh"

struct RowRepair {
  const FlashParams& p;
  const Tile& tile;
  const Sequence& sequence;

  // Plain q.k, finished in whatever way the variant asks for; -inf where the key is masked.
  DEVICE float score(const PackedRow& at, int key) const {
    const Scalar* q = static_cast<const Scalar*>(p.q) + query_base(p.q_strides, tile) + at.head * p.q_strides.head + at.row * p.q_strides.row;
    const Scalar* k = static_cast<const Scalar*>(p.k) + key_base(p.k_strides, tile) + key_offset(p, p.k_strides, tile, key);
    float dot = 0.f;
#pragma unroll 1
    for (int d = 0; d < HEAD_DIM; ++d) dot += Element::load(q[d]) * Element::load(k[d]);
#ifdef NATURAL
    dot = finished_score(p.score, dot, tile.batch, at.head, at.row, key);
#elif defined(SOFTCAP)
    dot = softcapped_ratio(p.score, dot);
#endif
#if BIAS != BIAS_NONE
    dot = biased<false>(dot, bias_row(p.mask, tile.batch, at.head, at.row)[key * p.mask.bias_key]);
#endif
    return dot;
  }

  // The output of one row, from its maximum and its final factor; lane l holds columns l, l + 32, ….
  template <typename Store> DEVICE void row(const PackedRow& at, float maximum, float factor, Store store) const {
    constexpr int COLUMNS = ceil_div(V_HEAD_DIM, 32);
    const int lane = threadIdx.x & 31;
    const float units = SoftmaxState::log2_units(p.score), base = SoftmaxState::finite_or_zero(maximum);
    const Scalar* v = static_cast<const Scalar*>(p.v) + key_base(p.v_strides, tile);
    const KeyRange keys = visible_keys(sequence, at.row);
    float out[COLUMNS] = {};
#pragma unroll 1
    for (int first = keys.begin; first < keys.end; first += 32) {
      const int key = first + lane;
      const float s = key < keys.end ? score(at, key) : -INFINITY_F32;
      const float weight = exp2_approx((s - base) * units);
      u32 seen = __ballot_sync(WARP_MASK, s != -INFINITY_F32);
#pragma unroll 1
      for (; seen != 0; seen &= seen - 1) {
        const int source = __ffs(seen) - 1;
        const float w = __shfl_sync(WARP_MASK, weight, source);
        UNROLL for (int c = 0; c < COLUMNS; ++c)
          if (lane + c * 32 < V_HEAD_DIM) out[c] += w * Element::load(v[key_offset(p, p.v_strides, tile, first + source) + lane + c * 32]);
      }
    }
    UNROLL for (int c = 0; c < COLUMNS; ++c)
      if (lane + c * 32 < V_HEAD_DIM) store(lane + c * 32, out[c] * factor);
  }
};

// 0 if all that the lane holds of its row r is finite, else NaN. In several chains: one would take four cycles a column.
DEVICE float zero_if_finite(const Output& o, int r) {
  constexpr int CHAINS = V_TILES < 4 ? V_TILES : 4;
  float zero[CHAINS] = {};  // infinity and NaN times 0 are NaN
  UNROLL for (int n = 0; n < V_TILES; ++n)
    UNROLL for (int e = 0; e < 2; ++e) zero[n % CHAINS] = fmaf(o.at[r >> 1][n][(r & 1) * 2 + e], 0.f, zero[n % CHAINS]);
  float sum = 0.f;
  UNROLL for (int c = 0; c < CHAINS; ++c) sum += zero[c];
  return sum;
}

// Looks at the warp's rows and repairs those that need it: `store(row of the warp, column, value)` replaces an element.
template <typename Store>
DEVICE void repair_rows(const FlashParams& p, const Tile& tile, const Sequence& sequence, const LanePlace& place, const Output& o,
                        const SoftmaxState& state, const RowResult& result, Store store) {
  float zero[LANE_ROWS], any = 0.f;
  UNROLL for (int r = 0; r < LANE_ROWS; ++r) any += zero[r] = zero_if_finite(o, r);
  if (!__any_sync(WARP_MASK, any != 0.f)) return;
  UNROLL for (int r = 0; r < LANE_ROWS; ++r) {
    // A row whose softmax is not a number, because q or a visible key is not, stays as it is.
    const bool sound = result.factor[r] * 0.f == 0.f && place.row(p, r).row < sequence.q_len;
    u32 broken = __ballot_sync(WARP_MASK, sound && zero[r] != 0.f);
    while (broken != 0) {
      const int row = (__ffs(broken) - 1) >> 2;  // of the eight rows that the lanes' row r makes
      broken &= ~(0xfu << (row * 4));
      const float maximum = __shfl_sync(WARP_MASK, state.maximum[r], row * 4), factor = __shfl_sync(WARP_MASK, result.factor[r], row * 4);
      PackedRow at = place.row(p, r);
      at.row = __shfl_sync(WARP_MASK, at.row, row * 4);
      at.head = __shfl_sync(WARP_MASK, at.head, row * 4);
      RowRepair{p, tile, sequence}.row(at, maximum, factor, [&](int column, float value) { store(r * 8 + row, at, column, value); });
    }
  }
}
