//! Random problems: a space of what may be drawn, which each engine's suite narrows to what the engine does.

use cuattn_core::{
    Alignment, Bias, BiasKind, BroadcastRule, DType, IndexType, KeyLengths, Mask, Paging, Problem, ScoreStage,
    ScoresOutput, Shape, Strides, Window,
};
use rand::Rng;
use rand::seq::IndexedRandom as _;

/// How the vectors of q, k, v and o lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[batch, heads, len, dim]`.
    Bhsd,
    /// `[batch, len, heads, dim]`.
    Bshd,
    /// `[len, batch, heads, dim]`.
    Sbhd,
    /// Slices of one `[batch, len, q_heads + 2 * kv_heads, dim]` projection: rows far apart.
    PackedQkv,
    /// `[batch, heads, capacity, dim]`, K and V with room for more keys than there are.
    Capacity,
    /// One key head for the whole batch: strides 0.
    BroadcastKv,
    /// Rows an odd number of elements apart, so that most of them are not aligned to 16 bytes.
    OddRows,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Self; 7] =
        [Self::Bhsd, Self::Bshd, Self::Sbhd, Self::PackedQkv, Self::Capacity, Self::BroadcastKv, Self::OddRows];

    /// Strides of q, k, v and o.
    pub fn strides(self, shape: Shape) -> [Strides; 4] {
        let Shape { batch, q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim } = shape;
        let of = |heads: usize, len: usize, dim: usize| match self {
            Self::Bhsd | Self::Capacity | Self::BroadcastKv => Strides::bhsd(heads, len, dim),
            Self::Bshd => Strides::bshd(heads, len, dim),
            Self::Sbhd => Strides { batch: (heads * dim) as i64, head: dim as i64, row: (batch * heads * dim) as i64 },
            Self::PackedQkv => Strides::bshd(q_heads + 2 * kv_heads, len, dim.max(head_dim)),
            Self::OddRows => Strides::bhsd(heads, len, (dim + 2) | 1),
        };
        let [mut k, mut v] = [of(kv_heads, kv_len, head_dim), of(kv_heads, kv_len, v_head_dim)];
        match self {
            // Heads of a slice are next to each other, `head_dim` apart; only rows are as long as the whole projection.
            Self::PackedQkv => v.head = v_head_dim.max(head_dim) as i64,
            Self::Capacity => {
                let capacity = kv_len + 37;
                k = Strides::bhsd(kv_heads, capacity, head_dim);
                v = Strides::bhsd(kv_heads, capacity, v_head_dim);
            }
            Self::BroadcastKv => (k.batch, k.head, v.batch, v.head) = (0, 0, 0, 0),
            _ => {}
        }
        [of(q_heads, q_len, head_dim), k, v, of(q_heads, q_len, v_head_dim)]
    }
}

/// What may be drawn. Start from [`Space::full`] and narrow it.
#[derive(Clone, Debug)]
pub struct Space {
    /// Element types.
    pub dtypes: Vec<DType>,
    /// Batch sizes.
    pub batches: Vec<usize>,
    /// Query and key heads.
    pub heads: Vec<(usize, usize)>,
    /// Query lengths; half of all draws take one of these, the others any length up to the longest.
    pub q_lens: Vec<usize>,
    /// Key lengths, likewise.
    pub kv_lens: Vec<usize>,
    /// Sizes of query and key vectors.
    pub head_dims: Vec<usize>,
    /// Whether value vectors may have another size than query vectors: for each of `head_dims` the one that stands `v_partner` further.
    pub v_head_dim_differs: bool,
    /// Which one that is. Each pair of sizes is a kernel to compile, so a run is about few of them, and another run about others.
    pub v_partner: usize,
    /// Memory layouts.
    pub layouts: Vec<Layout>,
    /// Whether masks may be causal.
    pub causal: bool,
    /// Whether there may be windows.
    pub windows: bool,
    /// Where rows may stand.
    pub alignments: Vec<Alignment>,
    /// How key lengths may be given.
    pub key_lengths: Vec<KeyLengths>,
    /// Kinds of bias; [`BiasKind::Additive`] of `F32` also for 16-bit problems, of another type only for problems of it.
    pub biases: Vec<BiasKind>,
    /// Whether there may be a softcap.
    pub softcap: bool,
    /// Whether there may be sinks.
    pub sinks: bool,
    /// Whether the scale may be another than `1 / sqrt(head_dim)`.
    pub odd_scales: bool,
    /// Whether log-sum-exp may be asked for.
    pub log_sum_exp: bool,
    /// Stages at which scores may be asked for.
    pub scores: Vec<ScoreStage>,
    /// Page sizes; none for dense keys only.
    pub page_sizes: Vec<usize>,
    /// The most multiplications of a problem: what bounds the time of the reference.
    pub multiplications: usize,
}

/// What a kernel is compiled for, as far as a problem says. Problems of a family differ in shapes, strides, lengths and numbers.
#[derive(Clone, Copy, Debug)]
struct Family {
    dtype: DType,
    head_dim: usize,
    v_head_dim: usize,
    causal: bool,
    window: (bool, bool),
    bias: Option<BiasKind>,
    softcap: bool,
    scale: f32,
    scores: Option<ScoresOutput>,
}

/// Problems of a family that come one after another. To compile kernels takes most of a run.
pub(crate) const FAMILY: usize = 4;

impl Space {
    /// Everything that the contract allows, sizes at the edges of tiles first of all. Paging and scores are left out: most
    /// engines refuse them.
    pub fn full() -> Self {
        Self {
            dtypes: DType::ALL.to_vec(),
            batches: vec![1, 1, 2, 3],
            heads: vec![(1, 1), (2, 1), (7, 1), (4, 4), (8, 2), (28, 4), (24, 4), (48, 2), (13, 1)],
            q_lens: vec![0, 1, 2, 7, 63, 64, 65, 127, 128, 129, 300, 1000],
            kv_lens: vec![0, 1, 2, 15, 16, 17, 63, 64, 65, 79, 80, 81, 127, 128, 129, 175, 176, 177, 448, 1025],
            head_dims: vec![1, 5, 8, 16, 32, 40, 64, 64, 72, 80, 96, 104, 128, 128, 136, 192, 256, 512],
            v_head_dim_differs: true,
            v_partner: 3,
            layouts: Layout::ALL.to_vec(),
            causal: true,
            windows: true,
            alignments: vec![
                Alignment::TopLeft,
                Alignment::BottomRight,
                Alignment::PerBatch(IndexType::I32),
                Alignment::PerBatch(IndexType::I64),
            ],
            key_lengths: vec![
                KeyLengths::PerBatch(IndexType::I32),
                KeyLengths::PerBatch(IndexType::I64),
                KeyLengths::PastPlusQuery(IndexType::I32),
                KeyLengths::PastPlusQuery(IndexType::I64),
            ],
            biases: vec![
                BiasKind::Additive(DType::F32),
                BiasKind::Additive(DType::F16),
                BiasKind::Additive(DType::Bf16),
                BiasKind::Boolean,
            ],
            softcap: true,
            sinks: true,
            odd_scales: true,
            log_sum_exp: true,
            scores: Vec::new(),
            page_sizes: Vec::new(),
            multiplications: 1 << 26,
        }
    }

    /// Plain attention over contiguous tensors: no mask, bias, cap, sink, nor odd sizes. For suites that vary one thing.
    pub fn plain() -> Self {
        Self {
            layouts: vec![Layout::Bhsd, Layout::Bshd],
            head_dims: vec![64, 128],
            v_head_dim_differs: false,
            causal: false,
            windows: false,
            alignments: vec![Alignment::TopLeft],
            key_lengths: Vec::new(),
            biases: Vec::new(),
            softcap: false,
            sinks: false,
            odd_scales: false,
            ..Self::full()
        }
    }

    /// The same features at sizes that compute-sanitizer can bear.
    #[must_use]
    pub fn small(mut self) -> Self {
        self.multiplications = self.multiplications.min(1 << 20);
        self
    }

    /// Problems of the space, without end: they come in families, so that a run compiles a quarter as many kernels. Each validates.
    ///
    /// # Panics
    ///
    /// If one of the lists that every problem needs an entry of is empty.
    pub fn problems(&self, rng: &mut impl Rng) -> impl Iterator<Item = Problem> {
        let mut family = self.draw_family(rng);
        (0..).map(move |number| {
            if number % FAMILY == 0 {
                family = self.draw_family(rng);
            }
            self.draw_of(&family, rng)
        })
    }

    /// Draws a problem of the space. It always validates.
    ///
    /// # Panics
    ///
    /// As [`Space::problems`].
    pub fn draw(&self, rng: &mut impl Rng) -> Problem {
        let family = self.draw_family(rng);
        self.draw_of(&family, rng)
    }

    fn draw_family(&self, rng: &mut impl Rng) -> Family {
        let dtype = pick(&self.dtypes, rng);
        let head_dim = pick(&self.head_dims, rng);
        let differs = self.v_head_dim_differs && rng.random_ratio(1, 5);
        let has_window = self.windows && rng.random_ratio(1, 4);
        let mut side = || has_window && rng.random_ratio(5, 6);
        let window = (side(), side());
        let legal = |kind: &BiasKind| match *kind {
            BiasKind::Additive(bias) => bias == DType::F32 || bias == dtype,
            BiasKind::Boolean => true,
        };
        let biases: Vec<_> = self.biases.iter().copied().filter(legal).collect();
        let stage = self.scores.choose(rng).filter(|_| rng.random_bool(0.5));
        Family {
            dtype,
            head_dim,
            v_head_dim: if differs { partner(&self.head_dims, head_dim, self.v_partner) } else { head_dim },
            causal: self.causal && rng.random_bool(0.4),
            window,
            bias: biases.choose(rng).copied().filter(|_| rng.random_ratio(1, 3)),
            softcap: self.softcap && rng.random_ratio(1, 4),
            scale: if self.odd_scales && rng.random_ratio(1, 8) { pick(&[0.0, -1.0, 0.5, 2.0], rng) } else { 1.0 },
            scores: stage.map(|&stage| ScoresOutput { stage, dtype: pick(&[dtype, DType::F32], rng) }),
        }
    }

    fn draw_of(&self, family: &Family, rng: &mut impl Rng) -> Problem {
        let shape = self.draw_shape(family, rng);
        let mut problem = Problem::with_strides(shape, family.dtype, pick(&self.layouts, rng).strides(shape));
        if !self.page_sizes.is_empty() && rng.random_bool(0.5) {
            self.draw_pages(&mut problem, rng);
        }
        problem.mask = self.draw_mask(family, shape, rng);
        problem.softcap = family.softcap.then(|| pick(&[1.5, 20.0, 50.0], rng));
        problem.scale *= family.scale;
        problem.has_sinks = self.sinks && rng.random_ratio(1, 4);
        problem.wants_log_sum_exp = self.log_sum_exp && rng.random_bool(0.75);
        problem.scores = family.scores;
        problem
    }

    fn draw_shape(&self, family: &Family, rng: &mut impl Rng) -> Shape {
        let (q_heads, kv_heads) = pick(&self.heads, rng);
        let Family { head_dim, v_head_dim, .. } = *family;
        let mut shape = Shape {
            batch: pick(&self.batches, rng),
            q_heads,
            kv_heads,
            q_len: length(&self.q_lens, rng),
            kv_len: length(&self.kv_lens, rng),
            head_dim,
            v_head_dim,
        };
        let cost = |s: &Shape| s.batch * s.q_heads * s.q_len.max(1) * s.kv_len.max(1) * (s.head_dim + s.v_head_dim);
        // Batch and heads go first: they only repeat what one head does, while lengths and sizes choose tiles.
        while cost(&shape) > self.multiplications {
            if shape.batch > 1 {
                shape.batch = 1;
            } else if shape.kv_heads > 1 {
                shape.q_heads /= shape.kv_heads;
                shape.kv_heads = 1;
            } else if shape.q_len.max(shape.kv_len) > 65 {
                let longest = if shape.q_len > shape.kv_len { &mut shape.q_len } else { &mut shape.kv_len };
                *longest = *longest / 2 + rng.random_range(0..3);
            } else if shape.q_heads > 1 {
                shape.q_heads = 1;
            } else {
                break;
            }
        }
        shape
    }

    fn draw_pages(&self, problem: &mut Problem, rng: &mut impl Rng) {
        let Shape { batch, kv_heads, kv_len, head_dim, v_head_dim, .. } = problem.shape;
        let page_size = pick(&self.page_sizes, rng);
        let max_pages = kv_len.div_ceil(page_size) + rng.random_range(0..2);
        problem.paging = Some(Paging { page_size, pages: batch * max_pages + rng.random_range(0..4), max_pages });
        let of = if rng.random_bool(0.5) { Strides::bhsd } else { Strides::bshd };
        problem.k = of(kv_heads, page_size, head_dim);
        problem.v = of(kv_heads, page_size, v_head_dim);
    }

    fn draw_mask(&self, family: &Family, shape: Shape, rng: &mut impl Rng) -> Mask {
        let mut side = |is_there: bool| is_there.then(|| pick(&[0, 3, 8, 70, u32::MAX], rng));
        let window = Window { left: side(family.window.0), right: side(family.window.1) };
        let mut mask = Mask { causal: family.causal, window, ..Mask::none() };
        if mask.causal || mask.window != Window::default() {
            mask.alignment = pick(&self.alignments, rng);
        }
        if let Some(&lengths) = self.key_lengths.choose(rng)
            && rng.random_ratio(1, 3)
        {
            mask.key_lengths = lengths;
        }
        mask.bias = family.bias.map(|kind| draw_bias(kind, shape, rng));
        mask
    }
}

fn draw_bias(kind: BiasKind, shape: Shape, rng: &mut impl Rng) -> Bias {
    let mut full_or_one = |full: usize| if rng.random_bool(0.5) { full } else { 1 };
    let planes = [full_or_one(shape.batch), full_or_one(shape.q_heads), full_or_one(shape.q_len)];
    let (keys, rule) = match rng.random_range(0..6) {
        0 => (1, BroadcastRule::Numpy),
        1 => (rng.random_range(0..=shape.kv_len), BroadcastRule::Onnx),
        _ => (shape.kv_len, BroadcastRule::Numpy),
    };
    let dims = [planes[0], planes[1], planes[2], keys];
    let mut bias = Bias::broadcast(kind, dims, &shape, rule).unwrap_or_else(|refusal| panic!("{dims:?}: {refusal}"));
    if bias.row > 1 && rng.random_ratio(1, 4) {
        // Rows padded to an odd length: no row but the first is aligned.
        let pad = 1 + 2 * (bias.row % 2 == 0) as i64;
        let grown = |stride: i64, plane: usize| if stride == 0 { 0 } else { stride + pad * plane as i64 };
        bias.batch = grown(bias.batch, planes[1] * planes[2]);
        bias.head = grown(bias.head, planes[2]);
        bias.row += pad;
    }
    bias
}

/// One of the edge lengths half of the time, any length up to the longest otherwise.
fn length(edges: &[usize], rng: &mut impl Rng) -> usize {
    if rng.random_bool(0.5) {
        return pick(edges, rng);
    }
    let longest = edges.iter().copied().max().unwrap_or(0);
    rng.random_range(0..=longest)
}

/// The element that stands `further` places behind the first `of`, in a circle.
pub fn partner(list: &[usize], of: usize, further: usize) -> usize {
    let at = list.iter().position(|&element| element == of).unwrap_or(0);
    list[(at + further) % list.len()]
}

fn pick<T: Copy>(list: &[T], rng: &mut impl Rng) -> T {
    *list.choose(rng).expect("a space must leave at least one choice")
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    fn everything() -> Space {
        Space {
            scores: vec![ScoreStage::Raw, ScoreStage::Softcapped, ScoreStage::Masked, ScoreStage::Probabilities],
            page_sizes: vec![1, 16, 256],
            ..Space::full()
        }
    }

    #[test]
    fn every_problem_is_legal_and_small_enough() {
        let mut rng = StdRng::seed_from_u64(1);
        for space in [everything(), Space::plain(), everything().small()] {
            for problem in space.problems(&mut rng).take(2000) {
                problem.validate().unwrap_or_else(|refusal| panic!("{problem:?}\n{refusal}"));
                let Shape { batch, q_heads, q_len, kv_len, head_dim, v_head_dim, .. } = problem.shape;
                let cost = batch * q_heads * q_len * kv_len * (head_dim + v_head_dim);
                // 65 x 65 x 1024 is where shrinking ends.
                assert!(cost <= space.multiplications.max(67 * 67 * 1024), "{cost}: {problem:?}");
            }
        }
    }

    #[test]
    fn every_feature_comes_up() {
        let mut rng = StdRng::seed_from_u64(2);
        let problems: Vec<_> = everything().problems(&mut rng).take(4000).collect();
        let any = |what: &str, is: &dyn Fn(&Problem) -> bool| assert!(problems.iter().any(is), "never drawn: {what}");
        for dtype in DType::ALL {
            any("element type", &|p| p.dtype == dtype);
        }
        any("group", &|p| p.shape.group() > 1);
        any("v_head_dim", &|p| p.shape.v_head_dim != p.shape.head_dim);
        any("no keys", &|p| p.shape.kv_len == 0 && p.shape.q_len > 0);
        any("no rows", &|p| p.shape.q_len == 0);
        any("causal", &|p| p.mask.causal);
        any("window", &|p| p.mask.window.left.is_some() && p.mask.window.right.is_some());
        any("bottom right", &|p| p.mask.alignment == Alignment::BottomRight);
        any("offsets", &|p| p.mask.alignment.index_type() == Some(IndexType::I64));
        any("lengths", &|p| matches!(p.mask.key_lengths, KeyLengths::PerBatch(_)));
        any("past", &|p| matches!(p.mask.key_lengths, KeyLengths::PastPlusQuery(_)));
        any("boolean", &|p| p.mask.bias.is_some_and(|bias| bias.kind == BiasKind::Boolean));
        any("additive", &|p| p.mask.bias.is_some_and(|bias| bias.kind == BiasKind::Additive(p.dtype)));
        any("short bias", &|p| p.mask.bias.is_some_and(|bias| bias.keys < p.shape.kv_len));
        any("bias of one key", &|p| p.mask.bias.is_some_and(|bias| bias.key == 0));
        any("bias of planes", &|p| p.mask.bias.is_some_and(|bias| bias.batch > 0 && bias.head == 0));
        any("softcap", &|p| p.softcap.is_some());
        any("sinks", &|p| p.has_sinks);
        any("log-sum-exp", &|p| p.wants_log_sum_exp);
        any("no log-sum-exp", &|p| !p.wants_log_sum_exp);
        any("scale 0", &|p| p.scale == 0.0);
        any("scores", &|p| p.scores.is_some());
        any("pages", &|p| p.paging.is_some());
        any("broadcast K", &|p| p.k.batch == 0 && p.paging.is_none());
        any("odd rows", &|p| p.q.row % 2 == 1 && p.shape.head_dim % 2 == 0);
    }

    #[test]
    fn edges_of_tiles_are_over_sampled() {
        let mut rng = StdRng::seed_from_u64(3);
        let edges = [63, 64, 65, 127, 128, 129];
        let space = Space { multiplications: usize::MAX, ..Space::full() };
        let hits = space.problems(&mut rng).take(2000).filter(|problem| edges.contains(&problem.shape.q_len)).count();
        // 6 of 12 edges in half of the draws: a quarter; 6 of 1001 lengths would be 12.
        assert!((400..600).contains(&hits), "{hits}");
    }
}
