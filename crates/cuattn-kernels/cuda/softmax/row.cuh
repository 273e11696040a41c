// One score row: every score from q.k to what meets the softmax, the stage that is handed out, and the probabilities' storage.
#define EXACT_SOFTCAP
#include "softmax/rows.cuh"

// STAGE: which scores are handed out.
#define STAGE_NONE 0
#define STAGE_RAW 1
#define STAGE_SOFTCAPPED 2
#define STAGE_MASKED 3
#define STAGE_PROBABILITIES 4

#ifdef STAGE_F32
typedef F32 StageElement;
#else
typedef Element StageElement;
#endif

// EVERY_KEY is defined where every row sees every key: then no mask is looked at, and probabilities need no mark of one.

// Mirrored by SoftmaxParams in src/softmax.rs.
struct SoftmaxParams {
  ScoreParams score;
  MaskParams mask;
  Chunk chunk;
  const float* sinks;            // [q_heads], or null
  float* log_sum_exp;            // [batch, q_heads, q_len], or null
  StageElement::Storage* stage;  // [batch, q_heads, q_len, kv_len], where STAGE is not STAGE_NONE
  i32 q_heads;
  float probability_scale;       // a power of two that keeps small probabilities out of float16's subnormal range
};

struct Row {
  RowPlace place;
  KeyRange keys;
  i64 number;  // in [batch, q_heads, q_len]
#if BIAS != BIAS_NONE
  const BiasScalar* bias;
#endif
};

// Which row it is: some divisions, and not needed for plain attention.
DEVICE Row load_row(const SoftmaxParams& p, int index) {
  Row row = {};
#if defined(EVERY_KEY) && STAGE == STAGE_NONE
  if (!p.sinks && !p.log_sum_exp) return row;
#endif
  row.place = place_of(p.chunk, index);
  const RowPlace at = row.place;
  row.keys = visible_keys(load_sequence(p.mask, at.batch), at.query);
  row.number = ((i64)at.batch * p.q_heads + at.head) * p.chunk.q_len + at.query;
#if BIAS != BIAS_NONE
  row.bias = bias_row(p.mask, at.batch, at.head, at.query);
#endif
  return row;
}

// The score that meets the softmax: -inf where the key is masked. A masked key's q.k is not looked at, whatever it is, and nothing
// that a user's function or bias would be asked for lies outside their arrays.
DEVICE float masked_score(const SoftmaxParams& p, const Row& row, int key, float qk) {
#ifdef EVERY_KEY
  const bool visible = key < p.mask.kv_len;
#else
  const bool visible = row.keys.contains(key);
#endif
  if (!visible) return -INFINITY_F32;
  float score = finished_score(p.score, qk, row.place.batch, row.place.head, row.place.query, key);
#ifdef SCORE_MOD
  if (score == -INFINITY_F32) return score;  // the user masks the key: no bias brings it back
#endif
#if BIAS != BIAS_NONE
  score = add_bias(score, bias_value(row.bias[key * p.mask.bias_key]));
#endif
  return score;
}

DEVICE void store_stage(const SoftmaxParams& p, const Row& row, int key, float value) {
  if (key < p.mask.kv_len) p.stage[row.number * p.mask.kv_len + key] = StageElement::store(value);
}

// Hands out a stage before the softmax.
DEVICE void store_score_stage(const SoftmaxParams& p, const Row& row, int key, float qk, float score) {
#if STAGE == STAGE_RAW
  store_stage(p, row, key, qk * p.score.scale);
#elif STAGE == STAGE_SOFTCAPPED
#ifdef SOFTCAP
  store_stage(p, row, key, softcapped(qk * p.score.scale, p.score.softcap));
#else
  store_stage(p, row, key, qk * p.score.scale);
#endif
#elif STAGE == STAGE_MASKED
  store_stage(p, row, key, score);
#endif
}

// e^x for x <= 0. Float32 results keep every digit; 16-bit ones lose none by the fast instruction.
DEVICE float exp_of(float x) {
#if ELEMENT == ELEMENT_F32
  return expf(x);
#else
  return exp2_approx(x * LOG2E);
#endif
}

// exp(score - max) of a visible key, MASKED_PROBABILITY of a masked one.
DEVICE float exponential(float score, float max) {
#if !defined(EVERY_KEY)
  return score == -INFINITY_F32 ? MASKED_PROBABILITY : exp_of(score - max);
#elif ELEMENT == ELEMENT_F32
  return exp_of(score - max);
#else
  // One fused operation. A bias near the lowest float would overflow here, but there is none where every key is seen.
  return exp2_approx(fmaf(score, LOG2E, -max * LOG2E));
#endif
}

// Four keys of a row, from `key` on. `row` is the row's first float, as Chunk::scores has it.
DEVICE void load_scores(const float* row, int key, float (&x)[4]) {
  const float4 v = *reinterpret_cast<const float4*>(row + key);
  x[0] = v.x; x[1] = v.y; x[2] = v.z; x[3] = v.w;
}

DEVICE void store_probabilities(float* row, int key, const float (&x)[4]) {
#if ELEMENT == ELEMENT_F32
  *reinterpret_cast<float4*>(row + key) = make_float4(x[0], x[1], x[2], x[3]);
#else
  *reinterpret_cast<uint2*>(reinterpret_cast<u16*>(row) + key) =
      make_uint2(Element::pack(x[0], x[1]), Element::pack(x[2], x[3]));
#endif
}

// What turns a row's exponentials into probabilities.
struct Normaliser {
  float inverse;  // 1 / sum; 0 for a row that sees no key
  float stored;   // the same with the factor of stored probabilities

  DEVICE Normaliser(float sum, float scale) : inverse(sum == 0.f ? 0.f : 1.f / sum), stored(inverse * scale) {}

  // A masked key stays masked even where the row's sum is NaN.
  static DEVICE float times(float exponential, float factor) {
#ifdef EVERY_KEY
    return exponential * factor;
#else
    return is_masked(exponential) ? exponential : exponential * factor;
#endif
  }
};

// Hands out a probability; a masked one is plain zero.
DEVICE void store_probability_stage(const SoftmaxParams& p, const Row& row, const Normaliser& n, int key, float exponential) {
#if STAGE == STAGE_PROBABILITIES
  store_stage(p, row, key, is_masked(exponential) ? 0.f : Normaliser::times(exponential, n.inverse));
#endif
}

// The maximum to subtract: 0 for a row that sees no key, where -inf - -inf would be NaN.
DEVICE float subtracted(float max) { return max == -INFINITY_F32 ? 0.f : max; }

// The sink joins as one more key, without a value.
DEVICE float sink_of(const SoftmaxParams& p, const Row& row) { return p.sinks ? p.sinks[row.place.head] : -INFINITY_F32; }

DEVICE void store_log_sum_exp(const SoftmaxParams& p, const Row& row, float max, float sum) {
  if (p.log_sum_exp) p.log_sum_exp[row.number] = max + logf(sum);
}
