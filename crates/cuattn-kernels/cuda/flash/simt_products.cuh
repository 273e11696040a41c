// The two products, on tiles in shared memory: what the simt path spends its time on.
#include "flash/simt_tiles.cuh"

constexpr int SHORT_SUM = 16;  // pieces

// Pieces that q.k looks ahead: a second one would not fit the registers beside 64 scores, except in the plainest variant.
#if defined(EXACT) && BIAS == BIAS_NONE && !defined(SOFTCAP) && !defined(SCORE_MOD)
constexpr int QK_UNROLL = 2;
#else
constexpr int QK_UNROLL = LANE_ROWS * LANE_KEYS > 32 ? 1 : 2;
#endif

// Adds q.k over pieces [first, end) of the head to s.
DEVICE void multiply_pieces(Scores& s, const SharedTiles& tiles, const Lane& lane, int first, int end) {
  const float* q = tiles.q + lane.first_row * DIM_CHUNK;
  const float* k = tiles.k + lane.column * DIM_CHUNK;
  UNROLL_BY(QK_UNROLL) for (int c = first; c < end; ++c) {
    const float* q_piece = q + ((c ^ row_swizzle(lane.row)) << 2);
    const float* k_piece = k + ((c ^ key_swizzle(lane.column)) << 2);
    Piece keys[LANE_KEYS];
    UNROLL for (int j = 0; j < LANE_KEYS; ++j) keys[j] = load_piece(k_piece + j * COLUMN_LANES * DIM_CHUNK);
    UNROLL for (int i = 0; i < LANE_ROWS; ++i) {
      const Piece query = load_piece(q_piece + i * ROW_LANES * DIM_CHUNK);
      UNROLL for (int e = 0; e < 4; ++e)
        UNROLL for (int j = 0; j < LANE_KEYS; ++j) s.at[i][j] = fmaf(query.at[e], keys[j].at[e], s.at[i][j]);
    }
  }
}

// Adds q.k over the `pieces` pieces of the chunk at hand to s. In float32 a long sum loses digits with its length, so it is made of
// short ones where there are registers for a second set of scores.
DEVICE void multiply_qk(Scores& s, const SharedTiles& tiles, const Lane& lane, int pieces) {
#ifdef EXACT
  pieces = DIM_CHUNK / 4;
#endif
  if constexpr (LANE_ROWS * LANE_KEYS > 32) {
    multiply_pieces(s, tiles, lane, 0, pieces);
  } else {
    UNROLL_BY(1) for (int first = 0; first < pieces; first += SHORT_SUM) {
      Scores part;
      part.clear();
      multiply_pieces(part, tiles, lane, first, min_of(first + SHORT_SUM, pieces));
      s.add(part);
    }
  }
}

// Puts the lane's probabilities where its warp will look for them, after a barrier.
DEVICE void store_probabilities(const Scores& s, const SharedTiles& tiles, const Lane& lane) {
  float* row = tiles.p + lane.first_row * BLOCK_KEYS + (lane.column & 3);
  UNROLL for (int i = 0; i < LANE_ROWS; ++i)
    UNROLL for (int j = 0; j < LANE_KEYS; ++j) {
      const int piece = (lane.column + j * COLUMN_LANES) >> 2;
      row[i * ROW_LANES * BLOCK_KEYS + ((piece ^ row_swizzle(lane.row)) << 2)] = s.at[i][j];
    }
}

// How a masked key's probability is marked for a product that leaves it out: its bits are those of -0.
constexpr u32 LEFT_OUT = 0x80000000u;

// o += p v. A product that selects never lets the v of a masked key, which may be NaN, meet the sum.
template <bool SELECTING> DEVICE void multiply_pv(Output& o, const SharedTiles& tiles, const Lane& lane) {
  const float* p = tiles.p + lane.first_row * BLOCK_KEYS;
  const float* v = tiles.v + lane.column * 4;
  UNROLL_BY(SELECTING ? 1 : 2) for (int c = 0; c < BLOCK_KEYS / 4; ++c) {
    const float* p_piece = p + ((c ^ row_swizzle(lane.row)) << 2);
    Piece probability[LANE_ROWS];
    UNROLL for (int i = 0; i < LANE_ROWS; ++i) probability[i] = load_piece(p_piece + i * ROW_LANES * BLOCK_KEYS);
    UNROLL for (int e = 0; e < 4; ++e) {
      Piece value[LANE_PIECES];
      UNROLL for (int j = 0; j < LANE_PIECES; ++j) value[j] = load_piece(v + (c * 4 + e) * V_COLUMNS + j * COLUMN_LANES * 4);
      UNROLL for (int i = 0; i < LANE_ROWS; ++i) {
        const float weight = probability[i].at[e];
        if (SELECTING && __float_as_uint(weight) == LEFT_OUT) continue;
        UNROLL for (int j = 0; j < LANE_PIECES; ++j)
          UNROLL for (int x = 0; x < 4; ++x) o.at[i][j].at[x] = fmaf(weight, value[j].at[x], o.at[i][j].at[x]);
      }
    }
  }
}
