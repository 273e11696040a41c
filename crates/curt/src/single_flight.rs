//! A map whose values are made once, by whoever asks first, while everyone else who asks for the same waits.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::error::Result;

type Flight<V> = Arc<OnceLock<Result<V>>>;

/// Values by key. The map's lock is never held while a value is made, so different keys are made side by side.
#[derive(Debug)]
pub(crate) struct SingleFlight<K, V> {
    flights: Mutex<HashMap<K, Flight<V>>>,
}

/// Who made the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Maker {
    /// This call.
    Us,
    /// An earlier call, or one that was under way.
    Another,
}

impl<K: Eq + Hash + Clone, V: Clone> SingleFlight<K, V> {
    pub(crate) fn new() -> Self {
        Self { flights: Mutex::new(HashMap::new()) }
    }

    /// The value of `key`, made by `make` if there is none. Threads that wait share a failure; whoever asks later tries again.
    pub(crate) fn get_or_make(&self, key: &K, make: impl FnOnce() -> Result<V>) -> (Result<V>, Maker) {
        let flight = self.lock().entry(key.clone()).or_default().clone();
        let mut maker = Maker::Another;
        let outcome = flight.get_or_init(|| {
            maker = Maker::Us;
            make()
        });
        if outcome.is_err() && maker == Maker::Us {
            let mut flights = self.lock();
            if flights.get(key).is_some_and(|current| Arc::ptr_eq(current, &flight)) {
                flights.remove(key);
            }
        }
        (outcome.clone(), maker)
    }

    /// Takes out the value of `key`.
    pub(crate) fn remove(&self, key: &K) -> Option<V> {
        let flight = self.lock().remove(key)?;
        flight.get().and_then(|outcome| outcome.as_ref().ok().cloned())
    }

    /// Forgets every value that is made. Those being made stay.
    pub(crate) fn clear(&self) {
        self.lock().retain(|_, flight| flight.get().is_none());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<K, Flight<V>>> {
        // Nothing panics while the lock is held, so a poisoned map is whole.
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
