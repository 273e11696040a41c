//! Computes attention over the tensors of a file, on the GPU that is there, or on the host where there is none.
//!
//! ```text
//! cargo run --release -p cuattn --example attend -- FILE.safetensors
//! ```
//!
//! The file holds `q`, `k` and `v`, each `[batch, heads, tokens, dim]` or `[batch, tokens, heads, dim]`, in F32, F16 or
//! BF16. It may hold a `bias` that broadcasts to `[batch, q_heads, q_len, kv_len]` (the type of q, F32, or BOOL with
//! true for visible), `key_lengths` (I32 or I64 `[batch]`), `sinks` (F32 `[q_heads]`), and results to compare with:
//! `o_ref` and `lse_ref`. Metadata `layout`, `causal` and `scale` are used where the command line says nothing.

mod arguments;
mod compare;
mod compute;
mod input;
mod run;

use clap::Parser;

fn main() -> anyhow::Result<()> {
    let arguments = arguments::Arguments::parse();
    run::run(&arguments, &cuattn::curt::probe(), &mut std::io::stdout().lock())
}
