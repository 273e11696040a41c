#pragma once
template <typename T> T shared_at(u32 address) {
  T x;
  std::memcpy(&x, machine::shared_memory + address, sizeof x);
  return x;
}
template <typename T> void set_shared(u32 address, const T& x) { std::memcpy(machine::shared_memory + address, &x, sizeof x); }

DEVICE void store_shared(u32 address, u32 x) { set_shared(address, x); }
DEVICE void store_shared(u32 address, float x) { set_shared(address, x); }
DEVICE void store_shared(u32 address, u16 x) { set_shared(address, x); }
DEVICE float load_shared_f32(u32 address) { return shared_at<float>(address); }
DEVICE u32 load_shared_u32(u32 address) { return shared_at<u32>(address); }
DEVICE u16 load_shared_u16(u32 address) { return shared_at<u16>(address); }
DEVICE void load_shared_8(float (&x)[2], u32 address) {
  x[0] = shared_at<float>(address);
  x[1] = shared_at<float>(address + 4);
}
struct alignas(16) Chunk { u32 word[4]; };
DEVICE Chunk load_shared_16(u32 address) { return shared_at<Chunk>(address); }
DEVICE void store_shared_16(u32 address, const Chunk& x) { set_shared(address, x); }

// The addresses that the lanes of a warp supply, one a row of four 8x8 matrices.
typedef machine::Shown<u32> MatrixRows;
DEVICE void stmatrix_x4(u32 address, u32 a, u32 b, u32 c, u32 d) {
  const MatrixRows rows(address);
  const u32 words[4] = {a, b, c, d};
  for (int m = 0; m < 4; ++m) set_shared(rows.of[m * 8 + machine::lane() / 4] + machine::lane() % 4 * 4, words[m]);
  __syncwarp();
}
