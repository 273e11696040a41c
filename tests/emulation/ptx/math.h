#pragma once
DEVICE float exp2_approx(float x) { return std::exp2(x); }
DEVICE float log2_approx(float x) { return std::log2(x); }
DEVICE float max_or_nan(float a, float b) { return a != a || b != b ? NAN : std::fmax(a, b); }
DEVICE float tanh_approx(float x) { return std::tanh(x); }

DEVICE float f16_to_f32(u16 x) {
  const u32 sign = (u32)(x & 0x8000) << 16, exponent = x >> 10 & 31, fraction = x & 0x3ff;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000 | fraction << 13);
  if (exponent == 0) return std::copysign(std::ldexp((float)fraction, -24), __uint_as_float(sign | 0x3f800000));
  return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
}
// To the nearest, ties to even.
DEVICE u16 f32_to_f16(float x) {
  const u16 sign = __float_as_uint(x) >> 16 & 0x8000;
  if (x != x) return 0x7fff;
  const float magnitude = std::fabs(x);
  if (magnitude >= 65520.f) return sign | 0x7c00;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int step = exponent - 11 < -24 ? -24 : exponent - 11;
  const float rounded = std::ldexp(std::nearbyint(std::ldexp(magnitude, -step)), step);
  std::frexp(rounded, &exponent);
  if (rounded == 0.f || exponent - 11 < -24) return sign | (u16)std::ldexp(rounded, 24);
  return sign | (u16)((exponent + 14) << 10) | ((u16)std::ldexp(rounded, 11 - exponent) & 0x3ff);
}
DEVICE float bf16_to_f32(u16 x) { return __uint_as_float((u32)x << 16); }
DEVICE u16 f32_to_bf16(float x) {
  const u32 bits = __float_as_uint(x);
  return x != x ? 0x7fff : (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
DEVICE u32 pack_f16(float low, float high) { return f32_to_f16(low) | (u32)f32_to_f16(high) << 16; }
DEVICE u32 pack_bf16(float low, float high) { return f32_to_bf16(low) | (u32)f32_to_bf16(high) << 16; }
