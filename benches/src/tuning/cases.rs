//! The problems that tiles are chosen on.

use cuattn_core::{Alignment, Bias, BiasKind, DType, Mask, Problem, Shape};
use cuattn_flash::Path;

/// A problem of a path.
#[derive(Clone, Debug)]
pub struct Case {
    /// Unique, such as `mma d128 causal 4096`.
    pub name: String,
    /// The rows of the table that it speaks for, such as `mma d128`.
    pub group: String,
    /// Whose candidates are measured.
    pub path: Path,
    /// What they compute.
    pub problem: Problem,
}

/// Tokens of a batch, as in the tables of the peer comparison.
const TOKENS: usize = 16_384;

/// Every case, those of which the tables know least first.
pub fn cases() -> Vec<Case> {
    let mut all = single_precision();
    all.extend(of_few_tiles_or_rows());
    all.extend(masked(Path::Mma));
    all.extend(masked(Path::Sm90));
    all.extend(softcapped());
    all.extend(prefill(Path::Mma, &[64, 96, 128, 192, 256], &[512, 1024, 2048, 4096]));
    all.extend(prefill(Path::Sm90, &[64, 128, 192, 256], &[512, 1024, 2048, 4096, 8192, 16_384]));
    all
}

fn shape(batch: usize, heads: usize, len: usize, head_dim: usize) -> Shape {
    Shape { batch, q_heads: heads, kv_heads: heads, q_len: len, kv_len: len, head_dim, v_head_dim: head_dim }
}

fn case(path: Path, shape: Shape, dtype: DType, causal: bool) -> Case {
    let mut problem = Problem::bhsd(shape, dtype);
    if causal {
        problem.mask = Mask::causal(Alignment::BottomRight);
    }
    let sizes = match (shape.head_dim, shape.v_head_dim) {
        (qk, v) if qk == v => format!("d{qk}"),
        (qk, v) => format!("d{qk}/{v}"),
    };
    let mask = if causal { "causal" } else { "full" };
    let name = format!("{path} {sizes} {mask} {}", shape.kv_len);
    Case { name, group: format!("{path} {sizes}"), path, problem }
}

fn single_precision() -> Vec<Case> {
    [
        (shape(4, 16, 1024, 64), false),
        (shape(2, 16, 2048, 128), true),
        (shape(1, 16, 4096, 128), true),
        (shape(1, 16, 4096, 128), false),
        (shape(1, 16, 4096, 64), true),
        (shape(1, 8, 512, 64), false),
        (shape(1, 8, 512, 128), false),
        (shape(1, 8, 2048, 256), false),
    ]
    .into_iter()
    .flat_map(|(shape, causal)| {
        // Splitting pays from some 2^26 multiplications on, and up to head size 128.
        let paths: &[_] = if shape.head_dim > 128 { &[Path::Simt] } else { &[Path::Sm90F32, Path::Simt] };
        paths.iter().map(move |&path| case(path, shape, DType::F32, causal))
    })
    .collect()
}

/// For the rows of the table that are meant for grids too small for the device, for short sequences and for few queries, and for those of
/// head sizes that no other case has.
fn of_few_tiles_or_rows() -> Vec<Case> {
    let mut all = Vec::new();
    let mut push = |kind: &str, case: Case| {
        all.push(Case { name: format!("{} {kind}", case.name), group: format!("{} {kind}", case.group), ..case });
    };
    for head_dim in [64, 128] {
        for (heads, len, causal) in [(8, 512, false), (8, 512, true), (16, 1024, true)] {
            push("few tiles", case(Path::Sm90, shape(1, heads, len, head_dim), DType::Bf16, causal));
        }
        for (len, causal) in [(64, false), (96, true)] {
            push("short", case(Path::Sm90, shape(TOKENS / len, heads(head_dim), len, head_dim), DType::Bf16, causal));
        }
        for (len, causal) in [(64, false), (128, false), (128, true)] {
            push("short", case(Path::Mma, shape(TOKENS / len, heads(head_dim), len, head_dim), DType::Bf16, causal));
        }
    }
    for causal in [false, true] {
        push("wide values", case(Path::Sm90, shape(4, heads(192), 4096, 192), DType::Bf16, causal));
    }
    for head_dim in [64, 128, 256] {
        let few_rows = |q_len| Shape { q_len, ..shape(16, heads(head_dim), 4096, head_dim) };
        push("few rows", case(Path::Mma, few_rows(16), DType::Bf16, false));
        push("few rows", case(Path::Simt, few_rows(8), DType::F32, false));
    }
    all
}

fn masked(path: Path) -> Vec<Case> {
    let mut all = Vec::new();
    for (head_dim, len) in [(128, 4096), (128, 1024), (64, 4096), (64, 1024)] {
        for (name, kind) in [
            ("bias", BiasKind::Additive(DType::Bf16)),
            ("f32 bias", BiasKind::Additive(DType::F32)),
            ("boolean bias", BiasKind::Boolean),
        ] {
            let shape = shape(TOKENS / len, heads(head_dim), len, head_dim);
            let plain = case(path, shape, DType::Bf16, false);
            let bias = Bias { kind, batch: 0, head: 0, row: len as i64, key: 1, keys: len };
            let problem = Problem { mask: Mask { bias: Some(bias), ..Mask::none() }, ..plain.problem };
            let named = |text: &str| format!("{text} {name}");
            all.push(Case { name: named(&plain.name), group: named(&plain.group), path, problem });
        }
    }
    all
}

fn softcapped() -> Vec<Case> {
    let softcap = |mut case: Case| {
        case.problem.softcap = Some(30.0);
        case.name += " softcap";
        case.group += " softcap";
        case
    };
    prefill(Path::Sm90, &[64, 128], &[1024, 4096]).into_iter().map(softcap).collect()
}

fn prefill(path: Path, head_dims: &[usize], lens: &[usize]) -> Vec<Case> {
    let mut all = Vec::new();
    for &head_dim in head_dims {
        for causal in [false, true] {
            for &len in lens {
                let mut shape = shape(TOKENS / len, heads(head_dim), len, head_dim);
                if path == Path::Sm90 && head_dim == 192 {
                    shape.v_head_dim = 128;
                }
                all.push(case(path, shape, DType::Bf16, causal));
            }
        }
    }
    all
}

/// Heads, for a model width of 2048.
fn heads(head_dim: usize) -> usize {
    match head_dim {
        64 => 32,
        96 | 128 => 16,
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own_and_candidates_on_a_hopper() {
        let device = curt::Capabilities::h200();
        let mut names = HashSet::new();
        for case in cases() {
            assert!(names.insert(case.name.clone()), "twice: {}", case.name);
            let candidates = cuattn_flash::tuning::candidates(&device, &case.problem, case.path).unwrap();
            assert!(candidates.len() > 1, "{}", case.name);
        }
    }

    #[test]
    fn some_row_of_each_head_size_and_condition_has_a_case() {
        // Of several such rows, those after the first are for smaller devices.
        let kind = |key: &str| key.split_once('"').unwrap().0.to_owned();
        let device = curt::Capabilities::h200();
        let row = |case: &Case| {
            let candidates = cuattn_flash::tuning::candidates(&device, &case.problem, case.path).unwrap();
            candidates[0].row()
        };
        let have: HashSet<_> = cases().iter().filter_map(row).map(|key| kind(&key)).collect();
        for row in cuattn_kernels::flash::tiles::table() {
            assert!(have.contains(&kind(&row.key())), "no case is of line {}: {}", row.line, row.key());
        }
    }
}
