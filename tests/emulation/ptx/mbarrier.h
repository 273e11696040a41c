#pragma once
DEVICE void mbarrier_init(u32 barrier, int arrivals) { machine::mbarriers[barrier] = {arrivals, arrivals}; }
DEVICE void mbarrier_fence_init() {}
DEVICE void mbarrier_arrive(u32 barrier) { machine::mbarriers.at(barrier).arrive(); }
DEVICE void mbarrier_expect(u32 barrier, int bytes) { machine::mbarriers.at(barrier).arrive(bytes); }
DEVICE bool mbarrier_has_passed(u32 barrier, u32 parity) { return machine::mbarriers.at(barrier).phase != parity; }
DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
  while (!mbarrier_has_passed(barrier, parity)) machine::yield();
}
