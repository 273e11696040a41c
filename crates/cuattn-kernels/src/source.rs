//! The embedded files, and the assembly of one kernel variant into a single source that includes nothing.

use std::collections::HashSet;
use std::fmt::Write as _;

macro_rules! embed {
    ($($path:literal),* $(,)?) => {
        /// Every embedded file: its path below `cuda/`, and its text.
        pub(crate) const FILES: &[(&str, &str)] = &[$(($path, include_str!(concat!("../cuda/", $path)))),*];
    };
}

embed!(
    "ep/fill.cu",
    "ep/gather_rows.cu",
    "ep/pack_bias.cu",
    "types.cuh",
    "numeric.cuh",
    "params.cuh",
    "mask.cuh",
    "score.cuh",
    "tile_scheduler.cuh",
    "row_span.cuh",
    "sequence_rows.cuh",
    "ptx/math.cuh",
    "ptx/cp_async.cuh",
    "ptx/mma.cuh",
    "softmax/rows.cuh",
    "softmax/row.cuh",
    "softmax/team.cuh",
    "softmax/registers.cu",
    "softmax/streaming.cu",
    "softmax/finite.cuh",
    "softmax/copy_rows.cu",
    "softmax/nonfinite_values.cu",
    "ptx/shared.cuh",
    "ptx/warp.cuh",
    "shared_tile.cuh",
    "flash/fragments.cuh",
    "flash/online_softmax.cuh",
    "flash/bias_tile.cuh",
    "flash/selected_product.cuh",
    "flash/mma.cu",
    "ptx/mbarrier.cuh",
    "ptx/tma.cuh",
    "ptx/wgmma.cuh",
    "ptx/warpgroup.cuh",
    "flash/repair.cuh",
    "flash/sm90_block.cuh",
    "flash/sm90_boxes.cuh",
    "flash/sm90_producer.cuh",
    "flash/sm90_consumer.cuh",
    "flash/sm90.cu",
    "flash/sm90_f32_halves.cuh",
    "flash/sm90_f32_split.cu",
    "flash/sm90_f32_producer.cuh",
    "flash/sm90_f32_consumer.cuh",
    "flash/sm90_f32.cu",
    "flash/sm90_f32_fallback.cu",
    "flash/simt_lanes.cuh",
    "flash/simt_tiles.cuh",
    "flash/simt_products.cuh",
    "flash/simt_softmax.cuh",
    "flash/simt.cu",
    "varlen/sequences.cuh",
    "varlen/find_tile.cuh",
    "varlen/mma.cu",
    "varlen/tile_source.cuh",
    "varlen/sm90.cu",
    "varlen/simt.cu",
    "varlen/build_schedule.cu",
    "varlen/check_starts.cu",
);

/// The path by which [`crate::sources`] and diagnostics know the user's score modification.
pub const SCORE_MOD_FILE: &str = "score_mod";

/// Where `score.cuh` wants the user's text.
const SCORE_MOD_BODY: &str = "SCORE_MOD_BODY";

/// One kernel variant: a root file and the constants it is compiled with.
///
/// [`Source::assemble`] expands every `#include "…"` of an embedded file once and marks each line with the file it came from,
/// so that the result is one self-contained string and a compiler's message still names the `.cuh` and its own line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    root: &'static str,
    entry: &'static str,
    defines: Vec<(&'static str, String)>,
    score_mod: Option<String>,
    product_widths: Vec<usize>,
}

impl Source {
    /// A variant of the embedded root file `root`, whose kernel is called `entry`.
    pub fn new(root: &'static str, entry: &'static str) -> Self {
        Self { root, entry, defines: Vec::new(), score_mod: None, product_widths: Vec::new() }
    }

    /// Adds `#define name value`.
    #[must_use]
    pub fn define(mut self, name: &'static str, value: impl ToString) -> Self {
        self.defines.push((name, value.to_string()));
        self
    }

    /// Adds `#define name` where `condition` holds.
    #[must_use]
    pub fn define_if(self, condition: bool, name: &'static str) -> Self {
        if condition { self.define(name, "") } else { self }
    }

    /// Compiles the body of a user's score modification in.
    #[must_use]
    pub fn score_mod(mut self, body: Option<&str>) -> Self {
        self.score_mod = body.map(str::to_owned);
        self
    }

    /// Adds the warpgroup products m64nNk16 of this N (a multiple of 8 up to 256), each once.
    #[must_use]
    pub fn product_width(mut self, n: usize) -> Self {
        if !self.product_widths.contains(&n) {
            self.product_widths.push(n);
        }
        self
    }

    /// The root file, which is also the program's name in diagnostics.
    pub fn root(&self) -> &'static str {
        self.root
    }

    /// The kernel's unmangled name.
    pub fn entry(&self) -> &'static str {
        self.entry
    }

    /// The constants, in order.
    pub fn defines(&self) -> &[(&'static str, String)] {
        &self.defines
    }

    /// The whole source as one string.
    ///
    /// # Panics
    ///
    /// If an embedded file includes one that is not embedded: a mistake in this crate, which its tests look for.
    pub fn assemble(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.defines {
            let _ = writeln!(text, "#define {name} {value}");
        }
        if self.score_mod.is_some() {
            text.push_str("#define SCORE_MOD\n");
        }
        self.expand(self.root, &mut HashSet::new(), &mut text);
        text
    }

    fn expand(&self, path: &'static str, seen: &mut HashSet<&'static str>, out: &mut String) {
        if !seen.insert(path) {
            return;
        }
        let _ = writeln!(out, "#line 1 \"{path}\"");
        let mut lines = file(path).lines().enumerate();
        while let Some((number, line)) = lines.next() {
            if line.trim() == REPEAT {
                let template: Vec<_> =
                    lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != END).collect();
                for &n in &self.product_widths {
                    let _ = writeln!(out, "#line {} \"{path}\"", number + 2);
                    template.iter().for_each(|line| writeln_product(out, line, n));
                }
                let _ = writeln!(out, "#line {} \"{path}\"", number + 3 + template.len());
                continue;
            }
            let Some(included) = included(line) else {
                out.push_str(line);
                out.push('\n');
                continue;
            };
            if included == SCORE_MOD_BODY {
                let body = self.score_mod.as_deref().unwrap_or_default();
                let _ = writeln!(out, "#line 1 \"{SCORE_MOD_FILE}\"\n{body}");
            } else {
                self.expand(included, seen, out);
            }
            let _ = writeln!(out, "#line {} \"{path}\"", number + 2);
        }
    }
}

/// The embedded text of `path`.
fn file(path: &str) -> &'static str {
    match FILES.iter().find(|(name, _)| *name == path) {
        Some((_, text)) => text,
        None => panic!("cuattn-kernels embeds no file {path:?}"),
    }
}

/// Begins and ends the part of a file that stands once for each width of a product. A warpgroup product names each of its N/2
/// accumulators, and C++ has no way to write a list of a given length into an instruction.
const REPEAT: &str = "#repeat N";
const END: &str = "#end";

/// One line of such a part, for products of width `n`: `$N` is n, `$REGISTERS` and `$OPERANDS` the accumulators `d[0]`, …, in the
/// instruction and as operands, and `%$0`, `%$1`, … the operands after them.
fn writeln_product(out: &mut String, line: &str, n: usize) {
    let accumulators = n / 2;
    let list = |of: &dyn Fn(usize) -> String| (0..accumulators).map(of).collect::<Vec<_>>().join(", ");
    let mut line = line
        .replace("$REGISTERS", &list(&|i| format!("%{i}")))
        .replace("$OPERANDS", &list(&|i| format!("\"+f\"(d[{i}])")))
        .replace("$N", &n.to_string());
    for operand in 0..10 {
        line = line.replace(&format!("%${operand}"), &format!("%{}", accumulators + operand));
    }
    out.push_str(&line);
    out.push('\n');
}

/// The path in an `#include "…"` line.
fn included(line: &'static str) -> Option<&'static str> {
    line.trim().strip_prefix("#include")?.trim().strip_prefix('"')?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_include_is_embedded_and_none_is_a_toolkit_header() {
        for (path, text) in FILES {
            for line in text.lines().filter(|line| line.trim_start().starts_with("#include")) {
                let included = included(line).unwrap_or_else(|| panic!("{path}: {line}"));
                assert!(
                    included == SCORE_MOD_BODY || FILES.iter().any(|(name, _)| *name == included),
                    "{path}: {line}"
                );
            }
        }
    }

    #[test]
    fn a_file_is_expanded_once_and_lines_keep_their_place() {
        let text = Source::new("mask.cuh", "none").define("ELEMENT", 1).assemble();
        assert_eq!(text.matches("typedef unsigned int u32;").count(), 1);
        assert!(text.starts_with("#define ELEMENT 1\n#line 1 \"mask.cuh\"\n"), "{text}");
        // params.cuh is the second include of mask.cuh, on its line 3; the text after it goes on at line 4.
        assert!(text.contains("#line 4 \"mask.cuh\"\n"), "{text}");
        assert!(!text.contains("#include"), "{text}");
    }

    #[test]
    fn a_score_mod_is_placed_under_its_own_name() {
        let text = Source::new("score.cuh", "none").score_mod(Some("return score;")).assemble();
        assert!(text.contains("#define SCORE_MOD\n"));
        assert!(text.contains("#line 1 \"score_mod\"\nreturn score;\n#line "), "{text}");
    }
}
