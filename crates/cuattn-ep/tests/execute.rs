//! Kernels as a runtime uses them, on the host: shapes, scratch memory, strides, and what is said when something is
//! wrong.

use approx::assert_relative_eq;
use cuattn_ep::cuattn::curt::DevicePtr;
use cuattn_ep::{
    CaptureSupport, Device, ElementType, ExecuteError, Kernel, Lifetime, Node, OutputSpec, Registry, Role, TensorMut,
    TensorView,
};

/// A float32 tensor in host memory.
struct Tensor {
    shape: Vec<usize>,
    strides: Option<Vec<i64>>,
    values: Vec<f32>,
}

impl Tensor {
    /// Numbers that differ, from a seed.
    fn new(shape: &[usize], seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
        };
        let values = (0..shape.iter().product()).map(|_| next()).collect();
        Self { shape: shape.to_vec(), strides: None, values }
    }

    fn view(&self) -> TensorView<'_> {
        let data = DevicePtr::new(self.values.as_ptr() as u64, size_of_val(&self.values[..]));
        let view = TensorView::new(data, ElementType::F32, &self.shape);
        match &self.strides {
            Some(strides) => view.with_strides(strides),
            None => view,
        }
    }
}

fn kernel(node: &Node) -> Box<dyn Kernel> {
    Registry::standard().create(node).unwrap()
}

fn views<'a>(tensors: &[Option<&'a Tensor>]) -> Vec<Option<TensorView<'a>>> {
    tensors.iter().map(|tensor| tensor.map(Tensor::view)).collect()
}

/// Memory for every output, and the outputs as a kernel takes them.
fn outputs(specs: &[Option<OutputSpec>]) -> (Vec<Vec<f32>>, Vec<Option<TensorMut>>) {
    let mut memory: Vec<Vec<f32>> = specs
        .iter()
        .map(|spec| spec.as_ref().map_or(vec![], |spec| vec![f32::NAN; spec.bytes().unwrap() / 4]))
        .collect();
    let tensors = specs
        .iter()
        .zip(&mut memory)
        .map(|(spec, memory)| {
            spec.as_ref()?;
            Some(TensorMut { data: DevicePtr::new(memory.as_mut_ptr() as u64, size_of_val(&memory[..])) })
        })
        .collect();
    (memory, tensors)
}

fn run(node: &Node, tensors: &[Option<&Tensor>]) -> Result<Vec<Vec<f32>>, ExecuteError> {
    let (kernel, inputs) = (kernel(node), views(tensors));
    let (memory, tensors) = outputs(&kernel.outputs(&inputs)?);
    // SAFETY: all are host memory of the lengths that are said.
    unsafe { kernel.execute(&Device::host(), &inputs, &tensors)? };
    Ok(memory)
}

fn onnx() -> Node {
    Node::new("", "Attention", 25).named("layer.0")
}

#[test]
fn three_dimensions_are_four_with_rows_first() {
    let (b, h, s, d) = (2, 3, 4, 5);
    let flat = Tensor::new(&[b, s, h * d], 1);
    let mut by_head = Tensor::new(&[b, h, s, d], 1);
    for (index, value) in by_head.values.iter_mut().enumerate() {
        let (dim, row, head, batch) = (index % d, index / d % s, index / (d * s) % h, index / (d * s * h));
        *value = flat.values[(batch * s + row) * h * d + head * d + dim];
    }
    let node = onnx().attribute("is_causal", 1i64);
    let flat_node = node.clone().attribute("q_num_heads", h as i64).attribute("kv_num_heads", h as i64);
    let wide = run(&node, &[Some(&by_head); 3]).unwrap();
    let long = run(&flat_node, &[Some(&flat); 3]).unwrap();
    for (index, value) in wide[0].iter().enumerate() {
        let (dim, row, head, batch) = (index % d, index / d % s, index / (d * s) % h, index / (d * s * h));
        assert_eq!(*value, long[0][(batch * s + row) * h * d + head * d + dim]);
    }

    // The same again without a copy: four dimensions with the strides of three.
    let mut strided = Tensor::new(&[b, s, h * d], 1);
    strided.shape = vec![b, h, s, d];
    strided.strides = Some(vec![(s * h * d) as i64, d as i64, (h * d) as i64, 1]);
    assert!(kernel(&node).supports_strided_input(0));
    assert_eq!(run(&node, &[Some(&strided); 3]).unwrap()[0], wide[0]);
}

#[test]
fn past_and_new_rows_are_the_present() {
    let (past, new) = (Tensor::new(&[1, 2, 3, 4], 1), Tensor::new(&[1, 2, 2, 4], 2));
    let node = onnx().outputs(&[true, true, true]).attribute("is_causal", 1i64);
    let all = run(&node, &[Some(&new), Some(&new), Some(&new), None, Some(&past), Some(&past)]).unwrap();
    for head in 0..2 {
        let want: Vec<_> = [&past.values[head * 12..(head + 1) * 12], &new.values[head * 8..(head + 1) * 8]].concat();
        assert_eq!(all[1][head * 20..(head + 1) * 20], want);
        assert_eq!(all[2][head * 20..(head + 1) * 20], want);
    }
    // Where nobody wants the present, it is scratch memory, and the result is the same.
    let alone = run(
        &onnx().attribute("is_causal", 1i64),
        &[Some(&new), Some(&new), Some(&new), None, Some(&past), Some(&past)],
    );
    assert_eq!(alone.unwrap()[0], all[0]);
}

/// Row `i` stands at `past + i`, also where there are fewer new keys than queries.
#[test]
fn rows_stand_after_the_past_whatever_the_number_of_new_keys() {
    let (q, new, past) = (Tensor::new(&[1, 1, 4, 2], 1), Tensor::new(&[1, 1, 2, 2], 2), Tensor::new(&[1, 1, 8, 2], 3));
    let node = onnx().attribute("is_causal", 1i64).attribute("left_window_size", 1i64);
    let got = run(&node, &[Some(&q), Some(&new), Some(&new), None, Some(&past), Some(&past)]).unwrap();
    let keys: Vec<_> = [&past.values[..], &new.values[..]].concat();
    for row in 0..4usize {
        let position = 8 + row;
        let seen: Vec<usize> = (position - 1..=position).filter(|&key| key < 10).collect();
        let scores: Vec<f64> = seen
            .iter()
            .map(|&key| (0..2).map(|i| f64::from(q.values[row * 2 + i]) * f64::from(keys[key * 2 + i])).sum::<f64>())
            .map(|score| (score / 2f64.sqrt()).exp())
            .collect();
        for dim in 0..2 {
            let sum: f64 = scores.iter().sum();
            let want: f64 =
                seen.iter().zip(&scores).map(|(&key, weight)| weight * f64::from(keys[key * 2 + dim])).sum();
            let want = if seen.is_empty() { 0.0 } else { want / sum };
            assert_relative_eq!(f64::from(got[0][row * 2 + dim]), want, epsilon = 1e-6);
        }
    }
}

#[test]
fn scratch_memory_is_none_where_none_is_needed_and_exact_otherwise() {
    let (past, new) = (Tensor::new(&[1, 2, 3, 4], 1), Tensor::new(&[1, 2, 2, 4], 2));
    let device = Device::host();
    let plain = views(&[Some(&new), Some(&new), Some(&new)]);
    let need = kernel(&onnx()).workspace_requirement(&device, &plain).unwrap();
    assert_eq!((need.bytes, need.lifetime, need.role), (0, Lifetime::StepScoped, Role::Workspace));

    let grown = views(&[Some(&new), Some(&new), Some(&new), None, Some(&past), Some(&past)]);
    let present = kernel(&onnx().outputs(&[true, true, true])).workspace_requirement(&device, &grown).unwrap();
    assert_eq!(present.bytes, 0);
    let kernel = kernel(&onnx());
    let need = kernel.workspace_requirement(&device, &grown).unwrap();
    assert_eq!((need.bytes, need.align), (2 * 256, 256));

    let (_memory, tensors) = outputs(&kernel.outputs(&grown).unwrap());
    let mut scratch = vec![0u8; need.bytes + need.align];
    let begin = scratch.as_mut_ptr() as u64;
    let aligned = begin.next_multiple_of(need.align as u64);
    // SAFETY: all are host memory of the lengths that are said.
    unsafe {
        let whole = DevicePtr::new(aligned, need.bytes);
        kernel.execute_with_workspace(&device, &grown, &tensors, whole).unwrap();
        for bad in [DevicePtr::new(aligned, need.bytes - 1), DevicePtr::new(aligned + 1, need.bytes), DevicePtr::NULL] {
            let error = kernel.execute_with_workspace(&device, &grown, &tensors, bad).unwrap_err().to_string();
            assert!(error.contains("512 bytes are needed, aligned to 256"), "{error}");
        }
    }
}

#[test]
fn the_host_cannot_be_captured() {
    let new = Tensor::new(&[1, 1, 1, 4], 1);
    let inputs = views(&[Some(&new), Some(&new), Some(&new)]);
    let kernel = kernel(&onnx());
    kernel.prepare(&Device::host(), &inputs).unwrap();
    assert_eq!(kernel.capture_support(&Device::host(), &inputs), CaptureSupport::Never);
}

#[test]
fn errors_name_node_input_shape_and_type() {
    let (q, k) = (Tensor::new(&[1, 2, 3, 4], 1), Tensor::new(&[1, 2, 5, 6], 2));
    insta::assert_snapshot!(
        run(&onnx(), &[Some(&q), Some(&k), Some(&k)]).unwrap_err(),
        @"layer.0 (ai.onnx::Attention 25): input `K` has shape [1, 2, 5, 6]: the head size is 6, and must be 4, as in `Q`"
    );
    let mut short = Tensor::new(&[1, 2, 3, 4], 1);
    short.values.pop();
    insta::assert_snapshot!(
        run(&onnx(), &[Some(&short), Some(&q), Some(&q)]).unwrap_err(),
        @"layer.0 (ai.onnx::Attention 25): input 0 has 92 bytes of memory, and its shape [1, 2, 3, 4] needs 96"
    );
    let mut backwards = Tensor::new(&[1, 2, 3, 4], 1);
    backwards.strides = Some(vec![24, 12, -4, 1]);
    insta::assert_snapshot!(
        run(&onnx(), &[Some(&backwards), Some(&q), Some(&q)]).unwrap_err(),
        @"layer.0 (ai.onnx::Attention 25): input `Q` has strides [24, 12, -4, 1] for shape [1, 2, 3, 4]: strides must not be negative; make it contiguous"
    );
    let mut transposed = Tensor::new(&[3, 3], 1);
    transposed.strides = Some(vec![1, 3]);
    insta::assert_snapshot!(
        run(&onnx(), &[Some(&q), Some(&q), Some(&q), Some(&transposed)]).unwrap_err(),
        @"layer.0 (ai.onnx::Attention 25): input `attn_mask` has strides [1, 3] for shape [3, 3]: this input must be contiguous; make it contiguous"
    );
    let (kernel, inputs) = (kernel(&onnx()), views(&[Some(&q), Some(&q), Some(&q)]));
    let mut small = [0.0f32; 23];
    let output = TensorMut { data: DevicePtr::new(small.as_mut_ptr() as u64, 92) };
    // SAFETY: all are host memory of the lengths that are said.
    let error = unsafe { kernel.execute(&Device::host(), &inputs, &[Some(output)]) }.unwrap_err();
    insta::assert_snapshot!(
        error,
        @"layer.0 (ai.onnx::Attention 25): output 0 has 92 bytes of memory, and needs 96 for shape [1, 2, 3, 4]"
    );
}

#[test]
fn bad_offsets_of_packed_sequences_are_found_on_the_host() {
    let x = Tensor::new(&[4, 1, 2], 1);
    let node = Node::new("pkg.nxrt", "PackedVarlenAttention", 1).attribute("num_heads", 1i64);
    let starts = [0i32, 3, 2, 4];
    let offsets = TensorView::new(DevicePtr::new(starts.as_ptr() as u64, 16), ElementType::I32, &[4]);
    let inputs = [Some(x.view()), Some(x.view()), Some(x.view()), Some(offsets), Some(offsets)];
    let kernel = kernel(&node);
    let (_memory, tensors) = outputs(&kernel.outputs(&inputs).unwrap());
    // SAFETY: all are host memory of the lengths that are said.
    let error = unsafe { kernel.execute(&Device::host(), &inputs, &tensors) }.unwrap_err().to_string();
    assert!(error.contains("cu_seqlens_q"), "{error}");
}
