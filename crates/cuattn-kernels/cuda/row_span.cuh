// What a run of packed rows sees together.
#include "mask.cuh"
#include "ptx/warp.cuh"
#include "sequence_rows.cuh"
#include "tile_scheduler.cuh"

// Both ends of what a row sees grow with the row, so the first and the last row of a run tell about all of it.
struct RowSpan {
  KeyRange any, all;  // keys that at least one row sees; keys that every row sees

  RowSpan() = default;
  // Of the same rows for a whole warp.
  DEVICE RowSpan(const FlashParams& p, const Sequence& sequence, int first_row, int rows) {
    const int last = min_of(first_row + rows, sequence.q_len * pack_of(p)) - 1;
    KeyRange top{0, 0}, bottom{0, 0};
    if (last >= first_row) {
      top = visible_keys(sequence, query_row(p, first_row));
      bottom = visible_keys(sequence, query_row(p, last));
    }
    any = {warp_uniform(top.begin), warp_uniform(bottom.end)};
    all = {warp_uniform(bottom.begin), warp_uniform(top.end)};
  }
  DEVICE bool sees(int first_key, int end_key) const { return first_key < any.end && end_key > any.begin; }
  DEVICE bool sees_all(int first_key, int end_key) const { return first_key >= all.begin && end_key <= all.end; }
};
