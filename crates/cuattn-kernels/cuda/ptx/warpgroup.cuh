// What warpgroups of different roles need: register budgets and named barriers.
#include "types.cuh"

// All warps of a warpgroup together. The sum over the block must not exceed 512 registers a lane of four warps, or it hangs.
template <int REGISTERS> DEVICE void raise_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }
template <int REGISTERS> DEVICE void lower_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }

// Barrier `id` (1 to 15) of `threads`, some of whom wait and some only arrive.
DEVICE void named_barrier_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE void named_barrier_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// The next number of a counter that goes back to 0 after `last`.
DEVICE u32 draw(u32* counter, u32 last) {
  u32 number;
  asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(number) : "l"(counter), "r"(last) : "memory");
  return number;
}
