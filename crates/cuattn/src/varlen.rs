//! From a packed problem to the engine that does it.

use cuattn_core::{EngineId, Explanation, PlanError, Reason, Refusal, VarlenEngine, VarlenPlan, VarlenProblem};
use cuattn_varlen::Varlen;
use curt::{Capabilities, Runtime};

use crate::{Error, Policy};

/// Which engine [`plan_varlen`] would choose for a packed `problem` on such a device, and why. Needs no GPU, compiles nothing.
///
/// ```
/// use cuattn::curt::Capabilities;
/// use cuattn::{DType, Policy, VarlenProblem, VarlenShape};
/// let shape = VarlenShape {
///     batch: 3, total_q: 700, total_kv: 700, max_q_len: 512, max_kv_len: 512,
///     q_heads: 8, kv_heads: 2, head_dim: 64, v_head_dim: 64,
/// };
/// let problem = VarlenProblem::packed(shape, DType::F16);
/// let explanation = cuattn::consider_varlen(&Capabilities::h200(), &problem, Policy::Auto)?;
/// assert_eq!(explanation.path, "sm90");
/// # Ok::<(), cuattn::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Illegal`] where no engine could do the problem, [`Error::NoEngine`] where the one that the policy allows does not.
pub fn consider_varlen(device: &Capabilities, problem: &VarlenProblem, policy: Policy) -> Result<Explanation, Error> {
    let engine = choose(problem, policy)?;
    engine.consider(device, problem).map_err(|refusal| Error::NoEngine { refused: vec![refusal] })
}

/// Makes a plan for packed sequences: compiles what it needs, or finds it in the cache. Not during graph capture.
///
/// Only totals are fixed by it. Lengths are read on the device at each launch, so one plan, or one captured graph, serves a step after
/// another; where a step has many layers, [`VarlenPlan::build_schedule`] sorts the sequences once for all of them.
///
/// ```no_run
/// use cuattn::curt::Runtime;
/// use cuattn::{DType, Policy, VarlenOperands, VarlenProblem, VarlenShape};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let shape = VarlenShape {
///     batch: 3, total_q: 700, total_kv: 700, max_q_len: 512, max_kv_len: 512,
///     q_heads: 32, kv_heads: 8, head_dim: 128, v_head_dim: 128,
/// };
/// let mut problem = VarlenProblem::packed(shape, DType::Bf16);
/// problem.causal = true;
///
/// let runtime = Runtime::new(0)?;
/// let plan = cuattn::plan_varlen(&runtime, &problem, Policy::Auto)?;
/// let extents = problem.extents()?;
/// let [q, k, v] = [extents.q, extents.k, extents.v].map(|bytes| runtime.alloc_zeroed(bytes));
/// let (q, k, v) = (q?, k?, v?);
/// let (o, workspace) = (runtime.alloc(extents.o)?, runtime.alloc(plan.workspace().bytes)?);
/// let starts = runtime.upload(&[0_i32, 512, 530, 700])?;
/// let operands = VarlenOperands {
///     q: q.ptr(), k: k.ptr(), v: v.ptr(), o: o.ptr(),
///     cu_seqlens_q: starts.ptr(), cu_seqlens_kv: starts.ptr(),
///     ..VarlenOperands::default()
/// };
/// // SAFETY: the buffers are of this runtime, and live until the stream has been waited for.
/// unsafe { plan.launch(&operands, workspace.ptr())? };
/// runtime.synchronize()?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As [`consider_varlen`], and [`Error::Runtime`] where compiling, loading or allocating fails.
pub fn plan_varlen(runtime: &Runtime, problem: &VarlenProblem, policy: Policy) -> Result<Box<dyn VarlenPlan>, Error> {
    let engine = choose(problem, policy)?;
    engine.plan(runtime, problem).map_err(|error| match error {
        PlanError::Refused(refusal) => Error::NoEngine { refused: vec![refusal] },
        other => other.into(),
    })
}

/// There is one engine for packed problems.
fn choose(problem: &VarlenProblem, policy: Policy) -> Result<Varlen, Error> {
    problem.validate().map_err(Error::Illegal)?;
    match policy {
        Policy::Auto | Policy::Only(EngineId::Varlen) => Ok(Varlen),
        Policy::Only(other) => {
            let reason = Reason::unsupported("packed problems", other.to_string(), "use varlen, or pad the sequences");
            Err(Error::NoEngine { refused: vec![Refusal::by_engine(other, vec![reason])] })
        }
    }
}

#[cfg(test)]
mod tests {
    use cuattn_core::{DType, VarlenShape};

    use super::*;

    fn problem() -> VarlenProblem {
        let shape = VarlenShape {
            batch: 2,
            total_q: 10,
            total_kv: 10,
            max_q_len: 9,
            max_kv_len: 9,
            q_heads: 4,
            kv_heads: 2,
            head_dim: 64,
            v_head_dim: 64,
        };
        VarlenProblem::packed(shape, DType::Bf16)
    }

    #[test]
    fn dense_engines_do_not_take_packed_problems() {
        let error = consider_varlen(&Capabilities::h200(), &problem(), Policy::Only(EngineId::Flash)).unwrap_err();
        insta::assert_snapshot!(error, @r"
        no engine that the policy allows does this problem
        flash refuses:
          * flash does not do packed problems: use varlen, or pad the sequences
        ");
        let by_name = consider_varlen(&Capabilities::h200(), &problem(), Policy::Only(EngineId::Varlen)).unwrap();
        assert_eq!(by_name.engine, EngineId::Varlen);
    }

    #[test]
    fn an_illegal_problem_is_told_from_one_that_is_refused() {
        let mut problem = problem();
        problem.shape.kv_heads = 3;
        let error = consider_varlen(&Capabilities::h200(), &problem, Policy::Auto).unwrap_err();
        assert!(matches!(error, Error::Illegal(_)), "{error}");
    }
}
