// The simt path's tiles in shared memory: float32 whatever the problem's element type, in 16-byte pieces.
//
// Rows of q, k and p are whole multiples of 128 bytes, and piece c of a row lies at c ^ swizzle(row), so that lanes which read one
// piece of several rows meet different banks. Every tensor is moved in 16-byte (16-bit elements: 8-byte) accesses where its
// address and strides allow, and element by element where they do not.
#include "flash/simt_lanes.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/warp.cuh"

DEVICE int row_swizzle(int row) { return row % ROW_LANES * (8 / ROW_LANES); }
DEVICE int key_swizzle(int key) { return key & 7; }

// Shared memory of a block, in the order in which it lies there.
struct SharedTiles {
  float* q;          // [BLOCK_ROWS][DIM_CHUNK]
  float* k;          // [BLOCK_KEYS][DIM_CHUNK]
  float* v;          // [BLOCK_KEYS][V_COLUMNS]
  float* p;          // [BLOCK_ROWS][BLOCK_KEYS]
  RowPlace* places;  // [BLOCK_ROWS]

  DEVICE SharedTiles(float* shared) {
    q = shared;
    k = q + BLOCK_ROWS * DIM_CHUNK;
    v = k + BLOCK_KEYS * DIM_CHUNK;
    p = v + BLOCK_KEYS * V_COLUMNS;
    places = reinterpret_cast<RowPlace*>(p + BLOCK_ROWS * BLOCK_KEYS);
  }
};

DEVICE Piece load_piece(const float* p) { return *reinterpret_cast<const Piece*>(p); }
DEVICE void store_piece(float* p, const Piece& x) { *reinterpret_cast<Piece*>(p) = x; }

// Four elements in memory.
struct alignas(4 * sizeof(Scalar)) PackedPiece {
  Scalar at[4];
};

// Whether pieces of a tensor can be accessed whole.
DEVICE bool whole_pieces(const void* tensor, const Strides& strides) {
  return ((u64)tensor % sizeof(PackedPiece) | (u64)(strides.batch | strides.head | strides.row) % 4) == 0;
}

// A piece of which `count` elements exist (none: `count` <= 0); the rest is zeros. `whole` as by whole_pieces().
DEVICE Piece fetch_piece(const Scalar* from, int count, bool whole) {
  Piece x;
  if (whole && count >= 4) {
    const PackedPiece packed = *reinterpret_cast<const PackedPiece*>(from);
    UNROLL for (int e = 0; e < 4; ++e) x.at[e] = Element::load(packed.at[e]);
  } else {
    UNROLL for (int e = 0; e < 4; ++e) x.at[e] = e < count ? Element::load(from[e]) : 0.f;
  }
  return x;
}

// Rows of k or v of the tile's sequence: those from `end` on are not there.
struct KeyRows {
  const FlashParams& p;
  const Strides& strides;
  const Tile& tile;
  const Scalar* tensor;  // from key_base() on
  int first, end;

  DEVICE bool exists(int r) const { return first + r < end; }
  DEVICE const Scalar* at(int r) const { return tensor + key_offset(p, strides, tile, first + r); }
  // Column `column` of row r + `step`, given that of row r. Of rows that are not there: any address.
  DEVICE const Scalar* next(const Scalar* from, int r, int step, int column) const {
#ifdef PAGED
    return exists(r + step) ? at(r + step) + column : tensor;
#else
    return from + step * strides.row;
#endif
  }
};

// Rows of q, each where its place says. All are there, since rows past the last stand where that does.
struct QueryRows {
  const Scalar* tensor;
  Strides strides;
  const RowPlace* places;

  DEVICE bool exists(int) const { return true; }
  DEVICE const Scalar* at(int r) const { return tensor + places[r].head * strides.head + places[r].row * strides.row; }
  DEVICE const Scalar* next(const Scalar*, int r, int step, int column) const { return at(r + step) + column; }
};

// A tile being filled with columns [first_column, first_column + COLUMNS) of ROWS rows: zeros where a row is not there, nor a column
// from `end_column` on.
template <int ROWS, int COLUMNS, typename Rows> struct TileCopy {
  float* tile;
  Rows rows;
  int first_column, end_column;

  // How many elements of row r exist from column c of the tile on, and the first of them (any legal address where none does).
  DEVICE int count(int r, int c) const { return rows.exists(r) ? end_column - first_column - c : 0; }
  DEVICE const Scalar* from(int r, int c) const { return count(r, c) > 0 ? rows.at(r) + first_column + c : rows.tensor; }
};

// Copies float32 without waiting for it to arrive, and other types through registers, some pieces at a time. Registers are what the
// products need most, so nothing of this may stay in them: hence the thread index computed here.
template <int ROWS, int COLUMNS, typename Rows, typename Swizzle>
DEVICE void load_tile(const TileCopy<ROWS, COLUMNS, Rows>& copy, bool whole, Swizzle swizzle) {
  constexpr int PIECES = COLUMNS / 4, ROWS_AT_ONCE = THREADS / PIECES;
  static_assert(THREADS % PIECES == 0, "a thread stays in its column");
  const int thread = computed_here(threadIdx.x), c = thread % PIECES;
#if ELEMENT == ELEMENT_F32
  if (whole && copy.end_column % 4 == 0) {
    // Swizzles repeat after 8 rows, so a few addresses of shared memory, and distances between them, do for all rows.
    constexpr int PERIOD = ROWS_AT_ONCE % 8 == 0 ? 1 : ROWS_AT_ONCE % 4 == 0 ? 2 : ROWS_AT_ONCE % 2 == 0 ? 4 : 8;
    const int row = thread / PIECES;
    const bool inside = copy.first_column + c * 4 < copy.end_column;
    const int column = inside ? copy.first_column + c * 4 : 0;
    float* to[PERIOD];
    UNROLL for (int j = 0; j < PERIOD; ++j) {
      const int r = row + j * ROWS_AT_ONCE;
      to[j] = copy.tile + r * COLUMNS + ((c ^ swizzle(r)) << 2);
    }
    const Scalar* from = copy.rows.exists(row) ? copy.rows.at(row) + column : copy.rows.tensor;
    UNROLL for (int i = 0; i < ceil_div(ROWS, ROWS_AT_ONCE); ++i) {
      const int r = row + i * ROWS_AT_ONCE;
      if (ROWS % ROWS_AT_ONCE != 0 && r >= ROWS) break;
      cp_async_16_or_zeros(shared_address(to[i % PERIOD] + (i - i % PERIOD) * (ROWS_AT_ONCE * COLUMNS)), from, inside && copy.rows.exists(r));
      if (i + 1 < ceil_div(ROWS, ROWS_AT_ONCE)) from = copy.rows.next(from, r, ROWS_AT_ONCE, column);
    }
  } else {
    UNROLL_BY(2) for (int n = thread; n < ROWS * COLUMNS; n += THREADS) {
      const int r = n / COLUMNS, column = n % COLUMNS;
      const int bytes = copy.count(r, column) > 0 ? 4 : 0;
      cp_async_4(shared_address(copy.tile + r * COLUMNS + (column ^ swizzle(r) << 2)), copy.from(r, column), bytes);
    }
  }
#else
  constexpr int BATCH = ROWS % (4 * ROWS_AT_ONCE) == 0 ? 4 : 1;
  UNROLL_BY(1) for (int first = thread / PIECES; first < ROWS; first += ROWS_AT_ONCE * BATCH) {
    Piece fetched[BATCH];
    UNROLL for (int b = 0; b < BATCH; ++b) {
      const int r = first + b * ROWS_AT_ONCE;
      fetched[b] = fetch_piece(copy.from(r, c * 4), copy.count(r, c * 4), whole);
    }
    UNROLL for (int b = 0; b < BATCH; ++b) {
      const int r = first + b * ROWS_AT_ONCE;
      store_piece(copy.tile + r * COLUMNS + ((c ^ swizzle(r)) << 2), fetched[b]);
    }
  }
#endif
}
