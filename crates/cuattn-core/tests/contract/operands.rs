use cuattn_core::{
    Alignment, BiasKind, BroadcastRule, DType, IndexType, KeyLengths, Mask, Operand, Operands, Problem, Reason,
    ScoreMod, Shape, VarlenOperands, VarlenProblem, VarlenShape, WorkspaceSize,
};
use curt::DevicePtr;

const SHAPE: Shape = Shape { batch: 2, q_heads: 4, kv_heads: 2, q_len: 3, kv_len: 5, head_dim: 8, v_head_dim: 4 };
const WORKSPACE: WorkspaceSize = WorkspaceSize { bytes: 512, align: 256 };

/// A problem that asks for nearly everything.
fn problem() -> Problem {
    let mut problem = Problem::bhsd(SHAPE, DType::F16);
    problem.mask = Mask::causal(Alignment::PerBatch(IndexType::I64));
    problem.mask.key_lengths = KeyLengths::PerBatch(IndexType::I32);
    let kind = BiasKind::Additive(DType::F32);
    problem.mask.bias = Some(cuattn_core::Bias::broadcast(kind, [1, 1, 3, 5], &SHAPE, BroadcastRule::Numpy).unwrap());
    problem.has_sinks = true;
    problem.wants_log_sum_exp = true;
    problem.score_mod = Some(ScoreMod { body: "return score;".into(), buffers: 1 });
    problem
}

/// Memory of `bytes` at the `slot`th of places that are far apart.
fn at(slot: u64, bytes: usize) -> DevicePtr {
    DevicePtr::new(0x10_0000 * (slot + 1), bytes)
}

fn operands() -> Operands {
    Operands {
        q: at(0, 384),
        k: at(1, 320),
        v: at(2, 160),
        o: at(3, 192),
        bias: Some(at(4, 60)),
        key_lengths: Some(at(5, 8)),
        query_offsets: Some(at(6, 16)),
        sinks: Some(at(7, 16)),
        log_sum_exp: Some(at(8, 96)),
        score_mod_buffers: [Some(at(9, 4)), None, None, None],
        ..Operands::default()
    }
}

fn refused(operands: &Operands) -> Vec<Reason> {
    operands.check(&problem(), at(20, 512), WORKSPACE).expect_err("operands that do not fit").reasons
}

#[test]
fn operands_of_exactly_the_right_size_fit() {
    operands().check(&problem(), at(20, 512), WORKSPACE).unwrap();
}

#[test]
fn every_fault_is_given() {
    let operands = Operands {
        q: at(0, 383),
        k: DevicePtr::new(0x20_0001, 320),
        v: DevicePtr::default(),
        bias: None,
        query_offsets: Some(DevicePtr::new(0x70_0004, 16)),
        log_sum_exp: Some(at(3, 96)),
        scores: Some(at(10, 4)),
        score_mod_buffers: [None, Some(at(9, 4)), None, None],
        page_table: Some(at(11, 4)),
        ..operands()
    };
    insta::assert_snapshot!(operands.check(&problem(), DevicePtr::new(0x100_0010, 500), WORKSPACE).unwrap_err(), @r"
    refused:
      * q is 383 bytes long and 384 are needed: check its extents and strides, which count elements, not bytes
      * k starts at 0x200001, which is not a multiple of 2: an element would straddle words; align it
      * v is missing: the problem asks for it; give its pointer, or change the problem
      * bias is missing: the problem asks for it; give its pointer, or change the problem
      * query_offsets starts at 0x700004, which is not a multiple of 8: an element would straddle words; align it
      * log_sum_exp overlaps o in memory: it would be overwritten while it is read; give log_sum_exp memory of its own
      * scores was given, but the problem does not ask for it and it would be ignored; leave it out, or change the problem
      * page_table was given, but the problem does not ask for it and it would be ignored; leave it out, or change the problem
      * score_mod_buffers[0] is missing: the problem asks for it; give its pointer, or change the problem
      * score_mod_buffers[1] was given, but the problem does not ask for it and it would be ignored; leave it out, or change the problem
      * the workspace is 500 bytes long and 512 are needed: allocate what the plan's workspace() says
      * the workspace starts at 0x1000010, which is not a multiple of 256: align it
    ");
}

#[test]
fn an_operand_one_byte_short_is_too_small() {
    let operands = Operands { sinks: Some(at(7, 15)), ..operands() };
    assert_eq!(refused(&operands), [Reason::OperandTooSmall { operand: Operand::Sinks, need: 16, got: 15 }]);
}

#[test]
fn outputs_must_not_share_memory() {
    let inside_q = DevicePtr::new(at(0, 0).address() + 382, 192);
    let operands = Operands { o: inside_q, ..operands() };
    assert_eq!(refused(&operands), [Reason::OutputOverlaps { output: Operand::O, other: Operand::Q }]);
    let beside_q = DevicePtr::new(at(0, 0).address() + 384, 192);
    Operands { o: beside_q, ..operands }.check(&problem(), at(20, 512), WORKSPACE).unwrap();
}

#[test]
fn inputs_may_share_memory() {
    let operands = Operands { k: at(0, 320), v: at(0, 160), ..operands() };
    operands.check(&problem(), at(20, 512), WORKSPACE).unwrap();
}

#[test]
fn the_workspace_must_not_lie_in_an_operand() {
    let refusal = operands().check(&problem(), at(1, 512), WORKSPACE).unwrap_err();
    assert_eq!(refusal.reasons, [Reason::OutputOverlaps { output: Operand::Workspace, other: Operand::K }]);
}

#[test]
fn a_plan_without_workspace_needs_no_pointer() {
    let none = WorkspaceSize { bytes: 0, align: 256 };
    operands().check(&problem(), DevicePtr::default(), none).unwrap();
}

#[test]
fn an_empty_problem_needs_no_pointer_at_all() {
    let problem = Problem { shape: Shape { q_len: 0, ..SHAPE }, ..problem() };
    Operands::default().check(&problem, DevicePtr::default(), WorkspaceSize::default()).unwrap();
}

#[test]
fn packed_operands() {
    let shape = VarlenShape {
        batch: 3,
        total_q: 10,
        total_kv: 20,
        max_q_len: 9,
        max_kv_len: 9,
        q_heads: 4,
        kv_heads: 2,
        head_dim: 8,
        v_head_dim: 4,
    };
    let mut problem = VarlenProblem::packed(shape, DType::Bf16);
    problem.checks_offsets = true;
    problem.has_used_lengths = true;
    let operands = VarlenOperands {
        q: at(0, 640),
        k: at(1, 640),
        v: at(2, 320),
        o: at(3, 320),
        cu_seqlens_q: at(4, 16),
        cu_seqlens_kv: at(5, 16),
        used_lengths: Some(at(6, 12)),
        status: Some(at(7, 4)),
        ..VarlenOperands::default()
    };
    let schedule = WorkspaceSize { bytes: 1024, align: 256 };
    operands.check(&problem, schedule, at(20, 512), WORKSPACE).unwrap();
    let prepared = VarlenOperands { schedule: Some(at(8, 1024)), ..operands };
    prepared.check(&problem, schedule, at(20, 512), WORKSPACE).unwrap();

    let none = WorkspaceSize::default();
    let refusal = prepared.check(&problem, none, at(20, 512), WORKSPACE).unwrap_err();
    assert_eq!(refusal.reasons, [Reason::OperandUnexpected { operand: Operand::Schedule }]);
    let short = VarlenOperands { cu_seqlens_kv: at(5, 12), status: None, ..operands };
    let refusal = short.check(&problem, schedule, at(20, 512), WORKSPACE).unwrap_err();
    let want = [
        Reason::OperandTooSmall { operand: Operand::CuSeqlensKv, need: 16, got: 12 },
        Reason::OperandMissing { operand: Operand::Status },
    ];
    assert_eq!(refusal.reasons, want);
}
