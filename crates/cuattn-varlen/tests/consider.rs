//! What the engine says about problems, on devices that are not there.

use cuattn_core::{DType, IndexType, Paging, Reason, VarlenEngine, VarlenPaging, VarlenProblem, VarlenShape};
use cuattn_varlen::{Path, Varlen, VarlenPath};
use curt::Capabilities;
use rstest::rstest;

fn problem(batch: usize, tokens: usize, dtype: DType) -> VarlenProblem {
    let shape = VarlenShape {
        batch,
        total_q: tokens,
        total_kv: tokens,
        max_q_len: tokens,
        max_kv_len: tokens,
        q_heads: 16,
        kv_heads: 4,
        head_dim: 128,
        v_head_dim: 128,
    };
    VarlenProblem::packed(shape, dtype)
}

#[rstest]
#[case::half(DType::F16, "sm90", "mma")]
#[case::bfloat(DType::Bf16, "sm90", "mma")]
#[case::single(DType::F32, "simt", "simt")]
fn element_type_and_device_decide_the_path(#[case] dtype: DType, #[case] on_hopper: &str, #[case] elsewhere: &str) {
    for (device, path) in
        [(Capabilities::h200(), on_hopper), (Capabilities::a100(), elsewhere), (Capabilities::rtx4090(), elsewhere)]
    {
        let explanation = Varlen.consider(&device, &problem(8, 4096, dtype)).unwrap();
        assert_eq!(explanation.path, path, "{}", device.name);
    }
}

#[test]
fn short_sequences_are_left_to_mma() {
    let device = Capabilities::h200();
    for (tokens, path) in [(8 * 23, "mma"), (8 * 24, "sm90")] {
        assert_eq!(Varlen.consider(&device, &problem(8, tokens, DType::F16)).unwrap().path, path);
    }
    // Who asks for the path gets it.
    assert_eq!(VarlenPath(Path::Sm90).consider(&device, &problem(8, 99, DType::F16)).unwrap().path, "sm90");
}

/// Pages of `page_size` keys for up to 4096 keys of each of eight sequences.
fn paged(page_size: usize) -> VarlenProblem {
    let mut problem = problem(8, 4096, DType::Bf16);
    let page = page_size as i64 * problem.k.token;
    let paging = Paging { page_size, pages: 100, max_pages: 4096_usize.div_ceil(page_size) };
    problem.paging = Some(VarlenPaging { paging, k_page: page, v_page: page });
    problem.shape.total_kv = 100 * page_size;
    problem
}

#[test]
fn pages_are_made_of_boxes() {
    let device = Capabilities::h200();
    for (page_size, path) in
        [(8, "sm90"), (16, "sm90"), (24, "sm90"), (256, "sm90"), (1, "mma"), (4, "mma"), (20, "mma")]
    {
        assert_eq!(Varlen.consider(&device, &paged(page_size)).unwrap().path, path, "{page_size}");
    }
    insta::assert_snapshot!(VarlenPath(Path::Sm90).consider(&device, &paged(20)).unwrap_err(), @r"
    varlen (sm90) refuses:
      * sm90 does not do pages of 20 keys: its boxes take multiples of 8 keys; the mma path follows the table key by key
    ");
}

#[test]
fn a_plan_says_what_it_does() {
    let explanation = Varlen.consider(&Capabilities::h200(), &problem(1024, 17_811, DType::Bf16)).unwrap();
    insta::assert_snapshot!(explanation, @r"
    varlen (mma): bf16 at head size 128 fits the tensor cores
      * 64 x 32 tile, 4 warps
      * up to 2137 tiles of rows in 8548 blocks
      * 4 query heads packed into the rows of a tile
      * longest sequences first, from a list of up to 2137 tiles
    varlen (sm90) refuses:
      * sm90 does not do 18 query rows a sequence, on average: from 24 on its tiles are filled enough; the mma path has smaller ones
    ");
    let explanation = Varlen.consider(&Capabilities::h200(), &problem(64, 65_536, DType::Bf16)).unwrap();
    insta::assert_snapshot!(explanation, @r"
    varlen (sm90): bf16 at head size 128 fits Hopper's copy engine and warpgroup products
      * 128 x 128 tile, 2 consumer warpgroups
      * up to 576 tiles of rows, 9216 with those of all heads, drawn by 132 persistent blocks of 196800 bytes
      * longest sequences first, sorted by each block
    ");
    let explanation = Varlen.consider(&Capabilities::h200(), &problem(4, 8192, DType::F32)).unwrap();
    insta::assert_snapshot!(explanation, @r"
    varlen (simt): it takes every element type, head size, stride and alignment
      * 64 x 64 tile, 4 warps
      * up to 132 tiles of rows in 2112 blocks
      * longest sequences first, sorted by each warp
    varlen (sm90) refuses:
      * sm90 does not do f32 tensors: tensor cores would round them; the simt path keeps float32 accuracy
    varlen (mma) refuses:
      * mma does not do f32 tensors: tensor cores would round them; the simt path keeps float32 accuracy
    ");
}

#[test]
fn no_token_is_no_work() {
    for problem in [problem(3, 0, DType::F16), problem(0, 0, DType::F32)] {
        assert_eq!(Varlen.consider(&Capabilities::h200(), &problem).unwrap().path, "nothing");
    }
}

#[test]
fn the_grid_holds_any_division_of_the_tokens() {
    // One sequence of nearly all tokens beside many of one: the most tiles that there can be.
    for (batch, tokens) in [(1, 1), (65, 65), (65, 10_000), (100_000, 131_072), (100_000, 99)] {
        let explanation = Varlen.consider(&Capabilities::h200(), &problem(batch, tokens, DType::F32)).unwrap();
        let tiles = explanation.details.iter().find_map(|line| line.strip_prefix("up to ")?.split_once(' ')).unwrap().0;
        let rows = explanation.details[0].split_once(' ').unwrap().0.parse::<usize>().unwrap();
        let pack: usize = explanation
            .details
            .iter()
            .find_map(|line| line.split_once(" query heads packed"))
            .map_or(1, |(n, _)| n.parse().unwrap());
        let ones = (batch - 1).min(tokens - 1);
        let worst = ones * pack.div_ceil(rows) + ((tokens - ones) * pack).div_ceil(rows);
        assert!(tiles.parse::<usize>().unwrap() >= worst, "{batch} sequences of {tokens} tokens: {explanation}");
    }
}

#[test]
fn every_reason_against_a_path_is_given() {
    let mut odd = problem(8, 4096, DType::F32);
    odd.shape.head_dim = 20;
    odd.q.token = 16 * 20 + 1;
    odd.paging = Some(VarlenPaging {
        paging: Paging { page_size: 16, pages: 10, max_pages: 256 },
        k_page: 12,
        v_page: 16 * 4 * 128,
    });
    let refusal = VarlenPath(Path::Sm90).consider(&Capabilities::a100(), &odd).unwrap_err();
    insta::assert_snapshot!(refusal, @r"
    varlen (sm90) refuses:
      * sm90 does not do f32 tensors: tensor cores would round them; the simt path keeps float32 accuracy
      * sm90 does not do head_dim 20: it takes multiples of 8 from 16 to 256; pad the tensors, or take the simt path
      * sm90 does not do strides of q that are no multiples of 8 elements, or reach 2^35 bytes a token: no tensor map can express them; the mma or simt path takes them
      * sm90 does not do strides of k that are no multiples of 8 elements, or reach 2^35 bytes a token: no tensor map can express them; the mma or simt path takes them
      * sm90 needs compute capability 9.0 exactly, and this device has 8.0: the mma path runs on 8.0 and newer
    ");
    let refusal = VarlenPath(Path::Mma).consider(&Capabilities::h200(), &odd).unwrap_err();
    insta::assert_snapshot!(refusal, @r"
    varlen (mma) refuses:
      * mma does not do f32 tensors: tensor cores would round them; the simt path keeps float32 accuracy
      * mma does not do head_dim 20: it takes multiples of 8 up to 256; pad the tensors, or take the simt path
      * mma does not do strides of q that are no multiples of 8 elements: it copies 16 bytes at a time; align the rows, or take the simt path
      * mma does not do strides of k that are no multiples of 8 elements: it copies 16 bytes at a time; align the rows, or take the simt path
    ");
    assert_eq!(Varlen.consider(&Capabilities::h200(), &odd).unwrap().path, "simt");
}

#[test]
fn more_tokens_than_positions_fit_are_refused() {
    let mut long = problem(8, 1 << 31, DType::F16);
    long.offsets = IndexType::I64;
    let refusal = Varlen.consider(&Capabilities::h200(), &long).unwrap_err();
    assert_eq!(refusal.reasons.len(), 3);
    assert!(matches!(refusal.reasons[0], Reason::Unsupported { .. }));
    insta::assert_snapshot!(refusal.reasons[0], @"varlen does not do total_q 2147483648: keep it at most 1073741824");
}
