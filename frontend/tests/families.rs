//! Parameter totals of published models, and what is refused.
//!
//! The configs are written here from the published sizes; the totals are those of the model classes in
//! transformers 5.24.

use pcc_frontend::{LoadOptions, describe, load};
use pcc_ir::program::Task;
use serde_json::{Value, json};
use std::path::PathBuf;

/// A config in a file of its own, removed with the folder.
fn written(config: &Value) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    (folder, path)
}

fn options(seq: usize) -> LoadOptions {
    LoadOptions { batch_rows: 1, seq: Some(seq), weights: None, seed: 0 }
}

#[allow(clippy::too_many_arguments)]
fn llama(
    model_type: &str,
    hidden: usize,
    layers: usize,
    heads: [usize; 2],
    ffn: usize,
    vocab: usize,
    tied: bool,
) -> Value {
    json!({
        "model_type": model_type, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1], "intermediate_size": ffn, "vocab_size": vocab, "tie_word_embeddings": tied,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    })
}

fn with(mut config: Value, field: &str, value: Value) -> Value {
    config[field] = value;
    config
}

fn gpt2(hidden: usize, layers: usize, heads: usize) -> Value {
    json!({
        "model_type": "gpt2", "n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": 1024, "n_ctx": 1024,
        "vocab_size": 50257, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    })
}

fn bert(class: &str, hidden: usize, layers: usize, heads: usize) -> Value {
    json!({
        "model_type": "bert", "architectures": [class], "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "intermediate_size": 4 * hidden, "vocab_size": 30522, "hidden_act": "gelu",
        "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
    })
}

fn phi3(hidden: usize, heads: [usize; 2], ffn: usize, vocab: usize) -> Value {
    let layers = if hidden == 3072 { 32 } else { 40 };
    llama("phi3", hidden, layers, heads, ffn, vocab, false)
}

fn gemma2() -> Value {
    json!({
        "model_type": "gemma2", "hidden_size": 4608, "num_hidden_layers": 46, "num_attention_heads": 32,
        "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 36864, "vocab_size": 256_000,
        "query_pre_attn_scalar": 144, "sliding_window": 256, "max_position_embeddings": 8192,
    })
}

fn gpt_neox() -> Value {
    json!({
        "model_type": "gpt_neox", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 8,
        "intermediate_size": 8192, "vocab_size": 50304, "rotary_pct": 0.25,
    })
}

fn opt() -> Value {
    json!({
        "model_type": "opt", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "ffn_dim": 16384,
        "vocab_size": 50272, "word_embed_proj_dim": 4096, "prefix": "</s>",
    })
}

fn bloom() -> Value {
    json!({
        "model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250_880,
        "offset_alibi": 100,
    })
}

fn falcon() -> Value {
    json!({
        "model_type": "falcon", "hidden_size": 4544, "n_layer": 32, "n_head": 71, "vocab_size": 65024,
        "multi_query": true, "max_seq_len": 2048,
    })
}

#[test]
fn published_parameter_totals() {
    let llama3 = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    let big = with(llama("llama", 16384, 126, [128, 8], 53248, 128_256, false), "rope_scaling", llama3);
    let qwen3 = with(llama("qwen3", 5120, 64, [64, 8], 25600, 151_936, false), "head_dim", json!(128));
    for (config, layers, total) in [
        (llama("llama", 4096, 32, [32, 32], 11008, 32000, false), 32, 6_738_415_616), // Llama 2 7B
        (llama("llama", 5120, 40, [40, 40], 13824, 32000, false), 40, 13_015_864_320), // Llama 2 13B
        (llama("llama", 8192, 80, [64, 8], 28672, 32000, false), 80, 68_976_648_192), // Llama 2 70B
        (llama("llama", 4096, 32, [32, 8], 14336, 128_256, false), 32, 8_030_261_248), // Llama 3 8B
        (llama("llama", 8192, 80, [64, 8], 28672, 128_256, false), 80, 70_553_706_496), // Llama 3.1 70B
        (big, 126, 405_853_388_800),                                                  // Llama 3.1 405B
        (llama("llama", 2048, 16, [32, 8], 8192, 128_256, true), 16, 1_235_814_400),  // Llama 3.2 1B
        (llama("llama", 576, 30, [9, 3], 1536, 49152, true), 30, 134_515_008),        // SmolLM2 135M
        (llama("mistral", 4096, 32, [32, 8], 14336, 32000, false), 32, 7_241_732_096), // Mistral 7B
        (llama("qwen2", 1536, 28, [12, 2], 8960, 151_936, true), 28, 1_543_714_304),  // Qwen2 1.5B
        (llama("qwen2", 3584, 28, [28, 4], 18944, 152_064, false), 28, 7_615_616_512), // Qwen2.5 7B
        (llama("qwen2", 5120, 64, [40, 8], 27648, 152_064, false), 64, 32_763_876_352), // Qwen2.5 32B
        (qwen3, 64, 32_762_123_264),                                                  // Qwen3 32B
        (gpt2(768, 12, 12), 12, 124_439_808),                                         // GPT-2
        (gpt2(1024, 24, 16), 24, 354_823_168),                                        // GPT-2 medium
        (gpt2(1280, 36, 20), 36, 774_030_080),                                        // GPT-2 large
        (phi3(3072, [32, 32], 8192, 32064), 32, 3_821_079_552),                       // Phi-3.5 mini
        (phi3(5120, [40, 10], 17920, 100_352), 40, 14_659_507_200),                   // Phi-4
        (gemma2(), 46, 27_227_128_320),                                               // Gemma 2 27B
        (gpt_neox(), 16, 1_011_781_632),                                              // Pythia 1B
        (opt(), 32, 6_658_473_984),                                                   // OPT 6.7B
        (bloom(), 70, 176_247_271_424),                                               // BLOOM
        (falcon(), 32, 6_921_720_704),                                                // Falcon 7B
        (bert("BertForMaskedLM", 768, 12, 12), 12, 109_514_298),                      // BERT base
        (bert("BertModel", 384, 6, 12), 6, 22_713_216),                               // all-MiniLM-L6
    ] {
        let (_folder, path) = written(&config);
        let summary = describe(&path).unwrap();
        let model = load(&path, &options(512)).unwrap();
        assert_eq!(model.info.parameters, total, "{config}");
        assert_eq!((model.info.layers, summary.layers), (layers, layers));
        assert_eq!(model.notices.len(), 1, "random weights are said");
        let entries: Vec<&str> = model.module.entries.iter().map(|e| e.name.as_str()).collect();
        match model.info.task {
            Task::Encoder => assert_eq!(entries, ["forward"]),
            _ => assert_eq!(entries, ["forward", "prefill", "decode"]),
        }
        // One function for all layers, two where windows alternate: embed, layer, head and the entry itself.
        let kinds = if config["model_type"] == "gemma2" { 2 } else { 1 };
        assert!(model.module.funcs.len() <= (3 + kinds) * entries.len(), "{config}");
    }
}

/// The message for a config.
fn refusal(config: &Value) -> String {
    let (_folder, path) = written(config);
    load(&path, &options(8)).unwrap_err().to_string()
}

fn tiny() -> Value {
    llama("llama", 8, 1, [2, 1], 16, 11, false)
}

#[test]
fn unknown_models_and_fields_are_refused_by_name() {
    let mixtral = refusal(&with(tiny(), "model_type", json!("mixtral")));
    assert!(
        mixtral.contains("`mixtral`")
            && mixtral.contains(
                "bert, bloom, falcon, gemma2, gpt2, gpt_neox, llama, mistral, opt, phi3, qwen2, qwen3"
            ),
        "{mixtral}"
    );
    for (field, value) in [
        ("quantization_config", json!({"quant_method": "fp8"})),
        ("attention_multiplier", json!(0.5)),
        ("num_local_experts", json!(8)),
        ("architectures", json!(["LlamaForSequenceClassification"])),
        ("hidden_act", json!("xielu")),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0})),
        ("rope_interleaved", json!(true)),
        ("num_key_value_heads", json!(3)),
        ("num_hidden_layers", json!(0)),
        ("hidden_size", json!(1u64 << 40)),
        ("rms_norm_eps", json!(-1.0)),
        ("rms_norm_eps", json!(1e308)),
        ("rms_norm_eps", json!(1e-320)),
        ("rope_divisors", json!([1.0, 2.0])),
    ] {
        let message = refusal(&with(tiny(), field, value));
        let key = if field == "rope_scaling" { "rope_scaling.rope_type" } else { field };
        assert!(message.contains(&format!("`{key}`")), "{field}: {message}");
    }
    let scaled = json!({"rope_type": "linear", "factor": 2.0, "mscale": 0.7});
    assert!(refusal(&with(tiny(), "rope_scaling", scaled)).contains("`rope_scaling.mscale`"));
    assert!(refusal(&json!({"model_type": "llama"})).contains("`hidden_size` is missing"));
    assert!(
        refusal(&with(bert("BertModel", 12, 1, 3), "position_embedding_type", json!("relative_key")))
            .contains("relative_key")
    );
    assert!(
        refusal(&with(gpt2(12, 1, 3), "scale_attn_by_inverse_layer_idx", json!(true))).contains("inverse")
    );
}

/// What the classes cannot run, or run as another function.
#[test]
fn fields_of_the_families_are_refused_by_name() {
    let scaling = |kind: &str| json!({"type": kind, "short_factor": [1.0], "long_factor": [2.0]});
    let short = with(phi3(64, [8, 8], 8, 11), "rope_scaling", scaling("longrope"));
    for (config, field, value) in [
        (gemma2(), "use_bidirectional_attention", json!(true)),
        (gemma2(), "layer_types", json!(["full_attention"])),
        (gemma2(), "attn_logit_softcapping", json!(0)),
        (gemma2(), "hidden_activation", json!("mish")),
        (gpt_neox(), "rotary_pct", json!(0.001)),
        (gpt_neox(), "is_decoder", json!(true)),
        (opt(), "layer_norm_elementwise_affine", json!(false)),
        (opt(), "num_attention_heads", json!(31)),
        (bloom(), "apply_residual_connection_post_layernorm", json!(true)),
        (bloom(), "n_inner", json!(1000)),
        (with(bloom(), "n_embed", json!(1u64 << 31)), "num_attention_heads", json!(1u64 << 31)),
        (bloom(), "num_hidden_layers", json!(71)),
        (falcon(), "num_ln_in_parallel_attn", json!(2)),
        (falcon(), "rope_scaling", scaling("yarn")),
        (with(falcon(), "new_decoder_architecture", json!(true)), "parallel_attn", json!(false)),
        (with(falcon(), "new_decoder_architecture", json!(true)), "num_kv_heads", json!(8)),
        (phi3(64, [8, 8], 8, 11), "attention_bias", json!(true)),
        (phi3(64, [8, 8], 8, 11), "rope_scaling", json!({"rope_type": "linear", "factor": 2.0})),
        (phi3(64, [8, 8], 8, 11), "partial_rotary_factor", json!(1.5)),
        (short.clone(), "original_max_position_embeddings", json!(64)),
        (short, "original_max_position_embeddings", Value::Null),
    ] {
        let message = refusal(&with(config, field, value.clone()));
        let key = match (field, value.is_null(), message.contains("`rope_scaling.")) {
            ("original_max_position_embeddings", false, true) => "rope_scaling.short_factor",
            ("rope_scaling", _, true) if message.contains(".type`") => "rope_scaling.type",
            ("rope_scaling", _, true) => "rope_scaling.rope_type",
            _ => field,
        };
        assert!(message.contains(&format!("`{key}`")), "{field}: {message}");
    }
}

#[test]
fn harmless_fields_are_accepted() {
    let mut config = tiny();
    for (field, value) in [
        ("sequence_parallel_enabled", json!(true)),
        ("selective_checkpoint_enabled", json!(false)),
        ("pretraining_tp", json!(2)),
        ("some_switch_of_a_later_release", json!(false)),
        ("another", Value::Null),
        ("torch_dtype", json!("bfloat16")),
        ("rope_scaling", json!({"type": "linear", "factor": 2.0})),
        ("eos_token_id", json!([3, 5])),
    ] {
        config[field] = value;
    }
    let (_folder, path) = written(&config);
    assert_eq!(load(&path, &options(8)).unwrap().info.eos, [3, 5]);
}

#[test]
fn sizes_that_overflow_or_do_not_fit_are_refused() {
    let huge = json!(1u64 << 31);
    let mut config = tiny();
    for field in ["vocab_size", "hidden_size", "intermediate_size"] {
        config[field] = huge.clone();
    }
    assert!(refusal(&config).contains("too large"), "{}", refusal(&config));
    assert!(refusal(&with(tiny(), "num_hidden_layers", json!(1_000_000_000))).contains("layers"));
    let (_folder, path) = written(&tiny());
    let long = load(&path, &options(4096)).unwrap_err().to_string();
    assert!(long.contains("1 to 2048"), "{long}");
    let rows = LoadOptions { batch_rows: usize::MAX, ..options(8) };
    assert!(load(&path, &rows).unwrap_err().to_string().contains("too large"));
}

#[test]
fn malformed_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    for (bytes, word) in [
        (b"{\"model_type\": \"lla".to_vec(), "too early"),
        (b"{\"model_type\": \"llama\", \"model_type\": \"gpt2\"}".to_vec(), "twice"),
        (b"{\"model_type\": \"\xff\xfe\"}".to_vec(), "UTF-8"),
        ("[".repeat(100_000).into_bytes(), "recursion"),
        (b"[1, 2]".to_vec(), "neither"),
        (Vec::new(), "too early"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let message = load(&path, &options(8)).unwrap_err().to_string();
        assert!(message.contains(word), "{word}: {message}");
    }
    std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    assert!(load(&path, &options(8)).unwrap_err().to_string().contains("too large"));
    assert!(
        load(&folder.path().join("none.json"), &options(8))
            .unwrap_err()
            .to_string()
            .contains("no such model")
    );
}
