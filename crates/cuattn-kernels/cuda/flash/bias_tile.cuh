// The bias of a block of keys, and the way from q.k to finished scores.
//
// Where the bias lies in 16-byte pieces (BIAS_STAGED), each warp copies its own rows of the next block while it still computes
// this one; nobody else reads them. Otherwise every element is read where it lies.
#include "flash/fragments.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"
#include "ptx/shared.cuh"
#include "score.cuh"

struct BiasTile {
#if BIAS != BIAS_NONE && defined(BIAS_BY_COPY_ENGINE)
  // On Hopper the copy engine brings the rows of a warpgroup, in panels of 128 bytes a row with the 128-byte swizzle.
  static constexpr int SIZE = sizeof(BiasScalar);
  static constexpr int PANEL_BYTES = 64 * 128;
  static constexpr int PANEL_KEYS = 128 / SIZE;
  static constexpr int PANELS = BLOCK_KEYS / PANEL_KEYS;
  static_assert(BLOCK_KEYS % PANEL_KEYS == 0, "a block of keys is made of whole panels");

  static DEVICE u32 address(u32 tile_address, int r, int n) {
    const int lane = threadIdx.x & 31, row = (threadIdx.x >> 5 & 3) * 16 + (lane >> 2) + r * 8;
    const u32 row_address = tile_address + row * 128;
    const int lane_byte = (lane & 3) * 2 * SIZE, byte = n * 8 * SIZE, swizzle = (row & 7) << 4;
    // The lane's bytes and those of n have no bit in common. Kept together, addresses of different n are a constant and one exclusive or
    // apart; for bytes, of which a lane's two are read at once, it takes fewer registers to keep them apart.
    if (SIZE == 1) return row_address + ((byte / 16 * 16) ^ swizzle) + byte % 16 + lane_byte;
    return row_address + byte / 128 * PANEL_BYTES + (lane_byte ^ swizzle ^ byte % 128);
  }
#elif BIAS != BIAS_NONE && defined(BIAS_STAGED)
  static constexpr int SIZE = sizeof(BiasScalar);
  // Padded so that the eight rows that a warp reads at once fall into different banks.
  static constexpr int PITCH = BLOCK_KEYS * SIZE + (SIZE == 4 ? 32 : 16);
  static constexpr int WARP_BYTES = WARP_ROWS * PITCH;
  static constexpr int KEYS_PER_CHUNK = 16 / SIZE;

  static DEVICE void load(u32 tile_address, const FlashParams& p, const Tile& tile, int block) {
    constexpr int CHUNKS = BLOCK_KEYS / KEYS_PER_CHUNK;
    const int thread = computed_here(threadIdx.x), lane = thread & 31, rows = p.mask.q_len * p.pack;
    const int first_row = tile.first_row + (thread >> 5) * WARP_ROWS;
    __syncwarp();  // the warp has read the block before
#pragma unroll 2
    for (int i = 0; i < ceil_div(WARP_ROWS * CHUNKS, 32); ++i) {
      const int n = lane + i * 32, row = n / CHUNKS, chunk = n % CHUNKS;
      if ((WARP_ROWS * CHUNKS) % 32 != 0 && n >= WARP_ROWS * CHUNKS) break;
      const int key = block * BLOCK_KEYS + chunk * KEYS_PER_CHUNK;
      const int keys = first_row + row < rows ? max_of(0, min_of(p.mask.bias_keys, p.mask.kv_len) - key) : 0;
      const PackedRow at = unpack_row(p, tile, first_row + row);
      const BiasScalar* source = keys > 0 ? bias_row(p.mask, tile.batch, at.head, at.row) + key : static_cast<const BiasScalar*>(p.mask.bias);
      cp_async_16(tile_address + row * PITCH + chunk * 16, source, min_of(16, keys * SIZE));
    }
    cp_async_commit();  // a group of its own: the main loop waits for committed groups only
  }

  static DEVICE u32 address(u32 tile_address, int r, int n) {
    const int row = ((threadIdx.x & 31) >> 2) + r * 8;
    return tile_address + row * PITCH + (n * 8 + (threadIdx.x & 3) * 2) * SIZE;
  }
#else
  static constexpr int WARP_BYTES = 0;
  static DEVICE void load(u32, const FlashParams&, const Tile&, int) {}
#endif

#if BIAS == BIAS_ELEMENT && defined(BIAS_BY_COPY_ENGINE)
  // The biases of tiles n and n + 1, for each of the lane's rows those of two keys in each: they lie as the scores do, eight rows of eight.
  static DEVICE void read_pair(BiasScalar (&bias)[LANE_ROWS][4], u32 tile_address, int n) {
    static_assert(SIZE == 2, "a float32 bias is BIAS_F32, whatever the problem's element type");
    const int lane = threadIdx.x & 31, row = (threadIdx.x >> 5 & 3) * 16 + (lane & 15);
    u32 both[4];
    ldmatrix_x4(both, tile_address + n / 8 * PANEL_BYTES + row * 128 + (((lane >> 4) ^ (row & 7)) << 4 ^ n % 8 * 16));
    UNROLL for (int i = 0; i < 4; ++i) {
      bias[i & 1][i / 2 * 2] = (BiasScalar)both[i];
      bias[i & 1][i / 2 * 2 + 1] = (BiasScalar)(both[i] >> 16);
    }
  }
#elif BIAS != BIAS_NONE && (defined(BIAS_STAGED) || defined(BIAS_BY_COPY_ENGINE))
  // The biases of keys lane_key(.., n) + {0, 1} of the lane's row r.
  static DEVICE void read(BiasScalar (&bias)[2], u32 tile_address, int r, int n) {
    const u32 at = address(tile_address, r, n);
#if BIAS == BIAS_F32
    load_shared_8(bias, at);
#elif BIAS == BIAS_ELEMENT
    static_assert(SIZE == 2, "a float32 bias is BIAS_F32, whatever the problem's element type");
    const u32 both = load_shared_u32(at);
    bias[0] = (BiasScalar)both;
    bias[1] = (BiasScalar)(both >> 16);
#else
    const u16 both = load_shared_u16(at);
    bias[0] = (BiasScalar)both;
    bias[1] = (BiasScalar)(both >> 8);
#endif
  }
#endif
};

#if BIAS != BIAS_NONE
template <int TILES, bool SETTLED>
DEVICE void add_biases(Scores& s, const FlashParams& p, const LanePlace& place, int first_key, u32 bias_tile) {
#if BIAS == BIAS_ELEMENT && defined(BIAS_BY_COPY_ENGINE)
  UNROLL for (int n = 0; n < TILES; n += 2) {
    BiasScalar bias[LANE_ROWS][4];
    BiasTile::read_pair(bias, bias_tile, n);
    UNROLL for (int r = 0; r < LANE_ROWS; ++r)
      UNROLL for (int i = 0; i < 4; ++i) {
        float& x = s.at[0][n + i / 2][r * 2 + i % 2];
        x = biased<SETTLED>(x, bias[r][i]);
      }
  }
#else
  UNROLL for (int r = 0; r < LANE_ROWS; ++r) {
#if !defined(BIAS_STAGED) && !defined(BIAS_BY_COPY_ENGINE)
    const PackedRow at = place.row(p, r);
    const bool inside = at.row < query_len(p, place.tile);
    const BiasScalar* bias_at = bias_row(p.mask, place.tile.batch, at.head, inside ? at.row : 0);
    const int bias_end = inside ? min_of(p.mask.bias_keys, p.mask.kv_len) : 0;
#endif
    UNROLL for (int n = 0; n < TILES; ++n) {
      BiasScalar bias[2];
#if defined(BIAS_STAGED) || defined(BIAS_BY_COPY_ENGINE)
      BiasTile::read(bias, bias_tile, r, n);
#else
      const int key = lane_key(first_key, n);
      UNROLL for (int e = 0; e < 2; ++e) bias[e] = key + e < bias_end ? bias_at[(key + e) * p.mask.bias_key] : BiasScalar(0);
#endif
      UNROLL for (int e = 0; e < 2; ++e) {
        float& x = s.at[r >> 1][n][(r & 1) * 2 + e];
        x = biased<SETTLED>(x, bias[e]);
      }
    }
  }
#endif
}
#endif

// Scale, softcap, score modification and bias. Without NATURAL the scores stay plain q.k, or in units of the cap. SETTLED: see `biased`.
template <int TILES = KEY_TILES, bool SETTLED = false>
DEVICE void finish_scores(Scores& s, const FlashParams& p, const Sequence& sequence, const LanePlace& place, int first_key,
                          u32 bias_tile) {
#if defined(NATURAL)
  UNROLL for (int r = 0; r < LANE_ROWS; ++r) {
    // Rows and keys of the tile that the sequence does not have: no user buffer may be read for them.
    const PackedRow at = place.row(p, r);
    const bool inside = at.row < query_len(p, place.tile);
    UNROLL for (int n = 0; n < TILES; ++n) {
      const int key = lane_key(first_key, n);
      UNROLL for (int e = 0; e < 2; ++e) {
        float& x = s.at[r >> 1][n][(r & 1) * 2 + e];
        x = finished_score(p.score, x, place.tile.batch, at.head, at.row, key + e, inside && key + e < sequence.kv_len);
      }
    }
  }
#elif defined(SOFTCAP)
  UNROLL for (int r = 0; r < LANE_ROWS; ++r)
    UNROLL for (int n = 0; n < TILES; ++n)
      UNROLL for (int e = 0; e < 2; ++e) {
        float& x = s.at[r >> 1][n][(r & 1) * 2 + e];
        x = softcapped_ratio(p.score, x);
      }
#endif
#if BIAS != BIAS_NONE
  add_biases<TILES, SETTLED>(s, p, place, first_key, bias_tile);
#endif
}
