// Where the boxes of the copy engine lie: what differs between a batch of equal sequences, packed sequences (VARLEN) and paged keys
// (PAGED) on the Hopper path, as sequence_rows.cuh says it of rows.
//
// Boxes of packed sequences end where the sequence ends (RAGGED_MAPS): what is beyond reads as zeros and is not written. Without
// RAGGED_MAPS they run on into the next sequence, so consumers have to write their output themselves, and to clear the values.
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"
#include "flash/sm90_block.cuh"

#if defined(VARLEN) && !defined(RAGGED_MAPS) && !defined(DIRECT_STORE)
#error a box of the output must end where its sequence does
#endif

// How many lanes of a warp issue loads. Of pages, each brings one, and to find packed sequences takes a warp.
#ifdef VARLEN
constexpr int LOADER_LANES = 32;
#else
constexpr int LOADER_LANES = 1;
#endif
// The lane that acts for all of them.
DEVICE bool leads_loads() { return LOADER_LANES == 1 || (threadIdx.x & 31) == 0; }
DEVICE void sync_loads() {
  if (LOADER_LANES > 1) __syncwarp();
}
DEVICE u32 from_leader(u32 x) { return LOADER_LANES > 1 ? __shfl_sync(WARP_MASK, x, 0) : x; }

// GROUP_ROWS packed rows of q or o from packed row `packed_row` of the tile's unit on: their map has heads before rows.
DEVICE auto query_box(const Tile& tile, int column, int packed_row) {
  const int row = packed_row / PACK;
#if defined(RAGGED_MAPS)
  return RaggedBoxAt::of(column, row, tile.head, tile.packed.q_first, tile.packed.q_len);
#elif defined(VARLEN)
  return BoxAt{column, tile.head, tile.packed.q_first + row, 0};
#else
  return BoxAt{column, tile.head, row, tile.batch};
#endif
}

// How far one head and one sequence are apart in a map of keys: 1, or 0 where they are all one.
struct MapSteps {
  int head, batch;
};

// One block of keys, found before there is room for it.
#ifdef PAGED
// A page of PAGE_SIZE keys holds whole boxes, and so does a block. Lane i brings box i.
DEVICE constexpr int common_divisor(int a, int b) { return b == 0 ? a : common_divisor(b, a % b); }
constexpr int BOX_KEYS = common_divisor(PAGE_SIZE, BLOCK_KEYS), BOXES = BLOCK_KEYS / BOX_KEYS;
static_assert(BOX_KEYS % 8 == 0, "a box begins where the pattern of the swizzle does");
static_assert(BOXES <= 32, "a lane a box");

struct KeyBoxes {
  int kv_head, page, row;

  DEVICE KeyBoxes(const FlashParams& p, const Tile& tile, int n) : kv_head(tile.kv_head) {
    const int lane = threadIdx.x & 31, key = n * BLOCK_KEYS + lane * BOX_KEYS, entry = key / PAGE_SIZE;
    row = key % PAGE_SIZE;
    // Of boxes that hold no key of the sequence, no page is looked up: there are no pages from this one on, so they become zeros.
    page = p.pages.pages;
    if (lane < BOXES && key < tile.packed.kv_len)
      page = min_of((u32)p.pages.table[(i64)tile.batch * p.pages.max_pages + entry], (u32)p.pages.pages - 1);
  }

  template <int PANELS> DEVICE void load(u32 dst, const TensorMap* map, u32 full, MapSteps steps) const {
    const int lane = threadIdx.x & 31;
    if (lane >= BOXES) return;
    UNROLL for (int panel = 0; panel < PANELS; ++panel)
      tma_load(dst + panel * K_PANEL_BYTES + lane * BOX_KEYS * PANEL_ROW, map, full, BoxAt{panel * PANEL, row, kv_head * steps.head, page});
  }
};
#else
struct KeyBoxes {
  const Tile& tile;
  const int first_key;

  DEVICE KeyBoxes(const FlashParams&, const Tile& tile, int n) : tile(tile), first_key(n * BLOCK_KEYS) {}

  template <int PANELS> DEVICE void load(u32 dst, const TensorMap* map, u32 full, MapSteps steps) const {
    if (!leads_loads()) return;
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
#if defined(RAGGED_MAPS)
      const auto at = RaggedBoxAt::of(panel * PANEL, first_key, tile.kv_head * steps.head, tile.packed.kv_first, tile.packed.kv_len);
#elif defined(VARLEN)
      const BoxAt at{panel * PANEL, tile.kv_head * steps.head, tile.packed.kv_first + first_key, 0};
#else
      const BoxAt at{panel * PANEL, first_key, tile.kv_head * steps.head, tile.batch * steps.batch};
#endif
      tma_load(dst + panel * K_PANEL_BYTES, map, full, at);
    }
  }
};
#endif

// Whether the values of keys from `kv_len` on come as zeros.
DEVICE bool values_end_with(const FlashParams& p, const Sequence& sequence) {
#if defined(PAGED)
  return false;  // the last box goes on to the end of its page, or of its block
#elif defined(RAGGED_MAPS)
  return true;
#elif defined(VARLEN)
  return false;
#else
  return sequence.kv_len == p.mask.kv_len;
#endif
}
