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
// The accumulators of a lane: rows of 8 apart in a warp's 16, in each eight columns two beside each other.
template <int N, typename Left> void add_products(float (&d)[N], const Left& left, u32 b, bool is_transposed, int accumulate) {
  const Operand right(b);
  for (int tile = 0; tile < N / 4; ++tile)
    for (int e = 0; e < 2; ++e) {
      const int column = tile * 8 + machine::lane() % 4 * 2 + e;
      float of_column[16];
      for (int k = 0; k < 16; ++k) of_column[k] = is_transposed ? right.at(column, k) : right.at(k, column);
      for (int r = 0; r < 2; ++r) {
        float& sum = d[tile * 4 + r * 2 + e];
        if (!accumulate) sum = 0.f;
        for (int k = 0; k < 16; ++k) sum += left[r][k] * of_column[k];
      }
    }
}

template <int N> void wgmma_ab(float (&d)[N], u32 a, u32 b, int accumulate) {
  const Operand operand(a);
  float left[2][16];
  for (int r = 0; r < 2; ++r)
    for (int k = 0; k < 16; ++k) left[r][k] = operand.at(threadIdx.x / 32 % 4 * 16 + r * 8 + machine::lane() / 4, k);
  add_products(d, left, b, true, accumulate);
}
template <int N> void wgmma_rb(float (&d)[N], const u32 (&a)[4], u32 b, int accumulate) {
  const OperandRows rows(a);
  add_products(d, rows.at, b, false, accumulate);
}
