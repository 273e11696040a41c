// What `curt-blaslt` calls of cuBLASLt, on this machine's processor: sums in double precision, rounded once.
#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "../half.h"

#define API extern "C" __attribute__((visibility("default")))

enum Status { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum Type { F32 = 0, F16 = 2, BF16 = 14 };

struct Multiplication {
  uint32_t compute;
  uint32_t transpose_a = 0, transpose_b = 0, epilogue = 1;
  uint64_t bias = 0;
};
struct Layout {
  uint32_t type;
  uint64_t rows, columns;
  int64_t leading;
  int32_t batch = 1;
  int64_t batch_stride = 0;

  int size() const { return type == F32 ? 4 : 2; }
};
struct Preference {};

static float load(uint32_t type, const void* from, int64_t at) {
  if (type == F32) return static_cast<const float*>(from)[at];
  const uint16_t bits = static_cast<const uint16_t*>(from)[at];
  return type == F16 ? half::f16_to_f32(bits) : half::bf16_to_f32(bits);
}
static void store(uint32_t type, void* to, int64_t at, float x) {
  if (type == F32) static_cast<float*>(to)[at] = x;
  else static_cast<uint16_t*>(to)[at] = type == F16 ? half::f32_to_f16(x) : half::f32_to_bf16(x);
}

API size_t cublasLtGetVersion() { return 130000; }
API uint32_t cublasLtCreate(void** handle) { *handle = new int(0); return SUCCESS; }
API uint32_t cublasLtDestroy(void* handle) { delete static_cast<int*>(handle); return SUCCESS; }
API uint32_t cublasLtMatmulDescCreate(void** made, uint32_t compute, uint32_t) { *made = new Multiplication{compute}; return SUCCESS; }
API uint32_t cublasLtMatmulDescDestroy(void* made) { delete static_cast<Multiplication*>(made); return SUCCESS; }
API uint32_t cublasLtMatmulDescSetAttribute(void* to, uint32_t attribute, const void* value, size_t bytes) {
  Multiplication& of = *static_cast<Multiplication*>(to);
  void* field = attribute == 3 ? (void*)&of.transpose_a : attribute == 4 ? (void*)&of.transpose_b : attribute == 7 ? (void*)&of.epilogue : attribute == 8 ? (void*)&of.bias : nullptr;
  if (field == nullptr || bytes != (attribute == 8 ? 8u : 4u)) return INVALID_VALUE;
  std::memcpy(field, value, bytes);
  return SUCCESS;
}
API uint32_t cublasLtMatrixLayoutCreate(void** made, uint32_t type, uint64_t rows, uint64_t columns, int64_t leading) {
  if (type != F32 && type != F16 && type != BF16) return NOT_SUPPORTED;
  *made = new Layout{type, rows, columns, leading};
  return SUCCESS;
}
API uint32_t cublasLtMatrixLayoutDestroy(void* made) { delete static_cast<Layout*>(made); return SUCCESS; }
API uint32_t cublasLtMatrixLayoutSetAttribute(void* to, uint32_t attribute, const void* value, size_t bytes) {
  Layout& of = *static_cast<Layout*>(to);
  if (attribute == 5 && bytes == 4) std::memcpy(&of.batch, value, 4);
  else if (attribute == 6 && bytes == 8) std::memcpy(&of.batch_stride, value, 8);
  else return INVALID_VALUE;
  return SUCCESS;
}
API uint32_t cublasLtMatmulPreferenceCreate(void** made) { *made = new Preference; return SUCCESS; }
API uint32_t cublasLtMatmulPreferenceDestroy(void* made) { delete static_cast<Preference*>(made); return SUCCESS; }
API uint32_t cublasLtMatmulPreferenceSetAttribute(void*, uint32_t, const void*, size_t) { return SUCCESS; }

struct Found {
  uint64_t algorithm[8];
  size_t workspace;
  uint32_t state;
  float waves;
  int32_t reserved[4];
};
// op(A) is rows x depth, op(B) depth x columns.
static bool fit(const Multiplication& how, const Layout& a, const Layout& b, const Layout& d) {
  const uint64_t depth = how.transpose_a ? a.rows : a.columns;
  return (how.transpose_a ? a.columns : a.rows) == d.rows && (how.transpose_b ? b.rows : b.columns) == d.columns && (how.transpose_b ? b.columns : b.rows) == depth &&
         a.leading >= (int64_t)a.rows && b.leading >= (int64_t)b.rows && d.leading >= (int64_t)d.rows && a.type == b.type && a.batch == d.batch && b.batch == d.batch;
}
API uint32_t cublasLtMatmulAlgoGetHeuristic(void*, void* how, void* a, void* b, void*, void* d, void*, int requested, void* results, int* returned) {
  *returned = 0;
  if (requested < 1 || !fit(*static_cast<Multiplication*>(how), *static_cast<Layout*>(a), *static_cast<Layout*>(b), *static_cast<Layout*>(d))) return NOT_SUPPORTED;
  std::memset(results, 0, sizeof(Found));
  static_cast<Found*>(results)->waves = 1;
  *returned = 1;
  return SUCCESS;
}

// An operand as products take it: TF32 keeps ten bits of a fraction.
constexpr uint32_t COMPUTE_TF32 = 77;
static double operand(const Multiplication& how, float x) {
  return how.compute == COMPUTE_TF32 && std::isfinite(x) ? half::of_bits((half::bits_of(x) + 0x1000) & ~0x1fffu) : x;
}
static float finished(float x, uint32_t epilogue) {
  if (epilogue & 2) x = x < 0 ? 0.f : x;
  if (epilogue & 32) x = 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * (double)x * x * x)));
  return x;
}
// Columns one after another, as all matrices here have them.
static void multiply(const Multiplication& how, float alpha, const void* a, const Layout& of_a, const void* b, const Layout& of_b, float beta, const void* c, void* d, const Layout& of_d) {
  const int64_t rows = of_d.rows, columns = of_d.columns, depth = how.transpose_a ? of_a.rows : of_a.columns;
  std::vector<double> left(rows * depth), sums(rows);
  for (int32_t batch = 0; batch < of_d.batch; ++batch) {
    const int64_t a_at = batch * of_a.batch_stride, b_at = batch * of_b.batch_stride, d_at = batch * of_d.batch_stride;
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t row = 0; row < rows; ++row) left[k * rows + row] = operand(how, load(of_a.type, a, a_at + (how.transpose_a ? row * of_a.leading + k : k * of_a.leading + row)));
    for (int64_t column = 0; column < columns; ++column) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (int64_t k = 0; k < depth; ++k) {
        const double x = operand(how, load(of_b.type, b, b_at + (how.transpose_b ? k * of_b.leading + column : column * of_b.leading + k)));
        for (int64_t row = 0; row < rows; ++row) sums[row] += left[k * rows + row] * x;
      }
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t at = d_at + column * of_d.leading + row;
        double x = alpha * sums[row];
        if (beta != 0) x += (double)beta * load(of_d.type, c, at);
        if (how.epilogue & 4) x += load(of_d.type, reinterpret_cast<const void*>(how.bias), row);
        store(of_d.type, d, at, finished(x, how.epilogue));
      }
    }
  }
}

API uint32_t cublasLtMatmul(void*, void* how, const void* alpha, const void* a, void* a_layout, const void* b, void* b_layout, const void* beta, const void* c, void*, void* d,
                            void* d_layout, const void*, void*, size_t, void* stream) {
  // The driver's, which knows whether the stream is being captured.
  typedef int Enqueue(void*, std::function<int()>);
  static Enqueue* const enqueue = [] {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return driver == nullptr ? nullptr : reinterpret_cast<Enqueue*>(dlsym(driver, "emulated_enqueue"));
  }();
  if (enqueue == nullptr) return NOT_INITIALIZED;
  const Multiplication multiplication = *static_cast<Multiplication*>(how);
  const Layout of_a = *static_cast<Layout*>(a_layout), of_b = *static_cast<Layout*>(b_layout), of_d = *static_cast<Layout*>(d_layout);
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  if (!fit(multiplication, of_a, of_b, of_d)) return INVALID_VALUE;
  const int status = enqueue(stream, [=] {
    multiply(multiplication, scale, a, of_a, b, of_b, keep, c, d, of_d);
    return 0;
  });
  return status == 0 ? SUCCESS : EXECUTION_FAILED;
}
