#pragma once
template <int REGISTERS> DEVICE void raise_registers() {}
template <int REGISTERS> DEVICE void lower_registers() {}
DEVICE void named_barrier_sync(int id, int threads) { machine::barriers[id].sync(threads); }
DEVICE void named_barrier_arrive(int id, int threads) { machine::barriers[id].arrive(threads); }
DEVICE u32 draw(u32* counter, u32 last) {
  const u32 number = *counter;
  *counter = number >= last ? 0 : number + 1;
  return number;
}
