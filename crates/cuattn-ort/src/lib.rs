//! A plugin execution provider that gives stock ONNX Runtime the cuattn kernels. **Not written yet**: this library exports no symbol,
//! so ONNX Runtime refuses to register it.
//!
//! It will hold the C ABI of a kernel-registry plugin (API 24 upward): device discovery, a stream-ordered device allocator, data
//! transfer, streams and notifications, Memcpy kernels of its own, and session options, around the operators of `cuattn-ep`.
