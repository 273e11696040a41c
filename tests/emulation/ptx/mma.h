#pragma once
#include "ptx/shared.h"

DEVICE void ldmatrix_x4(u32 (&r)[4], u32 address) {
  const MatrixRows rows(address);
  for (int m = 0; m < 4; ++m) r[m] = shared_at<u32>(rows.of[m * 8 + machine::lane() / 4] + machine::lane() % 4 * 4);
  __syncwarp();
}
DEVICE void ldmatrix_x4_trans(u32 (&r)[4], u32 address) {
  const MatrixRows rows(address);
  const auto element = [&](int m, int row) { return (u32)shared_at<u16>(rows.of[m * 8 + row] + machine::lane() / 4 * 2); };
  for (int m = 0; m < 4; ++m) r[m] = element(m, machine::lane() % 4 * 2) | element(m, machine::lane() % 4 * 2 + 1) << 16;
  __syncwarp();
}

#if ELEMENT == ELEMENT_F32
typedef F16 ProductElement;  // float32 comes to products in halves of f16
#else
typedef Element ProductElement;
#endif
DEVICE float half_of(u32 word, int which) { return ProductElement::load((u16)(word >> 16 * which)); }

// The lane's two rows of a 16x16 operand that lies in the registers of its quad.
struct OperandRows {
  float at[2][16];

  explicit OperandRows(const u32 (&a)[4]) {
    const machine::Shown<Chunk> shown(Chunk{{a[0], a[1], a[2], a[3]}});
    for (int quad = 0; quad < 4; ++quad)
      for (int i = 0; i < 4; ++i)
        for (int e = 0; e < 2; ++e) at[i % 2][i / 2 * 8 + quad * 2 + e] = half_of(shown.of[machine::lane() / 4 * 4 + quad].word[i], e);
  }
};
DEVICE void mma_16816(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const OperandRows rows(a);
  struct Both { u32 word[2]; };
  const machine::Shown<Both> shown(Both{{b0, b1}});
  float columns[2][16];
  for (int e = 0; e < 2; ++e)
    for (int k = 0; k < 16; ++k) columns[e][k] = half_of(shown.of[(machine::lane() % 4 * 2 + e) * 4 + k % 8 / 2].word[k / 8], k % 2);
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 16; ++k) c[i] += rows.at[i / 2][k] * columns[i % 2][k];
}
