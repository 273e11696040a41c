//! The operators: from attributes and layouts to recipes.

mod attention;
mod inputs;
mod multi_head;
mod nxrt_attention;
mod packed_varlen;
mod settings;

use crate::kernel::KernelFactory;
use crate::node::AttributeKind;
use crate::recipe::Recipe;
use crate::recipe_kernel::Factory;
use crate::tensor::Layout;
use crate::{InputInfo, Node, Reason};

/// Every operator of this crate.
pub(crate) fn all() -> Vec<Box<dyn KernelFactory>> {
    vec![
        Factory::<attention::Attention>::boxed(),
        Factory::<attention::RenamedAttention>::boxed(),
        Factory::<multi_head::MultiHeadAttention>::boxed(),
        Factory::<nxrt_attention::Attention>::boxed(),
        Factory::<packed_varlen::PackedVarlenAttention>::boxed(),
    ]
}

/// An operator: what its nodes mean.
pub(crate) trait Operator: Send + Sync + Sized + 'static {
    const DOMAIN: &'static str;
    const OP_TYPE: &'static str;
    const VERSIONS: &'static [u32];
    const INPUTS: &'static [&'static str];
    const OUTPUTS: &'static [&'static str];
    /// Every attribute of any version.
    const ATTRIBUTES: &'static [(&'static str, AttributeKind)];
    /// Inputs that may have strides.
    const STRIDED: &'static [usize];

    /// Reads the attributes.
    fn new(node: &Node) -> Result<Self, Reason>;

    /// Looks at what may be known before shapes are: which inputs are there, of which types and ranks.
    fn check(&self, inputs: &[Option<InputInfo>]) -> Result<(), Reason>;

    /// Says what is to be done for these layouts. `check` has passed.
    fn lower(&self, inputs: &[Option<Layout>]) -> Result<Recipe, Reason>;
}
