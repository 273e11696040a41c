// A CUDA driver without a GPU: what `curt` calls of libcuda, over this machine's memory. A kernel is a function of a shared library that
// nvrtc.cpp had a C++ compiler make of the kernel's text, and runs to its end before its launch returns. So there is nothing asynchronous
// to be got wrong here, and everything else is the real thing: plans, grids, parameters, tensor maps, workspaces, captured graphs.
//
// Fresh memory is not a number wherever it is looked at, and ends beside a page that nobody may touch.
//
// CUATTN_EMULATED_CAPABILITY (`9.0`) and CUATTN_EMULATED_MULTIPROCESSORS (132) say which GPU it is; CUATTN_EMULATED_SEED in which order
// blocks and threads take turns (0, or nothing: as they are numbered).
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "interface.h"

#define API extern "C" __attribute__((visibility("default"))) int

enum Result {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  INVALID_CONTEXT = 201,
  INVALID_IMAGE = 200,
  INVALID_DEVICE = 101,
  NOT_FOUND = 500,
  LAUNCH_FAILED = 719,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900,
};

typedef unsigned long long Address;
typedef std::chrono::steady_clock Clock;

static std::recursive_mutex lock;  // everything happens one after another
#define ONE_AT_A_TIME std::lock_guard<std::recursive_mutex> guard(lock)

static int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == 0 ? otherwise : std::atoi(text);
}

struct Gpu {
  int major = 9, minor = 0, multiprocessors = number("CUATTN_EMULATED_MULTIPROCESSORS", 132);
  int shared_per_block, shared_per_multiprocessor;
  size_t bytes = 140ull << 30;

  Gpu() {
    if (const char* capability = std::getenv("CUATTN_EMULATED_CAPABILITY")) std::sscanf(capability, "%d.%d", &major, &minor);
    const bool is_large = major >= 9 && major < 12, is_a100 = major == 8 && minor == 0;
    shared_per_multiprocessor = (is_large ? 228 : is_a100 ? 164 : 100) << 10;
    shared_per_block = shared_per_multiprocessor - 1024;
  }
};
static const Gpu& gpu() {
  static const Gpu gpu;
  return gpu;
}

// What was enqueued while a stream was captured, in order.
struct Graph {
  std::vector<std::function<int()>> nodes;
};
struct Stream {
  Graph* capture = nullptr;
};
struct Event {
  Clock::time_point at;
};
struct Pool {
  size_t used = 0, reserved = 0;
};
struct Function {
  const machine::Entry* entry;
  const machine::Module* module;
  int shared_limit = 48 << 10;
};
struct LoadedModule {
  void* library;
  const machine::Module* module;
  std::map<std::string, Function> functions;  // those that were asked for
};
struct Allocation {
  void* mapped;
  size_t mapped_bytes, bytes;
  Pool* pool;
};

static std::map<Address, Allocation> allocations;
static size_t allocated = 0;
static int lost = SUCCESS;  // after a launch that failed nothing works any more
static void* const CONTEXT = reinterpret_cast<void*>(0x1000);
static thread_local void* current = nullptr;
static Stream default_stream;

static Stream& stream_of(void* stream) { return stream == nullptr ? default_stream : *static_cast<Stream*>(stream); }

// Now, or when the graph runs.
static int enqueue(void* stream, std::function<int()> work) {
  if (lost != SUCCESS) return lost;
  if (Graph* graph = stream_of(stream).capture) {
    graph->nodes.push_back(std::move(work));
    return SUCCESS;
  }
  return work();
}

extern "C" __attribute__((visibility("default"))) int emulated_enqueue(void* stream, std::function<int()> work) {
  ONE_AT_A_TIME;
  return enqueue(stream, std::move(work));
}

API cuInit(unsigned) { return SUCCESS; }
API cuDriverGetVersion(int* version) { *version = 13000; return SUCCESS; }
API cuGetErrorName(int error, const char** name) {
  static const std::map<int, const char*> names = {
      {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},     {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"}, {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
      {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"}, {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"}, {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
      {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},     {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},   {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
  };
  const auto found = names.find(error);
  *name = found == names.end() ? nullptr : found->second;
  return *name == nullptr ? INVALID_VALUE : SUCCESS;
}
API cuGetErrorString(int error, const char** text) { return cuGetErrorName(error, text); }

API cuDeviceGet(int* device, int ordinal) { *device = ordinal; return ordinal == 0 ? SUCCESS : INVALID_DEVICE; }
API cuDeviceGetCount(int* count) { *count = 1; return SUCCESS; }
API cuDeviceGetName(char* name, int size, int) {
  std::snprintf(name, size, "emulated GPU");
  return SUCCESS;
}
API cuDeviceTotalMem_v2(size_t* bytes, int) { *bytes = gpu().bytes; return SUCCESS; }
API cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 1: *value = 1024; break;                              // threads of a block
    case 13: *value = 1000000; break;                          // clock, kHz
    case 16: *value = gpu().multiprocessors; break;
    case 36: *value = 1000000; break;                          // memory clock
    case 38: *value = 50 << 20; break;                         // second-level cache
    case 75: *value = gpu().major; break;
    case 76: *value = gpu().minor; break;
    case 81: *value = gpu().shared_per_multiprocessor; break;
    case 82: *value = 65536; break;                            // registers of a multiprocessor
    case 97: *value = gpu().shared_per_block; break;
    case 115: *value = 1; break;                               // memory pools
    default: *value = 0;
  }
  return SUCCESS;
}
API cuDevicePrimaryCtxRetain(void** context, int) { *context = CONTEXT; return SUCCESS; }
API cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }

API cuCtxGetCurrent(void** context) { *context = current; return SUCCESS; }
API cuCtxSetCurrent(void* context) { current = context; return SUCCESS; }
static thread_local std::vector<void*> pushed;
API cuCtxPushCurrent_v2(void* context) { pushed.push_back(current); current = context; return SUCCESS; }
API cuCtxPopCurrent_v2(void** context) {
  if (pushed.empty()) return INVALID_CONTEXT;
  if (context != nullptr) *context = current;
  current = pushed.back();
  pushed.pop_back();
  return SUCCESS;
}
API cuCtxGetDevice(int* device) { *device = 0; return current == nullptr ? INVALID_CONTEXT : SUCCESS; }

API cuStreamCreate(void** stream, unsigned) { *stream = new Stream; return SUCCESS; }
API cuStreamDestroy_v2(void* stream) { delete static_cast<Stream*>(stream); return SUCCESS; }
API cuStreamSynchronize(void* stream) {
  ONE_AT_A_TIME;
  return stream_of(stream).capture != nullptr ? CAPTURE_UNSUPPORTED : lost;
}
API cuStreamGetCtx(void*, void** context) { *context = CONTEXT; return SUCCESS; }
API cuStreamIsCapturing(void* stream, int* status) {
  ONE_AT_A_TIME;
  *status = stream_of(stream).capture != nullptr;
  return SUCCESS;
}
API cuStreamBeginCapture_v2(void* stream, int) {
  ONE_AT_A_TIME;
  if (stream == nullptr || stream_of(stream).capture != nullptr) return INVALID_VALUE;
  stream_of(stream).capture = new Graph;
  return SUCCESS;
}
API cuStreamEndCapture(void* stream, void** graph) {
  ONE_AT_A_TIME;
  *graph = stream_of(stream).capture;
  stream_of(stream).capture = nullptr;
  return *graph == nullptr ? INVALID_VALUE : SUCCESS;
}

API cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long) { *exec = new Graph(*static_cast<Graph*>(graph)); return SUCCESS; }
API cuGraphGetNodes(void* graph, void**, size_t* count) { *count = static_cast<Graph*>(graph)->nodes.size(); return SUCCESS; }
API cuGraphLaunch(void* exec, void* stream) {
  ONE_AT_A_TIME;
  const Graph graph = *static_cast<Graph*>(exec);
  return enqueue(stream, [graph] {
    for (const auto& node : graph.nodes)
      if (const int failed = node()) return failed;
    return (int)SUCCESS;
  });
}
API cuGraphExecDestroy(void* exec) { delete static_cast<Graph*>(exec); return SUCCESS; }
API cuGraphDestroy(void* graph) { delete static_cast<Graph*>(graph); return SUCCESS; }

API cuMemPoolCreate(void** pool, const void*) { *pool = new Pool; return SUCCESS; }
API cuMemPoolDestroy(void*) { return SUCCESS; }  // what was allocated from it may live on
API cuMemPoolSetAttribute(void*, int, void*) { return SUCCESS; }
API cuMemPoolGetAttribute(void* pool, int attribute, void* value) {
  ONE_AT_A_TIME;
  const Pool& of = *static_cast<Pool*>(pool);
  *static_cast<unsigned long long*>(value) = attribute == 5 ? of.reserved : attribute == 7 ? of.used : 0;
  return SUCCESS;
}
API cuMemPoolTrimTo(void* pool, size_t kept) {
  ONE_AT_A_TIME;
  Pool& of = *static_cast<Pool*>(pool);
  of.reserved = std::min(of.reserved, std::max(of.used, kept));
  return SUCCESS;
}

// A block whose end, as nearly as its alignment allows, is the end of what may be touched.
static int allocate(Address* address, size_t bytes, Pool* pool) {
  ONE_AT_A_TIME;
  if (lost != SUCCESS) return lost;
  if (bytes == 0) return INVALID_VALUE;
  if (bytes > gpu().bytes - allocated) return OUT_OF_MEMORY;
  const size_t page = sysconf(_SC_PAGESIZE), aligned = (bytes + 255) / 256 * 256, usable = (aligned + page - 1) / page * page;
  unsigned char* mapped = static_cast<unsigned char*>(mmap(nullptr, usable + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (mapped == MAP_FAILED) return OUT_OF_MEMORY;
  mprotect(mapped + page, usable, PROT_READ | PROT_WRITE);
  unsigned char* const begin = mapped + page + usable - aligned;
  if (bytes <= 64 << 20) std::memset(begin, 0xff, bytes);
  *address = reinterpret_cast<Address>(begin);
  allocations[*address] = {mapped, usable + 2 * page, bytes, pool};
  allocated += bytes;
  if (pool != nullptr) {
    pool->used += bytes;
    pool->reserved = std::max(pool->reserved, pool->used);
  }
  return SUCCESS;
}
static int release(Address address) {
  ONE_AT_A_TIME;
  const auto found = allocations.find(address);
  if (found == allocations.end()) return INVALID_VALUE;
  const Allocation allocation = found->second;
  munmap(allocation.mapped, allocation.mapped_bytes);
  allocated -= allocation.bytes;
  if (allocation.pool != nullptr) allocation.pool->used -= allocation.bytes;
  allocations.erase(found);
  return SUCCESS;
}
API cuMemAllocFromPoolAsync(Address* address, size_t bytes, void* pool, void* stream) {
  return stream_of(stream).capture != nullptr ? CAPTURE_UNSUPPORTED : allocate(address, bytes, static_cast<Pool*>(pool));
}
API cuMemFreeAsync(Address address, void*) { return release(address); }
API cuMemAlloc_v2(Address* address, size_t bytes) { return allocate(address, bytes, nullptr); }
API cuMemFree_v2(Address address) { return release(address); }
API cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return *memory == nullptr ? OUT_OF_MEMORY : SUCCESS;
}
API cuMemFreeHost(void* memory) { std::free(memory); return SUCCESS; }
API cuMemGetInfo_v2(size_t* free, size_t* total) {
  ONE_AT_A_TIME;
  *total = gpu().bytes;
  *free = gpu().bytes - allocated;
  return SUCCESS;
}

// Whether it lies in memory that was allocated, and not partly beside it.
static bool is_device_memory(Address address, size_t bytes) {
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) return false;
  --found;
  return address + bytes <= found->first + found->second.bytes;
}
static int copy(void* to, const void* from, size_t bytes, Address device, Address other_device, void* stream) {
  ONE_AT_A_TIME;
  if (bytes == 0) return SUCCESS;
  if (!is_device_memory(device, bytes) || (other_device != 0 && !is_device_memory(other_device, bytes))) return INVALID_VALUE;
  return enqueue(stream, [=] { std::memmove(to, from, bytes); return (int)SUCCESS; });
}
static void* pointer(Address address) { return reinterpret_cast<void*>(address); }
API cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* stream) { return copy(pointer(to), from, bytes, to, 0, stream); }
API cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* stream) { return copy(to, pointer(from), bytes, from, 0, stream); }
API cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void* stream) { return copy(pointer(to), pointer(from), bytes, to, from, stream); }
API cuMemsetD8Async(Address to, unsigned char value, size_t bytes, void* stream) {
  ONE_AT_A_TIME;
  if (bytes == 0) return SUCCESS;
  if (!is_device_memory(to, bytes)) return INVALID_VALUE;
  return enqueue(stream, [=] { std::memset(pointer(to), value, bytes); return (int)SUCCESS; });
}

// An image is a shared library. Its section table is the last that it has, which tells how long it is.
static size_t image_bytes(const unsigned char* image) {
  if (std::memcmp(image, "\177ELF\2", 5) != 0) return 0;
  unsigned long long sections;
  unsigned short size, count;
  std::memcpy(&sections, image + 40, 8);
  std::memcpy(&size, image + 58, 2);
  std::memcpy(&count, image + 60, 2);
  return sections + (size_t)size * count;
}
API cuModuleLoadData(void** module, const void* image) {
  ONE_AT_A_TIME;
  if (lost != SUCCESS) return lost;
  const size_t bytes = image_bytes(static_cast<const unsigned char*>(image));
  if (bytes == 0) return INVALID_IMAGE;
  // A name of its own, or the loader would take it for one that it has.
  char path[] = "/tmp/emulated-module-XXXXXX";
  const int file = mkstemp(path);
  if (file < 0 || write(file, image, bytes) != (ssize_t)bytes) return OUT_OF_MEMORY;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::fprintf(stderr, "emulated driver: %s\n", dlerror());
  close(file);
  unlink(path);
  if (library == nullptr) return INVALID_IMAGE;
  const auto* exported = static_cast<const machine::Module*>(dlsym(library, "emulated_module"));
  if (exported == nullptr) return INVALID_IMAGE;
  *module = new LoadedModule{library, exported, {}};
  return SUCCESS;
}
API cuModuleUnload(void* module) {
  ONE_AT_A_TIME;
  LoadedModule* const loaded = static_cast<LoadedModule*>(module);
  dlclose(loaded->library);
  delete loaded;
  return SUCCESS;
}
API cuModuleGetFunction(void** function, void* module, const char* name) {
  ONE_AT_A_TIME;
  LoadedModule& loaded = *static_cast<LoadedModule*>(module);
  for (int i = 0; i < loaded.module->count; ++i)
    if (std::strcmp(loaded.module->entries[i].name, name) == 0) {
      *function = &loaded.functions.try_emplace(name, Function{&loaded.module->entries[i], loaded.module}).first->second;
      return SUCCESS;
    }
  return NOT_FOUND;
}
API cuFuncGetAttribute(int* value, int attribute, void* function) {
  switch (attribute) {
    case 0: *value = static_cast<Function*>(function)->entry->threads; break;
    case 4: *value = 64; break;
    case 8: *value = static_cast<Function*>(function)->shared_limit; break;
    default: *value = 0;
  }
  return SUCCESS;
}
API cuFuncSetAttribute(void* function, int attribute, int value) {
  if (attribute == 8 && (value < 0 || value > gpu().shared_per_block)) return INVALID_VALUE;
  if (attribute == 8) static_cast<Function*>(function)->shared_limit = value;
  return SUCCESS;
}
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int threads, size_t shared_bytes) {
  *blocks = std::max(std::min(2048 / std::max(threads, 1), gpu().shared_per_multiprocessor / ((int)shared_bytes + 1024)), 0);
  return SUCCESS;
}

struct LaunchConfig {
  machine::Dim3 grid, block;
  unsigned shared_bytes;
  void* stream;
  const void* attributes;
  unsigned attribute_count;
};
// The arguments of a launch, kept for when it runs, each at an address that suits it.
struct Arguments {
  struct alignas(128) Piece {
    unsigned char bytes[128];
  };
  std::vector<std::vector<Piece>> pieces;

  Arguments(const machine::Entry& entry, void** from) {
    for (int i = 0; i < entry.parameters; ++i) {
      pieces.emplace_back(entry.sizes[i] / sizeof(Piece) + 1);
      std::memcpy(pieces.back().data(), from[i], entry.sizes[i]);
    }
  }
  std::vector<void*> pointers() {
    std::vector<void*> pointers;
    for (auto& piece : pieces) pointers.push_back(piece.data());
    return pointers;
  }
};
API cuLaunchKernelEx(const LaunchConfig* config, void* function, void** arguments, void**) {
  ONE_AT_A_TIME;
  const Function& kernel = *static_cast<Function*>(function);
  const machine::Dim3 grid = config->grid, block = config->block;
  const unsigned long long threads = (unsigned long long)block.x * block.y * block.z, blocks = (unsigned long long)grid.x * grid.y * grid.z;
  if (threads == 0 || threads > (unsigned)kernel.entry->threads || blocks == 0 || grid.y > 65535 || grid.z > 65535 || (int)config->shared_bytes > kernel.shared_limit) return INVALID_VALUE;
  if (block.y != 1 || block.z != 1) return NOT_SUPPORTED;
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    int id;
    std::memcpy(&id, static_cast<const char*>(config->attributes) + 72 * i, sizeof id);
    if (id != 6) return NOT_SUPPORTED;  // clusters, and grids whose blocks wait for each other
  }
  static unsigned launches = 0;
  const int seed = number("CUATTN_EMULATED_SEED", 0);
  const machine::Launch launch{grid, block, config->shared_bytes, seed == 0 ? 0 : seed + launches++};
  Arguments kept(*kernel.entry, arguments);
  return enqueue(config->stream, [=, entry = kernel.entry, module = kernel.module]() mutable {
    const char* failure = module->launch(*entry, launch, kept.pointers().data());
    if (failure == nullptr) return (int)SUCCESS;
    std::fprintf(stderr, "emulated GPU: %s: %s\n", entry->name, failure);
    lost = LAUNCH_FAILED;
    return (int)LAUNCH_FAILED;
  });
}

API cuEventCreate(void** event, unsigned) { *event = new Event; return SUCCESS; }
API cuEventDestroy_v2(void* event) { delete static_cast<Event*>(event); return SUCCESS; }
API cuEventRecord(void* event, void* stream) {
  ONE_AT_A_TIME;
  return enqueue(stream, [=] { static_cast<Event*>(event)->at = Clock::now(); return (int)SUCCESS; });
}
API cuEventQuery(void*) { return lost; }
API cuEventSynchronize(void*) { return lost; }
API cuEventElapsedTime(float* milliseconds, void* start, void* end) {
  *milliseconds = std::chrono::duration<float, std::milli>(static_cast<Event*>(end)->at - static_cast<Event*>(start)->at).count();
  return SUCCESS;
}

API cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address, const unsigned long long* dims, const unsigned long long* strides,
                           const unsigned* box, const unsigned* element_strides, int interleave, int swizzle, int, int) {
  static const int sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  if (rank < 1 || rank > 5 || type < 0 || type > 12 || interleave != 0 || reinterpret_cast<Address>(address) % 16 != 0) return INVALID_VALUE;
  if (swizzle != 0 && swizzle != 3) return NOT_SUPPORTED;
  for (unsigned d = 0; d < rank; ++d) {
    if (dims[d] == 0 || dims[d] > 1ull << 32 || box[d] == 0 || box[d] > 256 || element_strides[d] != 1) return INVALID_VALUE;
    if (d > 0 && (strides[d - 1] % 16 != 0 || strides[d - 1] >= 1ull << 40)) return INVALID_VALUE;
  }
  const bool is_swizzled = swizzle == 3;
  const unsigned row = box[0] * sizes[type];
  if (row % 16 != 0 || (is_swizzled && row > 128)) return INVALID_VALUE;
  const auto encoded = machine::TensorMap::of(address, sizes[type], rank, dims, strides, box, is_swizzled);
  std::memcpy(map, &encoded, sizeof encoded);
  return SUCCESS;
}
