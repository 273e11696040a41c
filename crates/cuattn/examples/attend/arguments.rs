//! The command line.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Parser, ValueEnum};
use cuattn::Window;

/// Computes attention over the tensors of a safetensors file.
#[derive(Clone, Debug, Parser)]
#[command(name = "attend")]
pub(crate) struct Arguments {
    /// Holds q, k, v, and maybe bias, key_lengths, sinks, o_ref and lse_ref.
    pub(crate) file: PathBuf,
    /// Who computes. `auto` is the best engine for the GPU, or the host reference where there is no GPU; the others
    /// never fall back.
    #[arg(long, value_enum, default_value_t = EngineChoice::Auto)]
    pub(crate) engine: EngineChoice,
    /// The causal mask, and where row 0 stands among the keys. Default: the file's metadata.
    #[arg(long, value_enum)]
    pub(crate) causal: Option<Causal>,
    /// How many keys to the left and to the right of its own position a row sees, as `L,R`; `-` is without limit.
    #[arg(long, allow_hyphen_values = true, value_parser = parse_window)]
    pub(crate) window: Option<Window>,
    /// Scores become `softcap * tanh(score / softcap)`.
    #[arg(long)]
    pub(crate) softcap: Option<f32>,
    /// Factor on q.k. Default: the file's metadata, or 1 / sqrt(head_dim).
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) scale: Option<f32>,
    /// The order of dimensions. Default: the file's metadata, or bhsd.
    #[arg(long, value_enum, ignore_case = true)]
    pub(crate) layout: Option<FileLayout>,
    /// Computations to time, after one that is not timed. Default: 20 on a GPU; on the host the only one is timed.
    #[arg(long)]
    pub(crate) repeat: Option<NonZeroU32>,
    /// Where to write o and lse, as safetensors.
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
}

/// Who computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineChoice {
    Auto,
    Phase2a,
    Flash,
    Reference,
}

/// The causal mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Causal {
    Off,
    /// The first row beside the first key.
    TopLeft,
    /// The last row beside the last key.
    BottomRight,
}

/// The order of a tensor's dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileLayout {
    /// `[batch, heads, tokens, dim]`.
    Bhsd,
    /// `[batch, tokens, heads, dim]`.
    Bshd,
}

fn parse_window(text: &str) -> Result<Window, String> {
    let side = |text: &str| match text.trim() {
        "-" | "-1" => Ok(None),
        keys => u32::from_str(keys).map(Some).map_err(|error| format!("`{keys}` is no number of keys: {error}")),
    };
    let (left, right) = text.split_once(',').ok_or("give both sides, as 128,0")?;
    Ok(Window { left: side(left)?, right: side(right)? })
}
