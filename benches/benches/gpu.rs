//! Our own trend on a GPU, by CUDA events. Without a GPU it says so and measures nothing.

fn main() {}
