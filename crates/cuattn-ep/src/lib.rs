//! Execution-provider glue: ONNX attention operators as cuattn plans. **Not written yet**: this crate exports nothing.
//!
//! It will hold runtime-neutral traits (`Node`, `TensorView`, `Kernel`, `KernelFactory`), a registry whose `claim` answers with a reason
//! for everything it refuses, and the operators `ai.onnx::Attention` 23 to 25, `com.microsoft::MultiHeadAttention`,
//! `com.microsoft::GroupQueryAttention`, `pkg.nxrt::Attention` and `pkg.nxrt::PackedVarlenAttention`. The contract they need is already in
//! `cuattn::core`: scores at the four stages of `qk_matmul_output_mode`, top-left alignment, short masks, 64-bit lengths on the device.
