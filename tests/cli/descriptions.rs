//! Model descriptions that are no JSON, or JSON that says nothing pcc understands. All end before anything is written.

use super::{fails, folder, models};
use serde_json::json;

/// Compiles a file of these bytes: exit 1, and a message with the file's name and these words.
#[track_caller]
fn refused(name: &str, bytes: &[u8], words: &[&str]) {
    let place = folder();
    std::fs::write(place.path().join(name), bytes).unwrap();
    fails(place.path(), &["compile", name], 1, &[&[name], words].concat());
}

#[test]
fn truncated_json() {
    let whole = models::llama().to_string();
    refused("config.json", b"", &["ends too early"]);
    for end in [1, whole.len() / 2, whole.len() - 1] {
        refused("config.json", &whole.as_bytes()[..end], &["ends too early"]);
    }
    refused("model.json", b"{\"pcc\": 1, \"functions\": [", &["ends too early"]);
}

#[test]
fn deep_json() {
    refused("config.json", "[".repeat(4 << 20).as_bytes(), &["recursion"]);
    refused("model.json", "{\"a\":".repeat(1 << 20).as_bytes(), &["recursion"]);
}

#[test]
fn json_in_no_encoding() {
    refused("config.json", b"{\"model_type\": \"ll\xff\xfea\"}", &["UTF-8"]);
    refused("config.json", &[0; 64], &["JSON"]);
}

/// A file of a terabyte (of nothing): refused by its size, unread.
#[test]
fn huge_json() {
    let place = folder();
    let file = std::fs::File::create(place.path().join("config.json")).unwrap();
    file.set_len(1 << 40).unwrap();
    fails(place.path(), &["compile", "config.json"], 1, &["config.json", "too large", "67108864"]);
}

#[test]
fn keys_twice_and_other_values() {
    refused(
        "config.json",
        b"{\"model_type\": \"llama\", \"model_type\": \"gpt2\"}",
        &["model_type", "twice"],
    );
    refused("config.json", b"[]", &[]);
    refused("config.json", b"{}", &["model_type"]);
    refused("config.json", b"{\"model_type\": \"llama\"}", &["hidden_size"]);
}

/// Unknown families and fields that would change the mathematics are refused by name.
#[test]
fn unsupported_models() {
    let with = |field: &str, value: serde_json::Value| {
        let mut config = models::llama();
        config[field] = value;
        config.to_string().into_bytes()
    };
    refused("config.json", &with("model_type", json!("mamba")), &["mamba", "llama", "gpt2", "bert"]);
    refused("config.json", &with("hidden_act", json!("swoosh")), &["hidden_act", "swoosh"]);
    refused("config.json", &with("rope_scaling", json!({"rope_type": "spiral", "factor": 2.0})), &["spiral"]);
    refused("config.json", &with("frobnication", json!(3)), &["frobnication"]);
}

#[test]
fn sizes_that_are_none() {
    let with = |field: &str, value: serde_json::Value| {
        let mut config = models::llama();
        config[field] = value;
        config.to_string().into_bytes()
    };
    refused("config.json", &with("hidden_size", json!(0)), &["hidden_size"]);
    refused("config.json", &with("vocab_size", json!(-5)), &["vocab_size"]);
    refused("config.json", &with("hidden_size", json!(4.5)), &["hidden_size"]);
    refused("config.json", &with("intermediate_size", json!(u64::MAX)), &["intermediate_size"]);
    refused("config.json", &with("num_hidden_layers", json!(0)), &["num_hidden_layers"]);
    refused("config.json", &with("num_hidden_layers", json!(1_u64 << 40)), &["num_hidden_layers"]);
    refused("config.json", &with("num_attention_heads", json!(7)), &["num_key_value_heads"]);
    refused("config.json", &with("rms_norm_eps", json!("small")), &["rms_norm_eps"]);
}

#[test]
fn no_such_model() {
    let place = folder();
    fails(place.path(), &["compile", "absent.json"], 1, &["absent.json", "a model is"]);
    fails(place.path(), &["compile", "."], 1, &["no config.json"]);
    std::fs::write(place.path().join("m.safetensors"), b"").unwrap();
    fails(place.path(), &["compile", "m.safetensors"], 1, &["weights alone are no model"]);
}

/// A plan that is damaged, or of another model.
#[test]
fn wrong_plans() {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    let plan = |text: &str| std::fs::write(place.path().join("plan.json"), text).unwrap();
    let args = ["compile", &model, "--tp", "2", "--seq", "16", "--plan", "plan.json"];
    fails(place.path(), &args, 1, &["plan.json"]);
    for text in ["", "{", "[]", "{}", "{\"version\": 99}"] {
        plan(text);
        fails(place.path(), &args, 1, &["plan"]);
    }
    let other = models::artifact("gpt2", &["--tp", "2", "--seq", "32", "--batch", "4"]);
    std::fs::copy(other.join("plan.json"), place.path().join("plan.json")).unwrap();
    fails(place.path(), &args, 1, &["plan"]);
}
