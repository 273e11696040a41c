// The sequences of a packed batch, as their starts tell. Whatever the starts hold, nothing outside the stated tokens is touched: each
// is brought into range, and a sequence that would end before it begins is empty.
#include "mask.cuh"
#include "sequence_rows.cuh"
#include "tile_scheduler.cuh"

DEVICE i64 load_start(const PackedParams& packed, const void* starts, int i) { return load_index(starts, packed.starts_64, i); }

DEVICE PackedSequence load_packed(const FlashParams& p, int batch) {
  const PackedParams& packed = p.packed;
  const i64 q_first = clamp_to(load_start(packed, packed.q_starts, batch), 0, packed.total_q);
  const i64 q_end = clamp_to(load_start(packed, packed.q_starts, batch + 1), q_first, packed.total_q);
#ifdef PAGED
  // The starts only give lengths: how many keys the table can name is the limit.
  const i64 most = p.pages.pages == 0 ? 0 : min_of((i64)p.pages.page_size * p.pages.max_pages, (i64)FAR_EDGE);
  constexpr i64 far = (i64)1 << 60;  // so far that their difference cannot overflow
  const i64 kv_first = clamp_to(load_start(packed, packed.kv_starts, batch), -far, far);
  const i64 kv_end = clamp_to(load_start(packed, packed.kv_starts, batch + 1), -far, far);
  const i64 span = clamp_to(kv_end - kv_first, 0, most);
#else
  const i64 kv_first = clamp_to(load_start(packed, packed.kv_starts, batch), 0, packed.total_kv);
  const i64 span = clamp_to(load_start(packed, packed.kv_starts, batch + 1), kv_first, packed.total_kv) - kv_first;
#endif
  const i64 used = packed.used_lengths == nullptr ? span : clamp_to(load_start(packed, packed.used_lengths, batch), 0, span);
  PackedSequence s;
  s.q_first = (int)q_first;
  s.q_len = (int)(q_end - q_first);
  s.kv_first = (int)kv_first;
  s.kv_len = (int)used;
  return s;
}

DEVICE int row_tiles_of(const FlashParams& p, const PackedSequence& s, int block_rows) {
  return ceil_div(s.q_len * pack_of(p), block_rows);
}

// Keys that the last row sees, which is as many as any row does under a causal mask: how long the longest tile takes.
DEVICE int longest_row(const FlashParams& p, const PackedSequence& s, int batch) {
  const KeyRange keys = visible_keys(sequence_of(p.mask, batch, s.q_len, s.kv_len), s.q_len - 1);
  return keys.end - keys.begin;
}
