// A chunk of score rows: how they lie in memory, and which row of which head each of them is.
#include "score.cuh"

// Mirrored by Chunk in src/softmax.rs.
//
// A chunk is `slices` matrices of `rows` score rows. A slice belongs to one *unit*: a key head with all query heads of its group
// (heads_per_unit is the group size), or one query head (heads_per_unit is 1). The rows of a unit are the query rows of its
// first head, then of its next head, and so on.
struct Chunk {
  float* scores;                 // [slices, rows, leading]; probabilities of the element type overwrite each row from its start
  i64 leading;                   // floats from row to row, a multiple of 8
  i32 total_rows;                // slices * rows
  i32 rows;                      // of a slice
  i32 first_row;                 // the unit's row that is row 0 of each slice
  i32 first_unit, unit_step;     // slice z belongs to unit first_unit + z * unit_step
  i32 units, heads_per_unit;     // of a sequence
  i32 q_len;
};

struct RowPlace {
  int batch, head, query;
};

DEVICE RowPlace place_of(const Chunk& c, int index) {
  const int unit = c.first_unit + index / c.rows * c.unit_step;
  const int row = c.first_row + index % c.rows;
  return {unit / c.units, unit % c.units * c.heads_per_unit + row / c.q_len, row % c.q_len};
}

DEVICE float* scores_of(const Chunk& c, int index) { return c.scores + (i64)index * c.leading; }

// A masked key's probability is negative zero, which no visible key's ever is: exp gives +0 at least. The product with V does not
// mind, and nonfinite_values.cu can tell a masked key from one whose probability is too small for its type.
#define MASKED_PROBABILITY (-0.f)
DEVICE bool is_masked(float probability) { return __float_as_uint(probability) == 0x80000000u; }
