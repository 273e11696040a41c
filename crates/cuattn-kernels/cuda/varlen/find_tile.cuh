// From a tile's number to its sequence, rows and heads, on the device.
//
// Sequences come longest first, since a long one that begins late leaves the machine idle; the tiles of one sequence are ordered as
// those of a dense batch are (tile_scheduler.cuh). The order is a list that build_schedule.cu has written, an item for each row tile
// of each sequence; or, without one, every warp works it out from the lengths, which pays for small batches.
#include "ptx/warp.cuh"
#include "varlen/sequences.cuh"

// Two 16-byte loads.
struct alignas(16) WorkItem {
  PackedSequence packed;
  int batch;       // negative: nothing to do
  int first_item;  // the item of the sequence's first tile
  int items;       // of the whole list that hold something
  int reserved;
};

// Sequences that a warp sorts by itself.
constexpr int SCANNED_SEQUENCES = 64;

// Which of an item's tiles has the number `number` among them. Items are numbered anew for each head unit of a sequence.
DEVICE Draw draw_of(const FlashParams& p, const WorkItem& item, int number, int row_tiles) {
  const Divisor& units = p.order.units;
  const int keys = max_of(item.packed.kv_len, 1);
  if (p.packed.section_keys >= (i64)keys * p.kv_heads) {
    // All heads in one section, as with most sequences: no division that the host has not prepared.
    const int rank = divide(number, units);
    return {number - rank * units.value, row_tiles - 1 - rank};
  }
  const int heads = p.packed.section_keys / keys * (p.order.group.value / pack_of(p));
  return Draw(number, units.value, (int)clamp_to(heads, 1, units.value), row_tiles);
}

// The tile of one of the heads of an item.
DEVICE Tile tile_of(const FlashParams& p, const WorkItem& item, int number, int block_rows) {
  const Draw draw = draw_of(p, item, number - item.first_item * p.order.units.value, row_tiles_of(p, item.packed, block_rows));
  Tile tile;
  tile.first_row = draw.row_tile * block_rows;
  tile.batch = item.batch;
  tile.head = draw.unit * pack_of(p);
  tile.kv_head = divide(tile.head, p.order.group);
  tile.packed = item.packed;
  return tile;
}

// The sequences of a small batch, in the lanes of one warp, and the items of their first tiles.
struct SortedSequences {
  static constexpr int EACH = SCANNED_SEQUENCES / 32;
  PackedSequence mine[EACH];  // those with the numbers i * 32 + lane
  int tiles[EACH], first[EACH];

  DEVICE SortedSequences(const FlashParams& p, int block_rows) {
    const int lane = computed_here(threadIdx.x) & 31;
    int keys[EACH];
    UNROLL for (int i = 0; i < EACH; ++i) {
      const int batch = i * 32 + lane;
      mine[i] = batch < p.batch ? load_packed(p, batch) : PackedSequence{0, 0, 0, 0};
      tiles[i] = row_tiles_of(p, mine[i], block_rows);
      keys[i] = tiles[i] > 0 ? longest_row(p, mine[i], batch) : -1;
      first[i] = 0;
    }
    // Every sequence stands behind the tiles of all longer ones, and behind those of its length with lower numbers.
    UNROLL for (int i = 0; i < EACH; ++i) {
      const int others = min_of(p.batch - i * 32, 32);
      for (int other = 0; other < others; ++other) {
        const int other_tiles = __shfl_sync(WARP_MASK, tiles[i], other), other_keys = __shfl_sync(WARP_MASK, keys[i], other);
        UNROLL for (int j = 0; j < EACH; ++j) {
          const bool before = i * 32 + other < j * 32 + lane;
          if (other_keys > keys[j] || (other_keys == keys[j] && before)) first[j] += other_tiles;
        }
      }
    }
  }

  // The item with this number.
  DEVICE WorkItem find(int number) const {
    WorkItem item;
    item.batch = -1;
    UNROLL for (int i = 0; i < EACH; ++i) {
      const u32 found = __ballot_sync(WARP_MASK, number >= first[i] && number - first[i] < tiles[i]);
      if (found == 0) continue;
      const int source = __ffs(found) - 1;
      item.batch = i * 32 + source;
      item.first_item = __shfl_sync(WARP_MASK, first[i], source);
      item.packed.q_first = __shfl_sync(WARP_MASK, mine[i].q_first, source);
      item.packed.q_len = __shfl_sync(WARP_MASK, mine[i].q_len, source);
      item.packed.kv_first = __shfl_sync(WARP_MASK, mine[i].kv_first, source);
      item.packed.kv_len = __shfl_sync(WARP_MASK, mine[i].kv_len, source);
    }
    return item;
  }
};

// Whether there is a tile `number`, and what it is. For whole warps.
DEVICE bool find_tile(Tile& tile, const FlashParams& p, int number, int block_rows) {
  const int index = divide(number, p.order.units);
  if (index >= p.packed.capacity) return false;
  const WorkItem item = p.packed.schedule == nullptr ? SortedSequences(p, block_rows).find(index)
                                                     : static_cast<const WorkItem*>(p.packed.schedule)[index];
  if (item.batch < 0) return false;
  tile = tile_of(p, item, number, block_rows);
  return true;
}
