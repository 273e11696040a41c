// 2^x without the unit for special functions, which gives 16 results a cycle and multiprocessor where the others give 128: a share
// of the exponentials computed this way runs beside the rest.
#include "ptx/math.cuh"

#ifndef POLYNOMIAL
#define POLYNOMIAL 0  // every how many exponentials one is computed this way; 0: none
#endif

// Relative error 8e-5, which is less than the rounding of the result to 16 bits. Below 2^-127 it is 0, that of -inf included; NaN
// stays NaN. x below 127.
DEVICE float exp2_polynomial(float x) {
  constexpr float TO_INTEGER = 12582912.f;  // 1.5 * 2^23: added to it, a number is rounded to an integer in the low bits
  const float limited = max_or_nan(x, -127.f), shifted = limited + TO_INTEGER, fraction = limited - (shifted - TO_INTEGER);
  // On [-1/2, 1/2], with the least largest relative error.
  const float power = fmaf(fmaf(fmaf(0.055171646f, fraction, 0.24261138f), fraction, 0.69326101f), fraction, 0.99992806f);
  return power * __int_as_float((__float_as_int(shifted) << 23) + 0x3f800000);
}
