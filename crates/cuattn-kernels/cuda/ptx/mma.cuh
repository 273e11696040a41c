// Warp-level matrix products m16n8k16 with float32 accumulation, and the shared-memory loads that feed them.
//
// Lane l of a warp holds, of the 16x8 accumulator, row l/4 columns 2(l%4)+{0,1} in c[0..2) and row l/4+8 in c[2..4).
// Two neighbouring accumulators, rounded to 16 bits, are the A operand of the next product as they stand.
#include "numeric.cuh"

// Four 8x8 matrices of 16-bit elements; lane l supplies the address of row l%8 of matrix l/8.
DEVICE void ldmatrix_x4(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
// The same, each matrix transposed.
DEVICE void ldmatrix_x4_trans(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

#if ELEMENT != ELEMENT_F32
// c += a * b with a 16x16 (row-major), b 16x8 (column-major).
DEVICE void mma_16816(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if ELEMENT == ELEMENT_F16
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif
