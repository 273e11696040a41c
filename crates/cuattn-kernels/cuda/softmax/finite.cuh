// Infinity and NaN by their bits, in words that hold one float32 or two 16-bit elements.
#include "numeric.cuh"

#if ELEMENT == ELEMENT_F32
constexpr u32 EXPONENT = 0x7f800000u;
#elif ELEMENT == ELEMENT_F16
constexpr u32 EXPONENT = 0x7c00u;
#else
constexpr u32 EXPONENT = 0x7f80u;
#endif

DEVICE bool is_finite(u32 bits) { return (bits & EXPONENT) != EXPONENT; }
DEVICE bool is_finite(u16 bits) { return is_finite((u32)bits); }
DEVICE bool is_finite(float value) { return is_finite(__float_as_uint(value)); }

// The word with every infinity and NaN made 0; `found` becomes true where there was one.
DEVICE u32 finite_or_zero(u32 word, bool& found) {
#if ELEMENT == ELEMENT_F32
  if (is_finite(word)) return word;
  found = true;
  return 0;
#else
  u32 low = word & 0xffffu, high = word >> 16;
  if (!is_finite(low)) { low = 0; found = true; }
  if (!is_finite(high)) { high = 0; found = true; }
  return high << 16 | low;
#endif
}
