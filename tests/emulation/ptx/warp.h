#pragma once
DEVICE int warp_uniform(int x) { return x; }
DEVICE int warp_sum(int x) {
  const machine::Shown<int> shown(x);
  int sum = 0;
  for (int i = 0; i < 32; ++i) sum += shown.of[i];
  return sum;
}
DEVICE int computed_here(int x) { return x; }
