//! What the assembler says of each kernel's use of the machine.

/// What one kernel uses, as `ptxas -v` tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelResources {
    /// The kernel.
    pub name: String,
    /// Registers a thread.
    pub registers: u32,
    /// Barriers.
    pub barriers: u32,
    /// Static shared memory a block.
    pub static_shared_bytes: u32,
    /// Stack a thread: local arrays, which live in memory.
    pub stack_bytes: u32,
    /// Bytes written to memory for want of registers.
    pub spill_store_bytes: u32,
    /// Bytes read back.
    pub spill_load_bytes: u32,
}

pub(super) fn parse(log: &str) -> Vec<KernelResources> {
    let mut kernels: Vec<KernelResources> = Vec::new();
    // Properties of device functions that were not inlined are listed too; only those of the entry being compiled are its own.
    let mut own = false;
    for line in log.lines() {
        // Some versions print properties on a line without a prefix.
        let text =
            line.strip_prefix("ptxas").and_then(|rest| rest.split_once([':', '.'])).map_or(line, |(_, text)| text);
        let text = text.trim();
        if let Some(rest) = text.strip_prefix("Compiling entry function '") {
            let name = rest.split('\'').next().unwrap_or_default().to_owned();
            kernels.push(KernelResources { name, ..KernelResources::default() });
            own = true;
            continue;
        }
        let Some(kernel) = kernels.last_mut() else { continue };
        if let Some(name) = text.strip_prefix("Function properties for ") {
            own = name.trim() == kernel.name;
        } else if text.contains("bytes stack frame") && own {
            for part in text.split(',') {
                match number_and_unit(part) {
                    Some((bytes, "bytes stack frame")) => kernel.stack_bytes = bytes,
                    Some((bytes, "bytes spill stores")) => kernel.spill_store_bytes = bytes,
                    Some((bytes, "bytes spill loads")) => kernel.spill_load_bytes = bytes,
                    _ => {}
                }
            }
        } else if let Some(used) = text.strip_prefix("Used ") {
            for part in used.split(',') {
                let part = part.trim();
                match number_and_unit(part.strip_prefix("used ").unwrap_or(part)) {
                    Some((count, "registers")) => kernel.registers = count,
                    Some((count, "barriers")) => kernel.barriers = count,
                    Some((bytes, "bytes smem")) => kernel.static_shared_bytes = bytes,
                    _ => {}
                }
            }
        }
    }
    kernels
}

fn number_and_unit(part: &str) -> Option<(u32, &str)> {
    let (number, unit) = part.trim().split_once(' ')?;
    Some((number.parse().ok()?, unit.trim()))
}
