//! Model files to [`pcc_ir::Module`]: model.json, Hugging Face configs and folders, GGUF files; weight readers, naming
//! rules and tokenizers. [`load`] is the front door, [`describe`] looks without building, [`export`] writes model.json.

pub mod canonical;
mod config;
mod families;
mod gguf_config;
mod graph;
mod json;
mod load;
mod model_json;
mod naming;
mod sampler;
pub mod tokenizer;
mod transformer;
pub mod weights;

pub use load::{LoadOptions, Model, Summary, describe, load};
pub use model_json::{export, schema};
