// One multiprocessor, as far as our kernels can tell, for a C++ compiler: blocks run one after another, the threads of a block in turns, each
// on a stack of its own until it waits for others. `cargo xtask emulate` compiles a kernel's text after this file, with the instructions
// of ptx/ in the place of those that the text has in PTX.
//
// What is asynchronous on the device (copies, warpgroup products, stores) is done here at once, so a wait for that alone may be missing
// unseen. Values, addresses, masks and barriers are the device's, and the order in which threads get their turns is any: a result that
// depends on it lacks a barrier.
#pragma once
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <unordered_map>
#include <vector>

#include "device/interface.h"
#include "half.h"

#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static

inline machine::Dim3 threadIdx, blockIdx, gridDim, blockDim;

namespace machine {

// Nothing lies below SHARED_BEGIN, so that 0 is nobody's address; nor from `shared_limit` on, where a launch says how much it has.
constexpr unsigned SHARED_BYTES = 256 << 10, SHARED_BEGIN = 1024;
inline unsigned char* const shared_memory = static_cast<unsigned char*>(std::aligned_alloc(1024, SHARED_BYTES));
inline unsigned shared_limit = SHARED_BYTES;

constexpr int STACK_BYTES = 128 << 10;

struct Thread {
  ucontext_t begin;
  jmp_buf place;  // where it waits: unlike contexts, jumps ask the kernel for nothing
  bool has_begun = false, is_done = false;
};
inline std::vector<Thread> threads;

// Of a block's threads. The pages that nobody touches cost nothing.
struct Stacks {
  static constexpr size_t BYTES = (size_t)1024 * STACK_BYTES;
  char* const base = static_cast<char*>(mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));

  ~Stacks() { munmap(base, BYTES); }
  char* of(int thread) const { return base + (size_t)thread * STACK_BYTES; }
};
inline const Stacks stacks;
inline jmp_buf scheduler;
inline unsigned long events = 0;  // anything that somebody may wait for
inline bool takes_any_order = false;
inline std::mt19937 turns(1);
inline void (*kernel)();

// A launch that fails is either the end of the program, or told to whoever launched.
inline bool is_abandoning = false;
inline jmp_buf abandoned;
inline char failure[256];

// Lets the other threads run.
inline void yield() {
  if (_setjmp(threads[threadIdx.x].place) == 0) _longjmp(scheduler, 1);
}
inline void resume(Thread& thread) {
  if (_setjmp(scheduler) != 0) return;
  if (thread.has_begun) _longjmp(thread.place, 1);
  thread.has_begun = true;
  setcontext(&thread.begin);
}

[[noreturn]] inline void fail(const char* what) {
  std::snprintf(failure, sizeof failure, "block %u thread %u: %s", blockIdx.x, threadIdx.x, what);
  if (is_abandoning) longjmp(abandoned, 1);
  std::printf("FAILED %s\n", failure);
  std::exit(1);
}

// A barrier of a known number of threads, some of whom may only arrive.
struct Barrier {
  int arrived = 0;
  unsigned generation = 0;
  bool all = true, result = true;

  void arrive(int expected, bool value = true) {
    ++events;
    all &= value;
    if (++arrived > expected) fail("more threads at a barrier than it is for");
    if (arrived < expected) return;
    result = all;
    all = true;
    arrived = 0;
    ++generation;
  }
  bool sync(int expected, bool value = true) {
    const unsigned mine = generation;
    arrive(expected, value);
    while (generation == mine) yield();
    return result;
  }
};

// An mbarrier: arrivals and bytes that its phase still waits for.
struct Mbarrier {
  int arrivals, pending;
  long bytes = 0;
  unsigned phase = 0;

  void arrive(long more_bytes = 0) {
    bytes += more_bytes;
    if (--pending < 0) fail("more arrivals at an mbarrier than it is for");
    settle();
  }
  void complete(long done) {
    bytes -= done;
    settle();
  }
  void settle() {
    ++events;
    if (pending != 0 || bytes != 0) return;
    phase ^= 1;
    pending = arrivals;
  }
};

struct Warp {
  Barrier barrier;
  unsigned long long value[32][4];  // what lanes show each other
};

constexpr int BLOCK_BARRIER = 16, WARPGROUP_BARRIERS = 17;  // behind the named ones
inline Barrier barriers[WARPGROUP_BARRIERS + 8];
inline std::unordered_map<unsigned, Mbarrier> mbarriers;
inline std::vector<Warp> warps;

inline Warp& warp() { return warps[threadIdx.x / 32]; }
inline int lane() { return threadIdx.x % 32; }

inline void run_thread() {
  kernel();
  threads[threadIdx.x].is_done = true;
  ++events;
  yield();
}

inline void run_block(void (*entry)()) {
  kernel = entry;
  std::memset(shared_memory, 0xff, SHARED_BYTES);
  mbarriers.clear();
  for (auto& barrier : barriers) barrier = {};
  warps.assign((blockDim.x + 31) / 32, {});
  threads.resize(blockDim.x);
  for (unsigned number = 0; number < blockDim.x; ++number) {
    Thread& thread = threads[number];
    thread.has_begun = thread.is_done = false;
    getcontext(&thread.begin);
    thread.begin.uc_stack.ss_sp = stacks.of(number);
    thread.begin.uc_stack.ss_size = STACK_BYTES;
    thread.begin.uc_link = nullptr;
    makecontext(&thread.begin, run_thread, 0);
  }
  std::vector<int> order(threads.size());
  std::iota(order.begin(), order.end(), 0);
  for (int idle = 0, left = 1; left != 0;) {
    const unsigned long before = events;
    left = 0;
    if (takes_any_order) std::shuffle(order.begin(), order.end(), turns);
    for (int t : order) {
      if (threads[t].is_done) continue;
      ++left;
      threadIdx.x = t;
      resume(threads[t]);
    }
    idle = events == before ? idle + 1 : 0;
    if (idle > 50) fail("all threads wait for each other");
  }
  for (unsigned at = shared_limit; at < SHARED_BYTES; ++at)
    if (shared_memory[at] != 0xff) fail("shared memory was written beyond what the launch has");
}

// What the lanes of a warp show each other.
template <typename T> struct Shown {
  T of[32];

  explicit Shown(T mine) {
    Warp& w = warp();
    std::memcpy(w.value[lane()], &mine, sizeof mine);
    w.barrier.sync(32);
    for (int i = 0; i < 32; ++i) std::memcpy(&of[i], w.value[i], sizeof mine);
    w.barrier.sync(32);
  }
};
template <typename T> T exchanged(T x, int from) { return Shown<T>(x).of[from % 32]; }

// Where an address in shared memory lies under the 128-byte swizzle.
inline unsigned swizzled(unsigned address) { return address ^ ((address >> 7 & 7) << 4); }

}  // namespace machine

inline unsigned __float_as_uint(float x) { return half::bits_of(x); }
inline float __uint_as_float(unsigned x) { return half::of_bits(x); }
inline float __int_as_float(int x) { return __uint_as_float((unsigned)x); }
inline float __fdividef(float a, float b) { return a / b; }
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
template <typename T, typename U> T atomicAdd(T* at, U x) { const T before = *at; *at = before + x; return before; }
template <typename T, typename U> T atomicOr(T* at, U x) { const T before = *at; *at = before | x; return before; }
inline long long clock64() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
template <typename T> T __shfl_sync(unsigned, T x, int from) { return machine::exchanged(x, from); }
template <typename T> T __shfl_xor_sync(unsigned, T x, int mask) { return machine::exchanged(x, machine::lane() ^ mask); }
template <typename T> T __shfl_up_sync(unsigned, T x, int by) {
  return machine::exchanged(x, machine::lane() >= by ? machine::lane() - by : machine::lane());
}
inline unsigned __ballot_sync(unsigned, bool vote) {
  const machine::Shown<bool> shown(vote);
  unsigned votes = 0;
  for (int i = 0; i < 32; ++i) votes |= (unsigned)shown.of[i] << i;
  return votes;
}
inline bool __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
inline bool __all_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) == 0xffffffffu; }
inline void __syncwarp() { machine::warp().barrier.sync(32); }
inline void __syncthreads() { machine::barriers[machine::BLOCK_BARRIER].sync(blockDim.x); }
inline int __syncthreads_or(int vote) { return !machine::barriers[machine::BLOCK_BARRIER].sync(blockDim.x, vote == 0); }
