// Copies the rows of a [batch, heads, rows, dim] tensor from one layout to another: for layouts that a matrix product cannot take,
// and to keep infinities and NaN of masked values out of it.
//
// COPY says what is stored. A block does TILE_ROWS rows of one head.
#include "softmax/finite.cuh"
#include "params.cuh"

#define COPY_PLAIN 0
#define COPY_FINITE 1  // infinities and NaN become 0, and a bit a row in `nonfinite` says where they were
#define COPY_ZERO 2    // the source is not read

constexpr int TILE_ROWS = 64;
constexpr int THREADS = 256;

// Mirrored by CopyParams in src/softmax.rs.
struct CopyParams {
  const Scalar* source;
  Scalar* target;
  u64* nonfinite;  // [batch, heads, ceil(rows / 64)], where COPY is COPY_FINITE
  Strides from, to;
  i32 heads, rows, dim;
  i32 wide;        // whether every row, in both, can be taken in pieces of 16 bytes
};

template <typename Piece> struct Words {
  Piece piece;
  static constexpr int COUNT = sizeof(Piece) / 4;
  DEVICE void make_finite(bool& found) {
    u32* const words = reinterpret_cast<u32*>(&piece);
    UNROLL for (int i = 0; i < COUNT; i++) words[i] = finite_or_zero(words[i], found);
  }
};
template <> struct Words<u16> {
  u16 piece;
  DEVICE void make_finite(bool& found) { piece = (u16)finite_or_zero(piece, found); }
};

template <typename Piece>
DEVICE void copy_tile(const Scalar* source, Scalar* target, const CopyParams& p, int rows, u32 (&found)[TILE_ROWS / 32]) {
  constexpr int ELEMENTS = sizeof(Piece) / sizeof(Scalar);
  const int pieces = p.dim / ELEMENTS;
  for (int i = threadIdx.x; i < rows * pieces; i += THREADS) {
    const int row = i / pieces, column = i % pieces * ELEMENTS;
    Words<Piece> words = {};
    if (COPY != COPY_ZERO) words.piece = *reinterpret_cast<const Piece*>(source + row * p.from.row + column);
    if (COPY == COPY_FINITE) {
      bool nonfinite = false;
      words.make_finite(nonfinite);
      if (nonfinite) atomicOr(&found[row / 32], 1u << row % 32);
    }
    *reinterpret_cast<Piece*>(target + row * p.to.row + column) = words.piece;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) copy_rows(const __grid_constant__ CopyParams p) {
  __shared__ u32 found[TILE_ROWS / 32];
  const int tiles = ceil_div(p.rows, TILE_ROWS);
  const int slice = blockIdx.x / tiles, first = blockIdx.x % tiles * TILE_ROWS;
  const i64 batch = slice / p.heads, head = slice % p.heads;
  const Scalar* const source = p.source + batch * p.from.batch + head * p.from.head + first * p.from.row;
  Scalar* const target = p.target + batch * p.to.batch + head * p.to.head + first * p.to.row;
  const int rows = min_of(TILE_ROWS, p.rows - first);

  if (threadIdx.x < TILE_ROWS / 32) found[threadIdx.x] = 0;
  __syncthreads();
  if (p.wide) {
    copy_tile<uint4>(source, target, p, rows, found);
  } else {
    copy_tile<Scalar>(source, target, p, rows, found);
  }
  if (COPY == COPY_FINITE) {
    __syncthreads();
    if (threadIdx.x == 0) p.nonfinite[blockIdx.x] = (u64)found[1] << 32 | found[0];
  }
}
