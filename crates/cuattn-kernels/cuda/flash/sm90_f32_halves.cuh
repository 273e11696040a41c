// Float32 as two f16 halves, and which heads keep float32's accuracy that way.
//
// Every head of q, k and v is multiplied by a power of two that brings its largest magnitude to [2^14, 2^15), and every element x is then
// high + low: high is x rounded to f16, low is what that leaves, rounded again. Where low is a normal f16 number, 22 bits of x and its
// sign are kept; below that, low is off by at most 2^-25. Of a product, high * high + high * low + low * high are summed in float32;
// low * low, 2^-22 of it at most, is not. So two things can go wrong, and a head where either may is left to the simt path:
//
//   * A score is off by what the 2^-25 come to: (sum of a row's |q| / scale of k + sum of a row's |k| / scale of q) * 2^-25, before the
//     scale of the scores. That is an error of the exponent, so a relative one of the probability, and at most twice as much of the
//     output: it may be LOST_SCORE. Normal numbers, also peaky ones or with outliers, stay a factor of 300 below it.
//   * A row of v that is small beside the head's largest magnitude loses bits, which matters to queries that see such rows alone. Its
//     own largest element must be SMALLEST_TOP at least once scaled: then 2^-25 is 2^-24 of it, float32's own rounding. Rows of
//     zeros lose nothing.
//
// Probabilities, at most 1, are multiplied by 2^WEIGHT_EXPONENT and split likewise: those above 2^-18 keep 22 bits, smaller ones are off
// by 2^-40.
//
// Emulated with sums that are cut off after every 16 terms, as tensor cores do: relative L2 3e-7 to 6e-7 against float64 on the suites'
// distributions, causal or not (float32 in any order: 4e-7 to 1.3e-6), and no more at either limit than far from it.
#include "params.cuh"

constexpr int TOP_EXPONENT = 14;
constexpr int WEIGHT_EXPONENT = 15;
constexpr float LOW_ERROR = 1.f / (1 << 25);
constexpr float LOST_SCORE = 1.f / (1 << 21);
constexpr float SMALLEST_TOP = 0.5f;
constexpr u32 INFINITY_BITS = 0x7f800000;

DEVICE float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// The power of two that brings a head to its range, as far as float32 has it and its inverse.
DEVICE int scale_exponent(const HeadRange& range) {
  return range.largest == 0 ? 0 : min_of(TOP_EXPONENT + 127 - (int)(range.largest >> 23), 126 - WEIGHT_EXPONENT);
}
DEVICE bool is_finite(const HeadRange& range) { return range.largest < INFINITY_BITS; }

// What a query head and the heads of k and v that it reads are like.
struct HeadRanges {
  HeadRange q, k, v;

  DEVICE HeadRanges(const Sm90F32Params& p, int batch, int head) {
    const int kv_head = batch * p.flash.kv_heads + head / (p.flash.q_heads / p.flash.kv_heads);
    const int q_heads = p.flash.batch * p.flash.q_heads, kv_heads = p.flash.batch * p.flash.kv_heads;
    q = p.ranges[batch * p.flash.q_heads + head];
    k = p.ranges[q_heads + kv_head];
    v = p.ranges[q_heads + kv_heads + kv_head];
  }

  // What products of scaled halves must be multiplied with: a score, and a sum of values.
  DEVICE int score_exponent() const { return -scale_exponent(q) - scale_exponent(k); }
  DEVICE float score_unit() const { return power_of_two(score_exponent()); }
  DEVICE float output_unit() const { return power_of_two(-scale_exponent(v) - WEIGHT_EXPONENT); }

  // Whether halves keep float32's accuracy. Written so that NaN is a no.
  DEVICE bool are_sound(float score_scale) const {
    const float lost = (q.row * power_of_two(-scale_exponent(k)) + k.row * power_of_two(-scale_exponent(q))) * LOW_ERROR * fabsf(score_scale);
    return is_finite(q) && is_finite(k) && is_finite(v) && score_exponent() >= -126 && score_exponent() <= 127 && lost <= LOST_SCORE &&
           v.row * power_of_two(scale_exponent(v)) >= SMALLEST_TOP;
  }
};
