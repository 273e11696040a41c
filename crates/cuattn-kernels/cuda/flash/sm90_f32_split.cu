// Before float32 attention on Hopper's tensor cores: q, k and v in f16 halves. Two kernels of one grid, a block for each CHUNK_ROWS rows
// of a head: the first measures its rows, the second learns the head's range from all its blocks, and splits.
//
// Constants: HEAD_DIM, V_HEAD_DIM (multiples of 8 up to 128), ELEMENT and BIAS for the files below.
//
// Only rows that can matter are looked at: keys that no query sees by length, causal mask or window may hold anything. They become
// zeros where a tile may reach, and are not written where none does.
#include "numeric.cuh"
#include "mask.cuh"
#include "flash/sm90_f32_halves.cuh"

constexpr int THREADS = 256;
constexpr int CHUNK_ROWS = 128;  // a multiple of any block of keys
constexpr int UNROLLED = 8;      // rows of a thread that are loaded together

enum class Tensor { Queries, Keys, Values };

// What a block works on.
struct Chunk {
  Tensor tensor;
  int unit;          // the head, among all of its tensor
  int number, count; // of the chunk, and of chunks, in the head
  const float* head; // row 0
  i64 row_stride;
  int rows;          // of the head
  KeyRange used;     // of these
  u16* halves;       // of the head
  i64 plane;         // from high to low halves
  HeadRange* parts;  // of the head, one for each chunk
  HeadRange* range;  // of the head

  DEVICE Chunk(const Sm90F32Params& p, int block) {
    const FlashParams& f = p.flash;
    parts = p.parts + block;  // until the chunk's number is known
    const int q_units = f.batch * f.q_heads, kv_units = f.batch * f.kv_heads;
    const int q_chunks = ceil_div(f.mask.q_len, CHUNK_ROWS), kv_chunks = ceil_div(f.mask.kv_len, CHUNK_ROWS);
    if (block < q_units * q_chunks) {
      place(Tensor::Queries, block, q_chunks, f.q, f.q_strides, f.q_heads);
      rows = f.mask.q_len;
      used = {0, rows};
      put(p.q, q_units, HEAD_DIM, p.ranges);
      return;
    }
    block -= q_units * q_chunks;
    const bool is_value = block >= kv_units * kv_chunks;
    if (is_value) place(Tensor::Values, block - kv_units * kv_chunks, kv_chunks, f.v, f.v_strides, f.kv_heads);
    else place(Tensor::Keys, block, kv_chunks, f.k, f.k_strides, f.kv_heads);
    rows = f.mask.kv_len;
    const Sequence sequence = load_sequence(f.mask, unit / f.kv_heads);
    // Both ends of what a row sees grow with the row.
    used = {visible_keys(sequence, 0).begin, visible_keys(sequence, sequence.q_len - 1).end};
    if (is_value) put(p.v, kv_units, V_HEAD_DIM, p.ranges + q_units + kv_units);
    else put(p.k, kv_units, HEAD_DIM, p.ranges + q_units);
  }

  DEVICE int first_row() const { return number * CHUNK_ROWS; }
  DEVICE bool is_used() const { return first_row() < used.end && first_row() + CHUNK_ROWS > used.begin; }

 private:
  DEVICE void place(Tensor of, int block, int chunks, const void* data, const Strides& strides, int heads) {
    tensor = of;
    unit = block / chunks;
    number = block - unit * chunks;
    count = chunks;
    parts -= number;
    const int batch = unit / heads;
    head = static_cast<const float*>(data) + batch * strides.batch + (unit - batch * heads) * strides.head;
    row_stride = strides.row;
  }
  DEVICE void put(u16* planes, int units, int dim, HeadRange* ranges) {
    halves = planes + (i64)unit * rows * dim;
    plane = (i64)units * rows * dim;
    range = ranges + unit;
  }
};

struct alignas(16) Piece {
  float at[4];
};
struct alignas(8) HalfPiece {
  u32 pair[2];
};

// How the threads of a block share the rows of a chunk: a row has LANES neighbouring lanes, four elements each.
template <int DIM> struct Lanes {
  static constexpr int PIECES = DIM / 4;
  static constexpr int LANES = PIECES <= 4 ? 4 : PIECES <= 8 ? 8 : PIECES <= 16 ? 16 : 32;
  static constexpr int ROWS_AT_ONCE = THREADS / LANES;
  static constexpr int STEPS = CHUNK_ROWS / ROWS_AT_ONCE;
  static constexpr int TOGETHER = min_of(STEPS, UNROLLED);
  static_assert(PIECES <= 32 && DIM % 4 == 0, "a row is spread over one warp at most");

  // Calls `each(row, column, piece)` for all that is in the chunk; rows that are not used are zeros.
  template <typename Each> static DEVICE void for_each(const Chunk& chunk, Each each) {
    const int lane = threadIdx.x % LANES, first = chunk.first_row() + threadIdx.x / LANES;
    const bool whole = ((u64)chunk.head % sizeof(Piece) | (u64)chunk.row_stride % 4) == 0;
#pragma unroll 1
    for (int step = 0; step < STEPS; step += TOGETHER) {
      Piece pieces[TOGETHER];
      UNROLL for (int i = 0; i < TOGETHER; ++i) {
        const int row = first + (step + i) * ROWS_AT_ONCE;
        const float* from = chunk.head + row * chunk.row_stride + lane * 4;
        pieces[i] = {};
        if (lane < PIECES && chunk.used.contains(row)) {
          if (whole) pieces[i] = *reinterpret_cast<const Piece*>(from);
          else UNROLL for (int e = 0; e < 4; ++e) pieces[i].at[e] = from[e];
        }
      }
      UNROLL for (int i = 0; i < TOGETHER; ++i) each(first + (step + i) * ROWS_AT_ONCE, lane * 4, pieces[i]);
    }
  }
};

// Ranges of parts make the range of the whole, in whatever order.
template <Tensor OF> struct Measure {
  static constexpr bool VALUES = OF == Tensor::Values;

  static DEVICE HeadRange nothing() { return {0, VALUES ? INFINITY_F32 : 0.f}; }
  static DEVICE HeadRange join(const HeadRange& a, const HeadRange& b) {
    return {max_of(a.largest, b.largest), VALUES ? fminf(a.row, b.row) : fmaxf(a.row, b.row)};
  }

  // Of a whole block, in all its threads.
  static DEVICE HeadRange join_block(HeadRange range) {
    __shared__ HeadRange warps[THREADS / 32];
    UNROLL for (int bit = 16; bit > 0; bit >>= 1)
      range = join(range, {__shfl_xor_sync(WARP_MASK, range.largest, bit), __shfl_xor_sync(WARP_MASK, range.row, bit)});
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = range;
    __syncthreads();
    range = warps[0];
    UNROLL for (int warp = 1; warp < THREADS / 32; ++warp) range = join(range, warps[warp]);
    return range;
  }

  template <int DIM> static DEVICE HeadRange chunk(const Chunk& chunk) {
    HeadRange range = nothing();
    Lanes<DIM>::for_each(chunk, [&](int, int, const Piece& x) {
      u32 top = 0;
      float sum = 0.f;
      UNROLL for (int e = 0; e < 4; ++e) {
        top = max_of(top, __float_as_uint(fabsf(x.at[e])));
        sum += fabsf(x.at[e]);
      }
      UNROLL for (int bit = Lanes<DIM>::LANES / 2; bit > 0; bit >>= 1) {
        if (VALUES) top = max_of(top, __shfl_xor_sync(WARP_MASK, top, bit));
        else sum += __shfl_xor_sync(WARP_MASK, sum, bit);
      }
      range = join(range, {top, VALUES ? (top == 0 ? INFINITY_F32 : __uint_as_float(top)) : sum});
    });
    return join_block(range);
  }

  // Of the chunk's head, from what its blocks have measured.
  static DEVICE HeadRange head(const Chunk& chunk) {
    HeadRange range = nothing();
    for (int i = threadIdx.x; i < chunk.count; i += THREADS) range = join(range, chunk.parts[i]);
    return join_block(range);
  }
};

template <Tensor OF, int DIM> DEVICE void measure(const Chunk& chunk) {
  const HeadRange range = chunk.is_used() ? Measure<OF>::template chunk<DIM>(chunk) : Measure<OF>::nothing();
  if (threadIdx.x == 0) chunk.parts[chunk.number] = range;
}

template <Tensor OF, int DIM> DEVICE void split(const Chunk& chunk) {
  const HeadRange range = Measure<OF>::head(chunk);
  if (chunk.number == 0 && threadIdx.x == 0) *chunk.range = range;
  // Nobody reads a head that is not finite.
  if (!chunk.is_used() || !is_finite(range)) return;
  const float scale = power_of_two(scale_exponent(range));
  Lanes<DIM>::for_each(chunk, [&](int row, int column, Piece x) {
    if (row >= chunk.rows || column >= DIM) return;
    HalfPiece high, low;
    UNROLL for (int i = 0; i < 2; ++i) {
      const float a = x.at[2 * i] * scale, b = x.at[2 * i + 1] * scale;
      high.pair[i] = F16::pack(a, b);
      low.pair[i] = F16::pack(a - F16::load((u16)high.pair[i]), b - F16::load((u16)(high.pair[i] >> 16)));
    }
    u16* to = chunk.halves + (i64)row * DIM + column;
    *reinterpret_cast<HalfPiece*>(to) = high;
    *reinterpret_cast<HalfPiece*>(to + chunk.plane) = low;
  });
}

extern "C" __global__ void __launch_bounds__(THREADS) flash_sm90_f32_measure(const __grid_constant__ Sm90F32Params p) {
  const Chunk chunk(p, blockIdx.x);
  if (chunk.tensor == Tensor::Queries) measure<Tensor::Queries, HEAD_DIM>(chunk);
  else if (chunk.tensor == Tensor::Keys) measure<Tensor::Keys, HEAD_DIM>(chunk);
  else measure<Tensor::Values, V_HEAD_DIM>(chunk);
}

extern "C" __global__ void __launch_bounds__(THREADS) flash_sm90_f32_split(const __grid_constant__ Sm90F32Params p) {
  // Backwards: what was measured last is still in L2.
  const Chunk chunk(p, gridDim.x - 1 - blockIdx.x);
  if (chunk.tensor == Tensor::Queries) split<Tensor::Queries, HEAD_DIM>(chunk);
  else if (chunk.tensor == Tensor::Keys) split<Tensor::Keys, HEAD_DIM>(chunk);
  else split<Tensor::Values, V_HEAD_DIM>(chunk);
}
