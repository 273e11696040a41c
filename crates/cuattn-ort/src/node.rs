//! Nodes of ONNX Runtime's as `cuattn-ep` knows them.

use std::ffi::CString;

use cuattn_ep::{Attribute, AttributeKind, ElementType, InputInfo, KernelFactory, Node};

use crate::abi::{OrtKernelInfo, OrtNode, OrtOpAttr, OrtValueInfo, attr_type};
use crate::api::{Api, sized_text, tables, text};
use crate::failure::{Result, check};

/// A node of a graph, with what is known of its inputs.
///
/// # Safety
///
/// `node` is live.
pub(crate) unsafe fn read(node: *const OrtNode) -> Result<(Node, Vec<Option<InputInfo>>)> {
    let api = tables()?;
    let (mut name, mut domain, mut op_type, mut version) = (std::ptr::null(), std::ptr::null(), std::ptr::null(), 0);
    // SAFETY: as the caller promises; the texts live as long as the node.
    let mut read = unsafe {
        check(api.ort.Node_GetName(node, &mut name))?;
        check(api.ort.Node_GetDomain(node, &mut domain))?;
        check(api.ort.Node_GetOperatorType(node, &mut op_type))?;
        check(api.ort.Node_GetSinceVersion(node, &mut version))?;
        Node::new(text(domain), text(op_type), u32::try_from(version).unwrap_or(0)).named(text(name))
    };
    // SAFETY: as the caller promises, and the arrays are of the sizes that were asked for.
    unsafe {
        let mut count = 0;
        check(api.ort.Node_GetNumAttributes(node, &mut count))?;
        let mut attributes = vec![std::ptr::null(); count];
        check(api.ort.Node_GetAttributes(node, attributes.as_mut_ptr(), count))?;
        for attribute in attributes {
            let (name, value) = read_attribute(api, attribute)?;
            read.attributes.insert(name, value);
        }
        check(api.ort.Node_GetNumOutputs(node, &mut count))?;
        let mut outputs = vec![std::ptr::null(); count];
        check(api.ort.Node_GetOutputs(node, outputs.as_mut_ptr(), count))?;
        read.outputs = outputs.into_iter().map(|output| exists(api, output)).collect::<Result<_>>()?;
        check(api.ort.Node_GetNumInputs(node, &mut count))?;
        let mut inputs = vec![std::ptr::null(); count];
        check(api.ort.Node_GetInputs(node, inputs.as_mut_ptr(), count))?;
        let inputs = inputs.into_iter().map(|input| read_input(api, input)).collect::<Result<_>>()?;
        Ok((read, inputs))
    }
}

/// A value that is left away has no name, or no info at all.
///
/// # Safety
///
/// `value` is null or live.
unsafe fn exists(api: Api, value: *const OrtValueInfo) -> Result<bool> {
    if value.is_null() {
        return Ok(false);
    }
    let mut name = std::ptr::null();
    // SAFETY: as the caller promises.
    unsafe {
        check(api.ort.GetValueInfoName(value, &mut name))?;
        Ok(!text(name).is_empty())
    }
}

/// # Safety
///
/// `value` is null or live.
unsafe fn read_input(api: Api, value: *const OrtValueInfo) -> Result<Option<InputInfo>> {
    // SAFETY: as the caller promises.
    if !unsafe { exists(api, value)? } {
        return Ok(None);
    }
    let (mut info, mut tensor, mut element, mut rank) = (std::ptr::null(), std::ptr::null(), 0, 0);
    // SAFETY: as the caller promises; the infos live as long as the value.
    unsafe {
        check(api.ort.GetValueInfoTypeInfo(value, &mut info))?;
        if !info.is_null() {
            check(api.ort.CastTypeInfoToTensorInfo(info, &mut tensor))?;
        }
        if tensor.is_null() {
            return Ok(Some(InputInfo::of_type(ElementType::Other(0))));
        }
        check(api.ort.GetTensorElementType(tensor, &mut element))?;
        check(api.ort.GetDimensionsCount(tensor, &mut rank))?;
        let mut dims = vec![0i64; rank];
        check(api.ort.GetDimensions(tensor, dims.as_mut_ptr(), rank))?;
        let element = ElementType::from_onnx(element);
        // No dimensions may mean a scalar or an unknown rank; no operator here takes scalars.
        let shape = (rank > 0).then(|| dims.into_iter().map(|extent| usize::try_from(extent).ok()).collect());
        Ok(Some(InputInfo { element, shape }))
    }
}

/// # Safety
///
/// `attribute` is live.
unsafe fn read_attribute(api: Api, attribute: *const OrtOpAttr) -> Result<(String, Attribute)> {
    let (mut name, mut kind, mut written) = (std::ptr::null(), 0, 0);
    // SAFETY: as the caller promises; the buffers are of the sizes that are given.
    unsafe {
        check(api.ort.OpAttr_GetName(attribute, &mut name))?;
        check(api.ort.OpAttr_GetType(attribute, &mut kind))?;
        let value = match kind {
            attr_type::INT => {
                let mut value = 0i64;
                check(api.ort.ReadOpAttr(attribute, kind, (&raw mut value).cast(), 8, &mut written))?;
                Attribute::Int(value)
            }
            attr_type::FLOAT => {
                let mut value = 0f32;
                check(api.ort.ReadOpAttr(attribute, kind, (&raw mut value).cast(), 4, &mut written))?;
                Attribute::Float(value)
            }
            attr_type::STRING => Attribute::Text(String::new()),
            _ => Attribute::Other("a list, a tensor or a graph"),
        };
        Ok((text(name), value))
    }
}

/// The node that a kernel is made for.
///
/// # Safety
///
/// `info` is live.
pub(crate) unsafe fn of_kernel(info: *const OrtKernelInfo, factory: &dyn KernelFactory, version: u32) -> Result<Node> {
    let api = tables()?;
    // SAFETY: as the caller promises; buffers and sizes belong together.
    let name = sized_text(|out, size| unsafe { api.ort.KernelInfo_GetNodeName(info, out, size) })?;
    let mut node = Node::new(factory.domain(), factory.op_type(), version).named(name);
    for &(attribute, kind) in factory.attributes() {
        let c_name = CString::new(attribute).unwrap_or_default();
        // An attribute that is not there is an error, which says no more than that.
        // SAFETY: as the caller promises; the name is a C string, and the pointers are to live numbers.
        let value = unsafe {
            match kind {
                AttributeKind::Int => {
                    let mut value = 0;
                    check(api.ort.KernelInfoGetAttribute_int64(info, c_name.as_ptr(), &mut value))
                        .map(|()| Attribute::Int(value))
                }
                _ => {
                    let mut value = 0.0;
                    check(api.ort.KernelInfoGetAttribute_float(info, c_name.as_ptr(), &mut value))
                        .map(|()| Attribute::Float(value))
                }
            }
        };
        if let Ok(value) = value {
            node.attributes.insert(attribute.to_owned(), value);
        }
    }
    let mut outputs = 0;
    // SAFETY: as the caller promises, and the pointer is to a live integer.
    check(unsafe { api.ort.KernelInfo_GetOutputCount(info, &mut outputs) })?;
    node.outputs = (0..outputs)
        .map(|index| {
            // SAFETY: as the caller promises; buffers and sizes belong together.
            let name = sized_text(|out, size| unsafe { api.ort.KernelInfo_GetOutputName(info, index, out, size) })?;
            Ok(!name.is_empty())
        })
        .collect::<Result<_>>()?;
    Ok(node)
}
