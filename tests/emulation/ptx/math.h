#pragma once
DEVICE float exp2_approx(float x) { return std::exp2(x); }
DEVICE float log2_approx(float x) { return std::log2(x); }
DEVICE float max_or_nan(float a, float b) { return a != a || b != b ? NAN : std::fmax(a, b); }
DEVICE float tanh_approx(float x) { return std::tanh(x); }

using half::bf16_to_f32;
using half::f16_to_f32;
using half::f32_to_bf16;
using half::f32_to_f16;
DEVICE u32 pack_f16(float low, float high) { return f32_to_f16(low) | (u32)f32_to_f16(high) << 16; }
DEVICE u32 pack_bf16(float low, float high) { return f32_to_bf16(low) | (u32)f32_to_bf16(high) << 16; }
