#pragma once
DEVICE u32 shared_address(const void* p) { return static_cast<const unsigned char*>(p) - machine::shared_memory; }
DEVICE void copy_or_zeros(u32 dst, const void* src, int bytes, int size) {
  std::memset(machine::shared_memory + dst, 0, size);
  if (bytes > 0) std::memcpy(machine::shared_memory + dst, src, bytes);
}
DEVICE void cp_async_16(u32 dst, const void* src, int bytes) { copy_or_zeros(dst, src, bytes, 16); }
DEVICE void cp_async_16_or_zeros(u32 dst, const void* src, bool valid) { copy_or_zeros(dst, src, valid ? 16 : 0, 16); }
DEVICE void cp_async_4(u32 dst, const void* src, int bytes) { copy_or_zeros(dst, src, bytes, 4); }
DEVICE void cp_async_commit() {}
template <int PENDING> DEVICE void cp_async_wait() {}
