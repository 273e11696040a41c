// The producer warpgroup: which tiles, their loads, and the stores of what came out.
#include "flash/sm90_block.cuh"

struct Maps {
  const TensorMap *q, *k, *v, *o;
};

// What every role needs.
struct Block {
  const Sm90Params& params;
  const Maps maps;
  const SharedMap shared;
  TileRecord* const records;
};

// Draws tiles and issues every load: K(last), Q, then K(n-1), V(n) in turn, as the consumers use them. One lane runs this.
struct Loader {
  const Block& block;
  Ring<KV_STAGES> k_ring, v_ring;
  Ring<Q_STAGES> q_ring;

  DEVICE void publish(int slot, const TileRecord& record, bool load_queries) {
    block.records[slot] = record;
    UNROLL for (int slice = 0; slice < Q_SLICES; ++slice) {
      const u32 full = block.shared.q_full(q_ring.stage, slice);
      if (!load_queries) {
        mbarrier_arrive(full);
        continue;
      }
      mbarrier_expect(full, Q_SLICE_BYTES);
      UNROLL for (int panel = 0; panel < QK_PANELS; ++panel)
        tma_load(block.shared.q_slice(q_ring.stage, slice) + panel * GROUP_ROWS * PANEL_ROW, block.maps.q, full,
                 {panel * PANEL, record.tile.first_row + slice * GROUP_ROWS, record.tile.head, record.tile.batch});
    }
    q_ring.advance();
  }

  DEVICE void wait_for_query_slices() {
    UNROLL for (int slice = 0; slice < Q_SLICES; ++slice) mbarrier_wait(block.shared.q_empty(q_ring.stage, slice), q_ring.parity ^ 1);
  }

  DEVICE void load_k(const TileRecord& record, int n) {
    const u32 full = block.shared.k_full(k_ring.stage);
    mbarrier_wait(block.shared.k_empty(k_ring.stage), k_ring.parity ^ 1);
    mbarrier_expect(full, K_BYTES);
    UNROLL for (int panel = 0; panel < QK_PANELS; ++panel)
      tma_load(block.shared.k + k_ring.stage * K_BYTES + panel * K_PANEL_BYTES, block.maps.k, full,
               {panel * PANEL, n * BLOCK_KEYS, record.tile.kv_head * block.params.k_head_step, record.tile.batch * block.params.k_batch_step});
    k_ring.advance();
  }

  DEVICE void load_v(const TileRecord& record, int n) {
    const u32 full = block.shared.v_full(v_ring.stage);
    mbarrier_wait(block.shared.v_empty(v_ring.stage), v_ring.parity ^ 1);
    mbarrier_expect(full, V_BYTES);
    UNROLL for (int panel = 0; panel < V_PANELS; ++panel)
      tma_load(block.shared.v + v_ring.stage * V_BYTES + panel * K_PANEL_BYTES, block.maps.v, full,
               {panel * PANEL, n * BLOCK_KEYS, record.tile.kv_head * block.params.v_head_step, record.tile.batch * block.params.v_batch_step});
    v_ring.advance();
  }

  DEVICE TileRecord find(u32 number) const {
    const FlashParams& p = block.params.flash;
    TileRecord record;
    record.tile = tile_at(p, number, TILE_ROWS);
    record.sequence = load_sequence(p.mask, record.tile.batch);
    const int last_row = min_of(record.tile.first_row + TILE_ROWS, record.sequence.q_len) - 1;
    record.first_block = visible_keys(record.sequence, record.tile.first_row).begin / BLOCK_KEYS;
    record.end_block = ceil_div(visible_keys(record.sequence, last_row).end, BLOCK_KEYS);
    return record;
  }

  DEVICE void run() {
    tma_prefetch_map(block.maps.q);
    tma_prefetch_map(block.maps.k);
    tma_prefetch_map(block.maps.v);
    const u32 tiles = block.params.tiles;
    int slot = 0;
    for (u32 number = blockIdx.x; number < tiles;) {
      const TileRecord record = find(number);
      const bool empty = record.end_block <= record.first_block;
      // With one set of query slices, the wait for them stands behind the first K, which it would hold up.
      if (Q_STAGES > 1 || empty) {
        wait_for_query_slices();
        publish(slot, record, !empty);
      }
      u32 next = 0;
      if (empty) next = draw(block.params.counter, tiles - 1);
      for (int n = record.end_block - 1; n >= record.first_block; --n) {
        // Drawn late: an early draw would hand tiles to blocks in an order that has nothing to do with when they are free.
        if (n == record.first_block) next = draw(block.params.counter, tiles - 1);
        load_k(record, n);
        if (Q_STAGES == 1 && n == record.end_block - 1) {
          wait_for_query_slices();
          publish(slot, record, true);
        }
        if (n < record.end_block - 1) load_v(record, n + 1);
      }
      if (!empty) load_v(record, record.first_block);
      number = next + gridDim.x;
      slot = (slot + 1) % RECORDS;
    }
    TileRecord end;
    end.tile.first_row = -1;
    wait_for_query_slices();
    publish(slot, end, false);
  }
};

#ifndef DIRECT_STORE
// Stores what consumer slice `slice` has staged in its query slice, and hands the slice back. One lane runs this.
DEVICE void store_outputs(const Block& block, int slice) {
  Ring<Q_STAGES> ring;
  for (int slot = 0;; slot = (slot + 1) % RECORDS, ring.advance()) {
    mbarrier_wait(block.shared.q_full(ring.stage, slice), ring.parity);
    const Tile tile = block.records[slot].tile;
    if (tile.first_row < 0) break;
    mbarrier_wait(block.shared.o_full(ring.stage, slice), ring.parity);
    UNROLL for (int panel = 0; panel < V_PANELS; ++panel)
      tma_store(block.shared.q_slice(ring.stage, slice) + panel * GROUP_ROWS * PANEL_ROW, block.maps.o,
                {panel * PANEL, tile.first_row + slice * GROUP_ROWS, tile.head, tile.batch});
    tma_store_commit();
    tma_store_wait_read();
    mbarrier_arrive(block.shared.q_empty(ring.stage, slice));
  }
  tma_store_wait();
}
#endif
