// Stands after the text of a module: what the driver needs of it. A list of its kernels, made by xtask, follows.
#include <utility>

namespace machine {

template <auto kernel> struct Kernel;
template <typename... A, void (*kernel)(A...)> struct Kernel<kernel> {
  static inline void** arguments;
  static inline const unsigned sizes[] = {(unsigned)sizeof(A)..., 0};

  template <size_t... I> static void call(std::index_sequence<I...>) { kernel(*static_cast<A*>(arguments[I])...); }
  static void enter() { call(std::index_sequence_for<A...>()); }
  static Entry entry(const char* name, int threads) { return {name, sizes, sizeof...(A), threads, enter, &arguments}; }
};

static const char* launch(const Entry& entry, const Launch& launch, void** arguments) {
  *entry.arguments = arguments;
  gridDim = launch.grid;
  blockDim = launch.block;
  takes_any_order = launch.seed != 0;
  turns.seed(launch.seed);
  shared_limit = launch.shared_bytes + SHARED_BEGIN;
  const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
  std::vector<unsigned> order(blocks);
  std::iota(order.begin(), order.end(), 0u);
  if (takes_any_order) std::shuffle(order.begin(), order.end(), turns);
  is_abandoning = true;
  if (setjmp(abandoned) == 0)
    for (unsigned block : order) {
      blockIdx = {block % gridDim.x, block / gridDim.x % gridDim.y, block / gridDim.x / gridDim.y};
      run_block(entry.enter);
    }
  return failure[0] != 0 ? failure : nullptr;
}

}  // namespace machine

#define EXPORT_MODULE(kernels) \
  extern "C" __attribute__((visibility("default"))) const machine::Module emulated_module = {kernels, sizeof kernels / sizeof kernels[0], machine::launch};
