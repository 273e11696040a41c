// The bulk tensor copy engine (sm_90): boxes of a tensor to shared memory and back.
#include "types.cuh"

// A CUtensorMap, as the driver encodes it.
struct alignas(64) TensorMap {
  u64 words[16];
};

// Coordinates of a box's first element, from the innermost dimension on: a column, then rows and heads, in whichever order the map has
// them, then a batch or a page.
struct BoxAt {
  int x, y, z, w;
};

// A box of rows of one sequence among others, in a ragged map: what lies before or beyond the sequence counts as outside the tensor.
//
// Such a map gives the tensor RAGGED_ROWS rows and two dimensions more. Rows are counted so that the sequence's last one is the map's
// last; `end` takes the sequence's end back to where it is, and the last coordinate, whose stride times RAGGED_ROWS is minus
// RAGGED_ROWS rows modulo 2^64, what was added too much. The map is one for all sequences; `curt::TensorMapBuilder::ragged` makes it.
// Heads come before rows.
constexpr int RAGGED_ROWS = 1 << 30;

struct RaggedBoxAt {
  int column, head, row, end;

  // From row `row` of the sequence of `len` rows that begins at row `first` of the tensor.
  static DEVICE RaggedBoxAt of(int column, int row, int head, int first, int len) { return {column, head, RAGGED_ROWS - len + row, first + len}; }
};

DEVICE void tma_prefetch_map(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
// A box to `dst`; what lies outside the tensor becomes zeros. `barrier` counts the box's bytes when they have landed.
DEVICE void tma_load(u32 dst, const TensorMap* map, u32 barrier, BoxAt at) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(dst),
      "l"(map), "r"(barrier), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w) : "memory");
}
// A box from `src`; what lies outside the tensor is not written.
DEVICE void tma_store(u32 src, const TensorMap* map, BoxAt at) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%1, {%2, %3, %4, %5}], [%0];" ::"r"(src), "l"(map),
               "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w) : "memory");
}
DEVICE void tma_load(u32 dst, const TensorMap* map, u32 barrier, RaggedBoxAt at) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(dst),
      "l"(map), "r"(barrier), "r"(at.column), "r"(at.head), "r"(at.row), "r"(at.end), "r"(RAGGED_ROWS) : "memory");
}
DEVICE void tma_store(u32 src, const TensorMap* map, RaggedBoxAt at) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%1, {%2, %3, %4, %5, %6}], [%0];" ::"r"(src), "l"(map),
               "r"(at.column), "r"(at.head), "r"(at.row), "r"(at.end), "r"(RAGGED_ROWS) : "memory");
}
DEVICE void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until the sources of all stores have been read, and may be overwritten.
DEVICE void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// Until all stores are done.
DEVICE void tma_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Makes this thread's ordinary writes to shared memory visible to the copy engine and the tensor cores.
DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
