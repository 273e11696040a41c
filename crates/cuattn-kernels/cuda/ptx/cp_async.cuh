// Asynchronous copies from global to shared memory (sm_80 and up).
#include "types.cuh"

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// 16 bytes to `dst`, of which only the first `bytes` (0 to 16) are read from `src`; the rest becomes zeros.
DEVICE void cp_async_16(u32 dst, const void* src, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}
// 16 bytes to `dst`, zeros where `src` is not `valid`: then it is not read, and may be any address. A number of bytes, as above, costs
// five more instructions.
DEVICE void cp_async_16_or_zeros(u32 dst, const void* src, bool valid) {
  asm volatile("{ .reg .pred ignored; setp.eq.u32 ignored, %2, 0; cp.async.cg.shared.global.L2::128B [%0], [%1], 16, ignored; }"
               ::"r"(dst), "l"(src), "r"((u32)valid) : "memory");
}
// As the first, of 4 bytes, whose addresses need no more alignment than a float.
DEVICE void cp_async_4(u32 dst, const void* src, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}
DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most PENDING of this thread's groups are still under way.
template <int PENDING> DEVICE void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }
