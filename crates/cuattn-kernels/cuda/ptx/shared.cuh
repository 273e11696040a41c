// Plain loads and stores of shared memory by its 32-bit address.
#include "types.cuh"

DEVICE void store_shared(u32 address, u32 x) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory"); }
DEVICE void store_shared(u32 address, float x) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory"); }
DEVICE float load_shared_f32(u32 address) { float x; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory"); return x; }
DEVICE u32 load_shared_u32(u32 address) { u32 x; asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory"); return x; }
DEVICE u16 load_shared_u16(u32 address) { u16 x; asm volatile("ld.shared.b16 %0, [%1];" : "=h"(x) : "r"(address) : "memory"); return x; }
DEVICE void load_shared_8(float (&x)[2], u32 address) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x[0]), "=f"(x[1]) : "r"(address) : "memory");
}
struct alignas(16) Chunk { u32 word[4]; };
DEVICE Chunk load_shared_16(u32 address) {
  Chunk x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3]) : "r"(address) : "memory");
  return x;
}
DEVICE void store_shared_16(u32 address, const Chunk& x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.word[0]), "r"(x.word[1]), "r"(x.word[2]), "r"(x.word[3]) : "memory");
}
DEVICE void store_shared(u32 address, u16 x) { asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(x) : "memory"); }
// Four 8x8 matrices of 16-bit elements from registers; lane l supplies the address of row l%8 of matrix l/8.
DEVICE void stmatrix_x4(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
