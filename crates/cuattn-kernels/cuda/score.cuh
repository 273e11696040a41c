// From q.k to the score that meets the softmax: scale, softcap, the user's modification.
#include "mask.cuh"

#ifdef SCORE_MOD
// The user's snippet; SCORE_MOD_BODY is replaced by its text when the source is assembled.
DEVICE float score_mod(float score, int batch, int head, int q, int k, const void* const (&buffers)[4]) {
#include "SCORE_MOD_BODY"
}
#endif

// tanh by the exponential, for float32 results: tanh.approx would lose half the digits.
DEVICE float tanh_exact(float x) {
  const float magnitude = fabsf(x);
  if (magnitude < 0.05f) {  // the quotient below cancels here
    const float x2 = x * x;
    return x * (1.f + x2 * (-1.f / 3.f + x2 * (2.f / 15.f - x2 * (17.f / 315.f))));
  }
  const float e = exp2_approx(-2.f * LOG2E * magnitude);
  return copysignf(__fdividef(1.f - e, 1.f + e), x);
}

DEVICE float softcapped(float score, float cap) {
#ifdef EXACT_SOFTCAP
  return cap * tanhf(score / cap);  // for kernels that wait for memory anyway
#elif ELEMENT == ELEMENT_F32
  return cap * tanh_exact(score / cap);
#else
  return cap * tanh_approx(__fdividef(score, cap));
#endif
}

// A softcapped score in units of the cap, for kernels that fold the cap into the exponential.
DEVICE float softcapped_ratio(const ScoreParams& p, float qk) { return tanh_approx(qk * __fdividef(p.scale, p.softcap)); }

// Everything between q.k and the masks, in natural units. `inside` says whether the sequence has this row and key: the user's
// snippet, which may read buffers by them, is asked for no others.
DEVICE float finished_score(const ScoreParams& p, float qk, int batch, int head, int q, int k, bool inside = true) {
  float score = qk * p.scale;
#ifdef SOFTCAP
  score = softcapped(score, p.softcap);
#endif
#ifdef SCORE_MOD
  if (inside) score = score_mod(score, batch, head, q, k, p.buffers);
#endif
  return score;
}
