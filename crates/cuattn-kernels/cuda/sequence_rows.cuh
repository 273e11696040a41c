// Where the rows of a tile's sequence lie: what differs between a batch of equal sequences, packed sequences (VARLEN) and paged keys
// (PAGED). Everything else about a tile is the same for all. Where the Hopper path's boxes lie is in flash/sm90_boxes.cuh.
#include "mask.cuh"
#include "tile_scheduler.cuh"

// Elements from the first of q or o to row 0 of head 0 of the sequence.
DEVICE i64 query_base(const Strides& strides, const Tile& tile) {
#ifdef VARLEN
  return tile.packed.q_first * strides.row;
#else
  return tile.batch * strides.batch;
#endif
}

// Elements from the first of k or v to key 0 of a head of the sequence; where keys are paged, to that head of page 0.
DEVICE i64 key_base(const Strides& strides, const Tile& tile) {
#if defined(PAGED)
  const i64 sequence = 0;
#elif defined(VARLEN)
  const i64 sequence = tile.packed.kv_first * strides.row;
#else
  const i64 sequence = tile.batch * strides.batch;
#endif
  return sequence + tile.kv_head * strides.head;
}

// Elements from there to key `key`, which must be one that the sequence has.
DEVICE i64 key_offset(const FlashParams& p, const Strides& strides, const Tile& tile, int key) {
#ifdef PAGED
  const int entry = key / p.pages.page_size;
  const u32 page = p.pages.table[(i64)tile.batch * p.pages.max_pages + entry];
  return min_of(page, (u32)p.pages.pages - 1) * strides.batch + (key - entry * p.pages.page_size) * strides.row;
#else
  return key * strides.row;
#endif
}

DEVICE int query_len(const FlashParams& p, const Tile& tile) {
#ifdef VARLEN
  return tile.packed.q_len;
#else
  return p.mask.q_len;
#endif
}

// Where the log-sum-exp of a row goes: [batch, q_heads, q_len], or [q_heads, tokens].
DEVICE i64 log_sum_exp_at(const FlashParams& p, const Tile& tile, const PackedRow& at) {
#ifdef VARLEN
  return (i64)at.head * p.packed.total_q + tile.packed.q_first + at.row;
#else
  return ((i64)tile.batch * p.q_heads + at.head) * p.mask.q_len + at.row;
#endif
}

DEVICE Sequence load_sequence(const FlashParams& p, const Tile& tile) {
#ifdef VARLEN
  return sequence_of(p.mask, tile.batch, tile.packed.q_len, tile.packed.kv_len);
#else
  return load_sequence(p.mask, tile.batch);
#endif
}
