//! Model files to [`pcc_ir::Module`]: Hugging Face configs and folders, GGUF files; weight readers, naming rules and
//! tokenizers. [`load`] is the front door, [`describe`] looks without building.

mod canonical;
mod config;
mod families;
mod gguf_config;
mod json;
mod load;
mod naming;
pub mod tokenizer;
mod transformer;
pub mod weights;

pub use load::{LoadOptions, Model, Summary, describe, load};
