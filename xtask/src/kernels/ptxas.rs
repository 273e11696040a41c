//! What ptxas says about a kernel under `-v`.

use serde::{Deserialize, Serialize};

/// What one kernel uses on one architecture. Where a source has several kernels, the most that any of them uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Usage {
    /// Registers of a thread.
    pub(super) registers: u32,
    /// Static shared memory of a block, in bytes. Dynamic shared memory is the engine's to choose and not known here.
    pub(super) shared_bytes: u32,
    /// Bytes of a thread's stack frame: arrays that were not kept in registers.
    pub(super) stack_bytes: u32,
    /// Bytes of a thread's spill stores and loads.
    pub(super) spill_bytes: u32,
}

/// Reads the log of one compilation: what the kernels use, and every warning.
///
/// A log without a register count is an error, not a kernel that uses none: the check would pass for want of numbers.
pub(super) fn read(log: &str) -> Result<(Usage, Vec<String>), String> {
    let mut usage = Usage::default();
    let mut kernels = 0;
    let mut warnings = Vec::new();
    for line in log.lines().map(str::trim) {
        if let Some(used) = line.split_once(" Used ").map(|(_, used)| used) {
            kernels += 1;
            usage.registers = usage.registers.max(number_before(used, " registers"));
            usage.shared_bytes = usage.shared_bytes.max(number_before(used, " bytes smem"));
        } else if line.contains(" bytes stack frame") {
            usage.stack_bytes = usage.stack_bytes.max(number_before(line, " bytes stack frame"));
            let spills = number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
            usage.spill_bytes = usage.spill_bytes.max(spills);
        } else if is_warning(line) {
            warnings.push(line.to_owned());
        }
    }
    if kernels == 0 {
        return Err(format!("the compiler's log does not say what the kernel uses:\n{log}"));
    }
    Ok((usage, warnings))
}

/// Warnings by name, and the advisories of ptxas (`(C7510) Potential Performance Loss: …`) that it calls information.
fn is_warning(line: &str) -> bool {
    line.contains("warning") || line.contains("(C7") || line.contains("Potential Performance Loss")
}

/// The number right before the first `unit` in `text`; 0 where there is none.
fn number_before(text: &str, unit: &str) -> u32 {
    let Some((before, _)) = text.split_once(unit) else { return 0 };
    let digits = before.len() - before.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    before[before.len() - digits..].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'softmax' for 'sm_90a'
ptxas info    : Function properties for softmax
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1056 bytes smem, 496 bytes cmem[0]
ptxas info    : Compile time = 12.3 ms
";

    #[test]
    fn a_log_is_read_to_the_number() {
        let usage = Usage { registers: 40, shared_bytes: 1056, stack_bytes: 16, spill_bytes: 20 };
        assert_eq!(read(LOG), Ok((usage, Vec::new())));
    }

    #[test]
    fn of_several_kernels_the_greediest_counts() {
        let second = "ptxas info    : Used 168 registers, used 1 barriers\n";
        let (usage, _) = read(&(LOG.to_owned() + second)).unwrap();
        assert_eq!((usage.registers, usage.shared_bytes), (168, 1056));
    }

    #[test]
    fn advisories_count_as_warnings() {
        let log = LOG.to_owned()
            + "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x\n\
               mask.cuh(7): warning #177-D: variable \"x\" was declared but never referenced\n";
        let (_, warnings) = read(&log).unwrap();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
    }

    #[test]
    fn a_log_without_numbers_is_an_error() {
        assert!(read("").is_err());
        assert!(read("ptxas info    : 0 bytes gmem").is_err());
    }
}
