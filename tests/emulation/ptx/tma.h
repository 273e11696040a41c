#pragma once
struct alignas(64) TensorMap {
  machine::TensorMap described;
};
struct BoxAt {
  int x, y, z, w;
};
constexpr int RAGGED_ROWS = 1 << 30;
struct RaggedBoxAt {
  int column, head, row, end;

  static DEVICE RaggedBoxAt of(int column, int row, int head, int first, int len) { return {column, head, RAGGED_ROWS - len + row, first + len}; }
};
struct Coordinates {
  i64 at[5];

  Coordinates(BoxAt box) : at{box.x, box.y, box.z, box.w, 0} {}
  Coordinates(RaggedBoxAt box) : at{box.column, box.head, box.row, box.end, RAGGED_ROWS} {}
};

// Calls visit(address in shared memory, address in memory or null) for each element of the box.
template <typename Visit> void for_each_element(u32 shared, const machine::TensorMap& map, const Coordinates& first, Visit visit) {
  const int elements = map.box_bytes() / map.element_bytes;
  for (int number = 0; number < elements; ++number) {
    bool inside = true;
    u64 address = reinterpret_cast<u64>(map.base);
    for (int d = 0, rest = number; d < 5; rest /= map.box[d], ++d) {
      const i64 at = first.at[d] + rest % map.box[d];
      inside &= at >= 0 && (u64)at <= map.last[d];
      address += (u64)at * map.stride(d);  // modulo 2^64, as the device counts
    }
    const u32 place = shared + number * map.element_bytes;
    visit(machine::shared_memory + (map.is_swizzled ? machine::swizzled(place) : place), inside ? reinterpret_cast<void*>(address) : nullptr);
  }
}

DEVICE void tma_prefetch_map(const TensorMap*) {}
template <typename Box> void tma_load(u32 dst, const TensorMap* map, u32 barrier, Box at) {
  const machine::TensorMap& m = map->described;
  for_each_element(dst, m, at, [&](void* to, const void* from) {
    if (from == nullptr) std::memset(to, 0, m.element_bytes);
    else std::memcpy(to, from, m.element_bytes);
  });
  machine::mbarriers.at(barrier).complete(m.box_bytes());
}
template <typename Box> void tma_store(u32 src, const TensorMap* map, Box at) {
  const machine::TensorMap& m = map->described;
  for_each_element(src, m, at, [&](const void* from, void* to) {
    if (to != nullptr) std::memcpy(to, from, m.element_bytes);
  });
}
DEVICE void tma_store_commit() {}
DEVICE void tma_store_wait_read() {}
DEVICE void tma_store_wait() {}
DEVICE void fence_async_proxy() {}
