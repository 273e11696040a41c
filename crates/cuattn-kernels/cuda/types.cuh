// Short names for the integer types, and the qualifiers of device code. No toolkit header is ever included.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

#define DEVICE __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define PRAGMA(text) _Pragma(#text)
#define UNROLL_BY(n) PRAGMA(unroll n)

constexpr u32 WARP_MASK = 0xffffffffu;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;
#define INFINITY_F32 (__int_as_float(0x7f800000))
#define LOWEST_F32 (-3.402823466e+38f)

template <typename T> DEVICE constexpr T min_of(T a, T b) { return a < b ? a : b; }
template <typename T> DEVICE constexpr T max_of(T a, T b) { return a > b ? a : b; }
DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
