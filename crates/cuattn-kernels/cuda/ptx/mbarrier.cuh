// Barriers in shared memory that count arrivals and the bytes of bulk copies (sm_90). Phases alternate: a waiter names the parity of
// the phase that it waits for, 0 first.
#include "types.cuh"

DEVICE void mbarrier_init(u32 barrier, int arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)); }
// Makes initialised barriers visible to the copy engine.
DEVICE void mbarrier_fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void mbarrier_arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
// Arrives, and adds `bytes` to what the phase waits for. Counts whole boxes, zero-filled parts included.
DEVICE void mbarrier_expect(u32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Whether that phase has passed already.
DEVICE bool mbarrier_has_passed(u32 barrier, u32 parity) {
  u32 passed;
  asm volatile("{.reg .pred done; mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2; selp.b32 %0, 1, 0, done;}"
               : "=r"(passed) : "r"(barrier), "r"(parity) : "memory");
  return passed;
}
DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{.reg .pred done;\n"
      "wait_%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished_%=;\n"
      "bra wait_%=;\n"
      "finished_%=:}" ::"r"(barrier), "r"(parity) : "memory");
}
