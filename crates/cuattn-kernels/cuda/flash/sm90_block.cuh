// The block of the Hopper path: its roles, its shared memory and its barriers.
//
// WARPGROUPS consumer warpgroups come first and own 64 packed rows each (with SPLIT_KEYS: the same 64 rows, and every other block
// of keys). The last warpgroup produces: its first lane draws tiles and issues every load; one lane of each of its other warps
// stores the output of one consumer. A block is persistent: it takes tiles until there are none left, and no barrier spans the
// boundary of a tile, so the loads of the next one run under the end of this one.
#define ROW_TILES 1
#define WARPS (4 * WARPGROUPS)
#define BIAS_BY_COPY_ENGINE
#include "ptx/cp_async.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/warpgroup.cuh"
#include "flash/bias_tile.cuh"
#include "flash/online_softmax.cuh"

constexpr int PANEL = 64;                     // columns of a 128-byte swizzled panel
constexpr int PANEL_ROW = PANEL * 2;          // bytes of its rows
#ifdef HALVES
constexpr int PLANES = 2;                     // of each tile: high halves, then low ones
#else
constexpr int PLANES = 1;
#endif
constexpr int QK_PANELS = ceil_div(HEAD_DIM, PANEL), V_PANELS = ceil_div(V_HEAD_DIM, PANEL);
constexpr int GROUP_ROWS = 64;
static_assert(GROUP_ROWS % PACK == 0, "a box of queries holds whole rows of all heads of a unit");
#ifdef SPLIT_KEYS
constexpr int Q_SLICES = 1, KEY_STRIDE = WARPGROUPS, MERGE_BARRIERS = 2;
#else
constexpr int Q_SLICES = WARPGROUPS, KEY_STRIDE = 1, MERGE_BARRIERS = 0;
#endif
constexpr int TILE_ROWS = Q_SLICES * GROUP_ROWS;
constexpr int CONSUMERS = WARPGROUPS * 128;
constexpr int RECORDS = 4;                    // tiles of which somebody may still need the record

// A tile, as its producer found it. end_block <= first_block: no key is visible. first_row < 0: there are no more tiles.
struct alignas(16) TileRecord {
  Tile tile;
  Sequence sequence;
  int first_block, end_block;
  u32 number;
  int is_careful;  // the largest score of each block is looked for before the exponentials
  int overflow;    // it should have been: set by consumers before they release the tile's last values
};

// Tiles that have overflowed and are done a second time, when the list is full or there are no others left. So every tile is tried without
// its maxima first, whenever and by whichever block: its bits do not depend on that. The list is in shared memory, because the
// loader has no registers for what is rare.
struct SecondPass {
  static constexpr u32 MOST = 60;
  u32 is_on;       // tiles come from the list
  u32 is_last;     // there are no others left
  u32 tiles, begun;
  u32 numbers[MOST];

  DEVICE void clear() { is_on = is_last = tiles = begun = 0; }
  DEVICE void add(u32 number) { numbers[tiles++] = number; }
  DEVICE bool is_left() const { return begun < tiles; }
  // With room for the tiles of which it is not known yet.
  DEVICE bool is_full() const { return tiles + RECORDS > MOST; }
};

#ifndef VARLEN
// Which tiles there are. Of packed sequences, varlen/tile_source.cuh tells.
struct TileSource {
  DEVICE void prepare(const FlashParams&) const {}
  // Those of the launch.
  DEVICE u32 tiles(const Sm90Params& params) const { return params.tiles; }
  // Whether there is a tile `number`, which is then written to `tile`.
  DEVICE bool find(Tile& tile, const Sm90Params& params, u32 number) const {
    if (number >= (u32)params.tiles) return false;
    tile = tile_at(params.flash, number, TILE_ROWS);
    return true;
  }
};
#endif

constexpr int Q_SLICE_BYTES = GROUP_ROWS * PANEL_ROW * QK_PANELS * PLANES;
constexpr int K_PANEL_BYTES = BLOCK_KEYS * PANEL_ROW;
constexpr int K_BYTES = K_PANEL_BYTES * QK_PANELS * PLANES, V_BYTES = K_PANEL_BYTES * V_PANELS * PLANES;

#if BIAS != BIAS_NONE
constexpr int BIAS_SLICE_BYTES = BiasTile::PANELS * BiasTile::PANEL_BYTES;
#else
constexpr int BIAS_SLICE_BYTES = 0;
#endif
constexpr int BARRIER_BYTES = (8 * (3 * Q_STAGES * Q_SLICES + 4 * KV_STAGES + 2 * Q_SLICES + MERGE_BARRIERS) + 15) / 16 * 16;

// Addresses in shared memory. Every tile is aligned to the 1024 bytes of the swizzle's pattern.
struct SharedMap {
  u32 q, k, v, bias, barriers, partial;

  DEVICE explicit SharedMap(u32 base) : q(base), k(q + Q_STAGES * Q_SLICES * Q_SLICE_BYTES), v(k + KV_STAGES * K_BYTES), bias(v + KV_STAGES * V_BYTES),
                                       barriers(bias + Q_SLICES * BIAS_SLICE_BYTES), partial(barriers + BARRIER_BYTES) {}

  // `partial`: with SPLIT_KEYS, the half of a tile that one warpgroup hands to the other.

  DEVICE u32 q_slice(int stage, int slice) const { return q + (stage * Q_SLICES + slice) * Q_SLICE_BYTES; }
  // Barriers, 8 bytes each.
  DEVICE u32 q_full(int stage, int slice) const { return barriers + (stage * Q_SLICES + slice) * 8; }
  DEVICE u32 q_empty(int stage, int slice) const { return q_full(stage, slice) + Q_STAGES * Q_SLICES * 8; }
  DEVICE u32 o_full(int stage, int slice) const { return q_empty(stage, slice) + Q_STAGES * Q_SLICES * 8; }
  DEVICE u32 k_full(int stage) const { return barriers + (3 * Q_STAGES * Q_SLICES + stage) * 8; }
  DEVICE u32 k_empty(int stage) const { return k_full(stage) + KV_STAGES * 8; }
  DEVICE u32 v_full(int stage) const { return k_full(stage) + 2 * KV_STAGES * 8; }
  DEVICE u32 v_empty(int stage) const { return k_full(stage) + 3 * KV_STAGES * 8; }

  DEVICE u32 bias_full(int slice) const { return k_full(4 * KV_STAGES) + slice * 8; }
  DEVICE u32 bias_empty(int slice) const { return bias_full(slice) + Q_SLICES * 8; }
  // Whether `partial` holds the half of a tile, and whether that has been taken. Not named barriers: racecheck does not know that one
  // on which some threads only arrive orders their accesses.
  DEVICE u32 partial_full() const { return bias_full(2 * Q_SLICES); }
  DEVICE u32 partial_empty() const { return partial_full() + 8; }

  DEVICE void init_barriers() const {
    for (int stage = 0; stage < Q_STAGES; ++stage)
      for (int slice = 0; slice < Q_SLICES; ++slice) {
        mbarrier_init(q_full(stage, slice), 1);
#ifdef DIRECT_STORE
        mbarrier_init(q_empty(stage, slice), 4 * KEY_STRIDE);  // a lane of each warp that reads it
#else
        mbarrier_init(q_empty(stage, slice), 1);               // the lane that stored the output which took its place
#endif
        mbarrier_init(o_full(stage, slice), 4);
      }
    for (int slice = 0; slice < Q_SLICES; ++slice) {
      mbarrier_init(bias_full(slice), 1);
      mbarrier_init(bias_empty(slice), 4);
    }
    if (MERGE_BARRIERS != 0) {
      mbarrier_init(partial_full(), 128);
      mbarrier_init(partial_empty(), 128);
    }
    for (int stage = 0; stage < KV_STAGES; ++stage) {
      mbarrier_init(k_full(stage), 1);
      mbarrier_init(v_full(stage), 1);
      mbarrier_init(k_empty(stage), 4 * Q_SLICES);
      mbarrier_init(v_empty(stage), 4 * Q_SLICES);
    }
    mbarrier_fence_init();
  }
};

// Place number `index` in a ring of STAGES buffers, and the parity of the pass through it that the place belongs to.
template <int STAGES> DEVICE int stage_of(u32 index) { return index % STAGES; }
template <int STAGES> DEVICE u32 parity_of(u32 index) { return index / STAGES & 1; }

// Named barriers. 0 is __syncthreads.
constexpr int BARRIER_TURN = 1;                               // + warpgroup: its turn to issue products
constexpr int BARRIER_GROUP = BARRIER_TURN + WARPGROUPS;      // + warpgroup: its own threads
constexpr int BARRIER_CONSUMERS = BARRIER_GROUP + WARPGROUPS; // all consumers

// The bias of the block whose K was load number `index`. There is one place for it, free as soon as the block before is scored.
template <typename Block> DEVICE void load_bias(const Block& block, const TileRecord& record, int n, u32 index) {
#if BIAS != BIAS_NONE
#pragma unroll 1
  for (int slice = 0; slice < Q_SLICES; ++slice) {
    const u32 full = block.shared.bias_full(slice);
    mbarrier_wait(block.shared.bias_empty(slice), parity_of<1>(index) ^ 1);
    mbarrier_expect(full, BIAS_SLICE_BYTES);
    UNROLL for (int panel = 0; panel < BiasTile::PANELS; ++panel)
      tma_load(block.shared.bias + slice * BIAS_SLICE_BYTES + panel * BiasTile::PANEL_BYTES, block.maps.bias, full,
               BoxAt{n * BLOCK_KEYS + panel * BiasTile::PANEL_KEYS, record.tile.first_row + slice * GROUP_ROWS,
                record.tile.head * block.params.bias_head_step, record.tile.batch * block.params.bias_batch_step});
  }
#endif
}
