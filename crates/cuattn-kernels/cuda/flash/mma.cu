// Fused attention on mma.sync m16n8k16, f16 and bf16, from sm_80 on.
//
// A block computes BLOCK_ROWS packed query rows of one head unit. Its warps own 16 * ROW_TILES rows each and never exchange
// scores. Keys and values pass through two stages of shared memory: while block n is computed, block n-1 is on its way.
//
// Constants: ELEMENT, HEAD_DIM, V_HEAD_DIM (multiples of 8), WARPS, ROW_TILES, BLOCK_KEYS, BLOCKS_PER_SM, BIAS; options: BIAS_STAGED,
// SOFTCAP, SCORE_MOD, NATURAL.
#include "numeric.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"
#include "ptx/shared.cuh"
#include "params.cuh"
#include "mask.cuh"
#include "score.cuh"
#include "shared_tile.cuh"
#include "tile_scheduler.cuh"
#include "flash/fragments.cuh"
#include "flash/online_softmax.cuh"
#include "flash/bias_tile.cuh"
#include "flash/selected_product.cuh"

// Eight lanes copy a row, 128 bytes at a time; a block of THREADS copies ROWS_AT_ONCE rows.
constexpr int LANES_PER_ROW = 8;
constexpr int ROWS_AT_ONCE = THREADS / LANES_PER_ROW;

// Chunks `lane`, `lane + 8`, … of one row; columns from DIM on become zeros, and so does the whole row where it is not `valid`: then it
// may be any address. `row`: the lane's first chunk.
template <int DIM, int COLUMNS> DEVICE void load_row(u32 address, const Scalar* row, bool valid) {
  UNROLL for (int c = 0; c < ceil_div(COLUMNS / 8, LANES_PER_ROW); ++c) {
    const int chunk = threadIdx.x % LANES_PER_ROW + c * LANES_PER_ROW;
    if ((COLUMNS / 8) % LANES_PER_ROW != 0 && chunk >= COLUMNS / 8) break;
    cp_async_16_or_zeros(address + c * 128, row + c * LANES_PER_ROW * 8, valid && (DIM == COLUMNS || chunk * 8 < DIM));
  }
}

// Keys [first, end) of the tile's sequence, of k or v, into BLOCK_KEYS rows at `address`; keys beyond become zeros.
template <int DIM, int COLUMNS>
DEVICE void load_keys(u32 address, const FlashParams& p, const Scalar* base, const Strides& strides, const Tile& tile, int first, int end) {
  const int thread = computed_here(threadIdx.x), row = thread / LANES_PER_ROW, lane = thread % LANES_PER_ROW;
  address += SharedTile<COLUMNS>::offset(row, lane);
#ifndef PAGED
  const Scalar* source = base + key_offset(p, strides, tile, first + row) + lane * 8;
#endif
  UNROLL for (int i = 0; i < ceil_div(BLOCK_KEYS, ROWS_AT_ONCE); ++i) {
    if (BLOCK_KEYS % ROWS_AT_ONCE != 0 && row + i * ROWS_AT_ONCE >= BLOCK_KEYS) break;
    const bool valid = first + row + i * ROWS_AT_ONCE < end;
#ifdef PAGED
    const Scalar* source = base + (valid ? key_offset(p, strides, tile, first + row + i * ROWS_AT_ONCE) : 0) + lane * 8;
#endif
    load_row<DIM, COLUMNS>(address + i * ROWS_AT_ONCE * SharedTile<COLUMNS>::PITCH, source, valid);
#ifndef PAGED
    source += ROWS_AT_ONCE * strides.row;
#endif
  }
}

// The packed query rows of a tile.
DEVICE void load_queries(u32 tile_address, const FlashParams& p, const Tile& tile) {
  const Scalar* base = static_cast<const Scalar*>(p.q) + query_base(p.q_strides, tile);
  const int rows = query_len(p, tile) * p.pack;
#pragma unroll 1
  for (int row = computed_here(threadIdx.x) / LANES_PER_ROW; row < BLOCK_ROWS; row += ROWS_AT_ONCE) {
    const bool valid = tile.first_row + row < rows;
    const PackedRow at = unpack_row(p, tile, valid ? tile.first_row + row : 0);
    load_row<HEAD_DIM, QK_COLUMNS>(tile_address + SharedTile<QK_COLUMNS>::offset(row, threadIdx.x % LANES_PER_ROW),
                                   base + at.head * p.q_strides.head + at.row * p.q_strides.row + threadIdx.x % LANES_PER_ROW * 8, valid);
  }
}

// Where the lane reads the 8x8 matrices that make its operands, relative to the tile.
struct LaneAddresses {
  u32 q, k, v;

  DEVICE LaneAddresses(u32 q_tile, u32 k_tiles, u32 v_tiles) {
    const int lane = threadIdx.x & 31;
    q = q_tile + SharedTile<QK_COLUMNS>::offset((threadIdx.x >> 5) * WARP_ROWS + (lane & 15), lane >> 4);
    k = k_tiles + SharedTile<QK_COLUMNS>::offset((lane >> 4) * 8 + (lane & 7), (lane >> 3) & 1);
    v = v_tiles + SharedTile<V_COLUMNS>::offset(lane & 15, lane >> 4);
  }
};

// s = Q K^T for the warp's rows and all keys of the block.
DEVICE void multiply_qk(Scores& s, u32 q, u32 k) {
  UNROLL for (int m = 0; m < ROW_TILES; ++m)
    UNROLL for (int n = 0; n < KEY_TILES; ++n)
      UNROLL for (int e = 0; e < 4; ++e) s.at[m][n][e] = 0.f;
  UNROLL for (int step = 0; step < QK_COLUMNS / 16; ++step) {
    u32 a[ROW_TILES][4];
    UNROLL for (int m = 0; m < ROW_TILES; ++m)
      ldmatrix_x4(a[m], SharedTile<QK_COLUMNS>::advance(q, step * 2) + m * 16 * SharedTile<QK_COLUMNS>::PITCH);
    UNROLL for (int n = 0; n < KEY_TILES; n += 2) {
      u32 b[4];
      ldmatrix_x4(b, SharedTile<QK_COLUMNS>::advance(k, step * 2) + n * 8 * SharedTile<QK_COLUMNS>::PITCH);
      UNROLL for (int m = 0; m < ROW_TILES; ++m) {
        mma_16816(s.at[m][n], a[m], b[0], b[1]);
        mma_16816(s.at[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// o += P V, where P stands in the scores.
DEVICE void multiply_pv(Output& o, const Scores& p, u32 v) {
  UNROLL for (int step = 0; step < BLOCK_KEYS / 16; ++step) {
    u32 a[ROW_TILES][4];
    UNROLL for (int m = 0; m < ROW_TILES; ++m)
      UNROLL for (int i = 0; i < 4; ++i) {
        const float(&c)[4] = p.at[m][2 * step + (i >> 1)];
        a[m][i] = Element::pack(c[(i & 1) * 2], c[(i & 1) * 2 + 1]);
      }
    UNROLL for (int n = 0; n < V_TILES; n += 2) {
      u32 b[4];
      ldmatrix_x4_trans(b, SharedTile<V_COLUMNS>::advance(v, n) + step * 16 * SharedTile<V_COLUMNS>::PITCH);
      UNROLL for (int m = 0; m < ROW_TILES; ++m) {
        mma_16816(o.at[m][n], a[m], b[0], b[1]);
        mma_16816(o.at[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// The warp's rows of o, rounded, by way of shared memory so that each row is written in 16-byte pieces; and log-sum-exp.
DEVICE void write_output(const FlashParams& p, const Tile& tile, const Output& o, const RowResult& result, u32 staging) {
  const int lane = threadIdx.x & 31, first_row = (threadIdx.x >> 5) * WARP_ROWS;
  const int rows = query_len(p, tile) * p.pack;
  UNROLL for (int m = 0; m < ROW_TILES; ++m)
    UNROLL for (int half = 0; half < 2; ++half) {
      const int local = first_row + m * 16 + half * 8 + (lane >> 2);
      const float factor = result.factor[m * 2 + half];
      UNROLL for (int n = 0; n < V_TILES; ++n)
        store_shared(staging + SharedTile<V_COLUMNS>::offset(local, n) + (lane & 3) * 4,
                     Element::pack(o.at[m][n][half * 2] * factor, o.at[m][n][half * 2 + 1] * factor));
      if (p.log_sum_exp != nullptr && (lane & 3) == 0 && tile.first_row + local < rows) {
        const PackedRow at = unpack_row(p, tile, tile.first_row + local);
        p.log_sum_exp[log_sum_exp_at(p, tile, at)] = result.log_sum_exp[m * 2 + half];
      }
    }
  __syncwarp();
  constexpr int CHUNKS = V_HEAD_DIM / 8;
  Scalar* base = static_cast<Scalar*>(p.o) + query_base(p.o_strides, tile);
  for (int n = lane; n < WARP_ROWS * CHUNKS; n += 32) {
    const int local = first_row + n / CHUNKS, chunk = n % CHUNKS;
    if (tile.first_row + local >= rows) break;
    const PackedRow at = unpack_row(p, tile, tile.first_row + local);
    *reinterpret_cast<Chunk*>(base + at.head * p.o_strides.head + at.row * p.o_strides.row + chunk * 8) =
        load_shared_16(staging + SharedTile<V_COLUMNS>::offset(local, chunk));
  }
}

constexpr int WARP_SCRATCH = max_of<int>(BiasTile::WARP_BYTES, SelectedProduct::SCRATCH_BYTES);

DEVICE void compute_tile(const FlashParams& p, BlockContext& context, unsigned char* shared) {
  const u32 q_tile = shared_address(shared);
  const u32 k_tiles = q_tile + SharedTile<QK_COLUMNS>::bytes(BLOCK_ROWS);
  const u32 v_tiles = k_tiles + STAGES * K_STAGE;
  // The warp's own: the bias of a block until its scores are finished, then, if need be, its probabilities.
  const u32 warp_scratch = v_tiles + STAGES * V_STAGE + (threadIdx.x >> 5) * WARP_SCRATCH;

  const Tile& tile = context.tile;
  const Sequence& sequence = context.sequence;
  const RowSpan& warp_rows = context.warp_rows[threadIdx.x >> 5];
  const int first_block = context.any_begin / BLOCK_KEYS, end_block = ceil_div(context.any_end, BLOCK_KEYS);
  const LanePlace place(tile);
  const LaneAddresses lane_at(q_tile, k_tiles, v_tiles);

  while (true) {
    Output o;
    SoftmaxState state;
    o.clear();
    state.clear();

    const auto load_block = [&](int block) {
      const int first_key = block * BLOCK_KEYS;
      load_keys<HEAD_DIM, QK_COLUMNS>(k_tiles + (block & 1) * K_STAGE, p, context.k, p.k_strides, tile, first_key, sequence.kv_len);
      load_keys<V_HEAD_DIM, V_COLUMNS>(v_tiles + (block & 1) * V_STAGE, p, context.v, p.v_strides, tile, first_key, sequence.kv_len);
    };
    load_queries(q_tile, p, tile);
    // The turn of a block begins by sending for the one before it; turn `end_block` does nothing else.
    for (int block = end_block; block >= first_block; --block) {
      cp_async_wait<0>();
      __syncthreads();  // the block has landed for all, and all are done with the one after it
      if (block > first_block) {
        load_block(block - 1);
        if (block == end_block) BiasTile::load(warp_scratch, p, tile, block - 1);
      }
      cp_async_commit();
      if (block == end_block) continue;
      const int first_key = block * BLOCK_KEYS;
      if (warp_rows.sees(first_key, first_key + BLOCK_KEYS)) {
        Scores s;
        multiply_qk(s, lane_at.q, lane_at.k + (block & 1) * K_STAGE);
        const Attempt attempt = context.attempt;
        const bool selecting = attempt == SELECTING;
        finish_scores(s, p, sequence, place, first_key, warp_scratch);
        if (!warp_rows.sees_all(first_key, first_key + BLOCK_KEYS)) mask_scores(s, p, sequence, place, first_key, {sequence.left_edge > -FAR_EDGE, true});
        const MaskedKeys masked = selecting ? masked_keys(s) : MaskedKeys{};
        float rescale[LANE_ROWS];
        const auto remember = [&](int r, float factor) { rescale[r] = factor; };
        bool settled = attempt == FAST && state.is_settled();  // found anew: no register is left to keep it in
        if (state.take<false>(s, p.score, settled, attempt != FAST, remember, [&] { state.spoil(); }))
          UNROLL for (int r = 0; r < LANE_ROWS; ++r) o.scale_row(r, rescale[r]);
        if (selecting) SelectedProduct::accumulate(o, s, masked, v_tiles + (block & 1) * V_STAGE, warp_scratch);
        else multiply_pv(o, s, lane_at.v + (block & 1) * V_STAGE);
      }
      if (block > first_block) BiasTile::load(warp_scratch, p, tile, block - 1);
    }
    const bool lost = context.attempt == FAST && state.is_spoilt();
    cp_async_wait<0>();  // without a block to compute, the queries are still on their way to where the output is staged
    if (!__syncthreads_or(lost || (context.attempt != SELECTING && !o.is_finite()))) {
      write_output(p, tile, o, state.finish(p, place), q_tile);
      break;
    }
    const Attempt next = __syncthreads_or(lost) ? CAREFUL : SELECTING;
    if (threadIdx.x == 0) context.attempt = next;  // nobody reads it before all have met again
  }
}

#ifndef VARLEN
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) flash_mma(const __grid_constant__ FlashParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ BlockContext context;
  context.fill(p, tile_at(p, blockIdx.x, BLOCK_ROWS));
  __syncthreads();
  compute_tile(p, context, shared);
}
#endif
