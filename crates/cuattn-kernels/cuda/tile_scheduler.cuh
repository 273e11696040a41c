// From a tile's number to its rows, heads and sequence.
//
// A head unit is what one tile can share a K/V head over: `pack` query heads of one sequence. Tiles are numbered by sections of
// head units; inside a section the last rows come first (under a causal mask they take longest, and a long tile drawn late
// leaves the machine idle), and the units of a section are innermost, so that those in flight share their K and V in L2.
#include "params.cuh"

struct Tile {
  int first_row;  // packed row: query row * pack + head within the unit
  int batch;
  int head;       // first query head of the unit
  int kv_head;
};

DEVICE Tile tile_at(const FlashParams& p, int number, int block_rows) {
  const int units_per_batch = p.q_heads / p.pack;
  const int units = p.batch * units_per_batch;
  const int per_section = p.section * p.row_tiles;
  const int section = number / per_section, in_section = number - section * per_section;
  const int width = min_of(p.section, units - section * p.section);
  const int rank = in_section / width;
  const int unit = section * p.section + in_section - rank * width;
  Tile tile;
  tile.first_row = (p.row_tiles - 1 - rank) * block_rows;
  tile.batch = unit / units_per_batch;
  tile.head = (unit - tile.batch * units_per_batch) * p.pack;
  tile.kv_head = tile.head / (p.q_heads / p.kv_heads);
  return tile;
}

// A packed row of a tile, as the query row and head that it stands for.
struct PackedRow {
  int row, head;
};

DEVICE PackedRow unpack_row(const FlashParams& p, const Tile& tile, int packed_row) {
  if (p.pack == 1) return {packed_row, tile.head};
  const int row = packed_row / p.pack;
  return {row, tile.head + packed_row - row * p.pack};
}
