// Hints about values that a whole warp shares, or that are better computed late.
#include "types.cuh"

// `x`, which must be the same in all lanes, in a uniform register: the compiler cannot know that of a value that came through
// memory, and spends an ordinary register a lane on it.
DEVICE int warp_uniform(int x) {
  int y;
  asm("redux.sync.or.b32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
  return y;
}

// The sum over all lanes.
DEVICE int warp_sum(int x) {
  int y;
  asm volatile("redux.sync.add.s32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
  return y;
}

// `x` as it is, but computed where it stands: what follows from it is not moved out of the loop, where it would hold registers.
DEVICE int computed_here(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
