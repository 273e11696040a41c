use cuattn_core::{DType, Operand, Paging, Reason, VarlenPaging, VarlenProblem, VarlenShape};
use rstest::rstest;

const Q: Operand = Operand::CuSeqlensQ;

fn problem() -> VarlenProblem {
    let shape = VarlenShape {
        batch: 3,
        total_q: 10,
        total_kv: 20,
        max_q_len: 6,
        max_kv_len: 12,
        q_heads: 1,
        kv_heads: 1,
        head_dim: 8,
        v_head_dim: 8,
    };
    VarlenProblem::packed(shape, DType::F16)
}

const KV: [i64; 4] = [0, 8, 8, 20];

#[rstest]
#[case::first(&[1, 4, 4, 10], Reason::FirstOffsetNotZero { operand: Q, got: 1 })]
#[case::decreasing(&[0, 6, 5, 10], Reason::OffsetsDecrease { operand: Q, index: 2, before: 6, after: 5 })]
#[case::last(&[0, 4, 4, 9], Reason::LastOffsetNotTotal { operand: Q, got: 9, total: 10 })]
#[case::longest(&[0, 3, 3, 10], Reason::LengthAboveMaximum { operand: Q, sequence: 2, length: 7, max: 6 })]
#[case::count(&[0, 4, 10], Reason::EntryCount { operand: Q, need: 4, got: 3 })]
fn each_fault_is_its_own(#[case] cu_q: &[i64], #[case] want: Reason) {
    assert_eq!(problem().check_offsets(cu_q, &KV, None).unwrap_err().reasons, [want]);
}

#[test]
fn both_arrays_are_looked_at() {
    let refusal = problem().check_offsets(&[0, 4, 4, 11], &[0, 8, 8, 21], None).unwrap_err();
    let want = [
        Reason::LengthAboveMaximum { operand: Operand::CuSeqlensQ, sequence: 2, length: 7, max: 6 },
        Reason::LastOffsetNotTotal { operand: Operand::CuSeqlensQ, got: 11, total: 10 },
        Reason::LengthAboveMaximum { operand: Operand::CuSeqlensKv, sequence: 2, length: 13, max: 12 },
        Reason::LastOffsetNotTotal { operand: Operand::CuSeqlensKv, got: 21, total: 20 },
    ];
    assert_eq!(refusal.reasons, want);
}

#[test]
fn i32_copies_are_accepted_and_extremes_do_not_overflow() {
    assert!(problem().check_offsets(&[0i32, 4, 4, 10], &[0, 8, 8, 20], Some(&[8, 0, 12])).is_ok());
    assert!(problem().check_offsets(&[0, i64::MIN, i64::MAX, 10], &KV, None).is_err());
}

#[rstest]
#[case::negative(&[8, -1, 12], Reason::UsedLengthOutOfRange { sequence: 1, used: -1, span: 0 })]
#[case::too_many(&[9, 0, 12], Reason::UsedLengthOutOfRange { sequence: 0, used: 9, span: 8 })]
#[case::count(&[8, 0], Reason::EntryCount { operand: Operand::UsedLengths, need: 3, got: 2 })]
fn keys_in_use(#[case] used: &[i64], #[case] want: Reason) {
    assert_eq!(problem().check_offsets(&[0, 4, 4, 10], &KV, Some(used)).unwrap_err().reasons, [want]);
}

#[test]
fn with_pages_the_key_offsets_have_no_total() {
    let paging = Paging { page_size: 4, pages: 100, max_pages: 3 };
    let mut problem = problem();
    problem.paging = Some(VarlenPaging { paging, k_page: 32, v_page: 32 });
    assert!(problem.check_offsets(&[0, 4, 4, 10], &[0, 1, 2, 3], None).is_ok());
}
