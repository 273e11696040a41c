// Writes the work items of a packed batch, longest sequences first: one block of THREADS threads, two passes over the lengths.
//
// Sequences are sorted into BUCKETS by the keys that their last row sees, eight buckets an octave. The list has a fixed capacity; what
// is left of it is filled with items that hold nothing. Only bad starts can ask for more: then the rest is dropped.
//
// Constants: THREADS; options: PAGED.
#define VARLEN
#define ELEMENT 0
#include "varlen/find_tile.cuh"

constexpr int BUCKETS = 256;

// 0 for the longest.
DEVICE int bucket_of(int keys) {
  const int log8 = (int)(__float_as_uint((float)(keys + 1)) >> 20) - (127 << 3);
  return BUCKETS - 1 - log8;
}

// One sequence a lane.
struct Candidate {
  PackedSequence packed;
  int batch, tiles, bucket;

  DEVICE Candidate(const FlashParams& p, int batch, int block_rows) : batch(batch) {
    packed = batch < p.batch ? load_packed(p, batch) : PackedSequence{0, 0, 0, 0};
    tiles = row_tiles_of(p, packed, block_rows);
    bucket = tiles > 0 ? bucket_of(longest_row(p, packed, batch)) : -1;
  }
};

// The sum over the lanes before this one.
DEVICE int sum_before(int x) {
  const int lane = threadIdx.x & 31;
  int sum = x;
  UNROLL for (int step = 1; step < 32; step <<= 1) {
    const int other = __shfl_up_sync(WARP_MASK, sum, step);
    if (lane >= step) sum += other;
  }
  return sum - x;
}

// Calls visit(candidate) for each sequence, one a lane, in whole warps: lanes beyond the batch have no tiles.
template <typename Visit> DEVICE void for_each_sequence(const FlashParams& p, int block_rows, Visit visit) {
  for (int first = (threadIdx.x >> 5) * 32; first < p.batch; first += THREADS) visit(Candidate(p, first + (threadIdx.x & 31), block_rows));
}

extern "C" __global__ void __launch_bounds__(THREADS) varlen_build_schedule(const __grid_constant__ FlashParams p, const int block_rows) {
  __shared__ int next[BUCKETS];  // first tiles of each bucket, later the item where the next sequence of the bucket begins
  __shared__ int warp_totals[BUCKETS / 32];
  static_assert(THREADS >= BUCKETS, "a thread a bucket");
  const int lane = threadIdx.x & 31;
  if (threadIdx.x < BUCKETS) next[threadIdx.x] = 0;
  __syncthreads();

  for_each_sequence(p, block_rows, [&](const Candidate& mine) {
    if (mine.tiles > 0) atomicAdd(&next[mine.bucket], mine.tiles);
  });
  __syncthreads();

  const int tiles = threadIdx.x < BUCKETS ? next[threadIdx.x] : 0, before = sum_before(tiles);
  if (threadIdx.x < BUCKETS && lane == 31) warp_totals[threadIdx.x >> 5] = before + tiles;
  __syncthreads();
  int total = 0;
  for (int w = 0; w < BUCKETS / 32; ++w) {
    if (threadIdx.x < BUCKETS && w == threadIdx.x >> 5) next[threadIdx.x] = total + before;
    total += warp_totals[w];
  }
  __syncthreads();

  WorkItem* items = static_cast<WorkItem*>(p.packed.schedule);
  const int items_listed = min_of(total, p.packed.capacity);
  for_each_sequence(p, block_rows, [&](const Candidate& mine) {
    const int first = mine.tiles > 0 ? atomicAdd(&next[mine.bucket], mine.tiles) : 0;
    // The warp writes the items of its sequences together, however unequal they are.
    const int begin = sum_before(mine.tiles), end = __shfl_sync(WARP_MASK, begin + mine.tiles, 31);
    for (int base = 0; base < end; base += 32) {
      const int at = base + lane;
      int source = 0;  // the last lane whose tiles begin at or before `at`
      UNROLL for (int step = 16; step > 0; step >>= 1)
        if (__shfl_sync(WARP_MASK, begin, source + step) <= at) source += step;
      WorkItem item;
      item.packed.q_first = __shfl_sync(WARP_MASK, mine.packed.q_first, source);
      item.packed.q_len = __shfl_sync(WARP_MASK, mine.packed.q_len, source);
      item.packed.kv_first = __shfl_sync(WARP_MASK, mine.packed.kv_first, source);
      item.packed.kv_len = __shfl_sync(WARP_MASK, mine.packed.kv_len, source);
      item.batch = __shfl_sync(WARP_MASK, mine.batch, source);
      item.first_item = __shfl_sync(WARP_MASK, first, source);
      item.items = items_listed;
      item.reserved = 0;
      const int place = item.first_item + at - __shfl_sync(WARP_MASK, begin, source);
      if (at < end && place < p.packed.capacity) items[place] = item;
    }
  });
  for (int i = items_listed + threadIdx.x; i < p.packed.capacity; i += THREADS) items[i] = {{0, 0, 0, 0}, -1, 0, items_listed, 0};
}
