//! How many bytes each operand spans, from the extents and strides of a problem.

use crate::{IndexType, Operand, Paging, Problem, Reason, Refusal, Shape, Strides, TokenStrides, VarlenProblem};

/// Bytes from the first to the last element of each operand of a dense problem; `None` where the problem does not ask
/// for it.
///
/// All are 0 where the problem has no output element ([`crate::Shape::is_empty`]): nothing is read then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Extents {
    /// Queries.
    pub q: usize,
    /// Keys, or the pool of key pages.
    pub k: usize,
    /// Values, or the pool of value pages.
    pub v: usize,
    /// Output.
    pub o: usize,
    /// Bias.
    pub bias: Option<usize>,
    /// Key or past lengths.
    pub key_lengths: Option<usize>,
    /// Positions of query row 0.
    pub query_offsets: Option<usize>,
    /// Sinks.
    pub sinks: Option<usize>,
    /// Log-sum-exp.
    pub log_sum_exp: Option<usize>,
    /// Scores.
    pub scores: Option<usize>,
    /// Page table.
    pub page_table: Option<usize>,
}

/// Bytes from the first to the last element of each operand of a packed problem; `None` where it does not ask for it.
///
/// All are 0 where the problem has no output element ([`crate::VarlenShape::is_empty`]): nothing is read then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VarlenExtents {
    /// Queries.
    pub q: usize,
    /// Keys, or the pool of key pages.
    pub k: usize,
    /// Values, or the pool of value pages.
    pub v: usize,
    /// Output.
    pub o: usize,
    /// Offsets of the query sequences.
    pub cu_seqlens_q: usize,
    /// Offsets of the key sequences.
    pub cu_seqlens_kv: usize,
    /// Keys in use.
    pub used_lengths: Option<usize>,
    /// Positions of query row 0.
    pub query_offsets: Option<usize>,
    /// Sinks.
    pub sinks: Option<usize>,
    /// Log-sum-exp.
    pub log_sum_exp: Option<usize>,
    /// Page table.
    pub page_table: Option<usize>,
    /// Status word.
    pub status: Option<usize>,
}

impl Problem {
    /// How many bytes each operand must have, so that a caller knows what to allocate; a launch checks the same
    /// numbers.
    ///
    /// ```
    /// use cuattn_core::{DType, Problem, Shape};
    /// let shape = Shape { batch: 1, q_heads: 2, kv_heads: 1, q_len: 3, kv_len: 5, head_dim: 8, v_head_dim: 4 };
    /// let extents = Problem::bhsd(shape, DType::F16).extents()?;
    /// assert_eq!((extents.q, extents.k, extents.v, extents.o), (96, 80, 40, 48));
    /// assert_eq!(extents.bias, None);
    /// # Ok::<(), cuattn_core::Refusal>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Reason::NegativeStride`], [`Reason::StrideOverflow`] and [`Reason::SizeOverflow`] for each operand that no
    /// memory can hold.
    pub fn extents(&self) -> Result<Extents, Refusal> {
        let mut reasons = Vec::new();
        let extents = self.extents_into(&mut reasons);
        Refusal::unless_empty(reasons)?;
        Ok(extents)
    }

    pub(crate) fn extents_into(&self, reasons: &mut Vec<Reason>) -> Extents {
        let Shape { batch, q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim } = self.shape;
        let size = self.dtype.size();
        let mut span = Spans { reasons };

        let of_q = |strides: Strides| {
            [(batch, strides.batch, "batch"), (q_heads, strides.head, "head"), (q_len, strides.row, "row")]
        };
        let of_kv = |strides: Strides| match self.paging {
            Some(Paging { pages, page_size, .. }) => {
                [(pages, strides.batch, "page"), (kv_heads, strides.head, "head"), (page_size, strides.row, "row")]
            }
            None => [(batch, strides.batch, "batch"), (kv_heads, strides.head, "head"), (kv_len, strides.row, "row")],
        };
        let mut extents = Extents {
            q: span.strided(Operand::Q, &of_q(self.q), head_dim, size),
            k: span.strided(Operand::K, &of_kv(self.k), head_dim, size),
            v: span.strided(Operand::V, &of_kv(self.v), v_head_dim, size),
            o: span.strided(Operand::O, &of_q(self.o), v_head_dim, size),
            bias: self.mask.bias.map(|bias| {
                let dims = [
                    (batch, bias.batch, "batch"),
                    (q_heads, bias.head, "head"),
                    (q_len, bias.row, "query"),
                    (bias.keys.min(kv_len), bias.key, "key"),
                ];
                span.strided(Operand::Bias, &dims, 1, bias.kind.size())
            }),
            key_lengths: self
                .mask
                .key_lengths
                .index_type()
                .map(|index| span.array("key_lengths", &[batch], index.size())),
            query_offsets: self
                .mask
                .alignment
                .index_type()
                .map(|index| span.array("query_offsets", &[batch], index.size())),
            sinks: self.has_sinks.then(|| span.array("sinks", &[q_heads], 4)),
            log_sum_exp: self.wants_log_sum_exp.then(|| span.array("log_sum_exp", &[batch, q_heads, q_len], 4)),
            scores: self.scores.map(|s| span.array("scores", &[batch, q_heads, q_len, kv_len], s.dtype.size())),
            page_table: self.paging.map(|p| span.array("page_table", &[batch, p.max_pages], IndexType::I32.size())),
        };
        if self.shape.is_empty() {
            let asked = |extent: Option<usize>| extent.map(|_| 0);
            extents = Extents {
                q: 0,
                k: 0,
                v: 0,
                o: 0,
                bias: asked(extents.bias),
                key_lengths: asked(extents.key_lengths),
                query_offsets: asked(extents.query_offsets),
                sinks: asked(extents.sinks),
                log_sum_exp: asked(extents.log_sum_exp),
                scores: asked(extents.scores),
                page_table: asked(extents.page_table),
            };
        }
        extents
    }
}

impl VarlenProblem {
    /// How many bytes each operand must have, so that a caller knows what to allocate; a launch checks the same
    /// numbers.
    ///
    /// # Errors
    ///
    /// [`Reason::NegativeStride`], [`Reason::StrideOverflow`] and [`Reason::SizeOverflow`] for each operand that no
    /// memory can hold.
    pub fn extents(&self) -> Result<VarlenExtents, Refusal> {
        let mut reasons = Vec::new();
        let extents = self.extents_into(&mut reasons);
        Refusal::unless_empty(reasons)?;
        Ok(extents)
    }

    pub(crate) fn extents_into(&self, reasons: &mut Vec<Reason>) -> VarlenExtents {
        let shape = self.shape;
        let size = self.dtype.size();
        let mut span = Spans { reasons };

        let of_q =
            |strides: TokenStrides| [(shape.total_q, strides.token, "token"), (shape.q_heads, strides.head, "head")];
        let mut of_kv = |operand: Operand, strides: TokenStrides, page: Option<i64>, dim: usize| {
            let heads = (shape.kv_heads, strides.head, "head");
            match (self.paging, page) {
                (Some(p), Some(page)) => {
                    let dims = [(p.paging.pages, page, "page"), heads, (p.paging.page_size, strides.token, "token")];
                    span.strided(operand, &dims, dim, size)
                }
                _ => span.strided(operand, &[(shape.total_kv, strides.token, "token"), heads], dim, size),
            }
        };
        let k = of_kv(Operand::K, self.k, self.paging.map(|p| p.k_page), shape.head_dim);
        let v = of_kv(Operand::V, self.v, self.paging.map(|p| p.v_page), shape.v_head_dim);
        let offsets = span.array("the offsets", &[shape.batch.saturating_add(1)], self.offsets.size());
        let mut extents = VarlenExtents {
            q: span.strided(Operand::Q, &of_q(self.q), shape.head_dim, size),
            k,
            v,
            o: span.strided(Operand::O, &of_q(self.o), shape.v_head_dim, size),
            cu_seqlens_q: offsets,
            cu_seqlens_kv: offsets,
            used_lengths: self
                .has_used_lengths
                .then(|| span.array("used_lengths", &[shape.batch], self.offsets.size())),
            query_offsets: self.alignment.index_type().map(|i| span.array("query_offsets", &[shape.batch], i.size())),
            sinks: self.has_sinks.then(|| span.array("sinks", &[shape.q_heads], 4)),
            log_sum_exp: self.wants_log_sum_exp.then(|| span.array("log_sum_exp", &[shape.q_heads, shape.total_q], 4)),
            page_table: self
                .paging
                .map(|p| span.array("page_table", &[shape.batch, p.paging.max_pages], IndexType::I32.size())),
            status: self.checks_offsets.then_some(4),
        };
        if shape.is_empty() {
            let asked = |extent: Option<usize>| extent.map(|_| 0);
            extents = VarlenExtents {
                q: 0,
                k: 0,
                v: 0,
                o: 0,
                cu_seqlens_q: 0,
                cu_seqlens_kv: 0,
                used_lengths: asked(extents.used_lengths),
                query_offsets: asked(extents.query_offsets),
                sinks: asked(extents.sinks),
                log_sum_exp: asked(extents.log_sum_exp),
                page_table: asked(extents.page_table),
                status: asked(extents.status),
            };
        }
        extents
    }
}

struct Spans<'a> {
    reasons: &'a mut Vec<Reason>,
}

impl Spans<'_> {
    /// Bytes that a strided tensor spans, whose vectors of `dim` elements are contiguous.
    fn strided(
        &mut self,
        operand: Operand,
        dims: &[(usize, i64, &'static str)],
        dim: usize,
        element_bytes: usize,
    ) -> usize {
        let mut legal = true;
        for &(_, stride, dimension) in dims {
            if stride < 0 {
                self.reasons.push(Reason::NegativeStride { operand, dimension, stride });
                legal = false;
            }
        }
        if !legal || dim == 0 || dims.iter().any(|&(extent, ..)| extent == 0) {
            return 0;
        }
        let last = dims.iter().try_fold(dim as i128 - 1, |last, &(extent, stride, _)| {
            (extent as i128 - 1).checked_mul(i128::from(stride))?.checked_add(last)
        });
        let bytes = last.and_then(|last| (last + 1).checked_mul(element_bytes as i128));
        match bytes.and_then(|bytes| i64::try_from(bytes).ok()).and_then(|bytes| usize::try_from(bytes).ok()) {
            Some(bytes) => bytes,
            None => {
                self.reasons.push(Reason::StrideOverflow { operand });
                0
            }
        }
    }

    /// Bytes of a contiguous array.
    fn array(&mut self, what: &'static str, dims: &[usize], element_bytes: usize) -> usize {
        // An extent of 0 makes the array empty, however large the others are.
        let bytes = if dims.contains(&0) {
            Some(0)
        } else {
            dims.iter().try_fold(element_bytes, |bytes, &extent| bytes.checked_mul(extent))
        };
        match bytes {
            Some(bytes) if bytes <= i64::MAX as usize => bytes,
            _ => {
                self.reasons.push(Reason::SizeOverflow { what });
                0
            }
        }
    }
}
