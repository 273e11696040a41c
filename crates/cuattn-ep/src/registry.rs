//! Every operator that there is.

use crate::kernel::KernelFactory;
use crate::node::domain_name;
use crate::operators;
use crate::{Device, InputInfo, Kernel, Node, Reason};

/// The operators, and who claims a node.
///
/// ```
/// use cuattn_ep::{Device, ElementType, InputInfo, Node, Registry};
///
/// let registry = Registry::standard();
/// let node = Node::new("", "Attention", 24);
/// let tensor = |element| Some(InputInfo::new(element, &[1, 8, 128, 64]));
///
/// let half = [tensor(ElementType::F16), tensor(ElementType::F16), tensor(ElementType::F16)];
/// assert!(registry.claim(&Device::host(), &node, &half).is_ok());
///
/// let double = [tensor(ElementType::F64), tensor(ElementType::F64), tensor(ElementType::F64)];
/// let reason = registry.claim(&Device::host(), &node, &double).unwrap_err();
/// assert!(reason.to_string().starts_with("input `Q` is float64, and must be float32, float16 or bfloat16"));
/// ```
pub struct Registry {
    factories: Vec<Box<dyn KernelFactory>>,
}

impl Registry {
    /// No operators.
    pub fn empty() -> Self {
        Self { factories: Vec::new() }
    }

    /// Every operator of this crate.
    pub fn standard() -> Self {
        Self { factories: operators::all() }
    }

    /// Adds an operator. One that is asked later does not replace one that is there.
    pub fn register(&mut self, factory: Box<dyn KernelFactory>) {
        self.factories.push(factory);
    }

    /// The operators.
    pub fn factories(&self) -> impl Iterator<Item = &dyn KernelFactory> {
        self.factories.iter().map(|factory| &**factory)
    }

    /// The operator of a node.
    ///
    /// # Errors
    ///
    /// [`Reason::NoSuchOperator`], or [`Reason::NoSuchVersion`].
    pub fn factory(&self, node: &Node) -> Result<&dyn KernelFactory, Reason> {
        let domain = if node.domain == "ai.onnx" { "" } else { &node.domain };
        let named = |factory: &&dyn KernelFactory| factory.domain() == domain && factory.op_type() == node.op_type;
        let mut of_the_name = self.factories().filter(named).peekable();
        let Some(first) = of_the_name.peek().copied() else {
            let domain = domain_name(&node.domain).to_owned();
            return Err(Reason::NoSuchOperator { domain, op_type: node.op_type.clone() });
        };
        of_the_name.find(|factory| factory.versions().contains(&node.since_version)).ok_or_else(|| {
            let known = first.versions().iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            let (domain, op_type) = (domain_name(first.domain()), first.op_type());
            Reason::NoSuchVersion { domain, op_type, version: node.since_version, known }
        })
    }

    /// Whether a node would run on `device`.
    ///
    /// # Errors
    ///
    /// The first reason why not.
    pub fn claim(&self, device: &Device, node: &Node, inputs: &[Option<InputInfo>]) -> Result<(), Reason> {
        let claimed = self.factory(node).and_then(|factory| factory.claim(device, node, inputs));
        if let Err(reason) = &claimed {
            tracing::debug!(%node, %reason, "not claimed");
        }
        claimed
    }

    /// Makes a node's kernel.
    ///
    /// # Errors
    ///
    /// As [`Registry::claim`], for what can be seen without inputs.
    pub fn create(&self, node: &Node) -> Result<Box<dyn Kernel>, Reason> {
        self.factory(node)?.create(node)
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::standard()
    }
}
