// Which keys a row may see: everything but the bias is an interval of keys, so whole blocks can be skipped or left unmasked.
#include "numeric.cuh"
#include "params.cuh"

// BIAS: what `MaskParams::bias` points to.
#define BIAS_NONE 0
#define BIAS_ELEMENT 1   // additive, of the problem's element type
#define BIAS_F32 2       // additive, float32
#define BIAS_BOOLEAN 3   // one byte, 0 masks

// One sequence of the batch, as the device finds it. Row r sees keys [r + left_edge, r + right_edge) within [0, key_end).
struct Sequence {
  int q_len;       // query rows
  int kv_len;      // valid keys
  int key_end;     // valid keys that a bias covers
  int left_edge, right_edge;
};

// Keys [begin, end); empty where begin >= end.
struct KeyRange {
  int begin, end;
  DEVICE bool contains(int key) const { return key >= begin && key < end; }
};

DEVICE i64 load_index(const void* array, i32 is_64, i64 i) {
  return is_64 ? static_cast<const i64*>(array)[i] : static_cast<const i32*>(array)[i];
}

DEVICE i64 clamp_to(i64 x, i64 low, i64 high) { return max_of(low, min_of(x, high)); }

// Sequences are shorter than 2^30 (the host sees to that), so an edge this far out is no limit. What the device and the user supply
// is cut down to it once, and sums of two such numbers fit 32 bits.
constexpr int FAR_EDGE = 1 << 30;

DEVICE int near(i64 x) { return (int)clamp_to(x, -FAR_EDGE, FAR_EDGE - 1); }

// What rows see of a sequence of `q_len` rows and `keys` valid keys.
DEVICE Sequence sequence_of(const MaskParams& mask, int batch, int q_len, int keys) {
  // Position of query row 0 among the keys; may be negative.
  const int offset = mask.alignment == ALIGN_BOTTOM_RIGHT ? keys - q_len
                   : mask.alignment == ALIGN_PER_BATCH    ? near(load_index(mask.query_offsets, mask.query_offsets_64, batch))
                                                          : 0;
  Sequence s;
  s.q_len = q_len;
  s.kv_len = keys;
  s.key_end = min_of(keys, mask.bias_keys);
  s.left_edge = mask.window_left < 0 ? -FAR_EDGE : max_of(offset - (int)mask.window_left, -FAR_EDGE);
  // One subtracted from the sum, not added to a part: 2^30 + 2^30 does not fit.
  s.right_edge = mask.window_right < 0 ? FAR_EDGE : min_of(offset + (int)mask.window_right, FAR_EDGE - 1) + 1;
  return s;
}

DEVICE Sequence load_sequence(const MaskParams& mask, int batch) {
  int keys = mask.kv_len;
  if (mask.lengths != LENGTHS_FULL) {
    int length = near(load_index(mask.key_lengths, mask.key_lengths_64, batch));
    if (mask.lengths == LENGTHS_PAST_PLUS_QUERY) length += mask.q_len;
    keys = max_of(0, min_of(length, keys));
  }
  return sequence_of(mask, batch, mask.q_len, keys);
}

// The keys that query row `row` may see, before any bias.
DEVICE KeyRange visible_keys(const Sequence& s, int row) {
  const int end = max_of(0, min_of(row + s.right_edge, s.key_end));
  return {max_of(0, min_of(row + s.left_edge, end)), end};
}

#if BIAS == BIAS_ELEMENT
typedef Scalar BiasScalar;
DEVICE float bias_value(BiasScalar x) { return Element::load(x); }
#elif BIAS == BIAS_F32
typedef float BiasScalar;
DEVICE float bias_value(BiasScalar x) { return x; }
#elif BIAS == BIAS_BOOLEAN
typedef u8 BiasScalar;
// A boolean bias is an additive one of 0 and -inf.
DEVICE float bias_value(BiasScalar x) { return x ? 0.f : -INFINITY_F32; }
#endif

#if BIAS != BIAS_NONE
DEVICE const BiasScalar* bias_row(const MaskParams& mask, int batch, int head, int row) {
  return static_cast<const BiasScalar*>(mask.bias) + batch * mask.bias_batch + head * mask.bias_head + row * mask.bias_row;
}

// Score plus bias. -inf masks; any other sum stays finite, so that a row of huge negatives is still a softmax; NaN stays NaN.
DEVICE float add_bias(float score, float bias) {
  const float sum = max_or_nan(score + bias, LOWEST_F32);
  return bias == -INFINITY_F32 ? bias : sum;
}

// The same of a bias as it lies in memory. A boolean one selects, whatever the units of the score. SETTLED: the row has a maximum above
// HUGE_NEGATIVE, and a sum of its exponentials that is not a number will be noticed. Then an additive bias need only be added: what
// overflows to -inf weighs as little as the lowest number, and a hidden key shows only where its score is not finite.
template <bool SETTLED> DEVICE float biased(float score, BiasScalar bias) {
#if BIAS == BIAS_BOOLEAN
  return bias ? score : -INFINITY_F32;
#else
  return SETTLED ? score + bias_value(bias) : add_bias(score, bias_value(bias));
#endif
}
#endif
