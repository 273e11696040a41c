// What an emulated driver knows of a module: its kernels, and how to launch them.
#pragma once

namespace machine {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

struct Launch {
  Dim3 grid, block;
  unsigned shared_bytes;
  unsigned seed;  // 0: blocks and threads take turns as they are numbered; otherwise in an order drawn from it
};

struct Entry {
  const char* name;
  const unsigned* sizes;  // of its parameters, in bytes
  int parameters;
  int threads;            // of a block, at most
  void (*enter)();        // one thread
  void*** arguments;      // where `enter` finds them
};

struct Module {
  const Entry* entries;
  int count;
  // Runs a kernel to its end. What went wrong, or null.
  const char* (*launch)(const Entry& entry, const Launch& launch, void** arguments);
};

// A tensor map as the emulated driver encodes it, in the place of the device's own 128 bytes.
struct TensorMap {
  unsigned char* base;
  unsigned long long strides[4];  // in bytes, of the dimensions after the first
  unsigned last[5];               // the last index of each dimension
  unsigned short box[5];
  unsigned char element_bytes, is_swizzled;
  unsigned unused[14];

  // Of `rank` dimensions; the others have one index. `strides`: of the dimensions after the first.
  template <typename Box> static TensorMap of(const void* base, int element_bytes, int rank, const unsigned long long* extents, const unsigned long long* strides, const Box* box, bool is_swizzled) {
    TensorMap map{};
    map.base = static_cast<unsigned char*>(const_cast<void*>(base));
    map.element_bytes = element_bytes;
    map.is_swizzled = is_swizzled;
    for (int d = 0; d < 5; ++d) {
      map.last[d] = d < rank ? extents[d] - 1 : 0;
      map.box[d] = d < rank ? box[d] : 1;
      if (d > 0 && d < rank) map.strides[d - 1] = strides[d - 1];
    }
    return map;
  }
  unsigned long long stride(int dimension) const { return dimension == 0 ? element_bytes : strides[dimension - 1]; }
  long box_bytes() const { return (long)box[0] * box[1] * box[2] * box[3] * box[4] * element_bytes; }
};
static_assert(sizeof(TensorMap) == 128, "as large as the device's");

}  // namespace machine
