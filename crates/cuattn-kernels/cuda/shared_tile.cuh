// How a tile of 16-bit elements lies in shared memory, so that the eight 16-byte rows of an 8x8 matrix fall into different banks.
#include "types.cuh"

template <int COLUMNS> struct SharedTile {
  static_assert(COLUMNS % 16 == 0, "a tile is made of 16-column steps");
  // Rows of a multiple of 128 bytes are swizzled: chunk c of row r lies at c ^ (r % 8). Others get 16 bytes of padding, which
  // makes their pitch an odd number of chunks.
  static constexpr bool SWIZZLED = COLUMNS % 64 == 0;
  static constexpr int PITCH = COLUMNS * 2 + (SWIZZLED ? 0 : 16);
  static constexpr int CHUNKS = COLUMNS / 8;

  static DEVICE constexpr int bytes(int rows) { return rows * PITCH; }
  static DEVICE u32 offset(int row, int chunk) { return row * PITCH + ((SWIZZLED ? chunk ^ (row & 7) : chunk) << 4); }

  // From the address of chunk 0 or 1 of a row to that of the chunk `chunks` (even) further on: so a lane keeps one address for a
  // whole tile. Rows that are a multiple of 8 apart are a constant apart.
  static DEVICE u32 advance(u32 address, int chunks) {
    return SWIZZLED ? (address ^ ((chunks & 7) << 4)) + (chunks >> 3) * 128 : address + chunks * 16;
  }
};
