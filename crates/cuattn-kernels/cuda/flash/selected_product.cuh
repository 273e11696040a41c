// P V where V may hold NaN or infinity at keys that a row must not see.
//
// A tensor core multiplies a masked key's probability 0 with whatever V holds, and 0 * NaN is NaN. Checking V beforehand would cost
// every launch; instead a block looks at its finished accumulators, and only where one came out non-finite it starts over with this
// product, which leaves masked keys out. A NaN or infinity that a row does see then reaches that row, and no other.
#include "flash/fragments.cuh"
#include "ptx/shared.cuh"
#include "shared_tile.cuh"

// One bit for each of the lane's scores that is -inf: masked, by position or by the bias.
struct MaskedKeys {
  u32 bits[ceil_div(ROW_TILES * KEY_TILES * 4, 32)];

  static DEVICE constexpr int index(int m, int n, int e) { return (m * KEY_TILES + n) * 4 + e; }
  DEVICE bool get(int i) const { return bits[i >> 5] >> (i & 31) & 1; }
};

DEVICE MaskedKeys masked_keys(const Scores& s) {
  MaskedKeys masked = {};
  UNROLL for (int m = 0; m < ROW_TILES; ++m)
    UNROLL for (int n = 0; n < KEY_TILES; ++n)
      UNROLL for (int e = 0; e < 4; ++e) {
        const int i = MaskedKeys::index(m, n, e);
        masked.bits[i >> 5] |= (u32)(s.at[m][n][e] == -INFINITY_F32) << (i & 31);
      }
  return masked;
}

struct SelectedProduct {
  // A warp's probabilities, rounded to the element type: [WARP_ROWS][BLOCK_KEYS]; -1 stands for a masked key.
  static constexpr int SCRATCH_BYTES = WARP_ROWS * BLOCK_KEYS * 2;

  static DEVICE void accumulate(Output& o, const Scores& p, const MaskedKeys& masked, u32 v_tile, u32 scratch) {
    const int first_row = (threadIdx.x & 31) >> 2, pair = (threadIdx.x & 3) * 2;
    UNROLL for (int m = 0; m < ROW_TILES; ++m)
      UNROLL for (int n = 0; n < KEY_TILES; ++n)
        UNROLL for (int e = 0; e < 4; e += 2) {
          const float low = masked.get(MaskedKeys::index(m, n, e)) ? -1.f : p.at[m][n][e];
          const float high = masked.get(MaskedKeys::index(m, n, e + 1)) ? -1.f : p.at[m][n][e + 1];
          store_shared(scratch + ((m * 16 + e * 4 + first_row) * BLOCK_KEYS + n * 8 + pair) * 2, Element::pack(low, high));
        }
    __syncwarp();
#pragma unroll 1
    for (int key = 0; key < BLOCK_KEYS; ++key) {
      UNROLL for (int r = 0; r < LANE_ROWS; ++r) {
        const float weight = Element::load(load_shared_u16(scratch + ((r * 8 + first_row) * BLOCK_KEYS + key) * 2));
        if (weight == -1.f) continue;
        UNROLL for (int n = 0; n < V_TILES; ++n) {
          const u32 both = load_shared_u32(v_tile + SharedTile<V_COLUMNS>::offset(key, n) + pair * 2);
          o.at[r >> 1][n][(r & 1) * 2] += weight * Element::load((u16)both);
          o.at[r >> 1][n][(r & 1) * 2 + 1] += weight * Element::load((u16)(both >> 16));
        }
      }
    }
    __syncwarp();
  }
};
