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
  const unsigned bits = bits_of(x), sign = bits >> 16 & 0x8000;
  const float magnitude = std::fabs(x);
  if (x != x) return 0x7fff;
  if (magnitude >= 65520.f) return sign | 0x7c00;
  if (magnitude < 0x1p-14f) return sign | (unsigned)std::nearbyint(magnitude * 0x1p24f);  // a subnormal, or the least that is none
  return sign | (((bits & 0x7fffffff) + 0xfff + (bits >> 13 & 1)) >> 13) - (112 << 10);
}
inline float bf16_to_f32(unsigned short x) { return of_bits((unsigned)x << 16); }
inline unsigned short f32_to_bf16(float x) {
  const unsigned bits = bits_of(x);
  return x != x ? 0x7fff : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace half
