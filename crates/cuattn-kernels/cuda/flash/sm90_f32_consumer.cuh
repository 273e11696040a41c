// A consumer warpgroup of the Hopper path for float32: 64 rows of a tile, from Q K^T to the finished output.
//
// Every product is three, of high and low halves (flash/sm90_f32_halves.cuh), the smallest first. The order of one step, for block n of
// keys (from the last one down):
//   S = Q K(n) and, behind it, T = P V(n+1) are issued; while the second runs, the softmax turns S into the next P.
// T is a sum of its own, added to O in float32: tensor cores cut sums off instead of rounding them, which must not go on over thousands
// of keys.
#include "flash/sm90_f32_producer.cuh"

constexpr int PRODUCTS = 3;
// Which halves product `i` takes: high * low, low * high, high * high.
DEVICE constexpr int left_plane(int i) { return i == 1 ? 1 : 0; }
DEVICE constexpr int right_plane(int i) { return i == 0 ? 1 : 0; }

// Whether every block is masked. Beside a softcap or a user's snippet that costs a tenth at most, and a step less halves the time that the
// compiler takes.
#if defined(SOFTCAP) || defined(SCORE_MOD)
constexpr bool MASKS_ALWAYS = true;
#else
constexpr bool MASKS_ALWAYS = false;
#endif

struct Consumer {
  const Block& block;
  const int group;                 // which warpgroup
  u32 blocks_before = 0;           // of keys, in the tiles before this one
  Output o, part;                  // part: of one block of keys
  SoftmaxState state;
  u32 weights[PLANES][BLOCK_KEYS / 4];  // P in halves, as the A operands of the next product
  float rescale[LANE_ROWS];        // brings o to the maximum of those weights

  DEVICE Consumer(const Block& block, int group) : block(block), group(group) {}

  DEVICE float (&flat(Scores& s) const)[BLOCK_KEYS / 2] { return reinterpret_cast<float(&)[BLOCK_KEYS / 2]>(s.at); }
  DEVICE float (&flat_part())[V_COLUMNS / 2] { return reinterpret_cast<float(&)[V_COLUMNS / 2]>(part.at); }
  DEVICE bool is_leader() const { return (threadIdx.x & 31) == 0; }

  // s = Q K^T, scaled, with the K in `stage`.
  DEVICE void issue_qk(Scores& s, int stage) const {
    const u32 q = descriptor(block.shared.q_slice(0, group), 16), k = descriptor(block.shared.k + stage * K_BYTES, 16);
    wgmma_fence();
    UNROLL for (int i = 0; i < PRODUCTS; ++i)
      UNROLL for (int step = 0; step < QK_COLUMNS / 16; ++step)
        wgmma_ab(flat(s), q + (left_plane(i) * Q_PLANE_BYTES + step / 4 * GROUP_ROWS * PANEL_ROW + step % 4 * 32) / 16,
                 k + (right_plane(i) * K_PLANE_BYTES + step / 4 * K_PANEL_BYTES + step % 4 * 32) / 16, i != 0 || step != 0);
    wgmma_commit();
  }

  // part = P V, scaled, with the V in `stage`.
  DEVICE void issue_pv(int stage) {
    const u32 v = descriptor(block.shared.v + stage * V_BYTES, K_PANEL_BYTES);
    pin(weights[0]);
    pin(weights[1]);
    pin(flat_part());
    wgmma_fence();
    UNROLL for (int i = 0; i < PRODUCTS; ++i)
      UNROLL for (int step = 0; step < BLOCK_KEYS / 16; ++step) {
        const u32(&a)[4] = reinterpret_cast<const u32(&)[4]>(weights[left_plane(i)][step * 4]);
        wgmma_rb(flat_part(), a, v + (right_plane(i) * V_PLANE_BYTES + step * 16 * PANEL_ROW) / 16, i != 0 || step != 0);
      }
    wgmma_commit();
  }

  // After issue_pv() and a wait: its part joins the output.
  DEVICE void add_part(int stage) {
    pin(flat_part());
    pin(weights[0]);
    pin(weights[1]);
    if (is_leader()) mbarrier_arrive(block.shared.v_empty(stage));
    UNROLL for (int n = 0; n < V_TILES; ++n)
      UNROLL for (int e = 0; e < 4; ++e) o.at[0][n][e] = fmaf(o.at[0][n][e], rescale[e >> 1], part.at[0][n][e]);
  }

  DEVICE void split_weights(const Scores& s) {
    constexpr float SCALE = 1 << WEIGHT_EXPONENT;
    UNROLL for (int i = 0; i < BLOCK_KEYS / 4; ++i) {
      const float a = s.at[0][i / 2][i % 2 * 2] * SCALE, b = s.at[0][i / 2][i % 2 * 2 + 1] * SCALE;
      const u32 high = F16::pack(a, b);
      weights[0][i] = high;
      weights[1][i] = F16::pack(a - F16::load((u16)high), b - F16::load((u16)(high >> 16)));
    }
  }

  // Turns scaled products into scores, masks them, and turns those into probabilities. `unit`: of the products. `next_rescale`: from the
  // maximum before.
  template <bool FIRST, bool MASKED> DEVICE void softmax(Scores& s, const TileRecord& record, float unit, int n, u32 at, float (&next_rescale)[LANE_ROWS]) {
    const FlashParams& p = block.params.flash;
    const LanePlace place(record.tile);
    ScoreParams score = p.score;
#ifdef NATURAL
    UNROLL for (int i = 0; i < BLOCK_KEYS / 2; ++i) flat(s)[i] *= unit;
#else
    score.scale *= unit;  // the maximum too is one of scaled products, until the end
#endif
#if BIAS != BIAS_NONE
    mbarrier_wait(block.shared.bias_full(group), parity_of<1>(at));
#endif
    finish_scores(s, p, record.sequence, place, n * BLOCK_KEYS, block.shared.bias + group * BIAS_SLICE_BYTES);
#if BIAS != BIAS_NONE
    __syncwarp();
    if (is_leader()) mbarrier_arrive(block.shared.bias_empty(group));
#endif
    if (MASKED) mask_scores(s, p, record.sequence, place, n * BLOCK_KEYS, {record.sequence.left_edge > -FAR_EDGE, true});
    UNROLL for (int r = 0; r < LANE_ROWS; ++r) next_rescale[r] = 1.f;
    state.template raise_maximum<FIRST>(s, score, [&](int r, float factor) { next_rescale[r] = factor; });
    float added[LANE_ROWS];
    state.exponentiate_exactly(s, score, added);
    state.add(added);
  }

  // The place in the ring of block n of a tile whose last block is `last`.
  DEVICE u32 place_of(int n, int last) const { return blocks_before + (last - n); }

  // One step: the scores of block n, and the values of the one before it, block n + 1.
  template <bool MASKED> DEVICE void step(const TileRecord& record, float unit, int n, int last, bool is_final) {
    const u32 keys_at = place_of(n, last), values_at = keys_at - 1;
    const int keys = stage_of<KV_STAGES>(keys_at), values = stage_of<KV_STAGES>(values_at);
    Scores s;
    mbarrier_wait(block.shared.k_full(keys), parity_of<KV_STAGES>(keys_at));
    pin(flat(s));
    issue_qk(s, keys);
    mbarrier_wait(block.shared.v_full(values), parity_of<KV_STAGES>(values_at));
    issue_pv(values);
    wgmma_wait<1>();
    pin(flat(s));
    release_k(keys, is_final);
#ifdef NATURAL
    // What finishes a score needs the registers of the product that would run beside it. The other warpgroup's products still do.
    wgmma_wait<0>();
    add_part(values);
    softmax<false, MASKED>(s, record, unit, n, keys_at, rescale);
#else
    float next_rescale[LANE_ROWS];
    softmax<false, MASKED>(s, record, unit, n, keys_at, next_rescale);
    wgmma_wait<0>();
    add_part(values);
    UNROLL for (int r = 0; r < LANE_ROWS; ++r) rescale[r] = next_rescale[r];
#endif
    split_weights(s);
  }

  // The first block of a tile, whose softmax nothing runs beside.
  DEVICE void first_step(const TileRecord& record, float unit, int n, int last, bool is_final) {
    const u32 at = place_of(n, last);
    const int keys = stage_of<KV_STAGES>(at);
    Scores s;
    mbarrier_wait(block.shared.k_full(keys), parity_of<KV_STAGES>(at));
    pin(flat(s));
    issue_qk(s, keys);
    wgmma_wait<0>();
    pin(flat(s));
    release_k(keys, is_final);
    softmax<true, true>(s, record, unit, n, at, rescale);
    split_weights(s);
  }

  // The values of the last block that was scored.
  DEVICE void last_product(u32 values_at) {
    const int values = stage_of<KV_STAGES>(values_at);
    mbarrier_wait(block.shared.v_full(values), parity_of<KV_STAGES>(values_at));
    issue_pv(values);
    wgmma_wait<0>();
    add_part(values);
  }

  DEVICE void release_k(int keys, bool is_final) const {
    if (is_leader()) mbarrier_arrive(block.shared.k_empty(keys));
    if (is_final) release_q();
  }
  DEVICE void release_q() const {
    __syncwarp();  // of a tile without keys, every lane must have seen first that its queries are there
    if (is_leader()) mbarrier_arrive(block.shared.q_empty(0, group));
  }

  // A block that none of the warpgroup's rows sees. Released only once it has landed, or a phase of its barriers could be counted twice.
  DEVICE void pass_over(u32 at) const {
    const int stage = stage_of<KV_STAGES>(at);
    const u32 parity = parity_of<KV_STAGES>(at);
    mbarrier_wait(block.shared.k_full(stage), parity);
#if BIAS != BIAS_NONE
    mbarrier_wait(block.shared.bias_full(group), parity_of<1>(at));
#endif
    mbarrier_wait(block.shared.v_full(stage), parity);
    __syncwarp();
    if (!is_leader()) return;
    mbarrier_arrive(block.shared.k_empty(stage));
#if BIAS != BIAS_NONE
    mbarrier_arrive(block.shared.bias_empty(group));
#endif
    mbarrier_arrive(block.shared.v_empty(stage));
  }

  // All blocks of a tile: those that no row of the warpgroup sees, those that the end of some row's keys cuts, those that every row
  // sees, those that a window's left edge cuts. False where there is nothing to see.
  DEVICE bool multiply(const TileRecord& record, float unit) {
    const RowSpan rows(block.params.flash, record.sequence, record.tile.first_row + group * GROUP_ROWS, GROUP_ROWS);
    // Uniform registers, or every loop that these bound would count as divergent, and every descriptor in it would be moved from
    // ordinary registers before each product.
    const int first = warp_uniform(record.first_block), last = warp_uniform(record.end_block) - 1;
    const int all_begin = warp_uniform(rows.all.begin), all_end = warp_uniform(rows.all.end), any_end = warp_uniform(rows.any.end);
    const auto is_cut = [&](int n) { return (n + 1) * BLOCK_KEYS > all_end; };
    int n = last;
#pragma unroll 1
    for (; n >= first && n * BLOCK_KEYS >= any_end; --n) pass_over(place_of(n, last));
    if (n < first) {
      release_q();
      return false;
    }
    o.clear();
    first_step(record, unit, n, last, n == first);
    --n;
    if constexpr (!MASKS_ALWAYS) {
#pragma unroll 1
      for (; n >= first && is_cut(n); --n) step<true>(record, unit, n, last, n == first);
#pragma unroll 1
      for (; n >= first && n * BLOCK_KEYS >= all_begin; --n) step<false>(record, unit, n, last, n == first);
    }
#pragma unroll 1
    for (; n >= first; --n) step<true>(record, unit, n, last, n == first);
    last_product(place_of(n + 1, last));
    return true;
  }

  // EMPTY: no row has seen a key, and o holds whatever the tile before left there.
  template <bool EMPTY> DEVICE void epilogue(const TileRecord& record, const TileUnits& units) {
    const FlashParams& p = block.params.flash;
    const LanePlace place(record.tile);
#ifndef NATURAL
    UNROLL for (int r = 0; r < LANE_ROWS; ++r) state.maximum[r] *= units.score;
#endif
    const RowResult result = state.finish(p, place);
    const bool pairs = ((u64)p.o % 8 | (u64)(p.o_strides.batch | p.o_strides.head | p.o_strides.row) % 2) == 0;
    UNROLL for (int r = 0; r < LANE_ROWS; ++r) {
      const PackedRow at = place.row(p, r);
      if (at.row >= record.sequence.q_len) continue;
      if (p.log_sum_exp != nullptr && (threadIdx.x & 3) == 0) p.log_sum_exp[log_sum_exp_at(p, record.tile, at)] = result.log_sum_exp[r];
      float* row = static_cast<float*>(p.o) + query_base(p.o_strides, record.tile) + at.head * p.o_strides.head + at.row * p.o_strides.row;
      UNROLL for (int n = 0; n < V_HEAD_DIM / 8; ++n) {
        float* to = row + n * 8 + (threadIdx.x & 3) * 2;
        Pair x;
        // One after the other: their product may be smaller than float32 has it.
        UNROLL for (int e = 0; e < 2; ++e) x.at[e] = EMPTY ? 0.f : o.at[0][n][r * 2 + e] * result.factor[r] * units.output;
        if (pairs) {
          *reinterpret_cast<Pair*>(to) = x;
        } else {
          to[0] = x.at[0];
          to[1] = x.at[1];
        }
      }
    }
  }
  struct alignas(8) Pair {
    float at[2];
  };

  DEVICE void run() {
#pragma unroll 1
    for (u32 number = 0;; ++number) {
      mbarrier_wait(block.shared.q_full(0, group), parity_of<1>(number));
      const TileRecord& record = block.records[number % RECORDS];
      if (record.tile.first_row < 0) break;
      const TileUnits& units = block.units[number % RECORDS];
      state.clear();
      bool empty = true;
      if (record.end_block > record.first_block) {
        empty = !multiply(record, units.score);
        blocks_before += warp_uniform(record.end_block - record.first_block);
      } else {
        release_q();
      }
      if (empty) epilogue<true>(record, units);
      else epilogue<false>(record, units);
    }
  }
};
