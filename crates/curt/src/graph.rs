//! Capture of a stream into a graph, and its replay.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::{CUgraph, CUgraphExec};

use crate::driver::{self, CuResult};
use crate::error::{Error, Result};
use crate::runtime::Runtime;

/// Work that was captured once and can be run any number of times, for the cost of one launch.
///
/// It holds its runtime and with it the modules that [`Runtime::load`] made. The memory that its kernels use is the caller's to keep.
pub struct Graph {
    runtime: Runtime,
    exec: CUgraphExec,
    nodes: usize,
    /// The driver does not lock a graph: two threads must not launch one at the same time.
    launching: Mutex<()>,
}

// SAFETY: a graph's handle may be used from any thread, one at a time.
unsafe impl Send for Graph {}
// SAFETY: `launch` is the only use of the handle through a shared reference, and takes turns.
unsafe impl Sync for Graph {}

impl Graph {
    /// Enqueues everything that was captured on the runtime's stream, and returns at once.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn launch(&self) -> Result<()> {
        let core = self.runtime.core();
        core.bind()?;
        let _one_at_a_time = self.launching.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: graph and stream are live, and no other thread launches the graph now.
        core.driver.check("cuGraphLaunch", unsafe { core.driver.table.cuGraphLaunch(self.exec, core.stream) })
    }

    /// How many kernels, copies and fills it holds.
    pub const fn node_count(&self) -> usize {
        self.nodes
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let core = self.runtime.core();
        if core.bind().is_ok() {
            // SAFETY: the graph is ours and not launched again; the driver keeps it until a running launch is over.
            unsafe { core.driver.table.cuGraphExecDestroy(self.exec) };
        }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({} nodes)", self.nodes)
    }
}

/// Ends the capture when dropped, which is what happens when the captured work fails or panics.
struct Capture<'a> {
    runtime: &'a Runtime,
    ended: bool,
}

impl<'a> Capture<'a> {
    fn begin(runtime: &'a Runtime) -> Result<Self> {
        let core = runtime.core();
        core.refuse_capture("a second capture")?;
        // Frees that an earlier capture put off must not become part of this one.
        core.free_deferred();
        // Thread-local: what other threads do with other streams, such as allocating, stays legal.
        // SAFETY: the stream is live.
        let code = unsafe { core.driver.table.cuStreamBeginCapture_v2(core.stream, driver::CAPTURE_MODE_THREAD_LOCAL) };
        core.driver.check("cuStreamBeginCapture", code)?;
        Ok(Self { runtime, ended: false })
    }

    fn end(&mut self) -> (CuResult, CUgraph) {
        self.ended = true;
        let core = self.runtime.core();
        let mut graph = std::ptr::null_mut();
        if core.bind().is_err() {
            return (driver::SUCCESS, graph);
        }
        // SAFETY: the stream is live, and this thread began the capture.
        let code = unsafe { core.driver.table.cuStreamEndCapture(core.stream, &mut graph) };
        (code, graph)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let (_, graph) = self.end();
            destroy(self.runtime, graph);
        }
    }
}

fn destroy(runtime: &Runtime, graph: CUgraph) {
    if !graph.is_null() {
        // SAFETY: the graph is ours; what was instantiated from it is independent of it.
        unsafe { runtime.core().driver.table.cuGraphDestroy(graph) };
    }
}

pub(crate) fn capture<T, E: From<Error>>(
    runtime: &Runtime,
    work: impl FnOnce(&Runtime) -> Result<T, E>,
) -> Result<Graph, E> {
    let mut capture = Capture::begin(runtime)?;
    work(runtime)?;
    let (code, graph) = capture.end();
    let instantiated = finish(runtime, code, graph);
    destroy(runtime, graph);
    Ok(instantiated?)
}

fn finish(runtime: &Runtime, code: CuResult, graph: CUgraph) -> Result<Graph> {
    let core = runtime.core();
    if code != driver::SUCCESS || graph.is_null() {
        return Err(Error::CaptureInvalidated {
            code,
            name: core.driver.error_name(code),
            fix: "something in the capture cannot be captured: a call into another library that allocates or synchronises, or work \
                  that waits for another stream",
        });
    }
    let mut nodes = 0;
    // SAFETY: the graph is live; without an array, the call only counts.
    let code = unsafe { core.driver.table.cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes) };
    core.driver.check("cuGraphGetNodes", code)?;
    let mut exec = std::ptr::null_mut();
    // SAFETY: the graph is live, and the pointer is to a live handle.
    let code = unsafe { core.driver.table.cuGraphInstantiateWithFlags(&mut exec, graph, 0) };
    core.driver.check("cuGraphInstantiateWithFlags", code)?;
    Ok(Graph { runtime: runtime.clone(), exec, nodes, launching: Mutex::new(()) })
}
