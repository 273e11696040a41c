// One problem, from the command line, for the kernel whose text stands before this file: random tensors, the launch's parameters as the
// engines make them, blocks one after another, and attention in float64 over the same numbers.
//
//   heads=8/2 len=300/400 batch=2 causal window=70 scale=6 growth=100 blocks=3 nan=7     a batch of equal sequences
//   heads=8/2 len=40/40,0/5,7/0 causal ...                                                packed ones (VARLEN)
//
// window: keys to the left. scale: of the queries. growth: how much larger the first keys of a sequence are than the last, which tiles begin
// with. blocks: how many draw tiles. nan: a key that the bias hides from all rows and that is not a number; without a bias, a value at this
// key and dimension, which the rows that do not see it must not show. Kernels for any head size take dim=40/72. Heads are inside tokens:
// [tokens, heads, dim].
#include <string>

static std::mt19937 generator(1);
static float normal() {
  static std::normal_distribution<float> distribution;
  return distribution(generator);
}

[[noreturn]] static void refuse(const std::string& what) {
  std::printf("FAILED to understand %s\n", what.c_str());
  std::exit(2);
}

struct Lengths {
  int q, kv;
};

struct Arguments {
  int heads = 1, kv_heads = 1, batch = 1, window = -1, blocks = 1, nan = -1;
#ifdef HEAD_DIM
  const int head_dim = HEAD_DIM, v_head_dim = V_HEAD_DIM;
#else
  int head_dim = 64, v_head_dim = 64;
#endif
  float scale = 1, growth = 1;
  bool causal = false;
  std::vector<Lengths> sequences;

  Arguments(int count, char** texts) {
    for (int i = 1; i < count; ++i) {
      const std::string text = texts[i], name = text.substr(0, text.find('=')), value = text.substr(text.find('=') + 1);
      if (text == "causal") causal = true;
      else if (name == "heads") std::sscanf(value.c_str(), "%d/%d", &heads, &kv_heads);
      else if (name == "len") read_lengths(value);
#ifndef HEAD_DIM
      else if (name == "dim") std::sscanf(value.c_str(), "%d/%d", &head_dim, &v_head_dim);
#endif
      else if (name == "batch") batch = std::stoi(value);
      else if (name == "window") window = std::stoi(value);
      else if (name == "blocks") blocks = std::stoi(value);
      else if (name == "scale") scale = std::stof(value);
      else if (name == "growth") growth = std::stof(value);
      else if (name == "nan") nan = std::stoi(value);
      else refuse(text);
    }
    while ((int)sequences.size() < batch) sequences.push_back(sequences.at(0));
    batch = sequences.size();
  }
  void read_lengths(const std::string& value) {
    for (size_t at = 0; at < value.size(); at = value.find(',', at) == std::string::npos ? value.size() : value.find(',', at) + 1) {
      Lengths lengths;
      if (std::sscanf(value.c_str() + at, "%d/%d", &lengths.q, &lengths.kv) != 2) refuse(value);
      sequences.push_back(lengths);
    }
  }
};

static std::vector<Scalar> random_tensor(size_t elements, float scale) {
  std::vector<Scalar> tensor(elements);
  for (auto& x : tensor) x = Element::store(normal() * scale);
  return tensor;
}

// As cuattn_kernels::abi::Divisor.
static Divisor divisor(int value) {
  int shift = 31;
  while ((u64)1 << (shift - 31) < (u64)value) ++shift;
  return {(u32)((((u64)1 << shift) + value - 1) / value), shift, value};
}

#ifdef WARPGROUPS
constexpr int ROWS_OF_TILE = TILE_ROWS, THREADS_OF_BLOCK = 128 * (WARPGROUPS + 1);
#else
constexpr int ROWS_OF_TILE = BLOCK_ROWS, THREADS_OF_BLOCK = THREADS;
#define PACK 1
#endif

#if defined(PAGED) && !defined(PAGE_SIZE)
#define PAGE_SIZE 16
#endif

struct Problem {
  Arguments is;
#ifdef PAGED
  std::vector<i32> table;  // of each sequence, in a random order
  int max_pages = 0;
#endif
  std::vector<int> q_starts{0}, kv_starts{0};
  std::vector<Scalar> q, k, v, o;
  std::vector<float> sinks, log_sum_exp, bias;  // bias: what every kind of it comes to
  std::vector<unsigned char> bias_bytes;
  int bias_row = 0;

  explicit Problem(const Arguments& arguments) : is(arguments) {
    for (const Lengths& lengths : is.sequences) {
      q_starts.push_back(q_starts.back() + lengths.q);
      kv_starts.push_back(kv_starts.back() + lengths.kv);
    }
    q = random_tensor((size_t)rows() * is.head_dim, is.scale);
#ifdef PAGED
    for (const Lengths& lengths : is.sequences) max_pages = std::max(max_pages, ceil_div(lengths.kv, PAGE_SIZE) + 1);
    for (int page = 0; page < is.batch * max_pages; ++page) table.push_back(page);
    std::shuffle(table.begin(), table.end(), generator);
#endif
    k = random_tensor((size_t)kv_tokens() * is.kv_heads * is.head_dim, 1);
    v = random_tensor((size_t)kv_tokens() * is.kv_heads * is.v_head_dim, 1);
    forget();
    for (int head = 0; head < is.heads; ++head) sinks.push_back(normal());
#if BIAS != BIAS_NONE
    draw_bias();
#endif
    for (int sequence = 0; sequence < is.batch; ++sequence)
      for (int key = 0; key < is.sequences[sequence].kv; ++key) grow(sequence, key);
    for (int head = 0; head < is.kv_heads && is.nan >= 0; ++head) {
      if (bias.empty()) v[(is.nan * is.kv_heads + head) * is.v_head_dim] = Element::store(NAN);
      else k[(is.nan * is.kv_heads + head) * is.head_dim] = Element::store(NAN);
    }
  }
  void forget() {
    o.assign((size_t)rows() * is.v_head_dim, Element::store(NAN));
    log_sum_exp.assign(rows(), NAN);
  }
  bool has_the_bits_of(const Problem& other) const {
    return std::memcmp(o.data(), other.o.data(), o.size() * sizeof(Scalar)) == 0 &&
           std::memcmp(log_sum_exp.data(), other.log_sum_exp.data(), log_sum_exp.size() * sizeof(float)) == 0;
  }
  // The keys of the last third stay as they are, those of the first are larger by the whole growth.
  void grow(int sequence, int key) {
    const float power = std::fmin(std::fmax(2.f - 3.f * key / is.sequences[sequence].kv, 0.f), 1.f);
    for (int i = 0; i < is.kv_heads * is.head_dim; ++i) {
      Scalar& x = k[kv_token(sequence, key) * is.kv_heads * is.head_dim + i];
      x = Element::store(Element::load(x) * std::pow(is.growth, power));
    }
  }
  // Where a key lies, and how many there is room for.
  int kv_token(int sequence, int key) const {
#ifdef PAGED
    return table[sequence * max_pages + key / PAGE_SIZE] * PAGE_SIZE + key % PAGE_SIZE;
#else
    return kv_starts[sequence] + key;
#endif
  }
  int kv_tokens() const {
#ifdef PAGED
    return table.size() * PAGE_SIZE;
#else
    return kv_starts.back();
#endif
  }
  int rows() const { return q_starts.back() * is.heads; }

#if BIAS != BIAS_NONE
  // Of one plane. It hides some keys, gives others huge negatives, hides a row's keys up to the last twenty, and another's altogether.
  void draw_bias() {
    const int q_len = is.sequences[0].q, kv_len = is.sequences[0].kv;
    bias_row = ceil_div(kv_len, 16) * 16;
    bias.assign(q_len * bias_row, 0.f);
    bias_bytes.resize(bias.size() * sizeof(BiasScalar));
    for (int row = 0; row < q_len; ++row)
      for (int key = 0; key < kv_len; ++key) {
        const int kind = generator() % 16;
        const bool hidden = kind == 0 || key == is.nan || row == 5 || (row == 2 && key > 20);
        float& x = bias[row * bias_row + key];
#if BIAS == BIAS_BOOLEAN
        const BiasScalar stored = !hidden;
#elif BIAS == BIAS_F32
        const BiasScalar stored = hidden ? -INFINITY_F32 : kind == 1 ? -3.3e38f : normal();
#else
        const BiasScalar stored = Element::store(hidden ? -INFINITY_F32 : kind == 1 ? -6e4f : normal());
#endif
        std::memcpy(&bias_bytes[(row * bias_row + key) * sizeof stored], &stored, sizeof stored);
        x = bias_value(stored);
      }
  }
#endif

  FlashParams params() {
    const i64 q_row = (i64)is.heads * is.head_dim, o_row = (i64)is.heads * is.v_head_dim, k_row = (i64)is.kv_heads * is.head_dim, v_row = (i64)is.kv_heads * is.v_head_dim;
    const Lengths first = is.sequences[0];
    FlashParams p{};
    p.q = q.data();
    p.k = k.data();
    p.v = v.data();
    p.o = o.data();
    p.sinks = sinks.data();
    p.log_sum_exp = log_sum_exp.data();
    p.q_strides = {first.q * q_row, is.head_dim, q_row};
    p.k_strides = {first.kv * k_row, is.head_dim, k_row};
    p.v_strides = {first.kv * v_row, is.v_head_dim, v_row};
    p.o_strides = {first.q * o_row, is.v_head_dim, o_row};
    p.mask.window_left = is.window;
    p.mask.window_right = is.causal ? 0 : -1;
    p.mask.q_len = first.q;
    p.mask.kv_len = first.kv;
    p.mask.bias_keys = FAR_EDGE - 1;
    p.mask.alignment = ALIGN_BOTTOM_RIGHT;
#if BIAS != BIAS_NONE
    p.mask.bias = bias_bytes.data();
    p.mask.bias_row = bias_row;
    p.mask.bias_key = 1;
    p.mask.bias_keys = first.kv;
#endif
    p.score.scale = 1.f / std::sqrt((float)is.head_dim);
    p.score.softcap = 20.f;
    p.batch = is.batch;
    p.q_heads = is.heads;
    p.kv_heads = is.kv_heads;
    p.head_dim = is.head_dim;
    p.v_head_dim = is.v_head_dim;
    p.pack = PACK;
    const int units = is.heads / PACK, row_tiles = std::max(ceil_div(first.q * PACK, ROWS_OF_TILE), 1);
    const int section = is.causal && units > 1 ? 2 : 1, whole = (is.batch * units - 1) / section;
    p.order = {divisor(section), divisor(is.batch * units - whole * section), divisor(section * row_tiles), divisor(units), divisor(is.heads / is.kv_heads), whole, row_tiles, 0};
#ifdef VARLEN
    p.packed.q_starts = q_starts.data();
    p.packed.kv_starts = kv_starts.data();
    p.packed.total_q = q_starts.back();
    p.packed.total_kv = kv_starts.back();
    p.packed.capacity = q_starts.back() * PACK / ROWS_OF_TILE + is.batch;
    p.packed.section_keys = 1 << 20;
#endif
#ifdef PAGED
    p.pages.table = table.data();
    p.pages.page_size = PAGE_SIZE;
    p.pages.max_pages = max_pages;
    p.pages.pages = table.size();
    p.k_strides.batch = PAGE_SIZE * k_row;
    p.v_strides.batch = PAGE_SIZE * v_row;
#endif
    return p;
  }

  double score(int sequence, int head, int row, int key) const {
    const Scalar* a = &q[((q_starts[sequence] + row) * is.heads + head) * is.head_dim];
    const Scalar* b = &k[(kv_token(sequence, key) * is.kv_heads + head / (is.heads / is.kv_heads)) * is.head_dim];
    double sum = 0;
    for (int d = 0; d < is.head_dim; ++d) sum += (double)Element::load(a[d]) * Element::load(b[d]);
    sum /= std::sqrt((double)is.head_dim);
#ifdef SOFTCAP
    sum = 20 * std::tanh(sum / 20);
#endif
    return sum;
  }
  bool sees(int sequence, int row, int key) const {
    const int at = row + is.sequences[sequence].kv - is.sequences[sequence].q;
    const bool hidden = !bias.empty() && bias[row * bias_row + key] == -INFINITY_F32;
    return !hidden && (!is.causal || key <= at) && (is.window < 0 || key >= at - is.window);
  }

  // Compares with float64, prints a line, and gives the exit status.
  int check() const {
    double error = 0, magnitude = 0, log_sum_exp_error = 0;
    long broken = 0;
    for (int sequence = 0; sequence < is.batch; ++sequence)
      for (int head = 0; head < is.heads; ++head)
        for (int row = 0; row < is.sequences[sequence].q; ++row) {
          const int keys = is.sequences[sequence].kv;
          std::vector<double> scores(keys, -INFINITY), out(is.v_head_dim, 0.0);
          double top = sinks[head];
          for (int key = 0; key < keys; ++key)
            if (sees(sequence, row, key)) {
              scores[key] = score(sequence, head, row, key) + (bias.empty() ? 0 : bias[row * bias_row + key]);
              top = std::max(top, scores[key]);
            }
          double sum = std::exp(sinks[head] - top);
          for (int key = 0; key < keys; ++key) {
            if (scores[key] == -INFINITY) continue;
            const double weight = std::exp(scores[key] - top);
            const Scalar* value = &v[(kv_token(sequence, key) * is.kv_heads + head / (is.heads / is.kv_heads)) * is.v_head_dim];
            sum += weight;
            for (int d = 0; d < is.v_head_dim; ++d) out[d] += weight * Element::load(value[d]);
          }
          const int token = q_starts[sequence] + row;
          for (int d = 0; d < is.v_head_dim; ++d) {
            const double want = out[d] / sum, off = Element::load(o[(token * is.heads + head) * is.v_head_dim + d]) - want;
            if (want != want && off != off) continue;  // a value that is not a number, seen
            if (off != off && broken++ == 0) std::printf("sequence %d head %d row %d column %d is not a number; ", sequence, head, row, d);
            error += off * off;
            magnitude += want * want;
          }
#ifdef VARLEN
          const float got = log_sum_exp[head * q_starts.back() + token];
#else
          const float got = log_sum_exp[(sequence * is.heads + head) * is.sequences[0].q + row];
#endif
          const double off = std::fabs(got - (top + std::log(sum)));
          if (off != off) ++broken;
          else log_sum_exp_error = std::max(log_sum_exp_error, off);
        }
    const double l2 = std::sqrt(error / std::max(magnitude, 1e-300));
    const double most = ELEMENT == ELEMENT_F32 ? 2e-6 : ELEMENT == ELEMENT_F16 ? 1e-3 : 6e-3;
    const bool good = broken == 0 && l2 < most && log_sum_exp_error < 2e-3;
    std::printf("%s relative L2 %.1e, log-sum-exp %.0e\n", good ? "ok" : "FAILED", l2, log_sum_exp_error);
    return !good;
  }
};

// One after another; in any order, from the last on.
static void run_blocks(int count, void (*kernel)()) {
  gridDim.x = count;
  for (int i = 0; i < count; ++i) {
    blockIdx.x = machine::takes_any_order ? count - 1 - i : i;
    machine::run_block(kernel);
  }
}

#ifdef WARPGROUPS
static TensorMap map(const void* base, int element_bytes, std::vector<u64> extents, std::vector<u64> strides, std::vector<int> box) {
  box.resize(extents.size(), 1);
  return {machine::TensorMap::of(base, element_bytes, extents.size(), extents.data(), strides.data(), box.data(), true)};
}

// Maps as the engines encode them.
//
// Of [batch, heads, len, dim], one tensor after another: its high halves, then its low ones.
static TensorMap halves_map(const void* base, int dim, int heads, int len, int batch, int box_rows) {
  const u64 row = dim * 2, head = len * row;
  return map(base, 2, {(u64)dim, (u64)len, (u64)heads, 2 * (u64)batch}, {row, head, heads * head}, {64, box_rows});
}
#ifdef PAGED
static TensorMap pages_map(const void* base, int dim, int heads, int pages) {
  const u64 head = dim * 2, row = heads * head;
  return map(base, 2, {(u64)dim, PAGE_SIZE, (u64)heads, (u64)pages}, {row, head, PAGE_SIZE * row}, {64, BOX_KEYS});
}
#endif
// Of [tokens, heads, dim]; `heads_first` those of q and o, and of all that is packed.
static TensorMap tokens_map(const void* base, int dim, int heads, int len, int batch, int box_heads, int box_rows, bool heads_first) {
  const u64 head = dim * 2, row = heads * head;
#if defined(RAGGED_MAPS)
  (void)len, (void)batch, (void)heads_first;
  return map(base, 2, {(u64)dim, (u64)heads, RAGGED_ROWS, 0x7fff0000, 0x7fff0000}, {head, row, row, ((u64)1 << 35) - row}, {64, box_heads, box_rows});
#else
  const u64 sequence = len * row;
  if (heads_first) return map(base, 2, {(u64)dim, (u64)heads, (u64)len, (u64)batch}, {head, row, sequence}, {64, box_heads, box_rows});
  return map(base, 2, {(u64)dim, (u64)len, (u64)heads, (u64)batch}, {row, head, sequence}, {64, box_rows, box_heads});
#endif
}

static TensorMap q_map, k_map, v_map, o_map, bias_map;
#ifdef HALVES
static Sm90F32Params launched;

// What the two kernels before this one make of a tensor: its heads' ranges, and its halves as [2, batch, heads, rows, dim].
struct Halves {
  std::vector<HeadRange> ranges;
  std::vector<u16> at;

  Halves(const std::vector<float>& tensor, int batch, int heads, int rows, int dim, bool is_value) : at(2 * tensor.size()) {
    for (int unit = 0; unit < batch * heads; ++unit) {
      const auto element = [&](int row, int d) { return tensor[((unit / heads * rows + row) * heads + unit % heads) * dim + d]; };
      HeadRange range{0, is_value ? INFINITY_F32 : 0.f};
      for (int row = 0; row < rows; ++row) {
        float top = 0, sum = 0;
        for (int d = 0; d < dim; ++d) {
          top = std::max(top, std::fabs(element(row, d)));
          sum += std::fabs(element(row, d));
        }
        range.largest = std::max(range.largest, __float_as_uint(top));
        if (!is_value) range.row = std::max(range.row, sum);
        else if (top != 0) range.row = std::min(range.row, top);
      }
      ranges.push_back(range);
      for (int row = 0; row < rows; ++row)
        for (int d = 0; d < dim; ++d) {
          const size_t place = ((size_t)unit * rows + row) * dim + d;
          const float x = element(row, d) * power_of_two(scale_exponent(range));
          at[place] = F16::store(x);
          at[place + tensor.size()] = F16::store(x - F16::load(at[place]));
        }
    }
  }
};
static void enter() { flash_sm90_f32(q_map, k_map, v_map, bias_map, launched); }
#else
static Sm90Params launched;
static void enter() {
#ifdef VARLEN
  varlen_sm90(q_map, k_map, v_map, o_map, launched);
#else
  flash_sm90(q_map, k_map, v_map, o_map, bias_map, launched);
#endif
}
#endif
static void launch(Problem& problem) {
  const Arguments& is = problem.is;
  const Lengths first = is.sequences[0];
  static u32 counter = 0;
  launched = {};
#ifdef HALVES
  static const Halves q(problem.q, is.batch, is.heads, first.q, HEAD_DIM, false), k(problem.k, is.batch, is.kv_heads, first.kv, HEAD_DIM, false),
      v(problem.v, is.batch, is.kv_heads, first.kv, V_HEAD_DIM, true);
  static std::vector<HeadRange> ranges;
  for (const Halves* halves : {&q, &k, &v}) ranges.insert(ranges.end(), halves->ranges.begin(), halves->ranges.end());
  launched.ranges = ranges.data();
  q_map = halves_map(q.at.data(), HEAD_DIM, is.heads, first.q, is.batch, GROUP_ROWS);
  k_map = halves_map(k.at.data(), HEAD_DIM, is.kv_heads, first.kv, is.batch, BLOCK_KEYS);
  v_map = halves_map(v.at.data(), V_HEAD_DIM, is.kv_heads, first.kv, is.batch, BLOCK_KEYS);
#else
  q_map = tokens_map(problem.q.data(), HEAD_DIM, is.heads, first.q, is.batch, PACK, GROUP_ROWS / PACK, true);
#ifdef PAGED
  k_map = pages_map(problem.k.data(), HEAD_DIM, is.kv_heads, problem.table.size());
  v_map = pages_map(problem.v.data(), V_HEAD_DIM, is.kv_heads, problem.table.size());
#else
  k_map = tokens_map(problem.k.data(), HEAD_DIM, is.kv_heads, first.kv, is.batch, 1, BLOCK_KEYS, false);
  v_map = tokens_map(problem.v.data(), V_HEAD_DIM, is.kv_heads, first.kv, is.batch, 1, BLOCK_KEYS, false);
#endif
  o_map = tokens_map(problem.o.data(), V_HEAD_DIM, is.heads, first.q, is.batch, PACK, GROUP_ROWS / PACK, true);
  launched.k_head_step = launched.k_batch_step = launched.v_head_step = launched.v_batch_step = 1;
#endif
#if BIAS != BIAS_NONE
  const int size = sizeof(BiasScalar);
  bias_map = map(problem.bias_bytes.data(), size, {(u64)first.kv, (u64)first.q}, {(u64)problem.bias_row * size}, {128 / size, GROUP_ROWS});
#endif
  launched.flash = problem.params();
  launched.counter = &counter;
  launched.tiles = launched.flash.order.row_tiles * is.batch * (is.heads / PACK);
  run_blocks(is.blocks, enter);
  if (counter != 0) machine::fail("the counter of tiles is not where it began");
}
#else
// The paths `mma`, and `simt` (DIM_CHUNK).
static FlashParams launched;
static void enter() {
#if defined(VARLEN)
  varlen_mma(launched);
#elif defined(DIM_CHUNK)
  flash_simt(launched);
#else
  flash_mma(launched);
#endif
}
static void launch(Problem& problem) {
  launched = problem.params();
#ifdef VARLEN
  gridDim.x = launched.packed.capacity * launched.q_heads;
#else
  gridDim.x = launched.order.row_tiles * launched.batch * launched.q_heads;
#endif
#ifdef DIM_CHUNK
  gridDim.x *= ceil_div(launched.v_head_dim, V_COLUMNS);
#endif
  run_blocks(gridDim.x, enter);
}
#endif

int main(int count, char** texts) {
  Problem problem{Arguments(count, texts)};
  blockDim.x = THREADS_OF_BLOCK;
  launch(problem);
  const Problem first = problem;
  problem.forget();
  machine::takes_any_order = true;
  launch(problem);
  if (!problem.has_the_bits_of(first)) {
    std::printf("FAILED other bits where threads and blocks take turns in another order\n");
    return 1;
  }
  return problem.check();
}
