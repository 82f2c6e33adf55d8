//! Reading checkpoints: safetensors (one file, shards with an index, a Hugging Face folder) and GGUF.
//!
//! Files are memory-mapped and nothing is copied at opening. Every count, length and offset of a file is checked
//! against the file before it is used or allocated for, so a hostile file gives one [`Diagnostic`].
//! [`Checkpoint::read_param_slice`](pcc_ir::source::ReadParams::read_param_slice) reads a slice of a parameter in
//! the graph's own arrangement, touching and dequantising only what the slice needs, from any number of threads.

mod checkpoint;
mod element;
pub mod gguf;
mod index;
mod mapping;
mod quantised;
mod read;
mod safetensors;
#[cfg(test)]
mod tests;

pub use checkpoint::{Checkpoint, TensorInfo, list_names};
pub use element::ElementType;
pub use gguf::{GgufMeta, GgufValue};
pub use quantised::Quantised;

use pcc_ir::Diagnostic;
use std::path::Path;

/// A tensor as a file's header describes it, checked against the file's length.
#[derive(Clone, Debug)]
struct Stored {
    name: String,
    element: ElementType,
    /// Outermost dim first.
    shape: Vec<usize>,
    /// Bytes of the values in the file.
    bytes: std::ops::Range<usize>,
}

/// Greatest rank a stored tensor may have.
const MAX_RANK: usize = 8;

/// "This weight file is wrong" with the file as the place.
fn bad_file(path: &Path, why: impl Into<String>) -> Diagnostic {
    Diagnostic::input("the weight file cannot be used").at(path.display().to_string()).why(why)
}
