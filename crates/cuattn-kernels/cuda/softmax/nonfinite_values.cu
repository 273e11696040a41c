// Gives rows that see an infinite or NaN value what it does to them, after a product with values from which it was taken out.
//
// The product P.V cannot mask: 0 * NaN is NaN. So it multiplies values made finite by copy_rows.cu, and this kernel adds the
// products of the others, for visible keys only. Where there are none, which is nearly always, a block reads a few words and ends.
#include "softmax/finite.cuh"
#include "softmax/rows.cuh"

constexpr int TILE_ROWS = 64;
constexpr int THREADS = 256;

// Mirrored by NonfiniteParams in src/softmax.rs.
struct NonfiniteParams {
  Chunk chunk;           // its scores are probabilities by now
  const Scalar* v;       // as the caller gave them
  Scalar* o;
  const u64* nonfinite;  // [batch, kv_heads, words]: a bit a key
  Strides v_strides, o_strides;
  i32 kv_heads, group;
  i32 words, v_dim;
};

// What the nonfinite elements of V in column `column` add to a row.
struct Contribution {
  float sum;
  bool any;
};

DEVICE Contribution contribution(const Scalar* probabilities, const u64* nonfinite, int words, const Scalar* v, i64 v_row) {
  Contribution total = {0.f, false};
  for (int word = 0; word < words; word++) {
    for (u64 bits = nonfinite[word]; bits; bits &= bits - 1) {
      const int key = word * 64 + __ffsll(bits) - 1;
      const float probability = Element::load(probabilities[key]);
      const Scalar value = v[key * v_row];
      if (is_masked(probability) || is_finite(value)) continue;
      total.sum += probability * Element::load(value);
      total.any = true;
    }
  }
  return total;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) nonfinite_values(const __grid_constant__ NonfiniteParams p) {
  const int tiles = ceil_div(p.chunk.rows, TILE_ROWS);
  const int slice = blockIdx.x / tiles, first = blockIdx.x % tiles * TILE_ROWS;
  const RowPlace unit = place_of(p.chunk, slice * p.chunk.rows);
  const i64 kv_head = unit.head / p.group;
  const u64* const nonfinite = p.nonfinite + (unit.batch * (i64)p.kv_heads + kv_head) * p.words;

  u64 any = 0;
  for (int word = threadIdx.x; word < p.words; word += THREADS) any |= nonfinite[word];
  if (!__syncthreads_or(any != 0)) return;

  const Scalar* const v = p.v + unit.batch * p.v_strides.batch + kv_head * p.v_strides.head;
  for (int r = first + threadIdx.x / 32; r < min_of(first + TILE_ROWS, p.chunk.rows); r += THREADS / 32) {
    const int index = slice * p.chunk.rows + r;
    const RowPlace at = place_of(p.chunk, index);
    const Scalar* const probabilities = reinterpret_cast<const Scalar*>(scores_of(p.chunk, index));
    Scalar* const o = p.o + at.batch * p.o_strides.batch + at.head * p.o_strides.head + at.query * p.o_strides.row;
    for (int column = threadIdx.x % 32; column < p.v_dim; column += 32) {
      const Contribution c = contribution(probabilities, nonfinite, p.words, v + column, p.v_strides.row);
      if (c.any) o[column] = Element::store(Element::load(o[column]) + c.sum);
    }
  }
}
