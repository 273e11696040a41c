//! What is wrong with a product is said before anything is called, all of it, with the numbers.

use curt_blaslt::{Alignment, Compute, ElementType, Epilogue, Error, Fault, Faults, Gemm, Matrix, Output, Status};
use proptest::prelude::*;

fn told(gemm: &Gemm) -> String {
    Error::Invalid { gemm: Box::new(gemm.clone()), faults: Faults(gemm.faults()) }.to_string()
}

#[test]
fn a_packed_product_is_legal() {
    for element in [ElementType::F32, ElementType::F16, ElementType::Bf16] {
        let mut gemm = Gemm::packed(3, 5, 7, element);
        assert_eq!(gemm.faults(), []);
        gemm.output_type = ElementType::F32;
        gemm.batch = 4;
        assert_eq!(gemm.faults(), []);
        assert_eq!(gemm.flops(), 2.0 * 3.0 * 5.0 * 7.0 * 4.0);
    }
}

#[test]
fn products_of_size_zero_are_legal() {
    for (m, n, k, batch) in [(0, 5, 7, 1), (3, 0, 7, 1), (3, 5, 0, 1), (3, 5, 7, 0)] {
        let mut gemm = Gemm::packed(m, n, k, ElementType::F32);
        gemm.batch = batch;
        assert_eq!(gemm.faults(), [], "{gemm}");
        assert_eq!(gemm.is_empty(), k > 0, "{gemm}");
    }
}

#[test]
fn a_batch_may_share_an_input_but_not_its_output() {
    let mut gemm = Gemm::packed(4, 4, 4, ElementType::F16);
    gemm.batch = 3;
    gemm.a.batch_stride = 0;
    gemm.b.batch_stride = 0;
    assert_eq!(gemm.faults(), []);
    gemm.d.batch_stride = 0;
    assert_eq!(gemm.faults(), [Fault::OutputOverlap { leading: 4, stride: 0, apart: 1 }]);
}

#[test]
fn outputs_may_interleave() {
    // Three heads of 4 columns side by side in rows of 12.
    let mut gemm = Gemm::packed(5, 4, 4, ElementType::F32);
    gemm.batch = 3;
    gemm.d = Output { leading: 12, batch_stride: 4 };
    assert_eq!(gemm.faults(), []);
    gemm.batch = 4;
    assert_eq!(gemm.faults(), [Fault::OutputOverlap { leading: 12, stride: 4, apart: 3 }]);
}

#[test]
fn one_stored_row_has_no_leading_dimension() {
    let mut gemm = Gemm::packed(1, 4, 4, ElementType::F32);
    gemm.a.leading = 0;
    gemm.d.leading = 0;
    assert_eq!(gemm.faults(), []);
}

#[test]
fn every_fault_is_told_at_once() {
    let mut gemm = Gemm::packed(3, 5, 7, ElementType::F16);
    gemm.output_type = ElementType::Bf16;
    gemm.compute = Compute::Tf32;
    gemm.alpha = f32::NAN;
    gemm.m = 1 << 40;
    insta::assert_snapshot!(told(&gemm), @"
    cannot plan the product 1x 1099511627776x5x7 f16->bf16 Tf32, A n ld 7 stride 21, B n ld 5 stride 35, D ld 5 stride 15, alpha NaN, beta 0, epilogue None:
      - f16 inputs cannot give a bf16 result; make it f16 or f32
      - TF32 is a way to multiply f32 inputs, and these are f16; use Compute::Strict, which keeps f16 on tensor cores
      - alpha is NaN; it must be finite
      - m is 1099511627776, more than 2147483647; split the product
    ");
}

#[test]
fn layouts_are_checked_as_stored() {
    let mut gemm = Gemm::packed(3, 5, 7, ElementType::F32);
    gemm.batch = 2;
    gemm.a = Matrix::transposed(2, 21);
    gemm.b = Matrix::row_major(5, -1);
    gemm.d = Output { leading: 1 << 62, batch_stride: 1 };
    insta::assert_snapshot!(told(&gemm), @"
    cannot plan the product 2x 3x5x7 f32->f32 Strict, A t ld 2 stride 21, B n ld 5 stride -1, D ld 4611686018427387904 stride 1, alpha 1, beta 0, epilogue None:
      - A is stored as 7 rows of 3 elements, so its leading dimension must be at least 3, and is 2
      - B has batch stride -1; it must not be negative
      - D's extent overflows: 3 x 5, leading dimension 4611686018427387904, 2 matrices 1 apart
    ");
}

#[test]
fn operand_faults_say_how_to_fix_them() {
    use curt_blaslt::OperandName::{A, Bias, D};
    let gemm = Box::new(Gemm { epilogue: Epilogue::Bias, ..Gemm::packed(2, 2, 2, ElementType::F32) });
    let faults = Faults(vec![
        Fault::TooSmall { operand: A, needed: 16, given: 8 },
        Fault::Misaligned { operand: D, address: 0x1002, promised: 16 },
        Fault::Alignment { operand: Bias, bytes: 3, element: 4 },
        Fault::Bias { given: false },
        Fault::Workspace { needed: 512, given: 0, address: 0 },
    ]);
    insta::assert_snapshot!(Error::Operands { gemm, faults }.to_string(), @"
    cannot launch the product 1x 2x2x2 f32->f32 Strict, A n ld 2 stride 4, B n ld 2 stride 4, D ld 2 stride 4, alpha 1, beta 0, epilogue Bias:
      - A needs 16 bytes from its first element on, and 8 were given
      - D at 0x1002 is not aligned to the 16 bytes that the plan was made for; plan with this pointer's alignment
      - bias's stated alignment of 3 bytes must be a power of two and at least an element's 4
      - a bias was not given, but the epilogue needs one
      - the workspace must hold 512 bytes at a multiple of 256, and is 0 bytes at 0x0
    ");
}

#[test]
fn no_algorithm_is_told_with_the_whole_description() {
    let error = Error::NoAlgorithm {
        gemm: Box::new(Gemm::packed(3, 5, 7, ElementType::Bf16)),
        alignment: Alignment::uniform(2),
        max_workspace: 1024,
        status: Status(15),
        version: 130_001,
    };
    insta::assert_snapshot!(error.to_string(), @"cuBLASLt 13.0.1 has no deterministic algorithm for 1x 3x5x7 bf16->bf16 Strict, A n ld 7 stride 21, B n ld 5 stride 35, D ld 5 stride 15, alpha 1, beta 0, epilogue None (pointers aligned to A 2, B 2, D 2 bytes, workspace up to 1024 bytes): CUBLAS_STATUS_NOT_SUPPORTED (15); align the pointers to 16 bytes, use leading dimensions that are multiples of 8, or allow more workspace");
}

#[test]
fn a_failed_call_names_the_status() {
    let error = Error::Call { call: "cublasLtCreate", status: Status(1), gemm: None };
    insta::assert_snapshot!(error.to_string(), @"cublasLtCreate failed with CUBLAS_STATUS_NOT_INITIALIZED (1)");
    assert_eq!(Status(77).to_string(), "unknown cuBLAS status (77)");
}

#[test]
fn an_address_has_the_alignment_of_its_lowest_bit() {
    for (address, want) in [(0, 256), (0x1000, 256), (0x1010, 16), (0x1002, 2), (0x1001, 1)] {
        assert_eq!(Alignment::of_address(address), want, "{address:#x}");
    }
}

proptest! {
    /// The overlap check against marking every element.
    #[test]
    fn overlap_is_found_exactly(m in 1usize..6, n in 1usize..6, batch in 1usize..6, pad in 0i64..8, stride in 0i64..40) {
        let mut gemm = Gemm::packed(m, n, 1, ElementType::F32);
        gemm.batch = batch;
        gemm.b.batch_stride = 0;
        gemm.d = Output { leading: n as i64 + pad, batch_stride: stride };
        let mut marked = std::collections::HashSet::new();
        let mut collides = false;
        for b in 0..batch as i64 {
            for i in 0..m as i64 {
                for j in 0..n as i64 {
                    collides |= !marked.insert(b * stride + i * gemm.d.leading + j);
                }
            }
        }
        let told = gemm.faults().iter().any(|fault| matches!(fault, Fault::OutputOverlap { .. }));
        prop_assert_eq!(told, collides);
    }
}
