// Special registers.
#include "types.cuh"

// threadIdx.x, read anew at each call: what is computed from it is then not kept in registers from one use to the next.
DEVICE int fresh_thread_index() { int x; asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x)); return x; }
