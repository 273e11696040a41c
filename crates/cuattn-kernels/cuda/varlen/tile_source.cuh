// Where the persistent blocks of the Hopper path get their tiles: from the list of build_schedule.cu, or, for small batches, from the
// lengths, which each block sorts once, when it begins.
#include "flash/sm90_block.cuh"
#include "varlen/find_tile.cuh"

struct TileSource {
  WorkItem* sorted;  // the items of the sequences' first tiles, where there is no list
  u32* count;        // of tiles

  DEVICE TileSource() {
    __shared__ WorkItem items[SCANNED_SEQUENCES];
    __shared__ u32 tiles;
    sorted = items;
    count = &tiles;
  }

  DEVICE WorkItem& sorted_at(int i) const { return sorted[i * 32 + (threadIdx.x & 31)]; }

  // By one warp, before any tile is looked for.
  DEVICE void prepare(const FlashParams& p) const {
    if (p.packed.schedule != nullptr) return;
    const SortedSequences sequences(p, TILE_ROWS);
    int tiles = 0;
    UNROLL for (int i = 0; i < SortedSequences::EACH; ++i) tiles += sequences.tiles[i];
    const int items = warp_sum(tiles);
    UNROLL for (int i = 0; i < SortedSequences::EACH; ++i)
      sorted_at(i) = {sequences.mine[i], i * 32 + ((int)threadIdx.x & 31), sequences.first[i], items, 0};
  }

  // The item with this number, or null. By a whole warp.
  DEVICE const WorkItem* item_at(const FlashParams& p, int number) const {
    const WorkItem* item = nullptr;
    if (p.packed.schedule != nullptr) {
      item = static_cast<const WorkItem*>(p.packed.schedule) + number;
      return number < p.packed.capacity && item->batch >= 0 ? item : nullptr;
    }
    UNROLL for (int i = 0; i < SortedSequences::EACH; ++i) {
      const int first = sorted_at(i).first_item;
      const u32 found = __ballot_sync(WARP_MASK, number >= first && number - first < row_tiles_of(p, sorted_at(i).packed, TILE_ROWS));
      if (found != 0) item = &sorted[i * 32 + __ffs(found) - 1];
    }
    return item;
  }

  // Those of the launch, once one was found.
  DEVICE u32 tiles(const Sm90Params&) const { return *count; }

  // Whether there is a tile `number`, which is then written to `tile`. By a whole warp.
  DEVICE bool find(Tile& tile, const Sm90Params& params, u32 number) const {
    const FlashParams& p = params.flash;
    const WorkItem* const item = item_at(p, divide(number, p.order.units));
    if (item == nullptr) return false;
    if ((threadIdx.x & 31) == 0) *count = item->items * p.order.units.value;
    tile = tile_of(p, *item, number, TILE_ROWS);
    return true;
  }
};
