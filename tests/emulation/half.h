// Numbers of 16 bits.
#pragma once
#include <cmath>
#include <cstring>

namespace half {

inline unsigned bits_of(float x) { unsigned y; std::memcpy(&y, &x, 4); return y; }
inline float of_bits(unsigned x) { float y; std::memcpy(&y, &x, 4); return y; }

inline float f16_to_f32(unsigned short x) {
  const unsigned sign = (unsigned)(x & 0x8000) << 16, exponent = x >> 10 & 31, fraction = x & 0x3ff;
  if (exponent == 31) return of_bits(sign | 0x7f800000 | fraction << 13);
  if (exponent == 0) return std::copysign(std::ldexp((float)fraction, -24), of_bits(sign | 0x3f800000));
  return of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}
// To the nearest, ties to even.
inline unsigned short f32_to_f16(float x) {
  const unsigned short sign = bits_of(x) >> 16 & 0x8000;
  if (x != x) return 0x7fff;
  const float magnitude = std::fabs(x);
  if (magnitude >= 65520.f) return sign | 0x7c00;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int step = exponent - 11 < -24 ? -24 : exponent - 11;
  const float rounded = std::ldexp(std::nearbyint(std::ldexp(magnitude, -step)), step);
  std::frexp(rounded, &exponent);
  if (rounded == 0.f || exponent - 11 < -24) return sign | (unsigned short)std::ldexp(rounded, 24);
  return sign | (unsigned short)((exponent + 14) << 10) | ((unsigned short)std::ldexp(rounded, 11 - exponent) & 0x3ff);
}
inline float bf16_to_f32(unsigned short x) { return of_bits((unsigned)x << 16); }
inline unsigned short f32_to_bf16(float x) {
  const unsigned bits = bits_of(x);
  return x != x ? 0x7fff : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace half
