//! The kernels of the varlen engine: those of the flash engine over packed sequences, and what prepares them.
//!
//! | root file | entry | takes | does |
//! |---|---|---|---|
//! | `varlen/sm90.cu` | [`SM90_ENTRY`] | the maps of q, k, v and o, and [`VarlenSm90Params`](crate::abi::VarlenSm90Params) | attention |
//! | `varlen/mma.cu`, `varlen/simt.cu` | [`MMA_ENTRY`], [`SIMT_ENTRY`] | [`VarlenParams`](crate::abi::VarlenParams) | attention |
//! | `varlen/build_schedule.cu` | [`SCHEDULE_ENTRY`] | the same, and the rows of a tile as `i32` | lists the tiles, longest sequences first |
//! | `varlen/check_starts.cu` | [`CHECK_ENTRY`] | the same, the longest query and key sequence as `i64`, and the address of a `u32` | looks for bad starts |

use crate::flash::mma::Mma;
use crate::flash::simt::Simt;
use crate::flash::sm90::{Demand, Edges, Sm90};
use crate::{Architecture, Element, Source, Variant};

/// Entry of [`sm90`].
pub const SM90_ENTRY: &str = "varlen_sm90";
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

/// How the Hopper kernel's boxes of rows end, where sequences are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowBoxes {
    /// With their sequence: the maps of q and o, and of k and v without pages, are ragged (`ptx/tma.cuh`).
    Ragged,
    /// Anywhere: the maps are plain ones of all tokens. Consumers store their rows themselves, and clear the values of foreign keys.
    Plain,
}

impl RowBoxes {
    /// `variant`, if need be with another way to store.
    pub fn fit(self, mut variant: Sm90) -> Sm90 {
        variant.tile.direct_store |= self == Self::Plain;
        variant
    }
}

/// Keys that one box of the copy engine brings out of pages of `page_size` keys, of a block of `block_keys`: both are whole boxes.
/// `None` where a box would begin within the eight rows of a swizzle's pattern.
pub fn page_box(page_size: usize, block_keys: usize) -> Option<usize> {
    let (mut divisor, mut rest) = (block_keys, page_size);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (divisor > 0 && divisor.is_multiple_of(8)).then_some(divisor)
}

/// The Hopper kernel over packed sequences, whose keys may lie in pages of this many. The variant has no bias, and fits `boxes`.
pub fn sm90(variant: &Sm90, boxes: RowBoxes, page_size: Option<usize>) -> Source {
    let source = Source::new("varlen/sm90.cu", SM90_ENTRY).define_if(boxes == RowBoxes::Ragged, "RAGGED_MAPS");
    let source = match page_size {
        Some(page_size) => source.define("PAGED", "").define("PAGE_SIZE", page_size),
        None => source,
    };
    variant.define_constants(source)
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
    sm90_variants(&mut push);
    let mut softcap = Mma { softcap: true, ..Mma::plain(Element::F16, 128, 128) };
    softcap.tile = Mma::tuned_tiles().next().map_or(softcap.tile, |(.., tile)| tile);
    push("mma f16 d128 softcap".to_owned(), mma(&softcap, KeyStorage::Packed), sample, false);
    all
}

/// The Hopper kernel in each tile of its table, and once with each option.
fn sm90_variants(push: &mut impl FnMut(String, Source, &'static [Architecture], bool)) {
    let few = Demand { q_len: 512, heads: 8, edges: Edges::CAUSAL, ..Demand::PLENTY };
    let short = Demand { q_len: 512, edges: Edges::CAUSAL, ..Demand::PLENTY };
    let tiny = Demand { q_len: 64, edges: Edges::CAUSAL, ..Demand::PLENTY };
    let mut push = |name: String, variant: &Sm90, boxes: RowBoxes, page_size, tuned| {
        let source = sm90(&boxes.fit(variant.clone()), boxes, page_size);
        push(format!("sm90 {name}"), source, Architecture::HOPPER, tuned);
    };
    for (d, dv, demand, of) in [
        (64, 64, Demand::PLENTY, ""),
        (64, 64, short, " short"),
        (64, 64, few, " split keys"),
        (64, 64, tiny, " few rows"),
        (96, 96, Demand::PLENTY, ""),
        (128, 128, Demand::PLENTY, ""),
        (128, 128, few, " split keys"),
        (128, 128, tiny, " few rows"),
        (192, 128, Demand::PLENTY, ""),
        (192, 192, Demand::PLENTY, ""),
        (256, 256, Demand::PLENTY, ""),
    ] {
        let variant = Sm90::plain(Element::Bf16, d, dv, demand);
        push(format!("bf16 d{d}/{dv}{of}"), &variant, RowBoxes::Ragged, None, true);
        push(format!("bf16 d{d}/{dv}{of} paged"), &variant, RowBoxes::Ragged, Some(16), true);
        push(format!("bf16 d{d}/{dv}{of} plain maps"), &variant, RowBoxes::Plain, None, true);
    }
    for (d, pack) in [(64, 8), (128, 4)] {
        let variant = Sm90 { pack, ..Sm90::plain(Element::Bf16, d, d, tiny) };
        push(format!("bf16 d{d} few rows of {pack} heads"), &variant, RowBoxes::Ragged, None, true);
        push(format!("bf16 d{d} few rows of {pack} heads, plain maps"), &variant, RowBoxes::Plain, None, true);
    }
    for d in [64, 128, 256] {
        let softcap = Sm90 { softcap: true, ..Sm90::plain(Element::F16, d, d, Demand::PLENTY) };
        push(format!("f16 d{d} softcap"), &softcap, RowBoxes::Ragged, None, true);
    }
    let large = Sm90::plain(Element::F16, 128, 128, Demand::PLENTY);
    push("f16 d128 large pages".to_owned(), &large, RowBoxes::Ragged, Some(256), true);
    for d in [8, 40, 72, 136, 200] {
        let variant = Sm90::plain(Element::F16, d, d, Demand::PLENTY);
        push(format!("f16 d{d}"), &variant, RowBoxes::Ragged, None, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::WorkItem;
    use crate::flash::sm90::{BLOCK_SHARED_BYTES, MAX_HEAD_DIM, STATIC_BYTES};

    #[test]
    fn pages_and_blocks_are_whole_boxes() {
        for (page_size, block_keys, keys) in [
            (16, 128, Some(16)),
            (64, 96, Some(32)),
            (256, 128, Some(128)),
            (24, 128, Some(8)),
            (1, 128, None),
            (20, 64, None),
            (12, 96, None),
        ] {
            assert_eq!(page_box(page_size, block_keys), keys, "{page_size} {block_keys}");
        }
    }

    #[test]
    fn every_packed_tile_fits_a_hopper_block() {
        // Static besides: the sequences that a block has sorted, and how many tiles there are.
        let fixed = (STATIC_BYTES + SCANNED_SEQUENCES * size_of::<WorkItem>() + 4).next_multiple_of(1024);
        let dynamic = BLOCK_SHARED_BYTES - fixed;
        for d in (8..=MAX_HEAD_DIM).step_by(8) {
            for dv in (8..=MAX_HEAD_DIM).step_by(8) {
                for demand in [Demand::PLENTY, Demand { q_len: 100, heads: 1, ..Demand::PLENTY }] {
                    assert!(Sm90::plain(Element::Bf16, d, dv, demand).shared_bytes() <= dynamic, "{d}/{dv}");
                }
            }
        }
    }

    #[test]
    fn the_hopper_loop_serves_both_engines() {
        let variant = Sm90::plain(Element::F16, 64, 64, Demand::PLENTY);
        let packed = sm90(&variant, RowBoxes::Ragged, Some(64)).assemble();
        for line in ["#line 1 \"flash/sm90_consumer.cuh\"\n", "#define PAGE_SIZE 64\n", "#define RAGGED_MAPS \n"] {
            assert!(packed.contains(line), "{line}");
        }
        assert!(!variant.source().assemble().contains("#define VARLEN\n"));
    }

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
