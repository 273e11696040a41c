//! The host reference against hand-computed values, a naive formula, its own symmetries and a language model's tensors.

mod by_hand;
mod case;
mod naive;
mod properties;
mod real_tensors;
mod symmetries;
