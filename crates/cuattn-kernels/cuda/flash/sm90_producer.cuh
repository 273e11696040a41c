// The producer warpgroup: which tiles, their loads, and the stores of what came out.
#include "flash/sm90_block.cuh"
#include "flash/sm90_boxes.cuh"

struct Maps {
  const TensorMap *q, *k, *v, *o, *bias;
};

// Sends for the maps, which a launch finds in no cache: before anything else, and that of the output too, or the last store would wait.
DEVICE void prefetch_maps(const Maps& maps) {
  tma_prefetch_map(maps.q);
  tma_prefetch_map(maps.k);
  tma_prefetch_map(maps.v);
  tma_prefetch_map(maps.o);
#if BIAS != BIAS_NONE
  tma_prefetch_map(maps.bias);
#endif
}

// What every role needs.
struct Block {
  const Sm90Params& params;
  const Maps maps;
  const SharedMap shared;
  TileRecord* const records;
  SecondPass& second_pass;  // the loader's
  const TileSource source;
};

// Draws tiles and issues every load: K(last), Q, then K(n-1), V(n) in turn, as the consumers use them. One lane runs this, or one
// warp (LOADER_LANES), with few registers: places in rings are counted, and the tile's record stays in shared memory.
struct Loader {
  const Block& block;
  u32 tiles_begun = 0, keys_begun = 0;  // Q and K loads so far; V loads follow K's

  // Makes the record of a tile, and its queries, the consumers' next ones.
  DEVICE void publish(const TileRecord& record, bool load_queries) {
    const int stage = stage_of<Q_STAGES>(tiles_begun);
#pragma unroll 1
    for (int slice = 0; slice < Q_SLICES; ++slice) {
      const u32 full = block.shared.q_full(stage, slice);
      mbarrier_wait(block.shared.q_empty(stage, slice), parity_of<Q_STAGES>(tiles_begun) ^ 1);
      if (!leads_loads()) continue;
      if (!load_queries) {
        mbarrier_arrive(full);
        continue;
      }
      mbarrier_expect(full, Q_SLICE_BYTES);
      UNROLL for (int panel = 0; panel < QK_PANELS; ++panel)
        tma_load(block.shared.q_slice(stage, slice) + panel * GROUP_ROWS * PANEL_ROW, block.maps.q, full,
                 query_box(record.tile, panel * PANEL, record.tile.first_row + slice * GROUP_ROWS));
    }
    ++tiles_begun;
  }

  DEVICE void load_k(const TileRecord& record, int n) {
    const KeyBoxes boxes(block.params.flash, record.tile, n);
    const int stage = stage_of<KV_STAGES>(keys_begun);
    const u32 full = block.shared.k_full(stage);
    mbarrier_wait(block.shared.k_empty(stage), parity_of<KV_STAGES>(keys_begun) ^ 1);
    if (leads_loads()) mbarrier_expect(full, K_BYTES);
    boxes.load<QK_PANELS>(block.shared.k + stage * K_BYTES, block.maps.k, full, {block.params.k_head_step, block.params.k_batch_step});
    ++keys_begun;
  }

  // The V of the block whose K was load number `index`.
  DEVICE void load_v(const TileRecord& record, int n, u32 index) const {
    const KeyBoxes boxes(block.params.flash, record.tile, n);
    const int stage = stage_of<KV_STAGES>(index);
    const u32 full = block.shared.v_full(stage);
    mbarrier_wait(block.shared.v_empty(stage), parity_of<KV_STAGES>(index) ^ 1);
    if (leads_loads()) mbarrier_expect(full, V_BYTES);
    boxes.load<V_PANELS>(block.shared.v + stage * V_BYTES, block.maps.v, full, {block.params.v_head_step, block.params.v_batch_step});
  }

  // Whether that V would find its place free at once.
  DEVICE bool has_room_for_v(u32 index) const {
    return __all_sync(WARP_MASK, mbarrier_has_passed(block.shared.v_empty(stage_of<KV_STAGES>(index)), parity_of<KV_STAGES>(index) ^ 1));
  }

  // Until consumers have done with all tiles so far.
  DEVICE void wait_for_consumers() const {
#pragma unroll 1
    for (u32 back = 1; back <= min_of((u32)KV_STAGES, keys_begun); ++back)
      mbarrier_wait(block.shared.v_empty(stage_of<KV_STAGES>(keys_begun - back)), parity_of<KV_STAGES>(keys_begun - back));
  }

  // Remembers a tile that consumers have done with, if it must be done again.
  DEVICE void collect(const TileRecord& record) const {
    if (record.overflow == 0) return;
    if (leads_loads()) block.second_pass.add(record.number);
    sync_loads();
  }

  // Writes what tile `number` is into its record, a part at a time. False if there is none.
  DEVICE bool find(TileRecord& record, u32 number) {
    const FlashParams& p = block.params.flash;
    Tile tile;
    if (!block.source.find(tile, block.params, number)) return false;
    if (leads_loads()) {
      record.number = number;
      record.is_careful = block.second_pass.is_on;
      record.overflow = 0;
      record.tile = tile;
      const Sequence sequence = load_sequence(p, record.tile);
      record.sequence = sequence;
      const int first_row = record.tile.first_row, end_row = min_of(first_row + TILE_ROWS, sequence.q_len * PACK);
      record.first_block = visible_keys(sequence, first_row / PACK).begin / BLOCK_KEYS;
      record.end_block = ceil_div(visible_keys(sequence, (end_row - 1) / PACK).end, BLOCK_KEYS);
    }
    sync_loads();
    return true;
  }

  // The next tile of the second pass, if there is one.
  DEVICE bool take_again(u32& number) const {
    SecondPass& pass = block.second_pass;
    if (!pass.is_left()) return false;
    number = pass.numbers[pass.begun];
    sync_loads();
    if (leads_loads()) ++pass.begun;
    return true;
  }

  // From the tiles that are drawn to those of the second pass, or back. `is_last`: there are no others. False if nothing is left to do.
  DEVICE bool change_pass(bool is_last) const {
    SecondPass& pass = block.second_pass;
    if (pass.is_on) {
      if (pass.is_last) return false;
      sync_loads();
      if (leads_loads()) pass.clear();
      sync_loads();
      return true;
    }
    wait_for_consumers();
#pragma unroll 1
    for (u32 back = 1; back <= min_of(RECORDS - 1u, tiles_begun); ++back) collect(block.records[(tiles_begun - back) % RECORDS]);
    if (!pass.is_left()) return false;
    sync_loads();
    if (leads_loads()) {
      pass.is_on = 1;
      pass.is_last = is_last;
    }
    sync_loads();
    return true;
  }

  // The next number, for the lane that leads.
  DEVICE u32 draw_tile() const { return leads_loads() ? draw(block.params.counter, block.source.tiles(block.params) - 1) : 0; }

  DEVICE void run() {
    u32 drawn = blockIdx.x - gridDim.x;  // the first tiles are not drawn: block i begins with number i
    bool value_is_due = false;  // the last V of the tile before
    while (true) {
      // Nobody reads this record any more: its last tile was done before the queries of the tile before this one could be loaded.
      TileRecord& record = block.records[tiles_begun % RECORDS];
      if (!block.second_pass.is_on && tiles_begun >= RECORDS) collect(record);
      const auto load_last_v = [&] {
        const TileRecord& before = block.records[(tiles_begun - 1) % RECORDS];
        load_v(before, before.first_block, keys_begun - 1);
      };
#ifdef VARLEN
      // To find a tile among packed sequences takes long. Where there is room for the value, it need not wait for that.
      if (value_is_due && has_room_for_v(keys_begun - 1)) {
        load_last_v();
        value_is_due = false;
      }
#endif
      u32 number = from_leader(drawn) + computed_here(gridDim.x);
      const bool is_wanted = block.second_pass.is_on ? take_again(number) : !block.second_pass.is_full();
      const bool found = is_wanted && find(record, number);
      if (value_is_due) load_last_v();
      if (!found) {
        if (!change_pass(is_wanted)) break;
        value_is_due = false;
        continue;
      }
      const int first_block = record.first_block, end_block = record.end_block;
      value_is_due = end_block > first_block;
      // With one set of query slices, the wait for them stands behind the first K, which it would hold up.
      if (Q_STAGES > 1 || !value_is_due) publish(record, value_is_due);
      // Drawn late: an early draw would hand tiles to blocks in an order that has nothing to do with when they are free.
      for (int n = end_block - 1; n >= first_block; --n) {
        if (n == first_block && !block.second_pass.is_on) drawn = draw_tile();
        load_k(record, n);
        if (Q_STAGES == 1 && n == end_block - 1) publish(record, true);
        if (n < end_block - 1) load_v(record, n + 1, keys_begun - 2);
        load_bias(block, record, n, keys_begun - 1);
      }
      if (!value_is_due && !block.second_pass.is_on) drawn = draw_tile();
    }
    TileRecord& end = block.records[tiles_begun % RECORDS];
    if (leads_loads()) end.tile.first_row = -1;
    publish(end, false);
  }
};

#ifndef DIRECT_STORE
// Stores what consumer slice `slice` has staged in its query slice, and hands the slice back. One lane runs this.
DEVICE void store_outputs(const Block& block, int slice) {
  for (u32 number = 0;; ++number) {
    const int stage = stage_of<Q_STAGES>(number);
    const u32 parity = parity_of<Q_STAGES>(number);
    mbarrier_wait(block.shared.q_full(stage, slice), parity);
    const TileRecord& record = block.records[number % RECORDS];
    const Tile tile = record.tile;
    if (tile.first_row < 0) break;
    if (record.is_careful) tma_store_wait();  // the first output of a tile that is done again
    mbarrier_wait(block.shared.o_full(stage, slice), parity);
    UNROLL for (int panel = 0; panel < V_PANELS; ++panel)
      tma_store(block.shared.q_slice(stage, slice) + panel * GROUP_ROWS * PANEL_ROW, block.maps.o,
                query_box(tile, panel * PANEL, tile.first_row + slice * GROUP_ROWS));
    tma_store_commit();
    tma_store_wait_read();
    mbarrier_arrive(block.shared.q_empty(stage, slice));
  }
  tma_store_wait();
}
#endif
