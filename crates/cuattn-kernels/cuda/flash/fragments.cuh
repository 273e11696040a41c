// Register fragments of the mma path: which rows and keys a lane holds, and the geometry they follow from.
#include "mask.cuh"
#include "ptx/warp.cuh"
#include "row_span.cuh"
#include "shared_tile.cuh"
#include "tile_scheduler.cuh"

constexpr int THREADS = WARPS * 32;
constexpr int WARP_ROWS = 16 * ROW_TILES;
constexpr int BLOCK_ROWS = WARPS * WARP_ROWS;
constexpr int STAGES = 2;
constexpr int QK_COLUMNS = ceil_div(HEAD_DIM, 16) * 16;
constexpr int V_COLUMNS = ceil_div(V_HEAD_DIM, 16) * 16;
constexpr int KEY_TILES = BLOCK_KEYS / 8;
constexpr int V_TILES = V_COLUMNS / 8;
constexpr int K_STAGE = SharedTile<QK_COLUMNS>::bytes(BLOCK_KEYS);
constexpr int V_STAGE = SharedTile<V_COLUMNS>::bytes(BLOCK_KEYS);
constexpr int LANE_ROWS = 2 * ROW_TILES;  // rows of which a lane holds elements: tile m, half h is row 16m + 8h + lane/4

// Scores, later probabilities, of the warp's rows: element e of tile n is key 8n + 2(lane%4) + e%2 of half e/2.
struct Scores {
  float at[ROW_TILES][KEY_TILES][4];
};

struct Output {
  float at[ROW_TILES][V_TILES][4];

  DEVICE void clear() {
    UNROLL for (int m = 0; m < ROW_TILES; ++m)
      UNROLL for (int n = 0; n < V_TILES; ++n)
        UNROLL for (int e = 0; e < 4; ++e) at[m][n][e] = 0.f;
  }
  DEVICE void scale_row(int r, float factor) {
    UNROLL for (int n = 0; n < V_TILES; ++n) {
      at[r >> 1][n][(r & 1) * 2] *= factor;
      at[r >> 1][n][(r & 1) * 2 + 1] *= factor;
    }
  }
  DEVICE bool is_finite() const {
    float sum = 0.f;
    UNROLL for (int m = 0; m < ROW_TILES; ++m) {
      float zero[4] = {};  // infinity and NaN times 0 are NaN; in one chain they would take four cycles an element
      UNROLL for (int n = 0; n < V_TILES; ++n)
        UNROLL for (int e = 0; e < 4; ++e) zero[e] = fmaf(at[m][n][e], 0.f, zero[e]);
      UNROLL for (int e = 0; e < 4; ++e) sum += zero[e];
    }
    return sum == 0.f;
  }
};

// How a tile is computed: without looking for the maximum of every block; with; and with a product that leaves masked keys out, because a
// value came out non-finite (selected_product.cuh). The block as a whole goes from one to another, and only by what its numbers are.
enum Attempt { FAST, CAREFUL, SELECTING };

// What the block works on. It lives in shared memory, because the main loop has no registers to keep it in.
struct BlockContext {
  Tile tile;
  Sequence sequence;
  int any_begin, any_end;  // keys that the block's rows see
  RowSpan warp_rows[WARPS];
  const Scalar *k, *v;     // from key_base() on
  Attempt attempt;

  DEVICE void fill(const FlashParams& p, const Tile& t) {
    const Sequence s = load_sequence(p, t);
    const int thread = computed_here(threadIdx.x), warp = thread >> 5;
    const RowSpan rows(p, s, t.first_row + warp * WARP_ROWS, WARP_ROWS);
    if ((thread & 31) == 0) warp_rows[warp] = rows;
    const RowSpan block_rows(p, s, t.first_row, BLOCK_ROWS);
    if (thread == 0) {
      tile = t;
      sequence = s;
      any_begin = block_rows.any.begin;
      any_end = block_rows.any.end;
      k = static_cast<const Scalar*>(p.k) + key_base(p.k_strides, t);
      v = static_cast<const Scalar*>(p.v) + key_base(p.v_strides, t);
      attempt = FAST;
    }
  }
};

// Where the lane's rows stand in the problem. Computed when asked for: the main loop has no registers to keep it in.
struct LanePlace {
  const Tile& tile;
  const int shift;  // rows by which the lane stands off the place that its warp's number gives

  DEVICE explicit LanePlace(const Tile& tile, int shift = 0) : tile(tile), shift(shift) {}
  DEVICE PackedRow row(const FlashParams& p, int r) const {
    return unpack_row(p, tile, computed_here(tile.first_row + shift + (threadIdx.x >> 5) * WARP_ROWS + ((threadIdx.x & 31) >> 2)) + r * 8);
  }
};

// The lane's first key in tile n of a block that starts at `first_key`.
DEVICE int lane_key(int first_key, int n) { return first_key + n * 8 + (threadIdx.x & 3) * 2; }

// Which ends of what rows see cut a block of keys for some row.
struct Cuts {
  bool left, right;
};

// Masked keys are selected away: whatever their score was, NaN included, it is -inf from here on. TILES: of how many keys.
template <int TILES = KEY_TILES>
DEVICE void mask_scores(Scores& s, const FlashParams& p, const Sequence& sequence, const LanePlace& place, int first_key, Cuts cuts) {
  UNROLL for (int r = 0; r < LANE_ROWS; ++r) {
    const KeyRange range = visible_keys(sequence, place.row(p, r).row);
    // Counted from the lane's first key, so that each element is compared with a constant.
    const int begin = range.begin - lane_key(first_key, 0), end = range.end - lane_key(first_key, 0);
    if (cuts.right)
      UNROLL for (int n = 0; n < TILES; ++n)
        UNROLL for (int e = 0; e < 2; ++e)
          if (n * 8 + e >= end) s.at[r >> 1][n][(r & 1) * 2 + e] = -INFINITY_F32;
    if (cuts.left)
      UNROLL for (int n = 0; n < TILES; ++n)
        UNROLL for (int e = 0; e < 2; ++e)
          if (n * 8 + e < begin) s.at[r >> 1][n][(r & 1) * 2 + e] = -INFINITY_F32;
  }
}
