//! Small models that tests write: configs whose sizes no mesh divides, and one artifact each that tests share.

use super::{folder, shared, succeeds};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

/// 6 query heads over 2 kv heads, 101 words, 5 layers: uneven for nearly every mesh.
pub fn llama() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 6,
        "num_key_value_heads": 2, "intermediate_size": 80, "vocab_size": 101, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false,
    })
}

pub fn gpt2() -> Value {
    json!({
        "model_type": "gpt2", "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64, "n_ctx": 64, "vocab_size": 101,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    })
}

pub fn bert() -> Value {
    json!({
        "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 6, "intermediate_size": 80, "vocab_size": 101, "hidden_act": "gelu",
        "max_position_embeddings": 64, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
    })
}

/// Writes a config as `NAME.json` and gives its path.
pub fn write(folder: &Path, name: &str, config: &Value) -> String {
    let path = folder.join(format!("{name}.json"));
    std::fs::write(&path, config.to_string()).expect("a temporary folder can be written");
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// Number of parameters of `llama()`: L(2h^2 + 2h kv d + 3hf + 2h) + 2Vh + h.
pub const LLAMA_PARAMETERS: u64 = 5 * (2 * 48 * 48 + 2 * 48 * 16 + 3 * 48 * 80 + 2 * 48) + 2 * 101 * 48 + 48;

/// The artifact of a model compiled with these arguments, compiled once for all tests.
pub fn artifact(name: &str, args: &[&str]) -> PathBuf {
    type Made = Mutex<BTreeMap<String, Arc<OnceLock<PathBuf>>>>;
    static MADE: OnceLock<Made> = OnceLock::new();
    let key = format!("{name} {}", args.join(" "));
    let cell = {
        let mut made = MADE.get_or_init(Made::default).lock().unwrap_or_else(|e| e.into_inner());
        made.entry(key.clone()).or_default().clone()
    };
    cell.get_or_init(|| {
        let place = folder();
        let model = match name {
            "llama" => write(place.path(), "llama", &llama()),
            "gpt2" => write(place.path(), "gpt2", &gpt2()),
            "bert" => write(place.path(), "bert", &bert()),
            other => super::example(other),
        };
        let out = shared().join("artifacts").join(format!("{}.pcc", key.replace([' ', '/'], "_")));
        let path = out.to_str().expect("a path in UTF-8");
        succeeds(place.path(), &[&["compile", &model, "-o", path], args].concat());
        out
    })
    .clone()
}

/// A tokenizer of 101 words `w0` to `w100`.
pub fn tokenizer(folder: &Path) -> String {
    tokenizer_of(folder, 101)
}

/// A tokenizer of `words` words `w0`, `w1` and so on.
pub fn tokenizer_of(folder: &Path, words: usize) -> String {
    let vocab: serde_json::Map<String, Value> = (0..words).map(|i| (format!("w{i}"), json!(i))).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"},
    });
    write(folder, "tokenizer", &tokenizer)
}

/// A copy of an artifact that a test may damage.
pub fn copied(artifact: &Path, to: &Path) -> PathBuf {
    let copy = to.join("copy.pcc");
    std::fs::create_dir(&copy).expect("a temporary folder can be written");
    for entry in std::fs::read_dir(artifact).expect("the artifact is there").flatten() {
        std::fs::copy(entry.path(), copy.join(entry.file_name())).expect("an artifact's file can be copied");
    }
    copy
}

/// Gives changed files their checksums, so that what else notices the change is seen.
pub fn sign(artifact: &Path) {
    use sha2::{Digest, Sha256};
    let line = |name: &str| {
        let bytes = std::fs::read(artifact.join(name)).expect("the file is there");
        let hex: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        format!("{hex}  {name}\n")
    };
    let sums: String = ["program.json", "report.json", "plan.json"].map(line).concat();
    std::fs::write(artifact.join("SHA256SUMS"), sums).expect("the copy can be written");
}
