//! How attention over strided tensors becomes few strided-batched products.
//!
//! A strided-batched product knows one row stride and one batch stride an operand. Attention has four loops, over sequences,
//! key heads, query heads of a group, and query rows. This module decides which of them become the rows of a product, which one
//! its batch, and which remain loops of launches, such that there are as few launches as can be.

use cuattn_core::{Shape, Strides};

/// Layouts of the four tensors, as the products read and write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layouts {
    pub(crate) q: Strides,
    pub(crate) k: Strides,
    pub(crate) v: Strides,
    pub(crate) o: Strides,
}

/// Elements of each tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offsets {
    pub(crate) q: i64,
    pub(crate) k: i64,
    pub(crate) v: i64,
    pub(crate) o: i64,
}

impl Offsets {
    fn add(self, other: Self, times: usize) -> Self {
        let times = times as i64;
        Self {
            q: self.q + other.q * times,
            k: self.k + other.k * times,
            v: self.v + other.v * times,
            o: self.o + other.o * times,
        }
    }
}

/// A loop over units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    pub(crate) count: usize,
    /// Units from one step to the next.
    pub(crate) units: usize,
    /// Elements from one step to the next.
    pub(crate) strides: Offsets,
}

impl Axis {
    /// This axis with `inner` inside it as one axis, where steps and strides run on.
    fn joined(self, inner: Self) -> Option<Self> {
        let span = Offsets::default().add(inner.strides, inner.count);
        let runs_on = self.units == inner.units * inner.count && self.strides == span;
        runs_on.then_some(Self { count: self.count * inner.count, ..inner })
    }
}

/// Which query rows make a *unit*, the rows of one product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// All query heads of a key head, one after another: their rows are evenly spaced, so one product reads the keys once for all.
    Group,
    /// One query head.
    Head,
}

/// Which loop is what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrangement {
    pub(crate) unit: Unit,
    /// Units of a sequence.
    pub(crate) units: usize,
    /// Query heads of a unit.
    pub(crate) heads_per_unit: usize,
    /// Rows of a unit.
    pub(crate) rows: usize,
    /// Elements from one row of a unit to the next.
    pub(crate) q_row: i64,
    /// Elements from one row of a unit's output to the next.
    pub(crate) o_row: i64,
    /// The batch of each product.
    pub(crate) batch: Axis,
    /// Loops of launches, outermost first.
    pub(crate) outer: Vec<Axis>,
}

/// The row stride at which all query heads of a group lie one after another, if they do.
fn group_row(strides: Strides, shape: Shape, dim: usize) -> Option<i64> {
    let Strides { head, row, .. } = strides;
    let stride = match (shape.group(), shape.q_len) {
        (1, _) => row,
        (_, 1) => head,
        (_, q_len) if head == row * q_len as i64 => row,
        _ => return None,
    };
    (stride >= dim as i64 || shape.group() * shape.q_len == 1).then_some(stride)
}

impl Arrangement {
    /// The arrangement with the fewest launches. The shape has no extent of 0 but perhaps `kv_len`.
    pub(crate) fn new(shape: Shape, layouts: Layouts) -> Self {
        let grouped = group_row(layouts.q, shape, shape.head_dim).zip(group_row(layouts.o, shape, shape.v_head_dim));
        let by_head = Self::of_heads(shape, layouts);
        match grouped.map(|(q_row, o_row)| Self::of_groups(shape, layouts, q_row, o_row)) {
            Some(by_group) if by_group.launches() <= by_head.launches() => by_group,
            _ => by_head,
        }
    }

    /// Products of each of the two kinds, if nothing else splits them.
    pub(crate) fn launches(&self) -> usize {
        self.outer.iter().map(|axis| axis.count).product()
    }

    fn of_groups(shape: Shape, layouts: Layouts, q_row: i64, o_row: i64) -> Self {
        let Layouts { q, k, v, o } = layouts;
        let group = shape.group() as i64;
        let sequences = Axis {
            count: shape.batch,
            units: shape.kv_heads,
            strides: Offsets { q: q.batch, k: k.batch, v: v.batch, o: o.batch },
        };
        let kv_heads = Axis {
            count: shape.kv_heads,
            units: 1,
            strides: Offsets { q: q.head * group, k: k.head, v: v.head, o: o.head * group },
        };
        let (batch, outer) = split(vec![sequences, kv_heads]);
        Self {
            unit: Unit::Group,
            units: shape.kv_heads,
            heads_per_unit: shape.group(),
            rows: shape.group() * shape.q_len,
            q_row,
            o_row,
            batch,
            outer,
        }
    }

    fn of_heads(shape: Shape, layouts: Layouts) -> Self {
        let Layouts { q, k, v, o } = layouts;
        let group = shape.group();
        let sequences = Axis {
            count: shape.batch,
            units: shape.q_heads,
            strides: Offsets { q: q.batch, k: k.batch, v: v.batch, o: o.batch },
        };
        let kv_heads = Axis {
            count: shape.kv_heads,
            units: group,
            strides: Offsets { q: q.head * group as i64, k: k.head, v: v.head, o: o.head * group as i64 },
        };
        // The heads of a group share their keys: batch stride 0.
        let heads = Axis { count: group, units: 1, strides: Offsets { q: q.head, k: 0, v: 0, o: o.head } };
        let (batch, outer) = split(vec![sequences, kv_heads, heads]);
        Self {
            unit: Unit::Head,
            units: shape.q_heads,
            heads_per_unit: 1,
            rows: shape.q_len,
            q_row: q.row,
            o_row: o.row,
            batch,
            outer,
        }
    }
}

/// Joins axes that run on, and takes the longest of what remains as the batch.
fn split(axes: Vec<Axis>) -> (Axis, Vec<Axis>) {
    let mut joined: Vec<Axis> = Vec::new();
    for axis in axes.into_iter().filter(|axis| axis.count != 1) {
        match joined.last().and_then(|last| last.joined(axis)) {
            Some(longer) => *joined.last_mut().expect("there is a last axis") = longer,
            None => joined.push(axis),
        }
    }
    let longest = (0..joined.len()).max_by_key(|&index| joined[index].count);
    let batch = longest.map_or(Axis { count: 1, units: 0, strides: Offsets::default() }, |index| joined.remove(index));
    (batch, joined)
}

/// One pair of products and the softmax between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// The first slice's unit.
    pub(crate) first_unit: usize,
    /// Products in the batch.
    pub(crate) slices: usize,
    /// The unit's first row.
    pub(crate) first_row: usize,
    /// Rows of each product.
    pub(crate) rows: usize,
    /// Where the first slice's operands start.
    pub(crate) offsets: Offsets,
}

/// Batch counts beyond this are not every kernel's.
const MAX_SLICES: usize = 65_535;

/// Row blocks are multiples of this, so that no tile of a product straddles two.
const ROW_STEP: usize = 128;

impl Arrangement {
    /// The chunks, none with more than `most_rows` score rows (but at least one row each), and all of nearly the same size.
    pub(crate) fn chunks(&self, most_rows: usize) -> Vec<Chunk> {
        let most_rows = most_rows.max(1);
        let (slices, rows) = if self.rows <= most_rows {
            (even(self.batch.count, (most_rows / self.rows).min(MAX_SLICES)), self.rows)
        } else if most_rows < ROW_STEP {
            (1, most_rows)
        } else {
            let rows = even(self.rows, most_rows).next_multiple_of(ROW_STEP);
            (1, if rows <= most_rows { rows } else { most_rows / ROW_STEP * ROW_STEP })
        };
        let mut chunks = Vec::new();
        let launches = self.launches();
        for launch in 0..launches {
            let (mut first_unit, mut offsets, mut rest) = (0, Offsets::default(), launch);
            for axis in self.outer.iter().rev() {
                let index = rest % axis.count;
                rest /= axis.count;
                first_unit += index * axis.units;
                offsets = offsets.add(axis.strides, index);
            }
            for slice in (0..self.batch.count).step_by(slices) {
                for first_row in (0..self.rows).step_by(rows) {
                    let row = Offsets { q: self.q_row, k: 0, v: 0, o: self.o_row };
                    chunks.push(Chunk {
                        first_unit: first_unit + slice * self.batch.units,
                        slices: slices.min(self.batch.count - slice),
                        first_row,
                        rows: rows.min(self.rows - first_row),
                        offsets: offsets.add(self.batch.strides, slice).add(row, first_row),
                    });
                }
            }
        }
        chunks
    }
}

/// `count` in the fewest parts of at most `most`, and those as equal as can be: the size of the largest.
fn even(count: usize, most: usize) -> usize {
    count.div_ceil(count.div_ceil(most.max(1)).max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(batch: usize, q_heads: usize, kv_heads: usize, q_len: usize) -> Shape {
        Shape { batch, q_heads, kv_heads, q_len, kv_len: 7, head_dim: 8, v_head_dim: 4 }
    }

    fn bhsd(s: Shape) -> Layouts {
        Layouts {
            q: Strides::bhsd(s.q_heads, s.q_len, s.head_dim),
            k: Strides::bhsd(s.kv_heads, s.kv_len, s.head_dim),
            v: Strides::bhsd(s.kv_heads, s.kv_len, s.v_head_dim),
            o: Strides::bhsd(s.q_heads, s.q_len, s.v_head_dim),
        }
    }

    fn bshd(s: Shape) -> Layouts {
        Layouts {
            q: Strides::bshd(s.q_heads, s.q_len, s.head_dim),
            k: Strides::bshd(s.kv_heads, s.kv_len, s.head_dim),
            v: Strides::bshd(s.kv_heads, s.kv_len, s.v_head_dim),
            o: Strides::bshd(s.q_heads, s.q_len, s.v_head_dim),
        }
    }

    /// Every query row is done once, and reads and writes what the strides say.
    fn check(shape: Shape, layouts: Layouts, most_rows: usize) {
        let arrangement = Arrangement::new(shape, layouts);
        let mut seen = vec![false; shape.batch * shape.q_heads * shape.q_len];
        for chunk in arrangement.chunks(most_rows) {
            assert!(chunk.slices * chunk.rows <= most_rows.max(1), "{chunk:?}");
            for slice in 0..chunk.slices {
                let unit = chunk.first_unit + slice * arrangement.batch.units;
                let at = chunk.offsets.add(arrangement.batch.strides, slice);
                for row in 0..chunk.rows {
                    let unit_row = chunk.first_row + row;
                    let batch = unit / arrangement.units;
                    let head = unit % arrangement.units * arrangement.heads_per_unit + unit_row / shape.q_len;
                    let query = unit_row % shape.q_len;
                    let kv_head = head / shape.group();
                    let place = |s: Strides, head: usize, row: usize| {
                        batch as i64 * s.batch + head as i64 * s.head + row as i64 * s.row
                    };
                    assert_eq!(at.q + row as i64 * arrangement.q_row, place(layouts.q, head, query), "{arrangement:?}");
                    assert_eq!(at.o + row as i64 * arrangement.o_row, place(layouts.o, head, query), "{arrangement:?}");
                    assert_eq!(at.k, place(layouts.k, kv_head, 0), "{arrangement:?}");
                    assert_eq!(at.v, place(layouts.v, kv_head, 0), "{arrangement:?}");
                    let number = (batch * shape.q_heads + head) * shape.q_len + query;
                    assert!(!std::mem::replace(&mut seen[number], true), "twice: {arrangement:?}");
                }
            }
        }
        assert!(seen.iter().all(|&seen| seen), "{arrangement:?}");
    }

    #[test]
    fn every_row_is_done_once_where_it_lies() {
        for batch in [1, 3] {
            for (q_heads, kv_heads) in [(1, 1), (4, 4), (6, 2), (6, 1), (5, 1)] {
                for q_len in [1, 2, 300] {
                    let shape = shape(batch, q_heads, kv_heads, q_len);
                    for most_rows in [1, 100, 128, 513, usize::MAX] {
                        check(shape, bhsd(shape), most_rows);
                        check(shape, bshd(shape), most_rows);
                        let mixed = Layouts { q: bshd(shape).q, o: bshd(shape).o, ..bhsd(shape) };
                        check(shape, mixed, most_rows);
                        let mut padded = bhsd(shape);
                        padded.q.head += 16;
                        padded.k.batch += 64;
                        check(shape, padded, most_rows);
                        let mut shared = bhsd(shape);
                        (shared.k.batch, shared.v.batch, shared.k.head, shared.v.head) = (0, 0, 0, 0);
                        check(shape, shared, most_rows);
                    }
                }
            }
        }
    }

    #[test]
    fn contiguous_heads_are_one_launch() {
        let grouped = shape(4, 32, 8, 512);
        let arrangement = Arrangement::new(grouped, bhsd(grouped));
        assert_eq!((arrangement.unit, arrangement.launches()), (Unit::Group, 1));
        assert_eq!((arrangement.batch.count, arrangement.rows), (32, 4 * 512));
    }

    #[test]
    fn interleaved_heads_are_batched_over_the_longest_axis() {
        let wide = shape(2, 16, 16, 512);
        let arrangement = Arrangement::new(wide, bshd(wide));
        assert_eq!((arrangement.batch.count, arrangement.launches()), (16, 2));
        let grouped = shape(2, 32, 8, 512);
        let arrangement = Arrangement::new(grouped, bshd(grouped));
        assert_eq!((arrangement.unit, arrangement.batch.count, arrangement.launches()), (Unit::Head, 8, 8));
        // One query row a head: a group's rows are evenly spaced after all.
        let decode = shape(2, 32, 8, 1);
        let arrangement = Arrangement::new(decode, bshd(decode));
        assert_eq!((arrangement.unit, arrangement.rows), (Unit::Group, 4));
    }

    #[test]
    fn chunks_are_even() {
        let shape = shape(1, 16, 16, 128);
        let chunks = Arrangement::new(shape, bhsd(shape)).chunks(7 * 128);
        assert_eq!(chunks.iter().map(|chunk| chunk.slices).collect::<Vec<_>>(), [6, 6, 4]);
        let long = Shape { q_heads: 1, kv_heads: 1, q_len: 4096, ..shape };
        let chunks = Arrangement::new(long, bhsd(long)).chunks(3000);
        assert_eq!(chunks.iter().map(|chunk| chunk.rows).collect::<Vec<_>>(), [2048, 2048]);
    }
}
