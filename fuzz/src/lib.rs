//! Fuzz targets: everything that pcc reads and somebody else may have written. A target takes bytes, gives them to pcc as a
//! file of one kind, and goes on with what pcc makes of them for as long as it makes something. It panics when pcc does what it
//! never may: panic, call itself wrong, lose something in a round trip, fail its own check, or give other bits with more workers.
//!
//! The same targets run in two ways: `tests/replay.rs` replays the committed seeds and some mutations of each (ordinary tests), and
//! `src/main.rs` hands them to libFuzzer (`cargo xtask fuzz`). [`mutate`] serves both.

pub mod bounds;
pub mod mutate;
#[path = "../../passes/tests/random_partitions/rng.rs"]
#[allow(dead_code)] // the generator of random plans uses all of it
mod rng;
mod scratch;
pub mod seeds;
mod targets;

use mutate::Form;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Largest input, bytes: what goes wrong goes wrong in the small.
pub const MAX_INPUT: usize = 1 << 16;

/// One kind of input.
pub struct Target {
    /// Names the target on the command line and its folder of seeds.
    pub name: &'static str,
    /// How its inputs are mutated.
    pub form: Form,
    run: fn(&[u8]),
}

/// Every target.
pub const TARGETS: [Target; 9] = [
    Target { name: "model_json", form: Form::Json, run: targets::models::model_json },
    Target { name: "config_json", form: Form::Json, run: targets::models::config_json },
    Target { name: "pcir", form: Form::Text, run: targets::modules::pcir },
    Target { name: "pipeline", form: Form::Json, run: targets::modules::pipeline },
    Target { name: "gguf", form: Form::Bytes, run: targets::weights::gguf },
    Target { name: "safetensors", form: Form::Headed, run: targets::weights::safetensors },
    Target { name: "artifact", form: Form::Json, run: targets::artifacts::artifact },
    Target { name: "tokenizer", form: Form::Json, run: targets::tokenizers::tokenizer },
    Target { name: "npz", form: Form::Bytes, run: targets::arrays::npz },
];

impl Target {
    /// The target of a name.
    pub fn find(name: &str) -> Option<&'static Target> {
        TARGETS.iter().find(|t| t.name == name)
    }

    /// Gives pcc one input.
    ///
    /// # Errors
    /// What pcc did that it never may.
    pub fn run(&self, data: &[u8]) -> Result<(), String> {
        if data.len() > MAX_INPUT {
            return Ok(());
        }
        catch_unwind(AssertUnwindSafe(|| (self.run)(data))).map_err(|payload| {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            text.unwrap_or("a panic without a text").to_owned()
        })
    }
}
