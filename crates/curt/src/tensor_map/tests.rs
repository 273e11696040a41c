use super::*;

/// 4096 rows of 128 bfloat16, loaded as 64 x 64.
fn plain() -> TensorMapBuilder {
    TensorMap::builder(TensorMapType::Bf16, DevicePtr::new(0x1000, 4096 * 256))
        .dims(&[128, 4096])
        .strides(&[256])
        .box_dims(&[64, 64])
        .swizzle(Swizzle::Bytes128)
}

fn told(map: &TensorMapBuilder) -> String {
    map.validate().expect_err("it is against the rules").to_string()
}

#[test]
fn maps_of_attention_are_legal() {
    plain().validate().unwrap();
    // [batch, seq, head, dim] read as dim, seq, head, batch: strides need not grow.
    let (dim, heads, seq, batch) = (64u64, 8, 1024, 2);
    let bytes = (dim * heads * seq * batch * 2) as usize;
    TensorMap::builder(TensorMapType::F16, DevicePtr::new(0x40, bytes))
        .dims(&[dim, seq, heads, batch])
        .strides(&[heads * dim * 2, dim * 2, seq * heads * dim * 2])
        .box_dims(&[64, 128, 1, 1])
        .swizzle(Swizzle::Bytes128)
        .out_of_bounds(OutOfBounds::Nan)
        .validate()
        .unwrap();
    // One dimension has no strides; one head for all has stride 0.
    TensorMap::builder(TensorMapType::F32, DevicePtr::new(0x10, 400)).dims(&[100]).box_dims(&[4]).validate().unwrap();
    plain().dims(&[128, 4096, 3]).strides(&[256, 0]).box_dims(&[64, 64, 1]).validate().unwrap();
}

#[test]
fn the_extent_is_that_of_the_last_element() {
    let map = |bytes| {
        TensorMap::builder(TensorMapType::F16, DevicePtr::new(0x10, bytes))
            .dims(&[8, 3])
            .strides(&[32])
            .box_dims(&[8, 1])
    };
    map(2 * 32 + 16).validate().unwrap();
    insta::assert_snapshot!(told(&map(2 * 32 + 15)), @r"
    tensor map refused:
      the tensor takes 80 bytes, the memory has 79
    ");
}

#[test]
fn every_rule_is_told_with_its_numbers() {
    let everything = TensorMap::builder(TensorMapType::U8, DevicePtr::new(0x1008, 16))
        .dims(&[0, 1 << 33, 5])
        .strides(&[24, 1 << 40])
        .box_dims(&[40, 0, 257])
        .element_strides(&[1, 0, 9])
        .swizzle(Swizzle::Bytes32)
        .out_of_bounds(OutOfBounds::Nan);
    insta::assert_snapshot!(told(&everything), @r"
    tensor map refused:
      address 0x1008 must be a multiple of 16
      dimension 0 is 0, must be 1 to 4294967296
      dimension 1 is 8589934592, must be 1 to 4294967296
      stride of dimension 1 is 24 bytes, must be a multiple of 16 below 2^40
      stride of dimension 2 is 1099511627776 bytes, must be a multiple of 16 below 2^40
      box side 1 is 0, must be 1 to 256
      box side 2 is 257, must be 1 to 256
      element stride 1 is 0, must be 1 to 8
      element stride 2 is 9, must be 1 to 8
      box side 0 has 40 bytes, must be a multiple of 16
      box side 0 has 40 bytes, a swizzle of 32 bytes takes at most 32
      elements outside the tensor cannot be NaN in U8
      the tensor takes 4604204941289 bytes, the memory has 16
    ");
}

#[test]
fn counts_and_ranks_are_told() {
    insta::assert_snapshot!(told(&plain().dims(&[1; 6]).element_strides(&[1])), @r"
    tensor map refused:
      6 dimensions, must be 1 to 5
      1 strides, must be 5
      2 box sides, must be 6
      1 element strides, must be 6
    ");
    assert!(told(&plain().dims(&[])).contains("0 dimensions, must be 1 to 5"));
    assert!(told(&plain().interleave(Interleave::Bytes16)).contains("2 dimensions, must be 3 to 5"));
}

#[test]
fn interleaving_has_its_own_rules() {
    let sliced = TensorMap::builder(TensorMapType::F16, DevicePtr::new(0x1010, 1 << 20))
        .dims(&[16, 8, 8])
        .strides(&[48, 512])
        .box_dims(&[4, 4, 4])
        .interleave(Interleave::Bytes32);
    insta::assert_snapshot!(told(&sliced), @r"
    tensor map refused:
      address 0x1010 must be a multiple of 32
      stride of dimension 1 is 48 bytes, must be a multiple of 32 below 2^40
      an interleave of 32 bytes needs a swizzle of 32 bytes, not None
    ");
}

#[test]
fn a_null_address_and_extents_beyond_all_numbers_are_refused() {
    assert!(
        told(&TensorMap::builder(TensorMapType::U8, DevicePtr::NULL).dims(&[16]).box_dims(&[16]))
            .contains("address 0x0")
    );
    let huge = plain().dims(&[u64::MAX; 5]).strides(&[u64::MAX; 4]).box_dims(&[64; 5]);
    assert!(huge.validate().is_err());
}

#[test]
fn numbers_are_those_of_the_header() {
    use cudarc::driver::sys::{
        CUtensorMapDataType as data_type, CUtensorMapFloatOOBfill as fill, CUtensorMapInterleave as interleave,
        CUtensorMapL2promotion as promotion, CUtensorMapSwizzle as swizzle,
    };
    for (ours, theirs) in [
        (TensorMapType::U8, data_type::CU_TENSOR_MAP_DATA_TYPE_UINT8),
        (TensorMapType::U16, data_type::CU_TENSOR_MAP_DATA_TYPE_UINT16),
        (TensorMapType::U32, data_type::CU_TENSOR_MAP_DATA_TYPE_UINT32),
        (TensorMapType::I32, data_type::CU_TENSOR_MAP_DATA_TYPE_INT32),
        (TensorMapType::U64, data_type::CU_TENSOR_MAP_DATA_TYPE_UINT64),
        (TensorMapType::I64, data_type::CU_TENSOR_MAP_DATA_TYPE_INT64),
        (TensorMapType::F16, data_type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16),
        (TensorMapType::F32, data_type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32),
        (TensorMapType::F64, data_type::CU_TENSOR_MAP_DATA_TYPE_FLOAT64),
        (TensorMapType::Bf16, data_type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16),
    ] {
        assert_eq!(ours.code(), theirs as i32, "{ours:?}");
    }
    assert_eq!(Swizzle::None as i32, swizzle::CU_TENSOR_MAP_SWIZZLE_NONE as i32);
    assert_eq!(Swizzle::Bytes32 as i32, swizzle::CU_TENSOR_MAP_SWIZZLE_32B as i32);
    assert_eq!(Swizzle::Bytes64 as i32, swizzle::CU_TENSOR_MAP_SWIZZLE_64B as i32);
    assert_eq!(Swizzle::Bytes128 as i32, swizzle::CU_TENSOR_MAP_SWIZZLE_128B as i32);
    assert_eq!(Interleave::Bytes16 as i32, interleave::CU_TENSOR_MAP_INTERLEAVE_16B as i32);
    assert_eq!(Interleave::Bytes32 as i32, interleave::CU_TENSOR_MAP_INTERLEAVE_32B as i32);
    assert_eq!(L2Promotion::None as i32, promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE as i32);
    assert_eq!(L2Promotion::Bytes64 as i32, promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_64B as i32);
    assert_eq!(L2Promotion::Bytes128 as i32, promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B as i32);
    assert_eq!(L2Promotion::Bytes256 as i32, promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B as i32);
    assert_eq!(OutOfBounds::Zero as i32, fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE as i32);
    assert_eq!(OutOfBounds::Nan as i32, fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA as i32);
}

/// Where a box lies, as the copy engine reckons: modulo 2^64.
fn address_of(map: &TensorMapBuilder, at: &[u64]) -> u64 {
    let (_, strides, _) = map.encoded();
    let sizes = std::iter::once(map.data_type.size() as u64).chain(strides);
    at.iter().zip(sizes).fold(map.memory.address(), |sum, (&at, size)| sum.wrapping_add(at.wrapping_mul(size)))
}

#[test]
fn a_ragged_map_ends_with_each_sequence() {
    let (heads, dim) = (16u64, 128u64);
    for (tokens, row) in [(5000, heads * dim * 2), (1 << 20, 3 * heads * dim * 2 + 16), (70, 16)] {
        let base = 0x7f12_3456_7890;
        let map = TensorMap::builder(TensorMapType::Bf16, DevicePtr::new(base, 1 << 40))
            .dims(&[dim, heads, tokens])
            .strides(&[dim * 2, row])
            .box_dims(&[64, 1, 64])
            .swizzle(Swizzle::Bytes128)
            .ragged();
        map.validate().unwrap();
        let (dims, strides, sides) = map.encoded();
        assert_eq!((dims.len(), strides.len(), sides.as_slice()), (5, 4, [64, 1, 64, 1, 1].as_slice()));
        for (first, len) in [(0, 1), (0, tokens), (tokens - 1, 1), (17, 33), (tokens / 2, tokens / 3)] {
            for offset in [0, 1, 31, 64] {
                let at = |offset: u64| [8, 5, RAGGED_ROWS - len + offset, first + len, RAGGED_ROWS];
                assert_eq!(address_of(&map, &at(offset)), base + 8 * 2 + (first + offset) * row + 5 * dim * 2);
                // Exactly the rows of the sequence are inside, and every other coordinate is.
                let inside = at(offset).iter().zip(&dims).all(|(at, dim)| at < dim);
                assert_eq!(inside, offset < len, "{first} {len} {offset}");
            }
        }
    }
}

#[test]
fn a_ragged_map_of_too_much_is_told() {
    let rows = plain().dims(&[128, RAGGED_ROWS + 1]).ragged();
    insta::assert_snapshot!(told(&rows), @r"
    tensor map refused:
      a ragged dimension of 1073741825 rows, must be at most 1073741824
      the tensor takes 274877907200 bytes, the memory has 1048576
    ");
    insta::assert_snapshot!(told(&plain().dims(&[128]).strides(&[]).box_dims(&[64]).ragged()), @r"
    tensor map refused:
      a ragged tensor of 1 dimensions, must be 2 or 3
    ");
    let four = plain().dims(&[128, 8, 2, 2]).strides(&[256, 2048, 4096]).box_dims(&[64, 8, 1, 1]).ragged();
    insta::assert_snapshot!(told(&four), @r"
    tensor map refused:
      6 dimensions, must be 1 to 5
      a ragged tensor of 4 dimensions, must be 2 or 3
    ");
}
