// Fused online-softmax attention without tensor cores: the path for float32 with float32's accuracy, and the one that never refuses. Any
// element type, any head_dim and v_head_dim, any strides, any alignment.
//
// A block owns BLOCK_ROWS packed rows and V_COLUMNS columns of v, and walks over the keys that its rows see. Heads longer than
// DIM_CHUNK pass through shared memory in chunks; values wider than V_COLUMNS are split over blocks, each of which computes the
// scores anew. EXACT promises head_dim == DIM_CHUNK and v_head_dim == V_COLUMNS.
#include "flash/simt_products.cuh"
#include "flash/simt_softmax.cuh"

// What a block computes: rows of a head unit, and columns of v.
struct BlockPlace {
  Tile tile;
  int first_column;

  // Of block `block`: `find` makes a tile of a tile's number.
  template <typename Find> DEVICE static BlockPlace of(const FlashParams& p, int block, Find find) {
    const int splits = ceil_div(p.v_head_dim, V_COLUMNS), number = block / splits;
    return {find(number), (block - number * splits) * V_COLUMNS};
  }
};

// Writes the lane's part of o, and, of one block of columns, the log-sum-exp.
DEVICE void write_output(const FlashParams& p, Output& o, const SoftmaxState& state, const RowPlace* places, const BlockPlace& block) {
  const Lane lane(computed_here(threadIdx.x));
  const Tile& tile = block.tile;
  const bool whole = whole_pieces(p.o, p.o_strides);
  UNROLL for (int i = 0; i < LANE_ROWS; ++i) {
    const int r = lane.first_row + i * ROW_LANES;
    const RowPlace place = places[r];
    const RowResult result = state.finish(i, p.sinks != nullptr ? p.sinks[place.head] : -INFINITY_F32);
    if (tile.first_row + r >= query_len(p, tile) * p.pack) continue;
    if (p.log_sum_exp != nullptr && block.first_column == 0 && lane.column == 0)
      p.log_sum_exp[log_sum_exp_at(p, tile, {place.row, place.head})] = result.log_sum_exp;
    Scalar* row = static_cast<Scalar*>(p.o) + query_base(p.o_strides, tile) + place.head * p.o_strides.head + place.row * p.o_strides.row;
    o.scale_row(i, result.factor);
    UNROLL for (int j = 0; j < LANE_PIECES; ++j) {
      const int column = block.first_column + (lane.column + j * COLUMN_LANES) * 4, count = p.v_head_dim - column;
      PackedPiece packed;
      UNROLL for (int e = 0; e < 4; ++e) packed.at[e] = Element::store(o.at[i][j].at[e]);
      if (whole && count >= 4) {
        *reinterpret_cast<PackedPiece*>(row + column) = packed;
      } else {
        UNROLL for (int e = 0; e < 4; ++e)
          if (e < count) row[column + e] = packed.at[e];
      }
    }
  }
}

// Computes what `find_place()` says. It is asked again before the output is written, since the main loop needs the registers that
// would remember it.
template <typename FindPlace> DEVICE void compute_block(const FlashParams& p, float* shared, FindPlace find_place) {
  const SharedTiles tiles(shared);
  const Lane lane(threadIdx.x);

  const BlockPlace place = find_place();
  const Tile& tile = place.tile;
  const Sequence sequence = load_sequence(p, tile);
  const RowSpan span(p, sequence, tile.first_row, BLOCK_ROWS);
  const int first_block = span.any.begin / BLOCK_KEYS, end_block = ceil_div(span.any.end, BLOCK_KEYS);
  fill_row_places(tiles.places, p, tile, sequence);
  __syncthreads();

  const QueryRows q = {static_cast<const Scalar*>(p.q) + query_base(p.q_strides, tile), p.q_strides, tiles.places};
  const Scalar* k = static_cast<const Scalar*>(p.k) + key_base(p.k_strides, tile);
  const Scalar* v = static_cast<const Scalar*>(p.v) + key_base(p.v_strides, tile);
  const bool q_whole = whole_pieces(p.q, p.q_strides), k_whole = whole_pieces(p.k, p.k_strides), v_whole = whole_pieces(p.v, p.v_strides);
#ifdef EXACT
  constexpr int CHUNKS = 1;
#else
  const int CHUNKS = ceil_div(p.head_dim, DIM_CHUNK);
#endif

  const auto load_q = [&](int chunk) {
    load_tile(TileCopy<BLOCK_ROWS, DIM_CHUNK, QueryRows>{tiles.q, q, chunk * DIM_CHUNK, p.head_dim}, q_whole, row_swizzle);
  };
  const auto load_k = [&](int block, int chunk) {
    const KeyRows rows = {p, p.k_strides, tile, k, block * BLOCK_KEYS, sequence.kv_len};
    load_tile(TileCopy<BLOCK_KEYS, DIM_CHUNK, KeyRows>{tiles.k, rows, chunk * DIM_CHUNK, p.head_dim}, k_whole, key_swizzle);
  };
  const auto load_v = [&](int block) {
    const KeyRows rows = {p, p.v_strides, tile, v, block * BLOCK_KEYS, sequence.kv_len};
    load_tile(TileCopy<BLOCK_KEYS, V_COLUMNS, KeyRows>{tiles.v, rows, place.first_column, p.v_head_dim}, v_whole, [](int) { return 0; });
  };

  Output o;
  SoftmaxState state;
  // A masked key's probability is 0, but 0 times a NaN in its v is NaN. Looking for NaN in v would cost every launch; instead a block
  // whose result came out non-finite starts over with a product that leaves masked keys out.
  for (int attempt = 0;; ++attempt) {
    const bool selecting = attempt != 0;
    o.clear();
    state.clear();
    if (first_block < end_block) {
      load_q(0);
      load_k(first_block, 0);
      cp_async_commit();
      load_v(first_block);
      cp_async_commit();
    }
    // Each tile of k, and of v, is fetched as soon as its predecessor has been used: k while p v is computed, v while q k is.
    for (int block = first_block; block < end_block; ++block) {
      const int first_key = block * BLOCK_KEYS;
      Scores s;
      s.clear();
      for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        if (chunk == 0) cp_async_wait<1>();  // all but v
        else cp_async_wait<0>();
        __syncthreads();
        multiply_qk(s, tiles, lane, ceil_div(min_of(p.head_dim - chunk * DIM_CHUNK, DIM_CHUNK), 4));
        __syncthreads();
        const bool last_chunk = chunk + 1 == CHUNKS;
        const int next_block = last_chunk ? block + 1 : block, next_chunk = last_chunk ? 0 : chunk + 1;
        if (next_block < end_block) {
          if (CHUNKS > 1) load_q(next_chunk);
          load_k(next_block, next_chunk);
        }
        cp_async_commit();
      }
      if (SCORES_READ_MEMORY || !span.sees_all(first_key, first_key + BLOCK_KEYS))
        finish_scores<true>(s, p, tile, tiles.places, lane, first_key);
      else
        finish_scores<SCORES_READ_MEMORY>(s, p, tile, tiles.places, lane, first_key);
      const MaskedKeys masked = selecting ? MaskedKeys::of(s) : MaskedKeys{0};
      state.step(s, o);
      if (selecting) masked.mark(s, LEFT_OUT);
      store_probabilities(s, tiles, lane);
      cp_async_wait<1>();  // all but the next k
      __syncthreads();
      if (selecting) multiply_pv<true>(o, tiles, lane);
      else multiply_pv<false>(o, tiles, lane);
      __syncthreads();
      if (block + 1 < end_block) load_v(block + 1);
      cp_async_commit();
    }
    cp_async_wait<0>();
    if (!__syncthreads_or(!selecting && !o.is_finite())) break;
  }
  write_output(p, o, state, tiles.places, find_place());
}

#if !defined(VARLEN) && !defined(OTHER_ENTRY)
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) flash_simt(const __grid_constant__ FlashParams p) {
  extern __shared__ __align__(128) float shared[];
  compute_block(p, shared, [&] {
    return BlockPlace::of(p, computed_here(blockIdx.x), [&](int number) { return tile_at(p, number, BLOCK_ROWS); });
  });
}
#endif
