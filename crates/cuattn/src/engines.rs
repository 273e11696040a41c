//! The engines that there are.

use std::sync::LazyLock;

use cuattn_core::{Engine, EngineId};
use cuattn_flash::Flash;
use cuattn_phase2a::Phase2a;

/// One of each for the whole process, so that plans share what their engine keeps, such as library handles.
static ENGINES: LazyLock<[Box<dyn Engine>; 2]> = LazyLock::new(|| [Box::new(Flash), Box::new(Phase2a::new())]);

/// The engines for dense problems that [`crate::plan`] chooses among.
///
/// ```
/// use cuattn::EngineId;
/// let ids: Vec<EngineId> = cuattn::engines().map(|engine| engine.id()).collect();
/// assert!(ids.contains(&EngineId::Flash) && ids.contains(&EngineId::Phase2a));
/// ```
pub fn engines() -> impl Iterator<Item = &'static dyn Engine> {
    ENGINES.iter().map(|engine| &**engine)
}

pub(crate) fn engine(id: EngineId) -> Option<&'static dyn Engine> {
    engines().find(|engine| engine.id() == id)
}
