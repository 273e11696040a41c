#pragma once
#include "ptx/mma.h"

DEVICE u32 descriptor(u32 address, u32 panel_bytes) { return ((address & 0x3ffff) >> 4) | ((panel_bytes >> 4) << 16); }
// The four warps of a warpgroup begin a product together.
DEVICE void wgmma_fence() { machine::barriers[machine::WARPGROUP_BARRIERS + threadIdx.x / 128].sync(128); }
DEVICE void wgmma_commit() {}
// And a warp is done with it as a whole.
template <int PENDING> DEVICE void wgmma_wait() { __syncwarp(); }
template <int N> DEVICE void pin(float (&)[N]) {}
template <int N> DEVICE void pin(u32 (&)[N]) {}

// What a descriptor says of an operand in panels of 64 columns.
struct Operand {
  u32 start, panel_bytes;

  explicit Operand(u32 descriptor) : start((descriptor & 0x3fff) << 4), panel_bytes(descriptor >> 16 << 4) {}
  float at(int row, int column) const {
    const u32 address = start + column / 64 * panel_bytes + row * 128 + column % 64 * 2;
    return ProductElement::load(shared_at<u16>(machine::swizzled(address)));
  }
};
// Row and column of accumulator i.
DEVICE int row_of(int i) { return (threadIdx.x / 32 % 4) * 16 + machine::lane() / 4 + (i / 2 % 2) * 8; }
DEVICE int column_of(int i) { return i / 4 * 8 + machine::lane() % 4 * 2 + i % 2; }

template <int N> void wgmma_ab(float (&d)[N], u32 a, u32 b, int accumulate) {
  const Operand left(a), right(b);
  for (int i = 0; i < N; ++i) {
    if (!accumulate) d[i] = 0.f;
    for (int k = 0; k < 16; ++k) d[i] += left.at(row_of(i), k) * right.at(column_of(i), k);
  }
}
template <int N> void wgmma_rb(float (&d)[N], const u32 (&a)[4], u32 b, int accumulate) {
  const OperandRows rows(a);
  const Operand right(b);
  for (int i = 0; i < N; ++i) {
    if (!accumulate) d[i] = 0.f;
    for (int k = 0; k < 16; ++k) d[i] += rows.at[i / 2 % 2][k] * right.at(k, column_of(i));
  }
}
