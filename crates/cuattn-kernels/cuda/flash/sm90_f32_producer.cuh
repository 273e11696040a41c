// The producer of the Hopper path for float32: which tiles, and the loads of their halves.
//
// As flash/sm90_producer.cuh, with one set of query slices, outputs that consumers store themselves, and tiles that are left out.
#include "flash/sm90_block.cuh"
#include "flash/sm90_f32_halves.cuh"

struct Maps {
  const TensorMap *q, *k, *v, *bias;
};

// What products of a tile's scaled halves must be multiplied with.
struct TileUnits {
  float score, output;
};

// What every role needs.
struct Block {
  const Sm90F32Params& params;
  const Maps maps;
  const SharedMap shared;
  TileRecord* const records;
  TileUnits* const units;  // of each record
};

constexpr int Q_PLANE_BYTES = Q_SLICE_BYTES / PLANES, K_PLANE_BYTES = K_BYTES / PLANES, V_PLANE_BYTES = V_BYTES / PLANES;

// Draws tiles and issues every load: K(last), Q, then K(n-1), V(n) in turn, as the consumers use them. One lane runs this.
struct Loader {
  const Block& block;
  u32 tiles_begun = 0, keys_begun = 0;  // Q and K loads so far; V loads follow K's

  // Both halves of `PANELS` panels of rows, from the box at column 0 of the high ones.
  template <int PANELS> DEVICE void load_halves(u32 to, int panel_bytes, const TensorMap* map, u32 full, const BoxAt& at) const {
#pragma unroll 1
    for (int plane = 0; plane < PLANES; ++plane)
      UNROLL for (int panel = 0; panel < PANELS; ++panel)
        tma_load(to + (plane * PANELS + panel) * panel_bytes, map, full,
                 BoxAt{panel * PANEL, at.y, at.z, at.w + plane * block.params.flash.batch});
  }

  // Makes the record of a tile, and its queries, the consumers' next ones.
  DEVICE void publish(const TileRecord& record, bool load_queries) {
#pragma unroll 1
    for (int slice = 0; slice < Q_SLICES; ++slice) {
      const u32 full = block.shared.q_full(0, slice);
      mbarrier_wait(block.shared.q_empty(0, slice), parity_of<1>(tiles_begun) ^ 1);
      if (!load_queries) {
        mbarrier_arrive(full);
        continue;
      }
      mbarrier_expect(full, Q_SLICE_BYTES);
      load_halves<QK_PANELS>(block.shared.q_slice(0, slice), GROUP_ROWS * PANEL_ROW, block.maps.q, full,
                             {0, record.tile.first_row + slice * GROUP_ROWS, record.tile.head, record.tile.batch});
    }
    ++tiles_begun;
  }

  DEVICE void load_k(const TileRecord& record, int n) {
    const int stage = stage_of<KV_STAGES>(keys_begun);
    const u32 full = block.shared.k_full(stage);
    mbarrier_wait(block.shared.k_empty(stage), parity_of<KV_STAGES>(keys_begun) ^ 1);
    mbarrier_expect(full, K_BYTES);
    load_halves<QK_PANELS>(block.shared.k + stage * K_BYTES, K_PANEL_BYTES, block.maps.k, full,
                           {0, n * BLOCK_KEYS, record.tile.kv_head, record.tile.batch});
    ++keys_begun;
  }

  // The V of the block whose K was load number `index`.
  DEVICE void load_v(const TileRecord& record, int n, u32 index) const {
    const int stage = stage_of<KV_STAGES>(index);
    const u32 full = block.shared.v_full(stage);
    mbarrier_wait(block.shared.v_empty(stage), parity_of<KV_STAGES>(index) ^ 1);
    mbarrier_expect(full, V_BYTES);
    load_halves<V_PANELS>(block.shared.v + stage * V_BYTES, K_PANEL_BYTES, block.maps.v, full,
                          {0, n * BLOCK_KEYS, record.tile.kv_head, record.tile.batch});
  }

  // Writes what tile `number` is into a record. False where its head is left to the simt path.
  DEVICE bool find(TileRecord& record, TileUnits& units, u32 number) const {
    const FlashParams& p = block.params.flash;
    const Tile tile = tile_at(p, number, TILE_ROWS);
    const HeadRanges ranges(block.params, tile.batch, tile.head);
    if (!ranges.are_sound(p.score.scale)) return false;
    const Sequence sequence = load_sequence(p.mask, tile.batch);
    record.tile = tile;
    record.sequence = sequence;
    record.first_block = visible_keys(sequence, tile.first_row).begin / BLOCK_KEYS;
    record.end_block = ceil_div(visible_keys(sequence, min_of(tile.first_row + TILE_ROWS, sequence.q_len) - 1).end, BLOCK_KEYS);
    units = {ranges.score_unit(), ranges.output_unit()};
    return true;
  }

  DEVICE u32 draw_tile() const { return draw(block.params.counter, block.params.tiles - 1) + computed_here(gridDim.x); }

  DEVICE void run() {
    tma_prefetch_map(block.maps.q);
    tma_prefetch_map(block.maps.k);
    tma_prefetch_map(block.maps.v);
    const u32 tiles = block.params.tiles;
    u32 number = blockIdx.x;
    bool value_is_due = false;  // the last V of the tile before
    while (true) {
      // Nobody reads this record any more: its last tile was done before the queries of the tile before this one could be loaded.
      TileRecord& record = block.records[tiles_begun % RECORDS];
#pragma unroll 1
      while (number < tiles && !find(record, block.units[tiles_begun % RECORDS], number)) number = draw_tile();
      if (value_is_due) {
        const TileRecord& before = block.records[(tiles_begun - 1) % RECORDS];
        load_v(before, before.first_block, keys_begun - 1);
      }
      if (number >= tiles) break;
      const int first_block = record.first_block, end_block = record.end_block;
      value_is_due = end_block > first_block;
      if (!value_is_due) publish(record, false);
      // Drawn late: an early draw would hand tiles to blocks in an order that has nothing to do with when they are free.
      for (int n = end_block - 1; n >= first_block; --n) {
        if (n == first_block) number = draw_tile();
        load_k(record, n);
        // The wait for free query slices would hold up the first K.
        if (n == end_block - 1) publish(record, true);
        else load_v(record, n + 1, keys_begun - 2);
        load_bias(block, record, n, keys_begun - 1);
      }
      if (!value_is_due) number = draw_tile();
    }
    TileRecord& end = block.records[tiles_begun % RECORDS];
    end.tile.first_row = -1;
    publish(end, false);
  }
};
