// Gathers the rows of up to three [batch, heads, rows, dim] tensors: first those of a past, then the new ones, with a vector added
// to each new row where there is one. A key-value cache that grows by a step is one launch for keys and values.
//
// A block does TILE_ROWS rows of one head of the tensor that its y index names.
#include "numeric.cuh"
#include "params.cuh"

constexpr int TILE_ROWS = 64;
constexpr int THREADS = 256;
constexpr int MOST_TENSORS = 3;

// Mirrored by GatherTensor in src/ep.rs.
struct GatherTensor {
  const Scalar* past;  // read where past_rows is not 0
  const Scalar* fresh;
  const Scalar* add;   // [heads, dim], or null
  Scalar* target;
  Strides from_past, from_fresh, to;
  i32 slices;          // batch * heads
  i32 heads;
  i32 past_rows;
  i32 rows;            // past and new ones
  i32 dim;
  i32 wide;            // whether every row, in all three, can be taken in pieces of 16 bytes
};

struct GatherParams {
  GatherTensor tensors[MOST_TENSORS];
};

// Where a row comes from.
DEVICE const Scalar* source_row(const GatherTensor& t, i64 batch, i64 head, int row) {
  if (row < t.past_rows) return t.past + batch * t.from_past.batch + head * t.from_past.head + row * t.from_past.row;
  return t.fresh + batch * t.from_fresh.batch + head * t.from_fresh.head + (row - t.past_rows) * t.from_fresh.row;
}

template <typename Piece> DEVICE void copy_tile(const GatherTensor& t, i64 batch, i64 head, int first, int rows) {
  constexpr int ELEMENTS = sizeof(Piece) / sizeof(Scalar);
  Scalar* const target = t.target + batch * t.to.batch + head * t.to.head;
  const int pieces = t.dim / ELEMENTS;
  for (int i = threadIdx.x; i < rows * pieces; i += THREADS) {
    const int row = first + i / pieces, column = i % pieces * ELEMENTS;
    const Piece piece = *reinterpret_cast<const Piece*>(source_row(t, batch, head, row) + column);
    *reinterpret_cast<Piece*>(target + row * t.to.row + column) = piece;
  }
}

DEVICE void add_tile(const GatherTensor& t, i64 batch, i64 head, int first, int rows) {
  Scalar* const target = t.target + batch * t.to.batch + head * t.to.head;
  for (int i = threadIdx.x; i < rows * t.dim; i += THREADS) {
    const int row = first + i / t.dim, column = i % t.dim;
    Scalar value = source_row(t, batch, head, row)[column];
    if (row >= t.past_rows) value = Element::store(Element::load(value) + Element::load(t.add[head * t.dim + column]));
    target[row * t.to.row + column] = value;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) gather_rows(const __grid_constant__ GatherParams p) {
  const GatherTensor& t = p.tensors[blockIdx.y];
  const int tiles = ceil_div(t.rows, TILE_ROWS);
  if (tiles == 0) return;
  const int slice = blockIdx.x / tiles, first = blockIdx.x % tiles * TILE_ROWS;
  if (slice >= t.slices) return;
  const i64 batch = slice / t.heads, head = slice % t.heads;
  const int rows = min_of(TILE_ROWS, t.rows - first);
  if (t.add != nullptr) {
    add_tile(t, batch, head, first, rows);
  } else if (t.wide) {
    copy_tile<uint4>(t, batch, head, first, rows);
  } else {
    copy_tile<Scalar>(t, batch, head, first, rows);
  }
}
