// Warpgroup matrix products m64nNk16 (sm_90a), asynchronous, with float32 accumulators in registers.
//
// Operands in shared memory are named by descriptors; all here lie in panels of 64 columns with the 128-byte swizzle, so that the
// upper word of a descriptor is a constant (stride 1024 bytes between groups of eight rows) and only the lower one is passed.
// The product of one batch: wgmma_fence, the k steps, wgmma_commit; then wgmma_wait before the accumulators are touched.
#include "numeric.cuh"

constexpr u32 DESCRIPTOR_HIGH = 0x40000040;

// The lower word for a tile at `address`. `panel_bytes` is the distance of panels of a column-major B; a row-major operand ignores it.
DEVICE u32 descriptor(u32 address, u32 panel_bytes) { return ((address & 0x3ffff) >> 4) | ((panel_bytes >> 4) << 16); }

DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

// Keeps the compiler from moving accesses to these registers across: a product in flight owns them.
template <int N> DEVICE void pin(float (&x)[N]) {
  UNROLL for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int N> DEVICE void pin(u32 (&x)[N]) {
  UNROLL for (int i = 0; i < N; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

#if ELEMENT == ELEMENT_BF16
#define WGMMA_TYPES "f32.bf16.bf16"
#else
#define WGMMA_TYPES "f32.f16.f16"  // float32 comes here in halves of f16
#endif

// The rest stands once for each N that a variant uses: the assembly of a source fills in the numbers and the register lists.
#repeat N
// d = a b, or d += a b where `accumulate`: a 64x16 and b 16xN (its N rows of 16 contiguous k), both in shared memory.
DEVICE void wgmma_ab(float (&d)[$N/2], u32 a, u32 b, int accumulate) {
  asm volatile(
      "{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %$3, 0; mov.b64 a, {%$0, %$2}; mov.b64 b, {%$1, %$2};\n"
      "wgmma.mma_async.sync.aligned.m64n$Nk16." WGMMA_TYPES " {$REGISTERS}, a, b, p, 1, 1, 0, 0;}"
      : $OPERANDS : "r"(a), "r"(b), "n"(DESCRIPTOR_HIGH), "r"(accumulate));
}
// The same with a from registers, and b 16xN as 16 rows of contiguous n.
DEVICE void wgmma_rb(float (&d)[$N/2], const u32 (&a)[4], u32 b, int accumulate) {
  asm volatile(
      "{.reg .pred p; .reg .b64 b; setp.ne.b32 p, %$6, 0; mov.b64 b, {%$4, %$5};\n"
      "wgmma.mma_async.sync.aligned.m64n$Nk16." WGMMA_TYPES " {$REGISTERS}, {%$0, %$1, %$2, %$3}, b, p, 1, 1, 1;}"
      : $OPERANDS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(DESCRIPTOR_HIGH), "r"(accumulate));
}
#end
