//! Tensor maps that were encoded before.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::TensorMap;
use crate::{DevicePtr, Result};

/// Places for maps. A plan that serves all layers of a model meets a few dozen different operands.
const PLACES: usize = 64;

/// Keeps tensor maps for the launches to come: to encode the maps of a launch takes the host about as long as the launch itself.
///
/// One cache is for launches that differ in nothing but their memory, those of one plan. A map is known by its `role` among the maps of a
/// launch and by its memory, and must depend on nothing else.
///
/// ```
/// use curt::{DevicePtr, TensorMapBuilder, TensorMapCache};
///
/// # fn launch(runtime: &curt::Runtime, keys: TensorMapBuilder, memory: DevicePtr) -> curt::Result<()> {
/// let cache = TensorMapCache::new();
/// let map = cache.get("keys", memory, || keys.build(runtime))?; // encoded
/// let again = cache.get("keys", memory, || keys.build(runtime))?; // kept
/// # Ok(())
/// # }
/// ```
pub struct TensorMapCache<R> {
    kept: Mutex<Vec<Option<Kept<R>>>>,
}

#[derive(Clone, Copy)]
struct Kept<R> {
    role: R,
    memory: DevicePtr,
    map: TensorMap,
}

impl<R: Copy + Eq + Hash> TensorMapCache<R> {
    /// With nothing in it.
    pub fn new() -> Self {
        Self { kept: Mutex::new(vec![None; PLACES]) }
    }

    /// The map of that role and memory: the one that is kept, or what `encode` makes.
    ///
    /// # Errors
    ///
    /// Those of `encode`, of which nothing is kept.
    pub fn get(&self, role: R, memory: DevicePtr, encode: impl FnOnce() -> Result<TensorMap>) -> Result<TensorMap> {
        let place = place_of(role, memory);
        let is_same = |kept: &Kept<R>| kept.role == role && kept.memory == memory;
        if let Some(kept) = self.lock()[place].filter(is_same) {
            return Ok(kept.map);
        }
        // Not under the lock: the driver is asked.
        let map = encode()?;
        self.lock()[place] = Some(Kept { role, memory, map });
        Ok(map)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Kept<R>>>> {
        // A place is written in one piece, so a panic elsewhere leaves nothing half done.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Copy + Eq + Hash> Default for TensorMapCache<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R> fmt::Debug for TensorMapCache<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorMapCache").finish_non_exhaustive()
    }
}

/// Where such a map is kept.
fn place_of<R: Hash>(role: R, memory: DevicePtr) -> usize {
    let mut hasher = DefaultHasher::new();
    (role, memory).hash(&mut hasher);
    hasher.finish() as usize % PLACES
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bytemuck::Zeroable as _;

    use super::*;
    use crate::Error;

    #[test]
    fn a_map_is_encoded_once_for_each_role_and_memory() {
        let cache = TensorMapCache::new();
        let encoded = Cell::new(0u64);
        let get = |role, address| {
            let encode = || {
                encoded.set(encoded.get() + 1);
                Ok(TensorMap { opaque: [encoded.get(); 16] })
            };
            cache.get(role, DevicePtr::new(address, 64), encode).unwrap().opaque[0]
        };
        for role in 0..4 {
            assert_eq!((get(role, 0x1000), get(role, 0x1000)), (role + 1, role + 1));
        }
        assert_eq!(get(0, 0x2000), 5);
        // The same address with another extent is other memory.
        let shorter = cache.get(0, DevicePtr::new(0x2000, 32), || Ok(TensorMap::zeroed())).unwrap();
        assert_eq!(shorter.opaque[0], 0);
    }

    #[test]
    fn memory_that_shares_a_place_takes_turns() {
        let cache = TensorMapCache::new();
        for round in 0..2 {
            for address in (1..=4 * PLACES as u64).map(|i| i << 21) {
                let map =
                    cache.get(0, DevicePtr::new(address, 64), || Ok(TensorMap { opaque: [address; 16] })).unwrap();
                assert_eq!(map.opaque[0], address, "{round}");
            }
        }
    }

    #[test]
    fn the_maps_of_many_layers_find_places() {
        // Two dozen layers' keys and values, two megabytes apart: most have a place of their own.
        let places: std::collections::HashSet<_> =
            (0..48u64).map(|i| place_of(1 + i as usize % 2, DevicePtr::new(0x7f00_0000_0000 + (i << 21), 1))).collect();
        assert!(places.len() >= 24, "{}", places.len());
    }

    #[test]
    fn a_failure_is_not_kept() {
        let cache = TensorMapCache::new();
        let memory = DevicePtr::new(0x1000, 64);
        assert!(cache.get(0, memory, || Err(Error::InvalidTensorMap { violations: Vec::new() })).is_err());
        cache.get(0, memory, || Ok(TensorMap::zeroed())).unwrap();
    }
}
