// How the simt path spreads a tile over threads, and what a thread holds in registers.
//
// A warp owns WARP_ROWS rows, all their keys and all their columns of v, so no softmax value ever crosses warps. Its lanes form a
// grid of ROW_LANES x COLUMN_LANES; the rows, keys and 4-column pieces of a lane are dealt out like cards, ROW_LANES or COLUMN_LANES
// apart. Bit 0 of the lane number is a row bit: a 16-byte load of shared memory then finds equal addresses in neighbouring lanes,
// which the hardware serves two quarter-warps at a time, and a product of LANE_ROWS x 8 needs half the bandwidth of shared memory
// (FFMA takes all issue slots). The table of tiles is src/flash/tiles.csv.
#include "row_span.cuh"

constexpr int THREADS = WARPS * 32;
constexpr int COLUMN_LANES = 32 / ROW_LANES;
constexpr int WARP_ROWS = ROW_LANES * LANE_ROWS;
constexpr int BLOCK_ROWS = WARPS * WARP_ROWS;
constexpr int LANE_KEYS = BLOCK_KEYS / COLUMN_LANES;
constexpr int LANE_PIECES = V_COLUMNS / COLUMN_LANES / 4;

static_assert(ROW_LANES == 1 || ROW_LANES == 2 || ROW_LANES == 4, "lanes are dealt as 1x32, 2x16 or 4x8");
static_assert(BLOCK_KEYS % 32 == 0 && DIM_CHUNK % 32 == 0, "the swizzle permutes eight 16-byte pieces");
static_assert(LANE_PIECES * COLUMN_LANES * 4 == V_COLUMNS, "v is dealt in whole pieces");
static_assert(LANE_ROWS * LANE_KEYS <= 64, "one bit a score in MaskedKeys");

// Four neighbouring values: what one 16-byte access of shared memory moves.
struct alignas(16) Piece {
  float at[4];
};

struct Lane {
  int row, column;  // its place in the grid of lanes
  int first_row;    // its first row in the block; the others follow ROW_LANES apart

  DEVICE explicit Lane(int thread) {
    const int lane = thread & 31;
    row = ROW_LANES == 1 ? 0 : ROW_LANES == 2 ? lane & 1 : (lane & 1) | (lane >> 4) << 1;
    column = ROW_LANES == 1 ? lane : (lane >> 1) & (COLUMN_LANES - 1);
    first_row = (thread >> 5) * WARP_ROWS + row;
  }
};

// The bits of a lane's number that tell lanes of one row apart: [FIRST_COLUMN_BIT, END_COLUMN_BIT).
constexpr int FIRST_COLUMN_BIT = ROW_LANES == 1 ? 1 : 2, END_COLUMN_BIT = ROW_LANES == 4 ? 16 : 32;

DEVICE float row_max(float x) {
  UNROLL for (int bit = FIRST_COLUMN_BIT; bit < END_COLUMN_BIT; bit <<= 1) x = fmaxf(x, __shfl_xor_sync(WARP_MASK, x, bit));
  return x;
}
DEVICE float row_sum(float x) {
  UNROLL for (int bit = FIRST_COLUMN_BIT; bit < END_COLUMN_BIT; bit <<= 1) x += __shfl_xor_sync(WARP_MASK, x, bit);
  return x;
}

// Scores, later probabilities: key j of a lane is column + j * COLUMN_LANES.
struct Scores {
  float at[LANE_ROWS][LANE_KEYS];

  DEVICE void clear() {
    UNROLL for (int i = 0; i < LANE_ROWS; ++i)
      UNROLL for (int j = 0; j < LANE_KEYS; ++j) at[i][j] = 0.f;
  }
  DEVICE void add(const Scores& x) {
    UNROLL for (int i = 0; i < LANE_ROWS; ++i)
      UNROLL for (int j = 0; j < LANE_KEYS; ++j) at[i][j] += x.at[i][j];
  }
};

// Piece j of a lane is columns 4 * (column + j * COLUMN_LANES) + {0, 1, 2, 3}.
struct Output {
  Piece at[LANE_ROWS][LANE_PIECES];

  DEVICE void clear() {
    UNROLL for (int i = 0; i < LANE_ROWS; ++i)
      UNROLL for (int j = 0; j < LANE_PIECES; ++j)
        UNROLL for (int e = 0; e < 4; ++e) at[i][j].at[e] = 0.f;
  }
  DEVICE void scale_row(int i, float factor) {
    UNROLL for (int j = 0; j < LANE_PIECES; ++j)
      UNROLL for (int e = 0; e < 4; ++e) at[i][j].at[e] *= factor;
  }
  DEVICE bool is_finite() const {
    float zero = 0.f;  // infinity and NaN times 0 are NaN
    UNROLL for (int i = 0; i < LANE_ROWS; ++i)
      UNROLL for (int j = 0; j < LANE_PIECES; ++j)
        UNROLL for (int e = 0; e < 4; ++e) zero = fmaf(at[i][j].at[e], 0.f, zero);
    return zero == 0.f;
  }
};

// What the block knows of each of its rows, in shared memory.
struct RowPlace {
  KeyRange keys;  // that it sees, before any bias
  int row, head;  // rows past the last stand where the last one does, and see nothing
};

DEVICE void fill_row_places(RowPlace* places, const FlashParams& p, const Tile& tile, const Sequence& sequence) {
  const int rows = query_len(p, tile) * p.pack;
  for (int r = threadIdx.x; r < BLOCK_ROWS; r += THREADS) {
    const int packed = tile.first_row + r;
    const PackedRow at = unpack_row(p, tile, min_of(packed, rows - 1));
    places[r] = {packed < rows ? visible_keys(sequence, at.row) : KeyRange{0, 0}, at.row, at.head};
  }
}
