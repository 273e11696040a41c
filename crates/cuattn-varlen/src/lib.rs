//! Attention over packed sequences of any lengths, read on the device. **Not written yet**: this crate exports nothing.
//!
//! It will hold the engine for [`cuattn_core::VarlenProblem`]: queries, keys and values packed as `[tokens, heads, head_dim]` with
//! `cu_seqlens_q` and `cu_seqlens_kv` on the device, work scheduled there longest first, and the same device code as `cuattn-flash`,
//! whose kernels already find a tile's rows and keys through one function (`load_sequence` in `mask.cuh`) that a packed variant
//! replaces.
