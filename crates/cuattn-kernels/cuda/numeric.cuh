// The element type of q, k, v and o: ELEMENT is one of the three below. 16-bit types are kept as integers.
#include "ptx/math.cuh"

#define ELEMENT_F32 0
#define ELEMENT_F16 1
#define ELEMENT_BF16 2

struct F32 {
  typedef float Storage;
  static DEVICE float load(float x) { return x; }
  static DEVICE float store(float x) { return x; }
};
struct F16 {
  typedef u16 Storage;
  static DEVICE float load(u16 x) { return f16_to_f32(x); }
  static DEVICE u16 store(float x) { return f32_to_f16(x); }
  static DEVICE u32 pack(float low, float high) { return pack_f16(low, high); }
};
struct BF16 {
  typedef u16 Storage;
  static DEVICE float load(u16 x) { return bf16_to_f32(x); }
  static DEVICE u16 store(float x) { return f32_to_bf16(x); }
  static DEVICE u32 pack(float low, float high) { return pack_bf16(low, high); }
};

#if ELEMENT == ELEMENT_F32
typedef F32 Element;
#elif ELEMENT == ELEMENT_F16
typedef F16 Element;
#elif ELEMENT == ELEMENT_BF16
typedef BF16 Element;
#endif
typedef Element::Storage Scalar;
