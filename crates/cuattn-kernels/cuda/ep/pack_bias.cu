// Makes one float32 bias of a padding mask and an additive bias, for operators that define a padded key by a number added to its
// score.
//
// A thread does every gridDim.x * THREADS-th element of [batch, heads, rows, keys].
#include "numeric.cuh"

#define PADDING_LENGTHS 0     // [batch]: how many keys are there
#define PADDING_KEYS 1        // [batch, keys]: 0 where a key is not there
#define PADDING_QUERY_KEYS 2  // [batch, rows, keys]: likewise

constexpr int THREADS = 256;

// Mirrored by PackBiasParams in src/ep.rs.
struct PackBiasParams {
  const i32* padding;
  const Scalar* bias;  // or null; its keys are contiguous
  float* target;
  i64 bias_batch, bias_head, bias_row;
  i64 count;
  i32 heads, rows, keys;
  i32 form;
  float filter;        // added where a key is not there
  i32 reserved;
};

extern "C" __global__ void __launch_bounds__(THREADS) pack_bias(const __grid_constant__ PackBiasParams p) {
  for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < p.count; i += (i64)gridDim.x * THREADS) {
    const i64 key = i % p.keys, row = i / p.keys % p.rows, head = i / p.keys / p.rows % p.heads;
    const i64 batch = i / p.keys / p.rows / p.heads;
    bool there;
    if (p.form == PADDING_LENGTHS) {
      there = p.padding[batch] > key;
    } else if (p.form == PADDING_KEYS) {
      there = p.padding[batch * p.keys + key] > 0;
    } else {
      there = p.padding[(batch * p.rows + row) * p.keys + key] > 0;
    }
    float value = there ? 0.0f : p.filter;
    if (p.bias != nullptr) {
      value += Element::load(p.bias[batch * p.bias_batch + head * p.bias_head + row * p.bias_row + key]);
    }
    p.target[i] = value;
  }
}
