//! The operands of a problem as bytes, with poison wherever nothing may be read.

use std::collections::BTreeMap;
use std::ops::Range;

use cuattn_core::reference::{self, HostOperands};
use cuattn_core::{
    Alignment, Bias, BiasKind, DType, IndexType, KeyLengths, Paging, Problem, Refusal, ScoreStage, Shape, Strides,
};
use rand::Rng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};

use crate::tensors::{Distribution, POISON};

/// Host operands of a problem: the bytes that the device and the reference both get.
///
/// What the contract says is never read holds poison: gaps between rows and spare capacity, keys beyond a sequence's length,
/// keys that the mask hides from every row, pages that no table names, table entries beyond the length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    /// Queries.
    pub q: Vec<u8>,
    /// Keys, or their pages.
    pub k: Vec<u8>,
    /// Values, or their pages.
    pub v: Vec<u8>,
    /// The bias.
    pub bias: Option<Vec<u8>>,
    /// Key or past lengths.
    pub key_lengths: Option<Vec<u8>>,
    /// Positions of query row 0.
    pub query_offsets: Option<Vec<u8>>,
    /// Sinks.
    pub sinks: Option<Vec<u8>>,
    /// Page table.
    pub page_table: Option<Vec<u8>>,
}

impl Inputs {
    /// Draws operands for `problem`.
    ///
    /// # Errors
    ///
    /// If the problem is not legal.
    pub fn draw(problem: &Problem, distribution: Distribution, rng: &mut impl Rng) -> Result<Self, Refusal> {
        problem.validate()?;
        let extents = problem.extents()?;
        let shape = problem.shape;
        if shape.is_empty() {
            let empty = |extent: Option<usize>| extent.map(|_| Vec::new());
            return Ok(Self {
                q: Vec::new(),
                k: Vec::new(),
                v: Vec::new(),
                bias: empty(extents.bias),
                key_lengths: empty(extents.key_lengths),
                query_offsets: empty(extents.query_offsets),
                sinks: empty(extents.sinks),
                page_table: empty(extents.page_table),
            });
        }
        let lengths = problem.mask.key_lengths.index_type().map(|_| draw_lengths(problem, rng));
        let offsets = problem.mask.alignment.index_type().map(|_| draw_offsets(shape, rng));
        let rows = Rows::new(problem, lengths.as_deref(), offsets.as_deref());
        let bias = problem.mask.bias.map(|bias| DrawnBias::draw(bias, shape, extents.bias.unwrap_or(0), rng));
        let table = problem.paging.map(|paging| draw_page_table(paging, &rows.keys, rng));

        let mut q = vec![POISON; extents.q];
        for start in starts(shape.batch, shape.q_heads, shape.q_len, problem.q) {
            write_row(&mut q, start, problem.dtype, shape.head_dim, || distribution.query(rng));
        }
        let places = KeyRows { problem, rows: &rows, bias: bias.as_ref(), table: table.as_deref() };
        // The raw scores of hidden keys are asked for: then they must be numbers, though their values need not.
        let stage = problem.scores.map(|scores| scores.stage);
        let every_key = matches!(stage, Some(ScoreStage::Raw | ScoreStage::Softcapped));
        let k = places.fill(extents.k, problem.k, shape.head_dim, every_key, distribution, rng);
        let v = places.fill(extents.v, problem.v, shape.v_head_dim, false, distribution, rng);

        let array = |values: Option<Vec<i64>>, index: Option<IndexType>| Some(index_bytes(&values?, index?));
        Ok(Self {
            q,
            k,
            v,
            bias: bias.map(|bias| bias.bytes),
            key_lengths: array(lengths, problem.mask.key_lengths.index_type()),
            query_offsets: array(offsets, problem.mask.alignment.index_type()),
            sinks: problem.has_sinks.then(|| {
                let sinks: Vec<_> = (0..shape.q_heads).map(|_| Distribution::Normal.key(rng)).collect();
                reference::encode(&sinks, DType::F32)
            }),
            page_table: table.map(|table| index_bytes(&table, IndexType::I32)),
        })
    }

    /// The operands as the reference wants them.
    pub fn host(&self) -> HostOperands<'_> {
        HostOperands {
            q: &self.q,
            k: &self.k,
            v: &self.v,
            bias: self.bias.as_deref(),
            key_lengths: self.key_lengths.as_deref(),
            query_offsets: self.query_offsets.as_deref(),
            sinks: self.sinks.as_deref(),
            page_table: self.page_table.as_deref(),
            score_mod: None,
        }
    }
}

/// Multiplies row `i` of a contiguous tensor of rows of `dim` elements by `factor(i)`.
pub fn scale_rows(bytes: &mut [u8], dtype: DType, dim: usize, factor: impl Fn(usize) -> f64) {
    let mut values = reference::decode(bytes, dtype);
    for (row, values) in values.chunks_exact_mut(dim).enumerate() {
        values.iter_mut().for_each(|value| *value *= factor(row));
    }
    bytes.copy_from_slice(&reference::encode(&values, dtype));
}

/// First elements of the rows of a `[batch, head, row]` tensor.
fn starts(batch: usize, heads: usize, rows: usize, strides: Strides) -> impl Iterator<Item = usize> {
    (0..batch).flat_map(move |b| {
        (0..heads).flat_map(move |h| {
            (0..rows).map(move |i| b * strides.batch as usize + h * strides.head as usize + i * strides.row as usize)
        })
    })
}

fn write_row(bytes: &mut [u8], start: usize, dtype: DType, dim: usize, mut value: impl FnMut() -> f64) {
    let values: Vec<_> = (0..dim).map(|_| value()).collect();
    let size = dtype.size();
    bytes[start * size..(start + dim) * size].copy_from_slice(&reference::encode(&values, dtype));
}

fn index_bytes(values: &[i64], index: IndexType) -> Vec<u8> {
    match index {
        // What does not fit is meant to be out of range anyway.
        IndexType::I32 => {
            let clamp = |value: i64| value.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
            values.iter().flat_map(|&value| clamp(value).to_ne_bytes()).collect()
        }
        IndexType::I64 => values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
    }
}

/// Lengths within the bounds mostly, and now and then outside: those are clamped.
fn draw_lengths(problem: &Problem, rng: &mut impl Rng) -> Vec<i64> {
    let Shape { batch, q_len, kv_len, .. } = problem.shape;
    let (q_len, kv_len) = (q_len as i64, kv_len as i64);
    (0..batch)
        .map(|_| {
            let length = match rng.random_range(0..8) {
                0 => 0,
                1 => kv_len,
                2 => kv_len + 5,
                3 => -3,
                _ => rng.random_range(0..=kv_len),
            };
            match problem.mask.key_lengths {
                KeyLengths::PastPlusQuery(_) => length - q_len,
                _ => length,
            }
        })
        .collect()
}

fn draw_offsets(shape: Shape, rng: &mut impl Rng) -> Vec<i64> {
    let (q_len, kv_len) = (shape.q_len as i64, shape.kv_len as i64);
    (0..shape.batch).map(|_| rng.random_range(-q_len - 2..=kv_len + 2)).collect()
}

/// A table that names pages in random order, and beyond a sequence's length what no one may follow.
fn draw_page_table(paging: Paging, keys: &[usize], rng: &mut impl Rng) -> Vec<i64> {
    let mut pages: Vec<_> = (0..paging.pages as i64).collect();
    pages.shuffle(rng);
    let mut table = Vec::with_capacity(keys.len() * paging.max_pages);
    for &keys in keys {
        let used = keys.div_ceil(paging.page_size);
        table.extend(pages.drain(..used.min(pages.len())));
        table.extend((used..paging.max_pages).map(|_| *[-1, i64::from(i32::MAX)].choose(rng).unwrap_or(&-1)));
    }
    table
}

/// Valid keys and position of row 0 of each sequence, and what its rows see of them: the contract once more, apart from the
/// reference, because what is seen here decides where poison lies.
struct Rows<'a> {
    problem: &'a Problem,
    keys: Vec<usize>,
    offsets: Vec<i64>,
}

impl<'a> Rows<'a> {
    fn new(problem: &'a Problem, lengths: Option<&[i64]>, offsets: Option<&[i64]>) -> Self {
        let Shape { batch, q_len, kv_len, .. } = problem.shape;
        let keys: Vec<_> = (0..batch)
            .map(|b| {
                let given = lengths.map_or(0, |lengths| lengths[b]);
                let length = match problem.mask.key_lengths {
                    KeyLengths::Full => kv_len as i64,
                    KeyLengths::PerBatch(_) => given,
                    KeyLengths::PastPlusQuery(_) => given + q_len as i64,
                };
                length.clamp(0, kv_len as i64) as usize
            })
            .collect();
        let offsets = (0..batch)
            .map(|b| match problem.mask.alignment {
                Alignment::TopLeft => 0,
                Alignment::BottomRight => keys[b] as i64 - q_len as i64,
                Alignment::PerBatch(_) => offsets.map_or(0, |offsets| offsets[b]),
            })
            .collect();
        Self { problem, keys, offsets }
    }

    /// The keys that length, causal mask and window leave to row `i` of sequence `b`.
    fn range(&self, b: usize, i: usize) -> Range<usize> {
        let mask = &self.problem.mask;
        let position = self.offsets[b] + i as i64;
        let keys = self.keys[b] as i64;
        let right = if mask.causal { Some(0) } else { mask.window.right.map(i64::from) };
        let end = right.map_or(keys, |right| (position + right + 1).clamp(0, keys));
        let start = mask.window.left.map_or(0, |left| (position - i64::from(left)).clamp(0, end));
        start as usize..end as usize
    }
}

/// A bias, and which of its elements hide a key.
struct DrawnBias {
    bias: Bias,
    bytes: Vec<u8>,
    hides: Vec<bool>,
}

impl DrawnBias {
    fn draw(bias: Bias, shape: Shape, extent: usize, rng: &mut impl Rng) -> Self {
        let size = bias.kind.size();
        let elements = extent / size;
        let hiding = *[0.0, 0.1, 0.5, 1.0].choose(rng).unwrap_or(&0.0);
        let mut hides = vec![false; elements];
        let mut bytes = vec![POISON; extent];
        // Only what the strides reach is written: the rest stays poison, and hides nothing because nobody reads it.
        let keys = bias.keys.min(shape.kv_len);
        for start in starts(
            shape.batch,
            shape.q_heads,
            shape.q_len,
            Strides { batch: bias.batch, head: bias.head, row: bias.row },
        ) {
            // Some rows are hidden whole, some are all the most negative number: that is a uniform softmax, not a mask.
            let whole_row = rng.random_ratio(1, 16);
            let lowest_row = !whole_row && rng.random_ratio(1, 16);
            for key in 0..keys {
                let element = start + key * bias.key as usize;
                let hidden = whole_row || (!lowest_row && rng.random_bool(hiding));
                hides[element] = hidden;
                let place = &mut bytes[element * size..(element + 1) * size];
                match bias.kind {
                    BiasKind::Boolean => place[0] = if hidden { 0 } else { rng.random_range(1..=255) },
                    BiasKind::Additive(dtype) => {
                        let value = if hidden {
                            f64::NEG_INFINITY
                        } else if lowest_row && dtype != DType::F16 {
                            // f16's lowest is small enough for float32 to keep some of a score beside it, but not all.
                            lowest(dtype)
                        } else {
                            Distribution::Normal.key(rng)
                        };
                        place.copy_from_slice(&reference::encode(&[value], dtype));
                    }
                }
            }
        }
        Self { bias, bytes, hides }
    }

    fn hides(&self, b: usize, h: usize, i: usize, j: usize) -> bool {
        let at = |index: usize, stride: i64| index * stride as usize;
        j >= self.bias.keys
            || self.hides[at(b, self.bias.batch) + at(h, self.bias.head) + at(i, self.bias.row) + at(j, self.bias.key)]
    }
}

fn lowest(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => half::bf16::MIN.to_f64(),
        _ => f64::from(f32::MIN),
    }
}

/// Where the rows of K and V are, and whether anyone sees them.
struct KeyRows<'a> {
    problem: &'a Problem,
    rows: &'a Rows<'a>,
    bias: Option<&'a DrawnBias>,
    table: Option<&'a [i64]>,
}

impl KeyRows<'_> {
    fn fill(
        &self,
        extent: usize,
        strides: Strides,
        dim: usize,
        every_key: bool,
        distribution: Distribution,
        rng: &mut impl Rng,
    ) -> Vec<u8> {
        let dtype = self.problem.dtype;
        let mut bytes = vec![POISON; extent];
        for (start, seen) in self.rows_in_memory(strides) {
            if seen || every_key {
                write_row(&mut bytes, start, dtype, dim, || distribution.key(rng));
            } else if let Some(infinity) =
                *[None, Some(f64::INFINITY), Some(f64::NEG_INFINITY)].choose(rng).unwrap_or(&None)
            {
                write_row(&mut bytes, start, dtype, dim, || infinity);
            }
        }
        bytes
    }

    /// First element of each row that holds a key, and whether any row of any sequence and head that shares it sees it.
    fn rows_in_memory(&self, strides: Strides) -> BTreeMap<usize, bool> {
        let Shape { batch, kv_heads, kv_len, .. } = self.problem.shape;
        let mut places = BTreeMap::new();
        for b in 0..batch {
            for h in 0..kv_heads {
                let seen = self.seen(b, h);
                for (j, seen) in seen.iter().enumerate().take(kv_len) {
                    if let Some(start) = self.start(strides, b, h, j) {
                        *places.entry(start).or_insert(false) |= seen;
                    }
                }
            }
        }
        places
    }

    fn start(&self, strides: Strides, b: usize, h: usize, j: usize) -> Option<usize> {
        let at = |index: usize, stride: i64| index * stride as usize;
        let (block, row) = match (self.problem.paging, self.table) {
            (Some(paging), Some(table)) => {
                // Pages beyond the length are not in the table at all.
                if j >= self.rows.keys[b] {
                    return None;
                }
                (table[b * paging.max_pages + j / paging.page_size] as usize, j % paging.page_size)
            }
            _ => (b, j),
        };
        Some(at(block, strides.batch) + at(h, strides.head) + at(row, strides.row))
    }

    /// Which keys some row of the heads of group `h` sees.
    fn seen(&self, b: usize, h: usize) -> Vec<bool> {
        let shape = self.problem.shape;
        let mut seen = vec![false; shape.kv_len];
        for i in 0..shape.q_len {
            for j in self.rows.range(b, i) {
                if !seen[j] {
                    let mut heads = h * shape.group()..(h + 1) * shape.group();
                    seen[j] = self.bias.is_none_or(|bias| heads.any(|head| !bias.hides(b, head, i, j)));
                }
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use cuattn_core::reference::attention;
    use cuattn_core::{Mask, Window};
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::space::{Layout, Space};

    /// Poison that a row sees would show as NaN or infinity in the reference, which reads only what the contract says.
    #[test]
    fn poison_is_where_the_reference_does_not_look() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut space = Space::full();
        space.multiplications = 1 << 17;
        space.page_sizes = vec![1, 16];
        space.scores = vec![ScoreStage::Raw, ScoreStage::Softcapped, ScoreStage::Masked, ScoreStage::Probabilities];
        let mut poisoned = 0;
        for _ in 0..300 {
            let problem = space.draw(&mut rng);
            let distribution = *Distribution::ALL.choose(&mut rng).unwrap();
            let inputs = Inputs::draw(&problem, distribution, &mut rng).unwrap();
            let output = attention(&problem, &inputs.host()).unwrap_or_else(|refusal| panic!("{problem:?}\n{refusal}"));
            assert!(output.o.iter().all(|value| value.is_finite()), "{problem:?}");
            assert!(output.log_sum_exp.iter().all(|&value| value.is_finite() || value == f64::NEG_INFINITY));
            if let Some(scores) = output.scores {
                assert!(scores.iter().all(|score| !score.is_nan() && *score != f64::INFINITY), "{problem:?}");
            }
            let v = reference::decode(&inputs.v, problem.dtype);
            poisoned += usize::from(v.iter().any(|value| !value.is_finite()));
        }
        assert!(poisoned > 50, "only {poisoned} of 300 problems had poison in V");
    }

    #[test]
    fn keys_that_no_row_sees_are_poison_and_others_are_not() {
        let shape = Shape { batch: 1, q_heads: 2, kv_heads: 1, q_len: 3, kv_len: 8, head_dim: 4, v_head_dim: 4 };
        let mut problem = Problem::bhsd(shape, DType::F32);
        problem.mask = Mask::causal(Alignment::BottomRight);
        problem.mask.window = Window { left: Some(2), right: None };
        let inputs = Inputs::draw(&problem, Distribution::Normal, &mut StdRng::seed_from_u64(1)).unwrap();
        let k = reference::decode(&inputs.k, DType::F32);
        let finite: Vec<_> = k.chunks(4).map(|row| row.iter().all(|value| value.is_finite())).collect();
        // Positions 5, 6, 7 see two keys to the left and their own: 3 to 7.
        assert_eq!(finite, [false, false, false, true, true, true, true, true]);
    }

    #[test]
    fn gaps_between_rows_are_poison() {
        let shape = Shape { batch: 2, q_heads: 3, kv_heads: 3, q_len: 5, kv_len: 6, head_dim: 8, v_head_dim: 8 };
        let mut rng = StdRng::seed_from_u64(1);
        for layout in [Layout::PackedQkv, Layout::Capacity, Layout::OddRows] {
            let problem = Problem::with_strides(shape, DType::F16, layout.strides(shape));
            let inputs = Inputs::draw(&problem, Distribution::Normal, &mut rng).unwrap();
            let k = reference::decode(&inputs.k, DType::F16);
            assert_eq!(k.iter().filter(|value| value.is_finite()).count(), 2 * 3 * 6 * 8, "{layout:?}");
            assert!(k.iter().any(|value| value.is_nan()), "{layout:?}");
        }
    }

    #[test]
    fn a_page_table_names_each_page_once() {
        let paging = Paging { page_size: 4, pages: 9, max_pages: 4 };
        let table = draw_page_table(paging, &[9, 0, 16], &mut StdRng::seed_from_u64(1));
        assert_eq!(table.len(), 12);
        let mut named: Vec<_> = table.iter().filter(|page| (0..9).contains(*page)).collect();
        named.sort();
        named.dedup();
        assert_eq!(named.len(), 3 + 4);
    }
}
