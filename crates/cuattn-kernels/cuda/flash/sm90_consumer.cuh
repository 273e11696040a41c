// A consumer warpgroup: 64 rows of a tile, from Q K^T to the finished output.
//
// The order of one step, for block n of keys (from the last one down):
//   S = Q K(n) and, behind it, O += P V(n+1) are issued; while the second runs, the softmax turns S into the next P.
// Two warpgroups take turns at issuing (PING_PONG), so that one's softmax runs under the other's products.
//
// A tile whose scores outgrow what the softmax can take without looking for their maximum is done again, carefully (SecondPass).
#include "flash/sm90_producer.cuh"
#include "flash/repair.cuh"

struct Consumer {
  const Block& block;
  const int group;     // which warpgroup
  u32 blocks_before = 0;           // of keys, in the tiles before this one
  Output o;
  SoftmaxState state;
  u32 weights[BLOCK_KEYS / 4];     // P, rounded, as the A operands of the next product
  bool o_is_empty;                 // nothing has been added to o yet
  bool rescale_due;
  float rescale[LANE_ROWS];
  bool settled;                    // every row of the warp has a maximum, and blocks do without their largest score

  DEVICE Consumer(const Block& block, int group) : block(block), group(group) {}

  // Whose queries it reads.
  DEVICE int slice() const { return Q_SLICES == 1 ? 0 : group; }

  DEVICE float (&flat(Scores& s) const)[BLOCK_KEYS / 2] { return reinterpret_cast<float(&)[BLOCK_KEYS / 2]>(s.at); }
  DEVICE float (&flat_output())[V_COLUMNS / 2] { return reinterpret_cast<float(&)[V_COLUMNS / 2]>(o.at); }
  // With SPLIT_KEYS all warpgroups stand at the same rows.
  DEVICE LanePlace lane_place(const TileRecord& record) const { return Q_SLICES == 1 ? LanePlace(record.tile, -group * GROUP_ROWS) : LanePlace(record.tile); }
  DEVICE bool is_leader() const { return (threadIdx.x & 31) == 0; }

  // s = Q K^T with as many keys of the K in `stage` as s has room for.
  template <int N> DEVICE void issue_qk(float (&s)[N], int stage, int q_stage) const {
    const u32 q = descriptor(block.shared.q_slice(q_stage, slice()), 16), k = descriptor(block.shared.k + stage * K_BYTES, 16);
    UNROLL for (int step = 0; step < QK_COLUMNS / 16; ++step)
      wgmma_ab(s, q + (step / 4 * GROUP_ROWS * PANEL_ROW + step % 4 * 32) / 16, k + (step / 4 * K_PANEL_BYTES + step % 4 * 32) / 16, step != 0);
    wgmma_commit();
  }

  // o += P V with the V in `stage`.
  DEVICE void issue_pv(int stage) {
    const u32 v = descriptor(block.shared.v + stage * V_BYTES, K_PANEL_BYTES);
    wgmma_fence();
    UNROLL for (int step = 0; step < BLOCK_KEYS / 16; ++step) {
      const u32(&a)[4] = reinterpret_cast<const u32(&)[4]>(weights[step * 4]);
      wgmma_rb(flat_output(), a, v + step * 16 * PANEL_ROW / 16, step != 0 || !o_is_empty);
    }
    wgmma_commit();
    o_is_empty = false;
  }

  template <int TILES = KEY_TILES> DEVICE void round_weights(const Scores& s) {
    UNROLL for (int i = 0; i < BLOCK_KEYS / 4; ++i)
      weights[i] = i < TILES * 2 ? Element::pack(s.at[0][i / 2][i % 2 * 2], s.at[0][i / 2][i % 2 * 2 + 1]) : 0;
  }

  DEVICE void apply_rescale() {
    if (rescale_due)
      UNROLL for (int r = 0; r < LANE_ROWS; ++r) o.scale_row(r, rescale[r]);
    rescale_due = false;
  }

  template <bool FIRST, int TILES = KEY_TILES> DEVICE bool softmax(Scores& s, TileRecord& record) {
    return state.template take<FIRST, TILES>(
        s, block.params.flash.score, settled, record.is_careful, [&](int r, float factor) { rescale[r] = factor; }, [&] { record.overflow = 1; });
  }

  // Masks, and what else a score goes through before the softmax. `at`: the block's place in the ring.
  template <bool FIRST, int TILES = KEY_TILES> DEVICE void finish(Scores& s, const TileRecord& record, int n, u32 at, Cuts cuts) const {
    const LanePlace place = lane_place(record);
#if BIAS != BIAS_NONE
    mbarrier_wait(block.shared.bias_full(slice()), parity_of<1>(at));
#endif
    const u32 bias = block.shared.bias + slice() * BIAS_SLICE_BYTES;
    if (ADDS_BIAS && !FIRST && settled) finish_scores<TILES, true>(s, block.params.flash, record.sequence, place, n * BLOCK_KEYS, bias);
    else finish_scores<TILES>(s, block.params.flash, record.sequence, place, n * BLOCK_KEYS, bias);
#if BIAS != BIAS_NONE
    __syncwarp();
    if (is_leader()) mbarrier_arrive(block.shared.bias_empty(slice()));
#endif
    if (cuts.left || cuts.right) mask_scores<TILES>(s, block.params.flash, record.sequence, place, n * BLOCK_KEYS, cuts);
  }

  // The place in the ring of block n of a tile whose last block is `last`.
  DEVICE u32 place_of(int n, int last) const { return blocks_before + (last - n); }

  // One step: block n, and the values of the one before it, block n + KEY_STRIDE.
  DEVICE void step(TileRecord& record, int n, int last, bool is_final, int q_stage, Cuts cuts) {
    const u32 keys_at = place_of(n, last), values_at = keys_at - KEY_STRIDE;
    const int keys = stage_of<KV_STAGES>(keys_at), values = stage_of<KV_STAGES>(values_at);
    Scores s;
    mbarrier_wait(block.shared.k_full(keys), parity_of<KV_STAGES>(keys_at));
    take_turn();
    pin(flat(s));
    wgmma_fence();
    issue_qk(flat(s), keys, q_stage);
#ifdef RESCALE_BEFORE
    apply_rescale();
#endif
    mbarrier_wait(block.shared.v_full(values), parity_of<KV_STAGES>(values_at));
    pin(weights);
    pin(flat_output());
    issue_pv(values);
    pass_turn();
    wgmma_wait<1>();
    pin(flat(s));
    release_k(keys, q_stage, is_final);
    finish<false>(s, record, n, keys_at, cuts);
    const bool due = softmax<false>(s, record);
    wgmma_wait<0>();
    pin(flat_output());
    pin(weights);
    if (is_leader()) mbarrier_arrive(block.shared.v_empty(values));
    round_weights(s);
    rescale_due = due;
#ifndef RESCALE_BEFORE
    apply_rescale();
#endif
  }

  // The first block of a tile, whose softmax nothing runs beside. TILES: of how many of its keys, the others being masked for all rows.
  template <int TILES> DEVICE void first_step(TileRecord& record, int n, int last, bool is_final, int q_stage, Cuts cuts) {
    const int keys = stage_of<KV_STAGES>(place_of(n, last));
    Scores s;
    float(&products)[TILES * 4] = reinterpret_cast<float(&)[TILES * 4]>(s.at);
    pin(products);
    wgmma_fence();
    issue_qk(products, keys, q_stage);
    wgmma_wait<0>();
    pin(products);
    release_k(keys, q_stage, is_final);
    finish<true, TILES>(s, record, n, place_of(n, last), cuts);
    softmax<true, TILES>(s, record);
    round_weights<TILES>(s);
  }

  // The values of the last block that was scored.
  DEVICE void last_product(u32 values_at) {
    const int values = stage_of<KV_STAGES>(values_at);
    apply_rescale();
    mbarrier_wait(block.shared.v_full(values), parity_of<KV_STAGES>(values_at));
    pin(weights);
    pin(flat_output());
    issue_pv(values);
    wgmma_wait<0>();
    pin(flat_output());
    if (is_leader()) mbarrier_arrive(block.shared.v_empty(values));
  }

  DEVICE void release_k(int keys, int q_stage, bool is_final) const {
    if (is_leader()) mbarrier_arrive(block.shared.k_empty(keys));
    if (is_final) release_q(q_stage);
  }

  // With an output that is staged in the queries' place, that one is free when it has been stored.
  DEVICE void release_q(int q_stage) const {
#ifdef DIRECT_STORE
    __syncwarp();  // of a tile without keys, every lane must have seen first that its queries are there
    if (is_leader()) mbarrier_arrive(block.shared.q_empty(q_stage, slice()));
#endif
  }

  DEVICE void take_turn() const {
#ifdef PING_PONG
    named_barrier_sync(BARRIER_TURN + group, 256);
#endif
  }
  DEVICE void pass_turn() const {
#ifdef PING_PONG
    named_barrier_arrive(BARRIER_TURN + (group + 1) % WARPGROUPS, 256);
#endif
  }

  // Values of keys beyond the sequence's length are whatever the tensor holds there, and 0 * NaN is NaN: they become zeros. Only the
  // block that a tile begins with can hold such keys, and only where the boxes of its sequence do not end with it.
  DEVICE void clear_values_beyond(const TileRecord& record, int n, u32 at) const {
    const int valid = record.sequence.kv_len - n * BLOCK_KEYS;
    if (valid >= BLOCK_KEYS || values_end_with(block.params.flash, record.sequence)) return;
    mbarrier_wait(block.shared.v_full(stage_of<KV_STAGES>(at)), parity_of<KV_STAGES>(at));
    const u32 v = block.shared.v + stage_of<KV_STAGES>(at) * V_BYTES;
    for (int i = threadIdx.x; i < (BLOCK_KEYS - valid) * V_PANELS * 8; i += CONSUMERS) {
      const int row = valid + i / (V_PANELS * 8), chunk = i % (V_PANELS * 8);
      store_shared_16(v + chunk / 8 * K_PANEL_BYTES + row * PANEL_ROW + chunk % 8 * 16, Chunk{});
    }
    fence_async_proxy();
    named_barrier_sync(BARRIER_CONSUMERS, CONSUMERS);
  }

  // All blocks of a tile, and how many they are: those that the end of some row's keys cuts, those that every row sees, those that a window's left edge cuts.
  DEVICE int multiply(TileRecord& record, int q_stage) {
    const RowSpan rows(block.params.flash, record.sequence, record.tile.first_row + slice() * GROUP_ROWS, GROUP_ROWS);
    // Uniform registers, as those of `rows` are, or every loop that these bound would count as divergent, and every descriptor in it
    // would be moved from ordinary registers before each product.
    const int first = warp_uniform(record.first_block), last = warp_uniform(record.end_block) - 1;
    clear_values_beyond(record, last, blocks_before);
    o_is_empty = true;
    rescale_due = false;
    int n = last;
#ifdef SPLIT_KEYS
    n -= group;
    if (n < first) {  // fewer blocks than warpgroups
      o.clear();
      release_q(q_stage);
      return last + 1 - first;
    }
#endif
    mbarrier_wait(block.shared.k_full(stage_of<KV_STAGES>(place_of(n, last))), parity_of<KV_STAGES>(place_of(n, last)));
    const auto is_final = [&](int n) { return n - KEY_STRIDE < first; };
    const auto is_cut_right = [&](int n) { return (n + 1) * BLOCK_KEYS > rows.all.end; };
    const auto is_cut_left = [&](int n) { return LEFT_EDGE && n * BLOCK_KEYS < rows.all.begin; };
#ifdef HALF_FIRST
    if (rows.any.end <= n * BLOCK_KEYS + BLOCK_KEYS / 2) first_step<KEY_TILES / 2>(record, n, last, is_final(n), q_stage, {is_cut_left(n), true});
    else
#endif
    if (is_cut_right(n) || is_cut_left(n)) first_step<KEY_TILES>(record, n, last, is_final(n), q_stage, {is_cut_left(n), true});
    else first_step<KEY_TILES>(record, n, last, is_final(n), q_stage, {false, false});
    n -= KEY_STRIDE;
    // Without an edge that moves with the rows, the end of the sequence cuts the first block alone.
    if constexpr (RIGHT_EDGE)
#pragma unroll 1
      for (; n >= first && is_cut_right(n); n -= KEY_STRIDE) step(record, n, last, is_final(n), q_stage, {is_cut_left(n), true});
#pragma unroll 1
    for (; n >= first && !is_cut_left(n); n -= KEY_STRIDE) step(record, n, last, is_final(n), q_stage, {false, false});
    if constexpr (LEFT_EDGE)
#pragma unroll 1
      for (; n >= first; n -= KEY_STRIDE) step(record, n, last, is_final(n), q_stage, {true, false});
    last_product(place_of(n + KEY_STRIDE, last));
    return last + 1 - first;
  }

#ifdef SPLIT_KEYS
  u32 merges = 0;  // so far

  // The second warpgroup hands its half of the keys to the first, which goes on with the whole. True for the first.
  DEVICE bool merge() {
    static_assert(WARPGROUPS == 2, "one half is handed over");
    const u32 mine = block.shared.partial + (threadIdx.x & 127) * 16;
    constexpr int PIECE = 128 * 16;
    const u32 parity = parity_of<1>(merges++);
    if (group == 1) {
      mbarrier_wait(block.shared.partial_empty(), parity ^ 1);
      UNROLL for (int n = 0; n < V_TILES; ++n) store_shared_16(mine + n * PIECE, bits(o.at[0][n][0], o.at[0][n][1], o.at[0][n][2], o.at[0][n][3]));
      store_shared_16(mine + V_TILES * PIECE, bits(state.maximum[0], state.maximum[1], state.sum[0], state.sum[1]));
      mbarrier_arrive(block.shared.partial_full());
      return false;
    }
    mbarrier_wait(block.shared.partial_full(), parity);
    const Chunk other = load_shared_16(mine + V_TILES * PIECE);
    const float units = SoftmaxState::log2_units(block.params.flash.score);
    float own_weight[LANE_ROWS], other_weight[LANE_ROWS];
    UNROLL for (int r = 0; r < LANE_ROWS; ++r) {
      const float theirs = __uint_as_float(other.word[r]), top = fmaxf(state.maximum[r], theirs), base = SoftmaxState::finite_or_zero(top);
      own_weight[r] = exp2_approx((state.maximum[r] - base) * units);
      other_weight[r] = exp2_approx((theirs - base) * units);
      state.maximum[r] = top;
      state.sum[r] = state.sum[r] * own_weight[r] + __uint_as_float(other.word[LANE_ROWS + r]) * other_weight[r];
    }
    UNROLL for (int n = 0; n < V_TILES; ++n) {
      const Chunk piece = load_shared_16(mine + n * PIECE);
      UNROLL for (int e = 0; e < 4; ++e)
        o.at[0][n][e] = o.at[0][n][e] * own_weight[e >> 1] + __uint_as_float(piece.word[e]) * other_weight[e >> 1];
    }
    mbarrier_arrive(block.shared.partial_empty());
    return true;
  }

  static DEVICE Chunk bits(float a, float b, float c, float d) {
    return {{__float_as_uint(a), __float_as_uint(b), __float_as_uint(c), __float_as_uint(d)}};
  }
#else
  DEVICE bool merge() const { return true; }
#endif

  template <bool EMPTY> static DEVICE u32 rounded(float low, float high, float factor) {
    return EMPTY ? 0 : Element::pack(low * factor, high * factor);
  }

  // The rows of this warpgroup, rounded: into the query slice, which its last product has read, for the producer to store.
  template <bool EMPTY> DEVICE void stage_output(const RowResult& result, int q_stage) const {
    const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    const u32 row = block.shared.q_slice(q_stage, slice()) + (warp * 16 + (lane & 15)) * PANEL_ROW;
    UNROLL for (int pair = 0; pair < V_TILES / 2; ++pair) {
      const float(&left)[4] = o.at[0][2 * pair], (&right)[4] = o.at[0][2 * pair + 1];
      stmatrix_x4(row + pair / 4 * GROUP_ROWS * PANEL_ROW + ((2 * (pair & 3) + (lane >> 4)) ^ (lane & 7)) * 16,
                  rounded<EMPTY>(left[0], left[1], result.factor[0]), rounded<EMPTY>(left[2], left[3], result.factor[1]),
                  rounded<EMPTY>(right[0], right[1], result.factor[0]), rounded<EMPTY>(right[2], right[3], result.factor[1]));
    }
  }

  // The same straight to memory: four lanes hold a row's pairs of columns, and exchange them until each has 16 bytes in a row.
  template <bool EMPTY> DEVICE void write_output(const RowResult& result, const TileRecord& record) const {
    const FlashParams& p = block.params.flash;
    const int quad = threadIdx.x & 3;
    const LanePlace place = lane_place(record);
    UNROLL for (int r = 0; r < LANE_ROWS; ++r) {
      const PackedRow at = place.row(p, r);
      Scalar* out = static_cast<Scalar*>(p.o) + query_base(p.o_strides, record.tile) + at.head * p.o_strides.head + at.row * p.o_strides.row;
      UNROLL for (int first = 0; first < V_TILES; first += 4) {
        Chunk chunk;
        UNROLL for (int i = 0; i < 4; ++i)
          chunk.word[i] = first + i < V_TILES ? rounded<EMPTY>(o.at[0][first + i][r * 2], o.at[0][first + i][r * 2 + 1], result.factor[r]) : 0;
        transpose_in_quad(chunk, quad);
        const int column = (first + quad) * 8;
        if (at.row < record.sequence.q_len && column < V_HEAD_DIM) *reinterpret_cast<Chunk*>(out + column) = chunk;
      }
    }
  }

  // Word i of lane q goes to word q of lane i.
  static DEVICE void transpose_in_quad(Chunk& c, int quad) {
    UNROLL for (int bit = 1; bit <= 2; bit <<= 1) {
      const bool upper = quad & bit;
      UNROLL for (int i = 0; i < 4; ++i) {
        if (i & bit) continue;
        u32& low = c.word[i];
        u32& high = c.word[i | bit];
        const u32 received = __shfl_xor_sync(WARP_MASK, upper ? low : high, bit);
        if (upper) low = received;
        else high = received;
      }
    }
  }

  DEVICE void write_log_sum_exp(const RowResult& result, const TileRecord& record) const {
    const FlashParams& p = block.params.flash;
    if (p.log_sum_exp == nullptr || (threadIdx.x & 3) != 0) return;
    const LanePlace place = lane_place(record);
    UNROLL for (int r = 0; r < LANE_ROWS; ++r) {
      const PackedRow at = place.row(p, r);
      if (at.row < record.sequence.q_len) p.log_sum_exp[log_sum_exp_at(p, record.tile, at)] = result.log_sum_exp[r];
    }
  }

  // Whether the tile will be done again, as far as is known yet: the same for all lanes, though other warps may be writing it.
  static DEVICE bool is_done_again(const TileRecord& record) { return __any_sync(WARP_MASK, record.overflow != 0); }

  // EMPTY: no row has seen a key, and o holds whatever the tile before left there.
  template <bool EMPTY> DEVICE void epilogue(const TileRecord& record, int q_stage) {
    const FlashParams& p = block.params.flash;
    const LanePlace place = lane_place(record);
    const RowResult result = state.finish(p, place);
    write_log_sum_exp(result, record);
#ifdef DIRECT_STORE
    write_output<EMPTY>(result, record);
    if (EMPTY || is_done_again(record)) return;
    repair_rows(p, record.tile, record.sequence, place, o, state, result, [&](int, const PackedRow& at, int column, float value) {
      Scalar* out = static_cast<Scalar*>(p.o) + query_base(p.o_strides, record.tile) + at.head * p.o_strides.head + at.row * p.o_strides.row;
      out[column] = Element::store(value);
    });
#else
    stage_output<EMPTY>(result, q_stage);
    __syncwarp();
    if (!EMPTY && !is_done_again(record)) repair_rows(p, record.tile, record.sequence, place, o, state, result, [&](int row, const PackedRow&, int column, float value) {
      const u32 staged = block.shared.q_slice(q_stage, slice()) + column / PANEL * GROUP_ROWS * PANEL_ROW + (((threadIdx.x >> 5) & 3) * 16 + row) * PANEL_ROW;
      store_shared(staged + ((column % PANEL / 8) ^ (row & 7)) * 16 + column % 8 * 2, Element::store(value));
    });
    fence_async_proxy();
    __syncwarp();
    if (is_leader()) mbarrier_arrive(block.shared.o_full(q_stage, slice()));
#endif
  }

  DEVICE void run() {
#ifdef PING_PONG
    if (group == 0) named_barrier_arrive(BARRIER_TURN, 256);
#endif
#pragma unroll 1
    for (u32 number = 0;; ++number) {
      const int q_stage = stage_of<Q_STAGES>(number);
      mbarrier_wait(block.shared.q_full(q_stage, slice()), parity_of<Q_STAGES>(number));
      TileRecord& record = block.records[number % RECORDS];
      if (record.tile.first_row < 0) break;
      state.clear();
      if (record.end_block > record.first_block) {
        blocks_before += multiply(record, q_stage);
        if (merge()) epilogue<false>(record, q_stage);
      } else {
#ifdef SPLIT_KEYS
        named_barrier_sync(BARRIER_CONSUMERS, CONSUMERS);  // nothing is handed over here, so one could fall behind
#endif
        release_q(q_stage);
        if (KEY_STRIDE == 1 || group == 0) epilogue<true>(record, q_stage);
      }
    }
  }
};
