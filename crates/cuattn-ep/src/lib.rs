//! Execution-provider glue: ONNX attention operators as cuattn plans, for any runtime that has a graph.
//!
//! A runtime asks whether a node would run ([`Registry::claim`]), gets a reason where it would not, and makes a kernel
//! for it where it would ([`Registry::create`]). The kernel says the shapes of its outputs, how much scratch memory it
//! needs, and whether it can be captured into a CUDA graph, and runs: on a GPU, or on the host.
//!
//! | operator | versions |
//! |---|---|
//! | `ai.onnx::Attention` | 23, 24, 25 |
//! | `com.microsoft::MultiHeadAttention` | 1 |
//! | `pkg.nxrt::Attention`, `pkg.nxrt::PackedVarlenAttention` | 1 |
//! | `cuattn::Attention` | 1: `ai.onnx::Attention` 25 by another name |
//!
//! ```
//! use cuattn_ep::{Device, ElementType, InputInfo, Node, Registry, TensorMut, TensorView};
//! use cuattn::curt::DevicePtr;
//!
//! let (registry, device) = (Registry::standard(), Device::host());
//! let node = Node::new("", "Attention", 24).named("layer.0").attribute("is_causal", 1i64);
//! let shape = [1, 2, 3, 4];
//! let info = || Some(InputInfo::new(ElementType::F32, &shape));
//! registry.claim(&device, &node, &[info(), info(), info()])?;
//!
//! let kernel = registry.create(&node)?;
//! let (x, mut y) = (vec![1.0f32; 24], vec![0.0f32; 24]);
//! let bytes = 24 * size_of::<f32>();
//! let input = Some(TensorView::new(DevicePtr::new(x.as_ptr() as u64, bytes), ElementType::F32, &shape));
//! let output = Some(TensorMut { data: DevicePtr::new(y.as_mut_ptr() as u64, bytes) });
//! // SAFETY: the device is the host, and both are host memory of this length that nobody else uses.
//! unsafe { kernel.execute(&device, &[input, input, input], &[output])? };
//! assert_eq!(y, x);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # One design decision
//!
//! What an operator means is **data**: attributes and shapes become a recipe (rows to gather, a bias to pack, one
//! attention problem), and a device follows it. The host's device follows the same recipe as a GPU's, with the float64
//! reference in the place of a plan. So a machine without a GPU tests everything here but the kernels themselves.
//!
//! # What a caller may rely on
//!
//! * **A claim is kept.** A node whose shapes are known when it is claimed runs with them; where shapes come later,
//!   a refusal names node, input, shape and type.
//! * **Nothing is done silently elsewhere.** A GPU device never computes on the host.
//! * **Lengths stay on the device.** `nonpad_kv_seqlen` is read by the kernels, so a captured graph serves any lengths.
//! * **Plans are kept** for each combination of shapes and device, so that only the first execute compiles.
//!   [`Kernel::capture_support`] says what the next one will do.
//! * **Every execute is a `tracing` span** at INFO with node, device, bytes and floating-point operations.

mod device;
mod element;
mod error;
mod kernel;
mod node;
mod operators;
mod reason;
mod recipe;
mod recipe_kernel;
mod registry;
mod tensor;

pub use cuattn;

pub use self::device::Device;
pub use self::element::ElementType;
pub use self::error::{ExecuteError, Fault};
pub use self::kernel::{CaptureSupport, Kernel, KernelFactory, Lifetime, Role, WorkspaceRequirement};
pub use self::node::{Attribute, AttributeKind, InputInfo, Node};
pub use self::reason::Reason;
pub use self::registry::Registry;
pub use self::tensor::{OutputSpec, TensorMut, TensorView};
