// Looks for faults in the starts and lengths of a packed batch: one block of THREADS threads writes the bits of what it found.
//
// Constants: THREADS; options: PAGED.
#define VARLEN
#define ELEMENT 0
#include "varlen/sequences.cuh"

// As cuattn_core::OffsetFaults numbers them; those of the keys are KV_SHIFT further up.
constexpr u32 FIRST_NOT_ZERO = 1, DECREASES = 2, LAST_NOT_TOTAL = 4, ABOVE_MAXIMUM = 8, USED_OUT_OF_RANGE = 1 << 16;
constexpr int KV_SHIFT = 8;

struct Span {
  i64 begin, end;

  DEVICE u32 faults(bool first, i64 longest) const {
    // A difference that overflows is of numbers of different signs, and more than any maximum.
    const bool longer = end >= begin && (u64)end - (u64)begin > (u64)longest;
    return (first && begin != 0 ? FIRST_NOT_ZERO : 0) | (end < begin ? DECREASES : 0) | (longer ? ABOVE_MAXIMUM : 0);
  }
};

DEVICE Span load_span(const PackedParams& packed, const void* starts, int batch) {
  return {load_start(packed, starts, batch), load_start(packed, starts, batch + 1)};
}

extern "C" __global__ void __launch_bounds__(THREADS)
    varlen_check_starts(const __grid_constant__ FlashParams p, const i64 longest_q, const i64 longest_kv, u32* status) {
  const PackedParams& packed = p.packed;
  u32 faults = 0;
  for (int batch = threadIdx.x; batch < p.batch; batch += THREADS) {
    const Span q = load_span(packed, packed.q_starts, batch), kv = load_span(packed, packed.kv_starts, batch);
    faults |= q.faults(batch == 0, longest_q) | kv.faults(batch == 0, longest_kv) << KV_SHIFT;
    if (batch == p.batch - 1) {
      if (q.end != packed.total_q) faults |= LAST_NOT_TOTAL;
#ifndef PAGED
      if (kv.end != packed.total_kv) faults |= LAST_NOT_TOTAL << KV_SHIFT;
#endif
    }
    if (packed.used_lengths != nullptr) {
      const i64 used = load_start(packed, packed.used_lengths, batch);
      const bool inside = used >= 0 && kv.end >= kv.begin && (u64)used <= (u64)kv.end - (u64)kv.begin;
      if (!inside) faults |= USED_OUT_OF_RANGE;
    }
  }
  __shared__ u32 found;
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  if (faults != 0) atomicOr(&found, faults);
  __syncthreads();
  if (threadIdx.x == 0) *status = found;
}
