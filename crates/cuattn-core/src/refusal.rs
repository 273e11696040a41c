//! Why something is not done: every reason, with its numbers and the way out.

use std::fmt;

use crate::{DType, EngineId};

/// A tensor or array of a launch, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operand {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Output.
    O,
    /// Bias.
    Bias,
    /// Key lengths, or past lengths, of each sequence.
    KeyLengths,
    /// Position of query row 0 of each sequence.
    QueryOffsets,
    /// One sink a query head.
    Sinks,
    /// Log-sum-exp output.
    LogSumExp,
    /// Scores output.
    Scores,
    /// The score modification itself, as a closure on the host.
    ScoreMod,
    /// A buffer of the score modification, counted from 0.
    ScoreModBuffer(usize),
    /// Page table.
    PageTable,
    /// Offsets of the packed query sequences.
    CuSeqlensQ,
    /// Offsets of the packed key sequences.
    CuSeqlensKv,
    /// Keys in use of each packed sequence's span.
    UsedLengths,
    /// Work list of a packed problem.
    Schedule,
    /// Status word of the device-side offset check.
    Status,
    /// Scratch memory.
    Workspace,
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Q => "q",
            Self::K => "k",
            Self::V => "v",
            Self::O => "o",
            Self::Bias => "bias",
            Self::KeyLengths => "key_lengths",
            Self::QueryOffsets => "query_offsets",
            Self::Sinks => "sinks",
            Self::LogSumExp => "log_sum_exp",
            Self::Scores => "scores",
            Self::ScoreMod => "score_mod",
            Self::ScoreModBuffer(index) => return write!(f, "score_mod_buffers[{index}]"),
            Self::PageTable => "page_table",
            Self::CuSeqlensQ => "cu_seqlens_q",
            Self::CuSeqlensKv => "cu_seqlens_kv",
            Self::UsedLengths => "used_lengths",
            Self::Schedule => "schedule",
            Self::Status => "status",
            Self::Workspace => "workspace",
        })
    }
}

/// What is wrong with the text of a [`crate::ScoreMod`], as far as can be seen without compiling it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ScoreModFault {
    /// There is no text, or only white space.
    Empty,
    /// The text holds a NUL byte, where the compiler would stop reading.
    Nul,
    /// The text never returns a score.
    NoReturn,
}

impl fmt::Display for ScoreModFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "is empty",
            Self::Nul => "holds a NUL byte, where the compiler would stop reading",
            Self::NoReturn => "never returns a score",
        })
    }
}

/// One reason why a problem, a launch or an array of lengths is refused. Its text says what, why, and how to fix it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// Key heads cannot be shared out evenly.
    #[error(
        "q_heads {q_heads} is not a multiple of kv_heads {kv_heads}: every key head must serve the same number of \
         query heads; \
         check that the two are not swapped, or repeat key heads until they divide"
    )]
    HeadsNotDivisible {
        /// Query heads.
        q_heads: usize,
        /// Key heads.
        kv_heads: usize,
    },

    /// A vector without elements.
    #[error("{which} is 0: there is nothing to multiply; give the number of elements of one vector, at least 1")]
    ZeroHeadDim {
        /// `head_dim` or `v_head_dim`.
        which: &'static str,
    },

    /// A tensor that runs backwards.
    #[error(
        "the {dimension} stride of {operand} is {stride}: strides must not be negative; \
         point at the lowest element and use the order of memory"
    )]
    NegativeStride {
        /// The tensor.
        operand: Operand,
        /// Which of its strides.
        dimension: &'static str,
        /// The stride, in elements.
        stride: i64,
    },

    /// A tensor that no memory can hold.
    #[error(
        "{operand} would end beyond 2^63 bytes after its first element: its extents times its strides overflow; \
         strides are in elements, not bytes"
    )]
    StrideOverflow {
        /// The tensor.
        operand: Operand,
    },

    /// Two output rows in one place.
    #[error(
        "the {dimension} stride of {operand} is {stride}, and what it steps over is {span} elements long: rows of \
         an output must \
         not overlap; make this stride at least {span}"
    )]
    OverlappingOutput {
        /// The output.
        operand: Operand,
        /// Which of its strides.
        dimension: &'static str,
        /// The stride, in elements.
        stride: i64,
        /// Elements from the first to the last of what the stride steps over, both included.
        span: i64,
    },

    /// A bias whose extents fit neither the problem nor 1.
    #[error(
        "the bias has {got} along its {dimension} dimension, where the problem has {want}: a bias of [{}, {}, {}, \
         {}] does not \
         broadcast to [batch, q_heads, q_len, kv_len]; {fix}", dims[0], dims[1], dims[2], dims[3]
    )]
    BiasDoesNotBroadcast {
        /// The bias as given, `[batch, head, query, key]`.
        dims: [usize; 4],
        /// Which dimension does not fit.
        dimension: &'static str,
        /// Its extent.
        got: usize,
        /// The problem's extent.
        want: usize,
        /// What would fit.
        fix: &'static str,
    },

    /// An element type that the operand cannot have.
    #[error("{operand} is {got}: it must be {want}, the type of q, or f32; convert it")]
    WrongDType {
        /// The tensor.
        operand: Operand,
        /// Its element type.
        got: DType,
        /// The problem's element type.
        want: DType,
    },

    /// A softcap that is not positive and finite.
    #[error(
        "softcap {softcap} is not a positive finite number: scores become softcap * tanh(score / softcap); use None \
         for no cap"
    )]
    BadSoftcap {
        /// The softcap.
        softcap: f32,
    },

    /// A scale that is not finite.
    #[error("scale {scale} is not a finite number: every score would be lost; the usual one is 1 / sqrt(head_dim)")]
    BadScale {
        /// The scale.
        scale: f32,
    },

    /// A score modification whose text cannot be right.
    #[error(
        "the score modification {fault}: it must be the body of a function, such as `return score - 0.5f * (q - k);`"
    )]
    BadScoreMod {
        /// What is wrong.
        fault: ScoreModFault,
    },

    /// A score modification that wants too many buffers.
    #[error(
        "the score modification asks for {buffers} buffers, and there are at most {most}: put several arrays in one \
         buffer"
    )]
    TooManyScoreModBuffers {
        /// Buffers asked for.
        buffers: usize,
        /// Buffers there can be.
        most: usize,
    },

    /// A score modification that only a GPU can run.
    #[error(
        "the problem has a score modification, which is CUDA text that the host cannot run: \
         give the host reference the same function as a closure"
    )]
    ScoreModNotOnHost,

    /// A page of no rows.
    #[error("page_size is 0: a page must hold at least one row")]
    ZeroPageSize,

    /// Pages that cannot hold the longest sequence.
    #[error(
        "{max_pages} pages of {page_size} rows hold {} keys, and a sequence may have {kv_len}: \
         give the table more columns, or lower the longest key length", max_pages.saturating_mul(*page_size)
    )]
    PageTableTooNarrow {
        /// Rows of a page.
        page_size: usize,
        /// Columns of the table.
        max_pages: usize,
        /// Longest key length.
        kv_len: usize,
    },

    /// A page number that is not in the pool.
    #[error(
        "page_table[{sequence}][{column}] is {page}, and the pool has {pages} pages: \
         entries up to a sequence's length must be page numbers from 0"
    )]
    PageOutOfRange {
        /// The sequence.
        sequence: usize,
        /// The column of the table.
        column: usize,
        /// The page number.
        page: i64,
        /// Pages in the pool.
        pages: usize,
    },

    /// Tokens that belong to no sequence.
    #[error(
        "there are {total_q} query tokens but no sequence (batch is 0): no token would be written; set batch, or no \
         tokens"
    )]
    TokensWithoutSequences {
        /// Query tokens.
        total_q: usize,
    },

    /// An operand that the problem asks for is not given.
    #[error("{operand} is missing: the problem asks for it; give its pointer, or change the problem")]
    OperandMissing {
        /// The operand.
        operand: Operand,
    },

    /// An operand that the problem does not ask for is given.
    #[error(
        "{operand} was given, but the problem does not ask for it and it would be ignored; leave it out, or change \
         the problem"
    )]
    OperandUnexpected {
        /// The operand.
        operand: Operand,
    },

    /// An operand that ends before its last element.
    #[error(
        "{operand} is {got} bytes long and {need} are needed: check its extents and strides, which count elements, \
         not bytes"
    )]
    OperandTooSmall {
        /// The operand.
        operand: Operand,
        /// Bytes from its first to its last element.
        need: usize,
        /// Bytes given.
        got: usize,
    },

    /// An operand whose first byte is not at a multiple of its element size.
    #[error(
        "{operand} starts at {address:#x}, which is not a multiple of {align}: an element would straddle words; \
         align it"
    )]
    OperandMisaligned {
        /// The operand.
        operand: Operand,
        /// Its address.
        address: u64,
        /// The alignment it needs.
        align: usize,
    },

    /// An output that shares memory with another operand.
    #[error(
        "{output} overlaps {other} in memory: it would be overwritten while it is read; give {output} memory of its own"
    )]
    OutputOverlaps {
        /// The output.
        output: Operand,
        /// The operand that it overlaps.
        other: Operand,
    },

    /// Scratch memory that is too short.
    #[error("the workspace is {got} bytes long and {need} are needed: allocate what the plan's workspace() says")]
    WorkspaceTooSmall {
        /// Bytes needed.
        need: usize,
        /// Bytes given.
        got: usize,
    },

    /// Scratch memory that is not aligned.
    #[error("the workspace starts at {address:#x}, which is not a multiple of {align}: align it")]
    WorkspaceMisaligned {
        /// Its address.
        address: u64,
        /// The alignment it needs.
        align: usize,
    },

    /// More bytes than a size can count.
    #[error(
        "the size of {what} overflows: the problem is too large for any memory; split it along the batch or the heads"
    )]
    SizeOverflow {
        /// What was to be sized.
        what: &'static str,
    },

    /// More than the host's memory.
    #[error(
        "the host reference needs {bytes} bytes for its output and cannot have them: ask for fewer rows, or not for \
         the scores"
    )]
    OutOfHostMemory {
        /// Bytes asked for.
        bytes: usize,
    },

    /// A legal problem, but not for this engine or path.
    #[error("{by} does not do {feature}: {instead}")]
    Unsupported {
        /// What the problem asks for.
        feature: String,
        /// Who does not do it.
        by: String,
        /// What to do instead.
        instead: String,
    },

    /// A device that is too old or of the wrong kind.
    #[error(
        "{by} needs compute capability {}, and this device has {}.{}: {instead}",
        need, got.0, got.1
    )]
    ArchUnsupported {
        /// Who needs it.
        by: String,
        /// What is needed, for people: `8.0 or newer`, `9.0 exactly`.
        need: String,
        /// What the device has.
        got: (u32, u32),
        /// What to do instead.
        instead: String,
    },

    /// A block that needs more shared memory than the device has.
    #[error("{by} needs {need} bytes of shared memory a block, and this device has {got}: {instead}")]
    SharedMemory {
        /// Who needs it.
        by: String,
        /// Bytes needed.
        need: usize,
        /// Bytes that a block may have.
        got: usize,
        /// What to do instead.
        instead: String,
    },

    /// An extent beyond a limit of the engine or the device.
    #[error("{what} is {got}, and {by} goes up to {limit}: {instead}")]
    TooLarge {
        /// The extent.
        what: String,
        /// Its value.
        got: u64,
        /// Whose limit it is.
        by: String,
        /// The limit.
        limit: u64,
        /// What to do instead.
        instead: String,
    },

    /// A library or device that is not there.
    #[error("{by} cannot run here: {what} is missing; {fix}")]
    Missing {
        /// Who needs it.
        by: String,
        /// What is missing.
        what: String,
        /// How to get it.
        fix: String,
    },

    /// An array of offsets or lengths of the wrong length.
    #[error(
        "{operand} has {got} entries and must have {need}: offsets have one more than there are sequences, lengths \
         as many"
    )]
    EntryCount {
        /// The array.
        operand: Operand,
        /// Entries it must have.
        need: usize,
        /// Entries it has.
        got: usize,
    },

    /// Offsets that do not start at 0.
    #[error(
        "{operand}[0] is {got}: the first sequence starts at token 0; offsets are a running sum of lengths that \
         starts with 0"
    )]
    FirstOffsetNotZero {
        /// The array.
        operand: Operand,
        /// Its first entry.
        got: i64,
    },

    /// Offsets that go down.
    #[error(
        "{operand}[{index}] is {after}, less than {before} before it: sequence {} would have a negative length; \
         offsets are a running sum of lengths", index - 1
    )]
    OffsetsDecrease {
        /// The array.
        operand: Operand,
        /// Which entry is less than the one before it.
        index: usize,
        /// The entry before.
        before: i64,
        /// The entry.
        after: i64,
    },

    /// Offsets that do not end at the token count.
    #[error(
        "the last entry of {operand} is {got}, and there are {total} tokens: it must be the token count of the \
         packed tensor"
    )]
    LastOffsetNotTotal {
        /// The array.
        operand: Operand,
        /// Its last entry.
        got: i64,
        /// Tokens of the packed tensor.
        total: usize,
    },

    /// A sequence longer than the stated maximum.
    #[error(
        "sequence {sequence} of {operand} has {length} tokens, more than the stated maximum of {max}: raise the maximum"
    )]
    LengthAboveMaximum {
        /// The array.
        operand: Operand,
        /// The sequence.
        sequence: usize,
        /// Its length.
        length: i64,
        /// The stated maximum.
        max: usize,
    },

    /// More keys in use than a sequence has room for.
    #[error(
        "used_lengths[{sequence}] is {used}, and the sequence has room for {span} keys: it must be from 0 to {span}"
    )]
    UsedLengthOutOfRange {
        /// The sequence.
        sequence: usize,
        /// Its entry.
        used: i64,
        /// Keys that its span holds.
        span: i64,
    },
}

impl Reason {
    /// A legal problem that `by` does not do, and what to do instead.
    ///
    /// ```
    /// use cuattn_core::Reason;
    /// let reason = Reason::unsupported("handing out scores", "flash", "use phase2a, which keeps them");
    /// assert_eq!(reason.to_string(), "flash does not do handing out scores: use phase2a, which keeps them");
    /// ```
    pub fn unsupported(feature: impl Into<String>, by: impl Into<String>, instead: impl Into<String>) -> Self {
        Self::Unsupported { feature: feature.into(), by: by.into(), instead: instead.into() }
    }
}

/// Something that is not done, with **every** reason why.
///
/// ```
/// use cuattn_core::{DType, Problem, Reason, Shape};
/// let shape = Shape { batch: 1, q_heads: 9, kv_heads: 2, q_len: 4, kv_len: 4, head_dim: 0, v_head_dim: 8 };
/// let refusal = Problem::bhsd(shape, DType::F32).validate().unwrap_err();
/// assert_eq!(refusal.reasons.len(), 2);
/// assert!(matches!(refusal.reasons[0], Reason::HeadsNotDivisible { q_heads: 9, kv_heads: 2 }));
/// ```
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Refusal {
    /// The engine that refuses; `None` where the problem itself is not legal, or a launch does not fit its plan.
    pub engine: Option<EngineId>,
    /// The engine's path that refuses, where one does and others may not.
    pub path: Option<String>,
    /// Every reason; never empty.
    pub reasons: Vec<Reason>,
}

impl Refusal {
    /// A refusal of an engine as a whole.
    pub fn by_engine(engine: EngineId, reasons: Vec<Reason>) -> Self {
        Self { engine: Some(engine), path: None, reasons }
    }

    /// A refusal of one path of an engine.
    pub fn by_path(engine: EngineId, path: impl Into<String>, reasons: Vec<Reason>) -> Self {
        Self { engine: Some(engine), path: Some(path.into()), reasons }
    }

    /// `Ok` where there is no reason, and a refusal of nobody in particular otherwise.
    pub fn unless_empty(reasons: Vec<Reason>) -> Result<(), Self> {
        if reasons.is_empty() { Ok(()) } else { Err(Self { engine: None, path: None, reasons }) }
    }
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self { engine: None, path: None, reasons: vec![reason] }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.engine, &self.path) {
            (Some(engine), Some(path)) => write!(f, "{engine} ({path}) refuses:")?,
            (Some(engine), None) => write!(f, "{engine} refuses:")?,
            (None, _) => f.write_str("refused:")?,
        }
        for reason in &self.reasons {
            write!(f, "\n  * {reason}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}
