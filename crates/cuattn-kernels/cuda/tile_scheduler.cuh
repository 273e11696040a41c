// From a tile's number to its rows, heads and sequence.
//
// A head unit is what one tile can share a K/V head over: `pack` query heads of one sequence. Tiles are numbered by sections of
// head units; inside a section the last rows come first (under a causal mask they take longest, and a long tile drawn late
// leaves the machine idle), and the units of a section are innermost, so that those in flight share their K and V in L2.
#include "params.cuh"
#include "ptx/warp.cuh"

#ifdef VARLEN
// Where a sequence lies among the tokens.
struct PackedSequence {
  int q_first, q_len;
  int kv_first, kv_len;  // kv_len: keys in use
};
#endif

struct Tile {
  int first_row;  // packed row: query row * pack + head within the unit
  int batch;
  int head;       // first query head of the unit
  int kv_head;
#ifdef VARLEN
  PackedSequence packed;
#endif
};

// Query heads folded into the rows of a tile. Kernels that know it (PACK, a power of two) save the divisions.
DEVICE int pack_of(const FlashParams& p) {
#ifdef PACK
  return PACK;
#else
  return p.pack;
#endif
}

// n / divisor, for n from 0 on.
DEVICE int divide(int n, const Divisor& divisor) { return (int)((u64)(u32)n * divisor.multiplier >> divisor.shift); }

// What `number` stands for among `units` head units of `row_tiles` tiles each, in sections of `section` units.
struct Draw {
  int unit, row_tile;

  DEVICE Draw(int unit, int row_tile) : unit(unit), row_tile(row_tile) {}
  DEVICE Draw(int number, int units, int section, int row_tiles) {
    // What division by a number needs is not to be kept in registers from one tile to the next.
    const int per_section = computed_here(section) * row_tiles;
    const int sections_before = number / per_section, in_section = number - sections_before * per_section;
    const int width = min_of(section, units - sections_before * section);
    const int rank = in_section / width;
    unit = sections_before * section + in_section - rank * width;
    row_tile = row_tiles - 1 - rank;
  }
};

// The same order, with divisions that the host has prepared.
DEVICE Tile tile_at(const FlashParams& p, int number, int block_rows) {
  const TileOrder& order = p.order;
  const int sections_before = divide(number, order.section_tiles);
  const int in_section = number - sections_before * order.section_tiles.value;
  const bool is_last = sections_before == order.whole_sections;
  const Divisor width{is_last ? order.last_section.multiplier : order.section.multiplier,
                      is_last ? order.last_section.shift : order.section.shift, is_last ? order.last_section.value : order.section.value};
  const int rank = divide(in_section, width);
  const int unit = sections_before * order.section.value + in_section - rank * width.value;
  Tile tile;
  tile.first_row = (order.row_tiles - 1 - rank) * block_rows;
  tile.batch = divide(unit, order.units);
  tile.head = (unit - tile.batch * order.units.value) * pack_of(p);
  tile.kv_head = divide(tile.head, order.group);
  return tile;
}

// The query row of a packed row. To divide by 1 would take a hundred cycles before a tile's first load.
DEVICE int query_row(const FlashParams& p, int packed_row) { return pack_of(p) == 1 ? packed_row : packed_row / pack_of(p); }

// A packed row of a tile, as the query row and head that it stands for.
struct PackedRow {
  int row, head;
};

DEVICE PackedRow unpack_row(const FlashParams& p, const Tile& tile, int packed_row) {
  if (pack_of(p) == 1) return {packed_row, tile.head};
  const int pack = pack_of(p), row = packed_row / pack;
  return {row, tile.head + packed_row - row * pack};
}
