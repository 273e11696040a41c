// What the host hands to a kernel, by value. Mirrored field for field by src/abi.rs, whose tests compare the offsets.
#include "types.cuh"

// Element strides of a [batch, head, row, dim] tensor with a contiguous last dimension.
struct Strides {
  i64 batch, head, row;
};

#define ALIGN_TOP_LEFT 0
#define ALIGN_BOTTOM_RIGHT 1
#define ALIGN_PER_BATCH 2

#define LENGTHS_FULL 0
#define LENGTHS_PER_BATCH 1
#define LENGTHS_PAST_PLUS_QUERY 2

// Which keys a row may see.
struct MaskParams {
  const void* bias;            // BIAS says of which kind; element strides below, 0 broadcasts
  i64 bias_batch, bias_head, bias_row, bias_key;
  const void* key_lengths;     // [batch], read where `lengths` is not LENGTHS_FULL
  const void* query_offsets;   // [batch], read where `alignment` is ALIGN_PER_BATCH
  i64 window_left;             // keys j >= p - window_left; negative: no limit; below 2^30
  i64 window_right;            // keys j <= p + window_right, likewise. A causal mask is window_right = 0
  i32 q_len, kv_len;
  i32 bias_keys;               // keys from here on are masked
  i32 alignment, lengths;
  i32 key_lengths_64, query_offsets_64;  // whether those arrays hold 64-bit integers
  i32 reserved;
};

// What happens to a score before the softmax.
struct ScoreParams {
  const void* buffers[4];      // of the user's score modification
  float scale;                 // on q.k
  float softcap;               // c of c * tanh(s / c)
};

// Sequences packed one after another (VARLEN): [tokens, heads, dim], where tokens [starts[b], starts[b + 1]) are sequence b's. Of
// such a tensor, `Strides::batch` is unused.
struct PackedParams {
  const void* q_starts;        // [batch + 1]
  const void* kv_starts;       // [batch + 1]
  const void* used_lengths;    // [batch], keys in use of each span, or null: all
  void* schedule;              // `capacity` work items (varlen/work_item.cuh), or null: blocks look at the lengths themselves
  i32 total_q, total_kv;       // tokens that there are: nothing outside is touched, whatever the starts say
  i32 starts_64;               // whether starts and used_lengths hold 64-bit integers
  i32 capacity;
  i32 section_keys;            // keys of K and V, summed over heads, that tiles in flight should share; 0: of one head unit
  i32 reserved;
};

// Keys and values in pages (PAGED): row j of sequence b is row j % page_size of page table[b][j / page_size]. `Strides::batch` of k and
// v is the stride between pages.
struct PageParams {
  const i32* table;            // [batch, max_pages]
  i32 page_size, max_pages;
  i32 pages;                   // that there are: no other is touched, whatever the table says
  i32 reserved;
};

// A number to divide by, prepared by the host: a division on the device takes longer than loading a tile's queries.
struct Divisor {
  u32 multiplier;
  i32 shift;                   // n / value = n * multiplier >> shift, for n below 2^31
  i32 value;
};

// In which order tiles are numbered (tile_scheduler.cuh).
struct TileOrder {
  Divisor section;             // head units whose tiles are drawn together
  Divisor last_section;        // the same of the last section, which may be smaller
  Divisor section_tiles;       // tiles of a section that is not the last
  Divisor units;               // head units of a sequence
  Divisor group;               // query heads that share a K/V head
  i32 whole_sections;          // before the last
  i32 row_tiles;               // tiles over the q_len * pack rows of a head unit
  i32 reserved;
};

// Everything a fused attention kernel needs.
struct FlashParams {
  const void* q;               // [batch, q_heads, q_len, head_dim]
  const void* k;               // [batch, kv_heads, kv_len, head_dim]
  const void* v;               // [batch, kv_heads, kv_len, v_head_dim]
  void* o;                     // [batch, q_heads, q_len, v_head_dim]
  const float* sinks;          // [q_heads], or null
  float* log_sum_exp;          // [batch, q_heads, q_len], or null
  Strides q_strides, k_strides, v_strides, o_strides;
  MaskParams mask;
  ScoreParams score;
  i32 batch, q_heads, kv_heads, head_dim, v_head_dim;
  i32 pack;                    // query heads folded into the rows of a tile: 1, or all of a group
  TileOrder order;
#ifdef VARLEN
  PackedParams packed;         // then only the heads of `order` are used: each sequence has its own tiles
#endif
#if defined(VARLEN) || defined(PAGED)
  PageParams pages;
#endif
};

// What the Hopper path needs beside.
struct Sm90Params {
  FlashParams flash;
  u32* counter;                // 0 before the launch and after it: the next tile to draw
  i32 tiles;                   // of the launch; of packed sequences, whose number only the device knows, unused
  // 1, or 0 where the tensor has a stride of 0, which a map cannot express: then its map has one head or sequence
  i32 k_head_step, k_batch_step, v_head_step, v_batch_step, bias_head_step, bias_batch_step;
  i32 reserved;
};

// What is known of a head of q, k or v (flash/sm90_f32_halves.cuh).
struct HeadRange {
  u32 largest;                 // bits of the largest magnitude; those of infinity or more: not all are finite
  float row;                   // q, k: largest sum of a row's magnitudes. v: smallest of the rows' largest magnitudes, zero rows left out
};

// What float32 on Hopper's tensor cores needs beside: everything behind `flash` is the launch's own memory.
struct Sm90F32Params {
  FlashParams flash;
  u16 *q, *k, *v;              // [2, batch, heads, rows, dim]: high halves, then low ones
  HeadRange* parts;            // of each block of the kernels that measure and split
  HeadRange* ranges;           // of each head of q, then of k, then of v
  u32* counter;                // 0 before the launch and after it: the next tile to draw
  i32 tiles;
  i32 bias_head_step, bias_batch_step;  // 1, or 0 where the bias has a stride of 0 and its map one head or sequence
  i32 reserved;
};
