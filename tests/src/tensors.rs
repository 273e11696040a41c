//! Random numbers, and device memory that notices what it should not have been touched by.

use anyhow::{Context as _, ensure};
use bytemuck::{AnyBitPattern, NoUninit};
use curt::{DeviceBuffer, DevicePtr, Runtime};
use rand::Rng;
use rand_distr::{Distribution as _, StandardNormal};

/// How inputs are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// Standard normal: flat attention, every key counts.
    Normal,
    /// Queries six times as large: a few keys take nearly all, as in trained models, and the running maximum moves often.
    Peaky,
    /// Normal with one element in 64 eight times as large: what rounds badly.
    Outliers,
}

impl Distribution {
    /// Every distribution.
    pub const ALL: [Self; 3] = [Self::Normal, Self::Peaky, Self::Outliers];

    /// Queries.
    pub fn query(self, rng: &mut impl Rng) -> f64 {
        let value = self.key(rng);
        if self == Self::Peaky { 6.0 * value } else { value }
    }

    /// Keys and values.
    pub fn key(self, rng: &mut impl Rng) -> f64 {
        let value: f64 = StandardNormal.sample(rng);
        if self == Self::Outliers && rng.random_ratio(1, 64) { 8.0 * value } else { value }
    }
}

/// The byte of poison: repeated, it is a NaN in f32, f16 and bf16, -1 as an integer, and true as a boolean.
pub const POISON: u8 = 0xFF;

/// Bytes of poison on either side of a [`Guarded`] tensor: more than the widest tile row that could be written astray.
pub const GUARD: usize = 4096;

/// A device tensor between guard bytes.
#[derive(Debug)]
pub struct Guarded {
    buffer: DeviceBuffer,
    offset: usize,
    len: usize,
}

impl Guarded {
    /// Uploads `data` with poison before and after it. `misalign` bytes push it off the 256-byte alignment of an allocation.
    ///
    /// # Errors
    ///
    /// If the device is out of memory.
    pub fn upload(runtime: &Runtime, data: &[u8], misalign: usize) -> anyhow::Result<Self> {
        let offset = GUARD + misalign;
        let mut bytes = vec![POISON; offset + data.len() + GUARD];
        bytes[offset..offset + data.len()].copy_from_slice(data);
        let buffer = runtime.upload(&bytes).with_context(|| format!("cannot upload {} bytes", bytes.len()))?;
        Ok(Self { buffer, offset, len: data.len() })
    }

    /// A tensor of `len` bytes that is poison itself: an output.
    ///
    /// # Errors
    ///
    /// If the device is out of memory.
    pub fn poisoned(runtime: &Runtime, len: usize, misalign: usize) -> anyhow::Result<Self> {
        Self::upload(runtime, &vec![POISON; len], misalign)
    }

    /// [`Guarded::upload`] of typed elements.
    ///
    /// # Errors
    ///
    /// If the device is out of memory.
    pub fn of<T: NoUninit>(runtime: &Runtime, data: &[T]) -> anyhow::Result<Self> {
        Self::upload(runtime, bytemuck::cast_slice(data), 0)
    }

    /// Where the tensor is.
    ///
    /// # Panics
    ///
    /// Never: the tensor lies in its buffer.
    pub fn ptr(&self) -> DevicePtr {
        self.buffer.ptr().slice(self.offset, self.len).expect("a guarded tensor lies in its buffer")
    }

    /// Reads the tensor, after checking that nothing around it was written.
    ///
    /// # Errors
    ///
    /// If a guard byte changed, or the device failed.
    pub fn read(&self) -> anyhow::Result<Vec<u8>> {
        let mut bytes = self.buffer.read::<u8>()?;
        check_guards(&bytes, self.offset, self.len)?;
        bytes.truncate(self.offset + self.len);
        bytes.drain(..self.offset);
        Ok(bytes)
    }

    /// [`Guarded::read`] as typed elements.
    ///
    /// # Errors
    ///
    /// If a guard byte changed, the tensor is no whole number of elements, or the device failed.
    pub fn read_as<T: AnyBitPattern>(&self) -> anyhow::Result<Vec<T>> {
        let bytes = self.read()?;
        let size = size_of::<T>();
        ensure!(
            size != 0 && bytes.len() % size == 0,
            "{} bytes are no whole number of {size}-byte elements",
            bytes.len()
        );
        Ok(bytes.chunks_exact(size).map(bytemuck::pod_read_unaligned).collect())
    }
}

fn check_guards(bytes: &[u8], offset: usize, len: usize) -> anyhow::Result<()> {
    if let Some(at) = bytes[..offset].iter().rposition(|&byte| byte != POISON) {
        anyhow::bail!("something wrote {} bytes before the tensor's first byte", offset - at);
    }
    if let Some(at) = bytes[offset + len..].iter().position(|&byte| byte != POISON) {
        anyhow::bail!("something wrote {at} bytes after the tensor's last byte");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use cuattn_core::DType;
    use cuattn_core::reference::decode;

    use super::*;

    #[test]
    fn poison_is_nan_in_every_type() {
        for dtype in DType::ALL {
            assert!(decode(&[POISON; 8], dtype).iter().all(|value| value.is_nan()), "{dtype}");
        }
    }

    #[test]
    fn a_byte_written_astray_is_found() {
        let mut bytes = vec![POISON; 30];
        bytes[10..20].fill(0);
        assert!(check_guards(&bytes, 10, 10).is_ok());
        bytes[9] = 0;
        assert!(check_guards(&bytes, 10, 10).unwrap_err().to_string().contains("1 bytes before"));
        bytes[9] = POISON;
        bytes[22] = 0;
        assert!(check_guards(&bytes, 10, 10).unwrap_err().to_string().contains("2 bytes after"));
    }

    #[test]
    fn distributions_differ_as_they_say() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut deviation = |draw: &dyn Fn(&mut StdRng) -> f64| {
            let sum: f64 = (0..20_000).map(|_| draw(&mut rng).powi(2)).sum();
            (sum / 20_000.0).sqrt()
        };
        let close = |a: f64, b: f64| (a - b).abs() < 0.1 * b;
        assert!(close(deviation(&|rng| Distribution::Normal.query(rng)), 1.0));
        assert!(close(deviation(&|rng| Distribution::Peaky.query(rng)), 6.0));
        assert!(close(deviation(&|rng| Distribution::Peaky.key(rng)), 1.0));
        assert!(close(deviation(&|rng| Distribution::Outliers.key(rng)), 2.0_f64.sqrt()));
    }
}
