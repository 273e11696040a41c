//! Recipes on the host, with the float64 reference.

use cuattn::curt::DevicePtr;
use cuattn::reference::{self, HostOperands, VarlenHostOperands, decode, encode};
use cuattn::{DType, Problem, Strides, VarlenProblem};

use super::Memories;
use crate::Reason;
use crate::error::Fault;
use crate::recipe::{Attend, DenseOperands, Fill, Gather, KeyPadding, PackBias, PackedOperands, Recipe};

/// # Safety
///
/// Tensors are host memory as large as the recipe wants; outputs and scratch overlap nothing.
pub(super) unsafe fn run(recipe: &Recipe, memories: &Memories<'_>) -> Result<(), Fault> {
    if let Some(fill) = &recipe.fill {
        // SAFETY: as the caller promises.
        unsafe { run_fill(fill, memories)? };
    }
    for gather in &recipe.gathers {
        // SAFETY: as the caller promises.
        unsafe { run_gather(gather, memories)? };
    }
    if let Some(pack) = &recipe.pack_bias {
        // SAFETY: as the caller promises.
        unsafe { run_pack(pack, memories)? };
    }
    match &recipe.attend {
        // SAFETY: as the caller promises.
        Attend::Dense(problem, operands) => unsafe { run_dense(problem, operands, memories) },
        // SAFETY: as the caller promises.
        Attend::Packed(problem, operands) => unsafe { run_packed(problem, operands, memories) },
    }
}

/// # Safety
///
/// The range is live host memory that nobody writes meanwhile.
unsafe fn bytes<'a>(memory: DevicePtr) -> &'a [u8] {
    if memory.is_empty() {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(memory.address() as usize), memory.len()) }
}

/// # Safety
///
/// The range is live host memory that nobody else uses meanwhile.
unsafe fn bytes_mut<'a>(memory: DevicePtr) -> &'a mut [u8] {
    if memory.is_empty() {
        return &mut [];
    }
    let address = std::ptr::with_exposed_provenance_mut(memory.address() as usize);
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts_mut(address, memory.len()) }
}

unsafe fn run_fill(fill: &Fill, memories: &Memories<'_>) -> Result<(), Fault> {
    // SAFETY: scratch is ours.
    let target = unsafe { bytes_mut(memories.resolve(fill.to)?) };
    for entry in target.chunks_exact_mut(8).take(fill.count) {
        entry.copy_from_slice(&fill.value.to_le_bytes());
    }
    Ok(())
}

unsafe fn run_gather(gather: &Gather, memories: &Memories<'_>) -> Result<(), Fault> {
    let size = gather.dtype.size();
    let row_bytes = gather.dim * size;
    if gather.batch == 0 || gather.heads == 0 || gather.rows() == 0 || row_bytes == 0 {
        return Ok(());
    }
    let at = |strides: Strides, batch: usize, head: usize, row: usize| {
        (batch * strides.batch as usize + head * strides.head as usize + row * strides.row as usize) * size
    };
    // SAFETY: inputs are only read, and the target overlaps none.
    let (new, target) = unsafe { (bytes(memories.resolve(gather.new.0)?), bytes_mut(memories.resolve(gather.to.0)?)) };
    let past = match gather.past {
        // SAFETY: as above.
        Some((place, strides)) => Some((unsafe { bytes(memories.resolve(place)?) }, strides)),
        None => None,
    };
    let add = match gather.add {
        // SAFETY: as above.
        Some(place) => Some(unsafe { bytes(memories.resolve(place)?) }),
        None => None,
    };
    for batch in 0..gather.batch {
        for head in 0..gather.heads {
            for row in 0..gather.rows() {
                let to = at(gather.to.1, batch, head, row);
                let target = &mut target[to..to + row_bytes];
                match past {
                    Some((past, strides)) if row < gather.past_rows => {
                        let from = at(strides, batch, head, row);
                        target.copy_from_slice(&past[from..from + row_bytes]);
                    }
                    _ => {
                        let from = at(gather.new.1, batch, head, row - gather.past_rows);
                        let source = &new[from..from + row_bytes];
                        match add {
                            None => target.copy_from_slice(source),
                            Some(add) => {
                                let add = decode(&add[head * row_bytes..(head + 1) * row_bytes], gather.dtype);
                                let sum: Vec<_> =
                                    decode(source, gather.dtype).iter().zip(add).map(|(x, add)| x + add).collect();
                                target.copy_from_slice(&encode(&sum, gather.dtype));
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

unsafe fn run_pack(pack: &PackBias, memories: &Memories<'_>) -> Result<(), Fault> {
    let [batches, heads, rows, keys] = pack.extents;
    let (place, form) = pack.padding;
    // SAFETY: inputs are only read, and scratch is ours.
    let (padding, target) = unsafe { (bytes(memories.resolve(place)?), bytes_mut(memories.resolve(pack.to)?)) };
    let entry = |index: usize| {
        let (words, _) = padding.as_chunks::<4>();
        i32::from_le_bytes(words[index])
    };
    let bias = match pack.bias {
        // SAFETY: as above.
        Some((place, dtype, strides)) => Some((unsafe { bytes(memories.resolve(place)?) }, dtype, strides)),
        None => None,
    };
    let (words, _) = target.as_chunks_mut::<4>();
    for (index, word) in words.iter_mut().take(batches * heads * rows * keys).enumerate() {
        let key = index % keys;
        let row = index / keys % rows;
        let head = index / (keys * rows) % heads;
        let batch = index / (keys * rows * heads);
        let there = match form {
            KeyPadding::Lengths => i64::from(entry(batch)) > key as i64,
            KeyPadding::Keys => entry(batch * keys + key) > 0,
            KeyPadding::QueryKeys => entry((batch * rows + row) * keys + key) > 0,
        };
        let mut value = if there { 0.0 } else { f64::from(pack.filter) };
        if let Some((bytes, dtype, [to_batch, to_head, to_row])) = bias {
            let element = batch * to_batch as usize + head * to_head as usize + row * to_row as usize + key;
            value += decode(&bytes[element * dtype.size()..(element + 1) * dtype.size()], dtype)[0];
        }
        *word = (value as f32).to_le_bytes();
    }
    Ok(())
}

unsafe fn run_dense(problem: &Problem, operands: &DenseOperands, memories: &Memories<'_>) -> Result<(), Fault> {
    if problem.shape.is_empty() {
        return Ok(());
    }
    // SAFETY: inputs and scratch are only read from here on.
    let read = |place| memories.resolve(place).map(|memory| unsafe { bytes(memory) });
    let read_if = |place: Option<_>| place.map(read).transpose();
    let given = HostOperands {
        q: read(operands.q)?,
        k: read(operands.k)?,
        v: read(operands.v)?,
        bias: read_if(operands.bias)?,
        key_lengths: read_if(operands.key_lengths)?,
        query_offsets: read_if(operands.query_offsets)?,
        ..HostOperands::default()
    };
    let refused = |refusal| Fault::Refused(Reason::Problem(refusal));
    let computed = reference::attention(problem, &given).map_err(refused)?;
    // SAFETY: outputs overlap nothing.
    let o = unsafe { bytes_mut(memories.resolve(operands.o)?) };
    computed.write_o(problem, o).map_err(refused)?;
    if let (Some(place), Some(scores), Some(wanted)) = (operands.scores, &computed.scores, problem.scores) {
        let encoded = encode(scores, wanted.dtype);
        // SAFETY: outputs overlap nothing.
        let target = unsafe { bytes_mut(memories.resolve(place)?) };
        target[..encoded.len()].copy_from_slice(&encoded);
    }
    Ok(())
}

unsafe fn run_packed(problem: &VarlenProblem, operands: &PackedOperands, memories: &Memories<'_>) -> Result<(), Fault> {
    if problem.shape.is_empty() {
        return Ok(());
    }
    // SAFETY: inputs are only read.
    let read = |place| memories.resolve(place).map(|memory| unsafe { bytes(memory) });
    let given = VarlenHostOperands {
        q: read(operands.q)?,
        k: read(operands.k)?,
        v: read(operands.v)?,
        cu_seqlens_q: read(operands.cu_seqlens_q)?,
        cu_seqlens_kv: read(operands.cu_seqlens_kv)?,
        ..VarlenHostOperands::default()
    };
    let refused = |refusal| Fault::Refused(Reason::Problem(refusal));
    let computed = reference::attention_varlen(problem, &given).map_err(refused)?;
    // SAFETY: the output overlaps nothing.
    let o = unsafe { bytes_mut(memories.resolve(operands.o)?) };
    computed.write_o(problem, o).map_err(refused)
}

const _: () = assert!(DType::F32.size() == 4, "packed biases are words of 4 bytes");
