//! Which engine is chosen, and what is said of those that are not. No GPU is needed.

use cuattn::curt::Capabilities;
use cuattn::{DType, EngineId, Error, Policy, Problem, Reason, ScoreStage, ScoresOutput, Shape};

const SHAPE: Shape = Shape { batch: 2, q_heads: 8, kv_heads: 2, q_len: 128, kv_len: 256, head_dim: 64, v_head_dim: 64 };

fn with_scores() -> Problem {
    let mut problem = Problem::bhsd(SHAPE, DType::F16);
    problem.scores = Some(ScoresOutput { stage: ScoreStage::Masked, dtype: DType::F32 });
    problem
}

#[test]
fn what_the_first_engine_refuses_the_next_one_does() {
    let explanation = cuattn::consider(&Capabilities::h200(), &with_scores(), Policy::Auto).unwrap();
    assert_eq!(explanation.engine, EngineId::Phase2a);
    assert_eq!(explanation.refused.iter().map(|refusal| refusal.engine).collect::<Vec<_>>(), [Some(EngineId::Flash)]);
    let text = explanation.to_string();
    assert!(text.contains("of the choice table"), "{text}");
    assert!(text.contains("flash refuses:\n  * "), "{text}");
}

#[test]
fn only_never_falls_back() {
    let error = cuattn::consider(&Capabilities::h200(), &with_scores(), Policy::Only(EngineId::Flash)).unwrap_err();
    assert!(matches!(&error, Error::NoEngine { refused } if refused.len() == 1));
    insta::assert_snapshot!(error, @r"
    no engine that the policy allows does this problem
    flash refuses:
      * flash does not do handing out scores (Masked): use the phase2a engine, which keeps a score tensor
    ");
}

#[test]
fn only_says_so() {
    let problem = Problem::bhsd(SHAPE, DType::F16);
    for id in [EngineId::Flash, EngineId::Phase2a] {
        let explanation = cuattn::consider(&Capabilities::h200(), &problem, Policy::Only(id)).unwrap();
        assert_eq!(explanation.engine, id);
        assert!(explanation.why.ends_with("(asked for by name)"), "{}", explanation.why);
    }
}

#[test]
fn the_reference_is_never_launched() {
    let problem = Problem::bhsd(SHAPE, DType::F16);
    for device in [Capabilities::h200(), Capabilities::a100(), Capabilities::rtx4090()] {
        assert_ne!(cuattn::consider(&device, &problem, Policy::Auto).unwrap().engine, EngineId::Reference);
    }
    let error = cuattn::consider(&Capabilities::h200(), &problem, Policy::Only(EngineId::Reference)).unwrap_err();
    insta::assert_snapshot!(error, @r"
    no engine that the policy allows does this problem
    reference refuses:
      * the reference does not do launches on a GPU: call cuattn::reference::attention with host memory
    ");
}

#[test]
fn an_illegal_problem_is_nobodys() {
    let problem = Problem::bhsd(Shape { kv_heads: 3, head_dim: 0, ..SHAPE }, DType::F16);
    for policy in [Policy::Auto, Policy::Only(EngineId::Phase2a)] {
        let error = cuattn::consider(&Capabilities::h200(), &problem, policy).unwrap_err();
        assert!(matches!(error, Error::Illegal(_)));
        let reasons = &error.refusals()[0].reasons;
        assert!(matches!(reasons[..], [Reason::HeadsNotDivisible { .. }, Reason::ZeroHeadDim { .. }]), "{error}");
    }
}

#[test]
fn a_device_that_is_too_old_is_refused_before_anything_is_compiled() {
    let turing = Capabilities { compute_capability: (7, 5), ..Capabilities::a100() };
    let problem = Problem::bhsd(SHAPE, DType::F32);
    let error = cuattn::consider(&turing, &problem, Policy::Auto).unwrap_err();
    insta::assert_snapshot!(error, @r"
    no engine that the policy allows does this problem
    flash (simt) refuses:
      * simt needs compute capability 8.0 or newer, and this device has 7.5: no path of this engine runs on it
    phase2a refuses:
      * phase2a needs compute capability 8.0 or newer, and this device has 7.5: its kernels use conversions that older devices lack
    ");
}
