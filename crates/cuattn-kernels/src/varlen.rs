//! The kernels of the varlen engine: those of the flash engine over packed sequences, and what prepares them.
//!
//! | root file | entry | takes | does |
//! |---|---|---|---|
//! | `varlen/mma.cu`, `varlen/simt.cu` | [`MMA_ENTRY`], [`SIMT_ENTRY`] | [`VarlenParams`](crate::abi::VarlenParams) | attention |
//! | `varlen/build_schedule.cu` | [`SCHEDULE_ENTRY`] | the same, and the rows of a tile as `i32` | lists the tiles, longest sequences first |
//! | `varlen/check_starts.cu` | [`CHECK_ENTRY`] | the same, the longest query and key sequence as `i64`, and the address of a `u32` | looks for bad starts |

use crate::flash::mma::Mma;
use crate::flash::simt::Simt;
use crate::{Architecture, Element, Source, Variant};

/// Entry of [`mma`].
pub const MMA_ENTRY: &str = "varlen_mma";
/// Entry of [`simt`].
pub const SIMT_ENTRY: &str = "varlen_simt";
/// Entry of [`build_schedule`].
pub const SCHEDULE_ENTRY: &str = "varlen_build_schedule";
/// Entry of [`check_starts`].
pub const CHECK_ENTRY: &str = "varlen_check_starts";

/// Threads of the one block of [`build_schedule`] and of [`check_starts`].
pub const THREADS: usize = 1024;

/// The largest batch that blocks may sort by themselves: `SCANNED_SEQUENCES` in `varlen/find_tile.cuh`.
pub const SCANNED_SEQUENCES: usize = 64;

/// How keys and values lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyStorage {
    /// One sequence after another.
    Packed,
    /// In pages.
    Paged,
}

impl KeyStorage {
    fn define(self, source: Source) -> Source {
        source.define_if(self == Self::Paged, "PAGED")
    }
}

/// The tensor-core kernel over packed sequences. The variant has no bias.
pub fn mma(variant: &Mma, keys: KeyStorage) -> Source {
    keys.define(variant.define_constants(Source::new("varlen/mma.cu", MMA_ENTRY)))
}

/// The kernel without tensor cores over packed sequences. The variant has no bias.
pub fn simt(variant: &Simt, keys: KeyStorage) -> Source {
    keys.define(variant.define_constants(Source::new("varlen/simt.cu", SIMT_ENTRY)))
}

/// The kernel that lists the tiles.
pub fn build_schedule(keys: KeyStorage) -> Source {
    keys.define(Source::new("varlen/build_schedule.cu", SCHEDULE_ENTRY).define("THREADS", THREADS))
}

/// The kernel that looks for faults in the starts and lengths.
pub fn check_starts(keys: KeyStorage) -> Source {
    keys.define(Source::new("varlen/check_starts.cu", CHECK_ENTRY).define("THREADS", THREADS))
}

/// The variants of the compile suite: every tile of the flash engine, which differs here in how it finds its rows alone, and each
/// of them once with pages.
pub fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    let mut push = |name: String, source: Source, architectures, tuned| {
        all.push(Variant { name: format!("varlen/{name}"), source, architectures, tuned });
    };
    let (every, sample) = (Architecture::FROM_AMPERE, Architecture::SAMPLE);
    for (of, keys) in [("", KeyStorage::Packed), (" paged", KeyStorage::Paged)] {
        // One block a launch, as wide as a block can be: what spills there costs nothing that can be measured.
        push(format!("build_schedule{of}"), build_schedule(keys), every, false);
        push(format!("check_starts{of}"), check_starts(keys), every, true);
        for (d, dv, tile) in Mma::tuned_tiles() {
            let variant = Mma { tile, ..Mma::plain(Element::Bf16, d, dv) };
            let name = format!("mma bf16 d{d}/{dv} {}x{}{of}", tile.block_rows(), tile.block_keys);
            push(name, mma(&variant, keys), sample, true);
        }
        for (dim, tile) in Simt::tuned_tiles() {
            // Where keys lie and of what type they are do not meet in the code: one type will do for pages.
            let elements: &[_] = match keys {
                KeyStorage::Packed => &[Element::F32, Element::Bf16],
                KeyStorage::Paged => &[Element::F32],
            };
            for &element in elements {
                let variant = Simt::in_tile(element, dim, dim, tile);
                let name = format!("simt {} d{dim} {}x{}{of}", element.name(), tile.block_rows(), tile.block_keys);
                push(name, simt(&variant, keys), sample, true);
            }
        }
    }
    let mut softcap = Mma { softcap: true, ..Mma::plain(Element::F16, 128, 128) };
    softcap.tile = Mma::tuned_tiles().next().map_or(softcap.tile, |(.., tile)| tile);
    push("mma f16 d128 softcap".to_owned(), mma(&softcap, KeyStorage::Packed), sample, false);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_loop_serves_both_engines() {
        let flash = Mma::plain(Element::F16, 64, 64);
        let packed = mma(&flash, KeyStorage::Paged).assemble();
        // What is compiled is flash's own file, under other names for a tile's place.
        assert!(packed.contains("#line 1 \"flash/mma.cu\""), "{packed}");
        assert!(packed.starts_with("#define ELEMENT 1\n"));
        assert!(packed.contains("#define PAGED \n") && packed.contains("#define VARLEN\n"));
        assert!(!flash.source().assemble().contains("#define VARLEN"));
    }

    #[test]
    fn the_kernels_agree_on_what_a_warp_sorts() {
        let (_, text) = crate::sources().find(|(path, _)| *path == "varlen/find_tile.cuh").unwrap();
        assert!(text.contains(&format!("constexpr int SCANNED_SEQUENCES = {SCANNED_SEQUENCES};")));
    }
}
