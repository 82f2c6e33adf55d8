//! Model files to ir::Module; weight readers and naming rules; tokenizers

pub mod weights;
