//! Checkpoints that do and do not belong to a config, made from tests/data/tiny-llama and tiny-gpt2.

use pcc_frontend::{LoadOptions, Model, load};
use pcc_ir::Diagnostic;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize_to_file};
use std::collections::BTreeMap;
use std::path::Path;

/// Type, shape and bytes of each tensor.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// Loads a copy of a tiny model whose tensors were changed.
fn with_tensors(model: &str, change: impl FnOnce(&mut Tensors)) -> Result<Model, Diagnostic> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(model);
    let bytes = std::fs::read(data.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let copy = |(n, t): (String, TensorView)| (n, (t.dtype(), t.shape().to_vec(), t.data().to_vec()));
    let mut tensors: Tensors = file.tensors().into_iter().map(copy).collect();
    change(&mut tensors);
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(data.join("config.json"), folder.path().join("config.json")).unwrap();
    let views: Vec<(String, TensorView)> = tensors
        .iter()
        .map(|(n, (d, s, b))| (n.clone(), TensorView::new(*d, s.clone(), b).unwrap()))
        .collect();
    serialize_to_file(views, None, &folder.path().join("model.safetensors")).unwrap();
    load(folder.path(), &LoadOptions { batch_rows: 1, seq: None, weights: None, seed: 0 })
}

/// Adds an F16 tensor of zeros.
fn add(tensors: &mut Tensors, name: &str, shape: &[usize]) {
    let bytes = vec![0; 2 * shape.iter().product::<usize>()];
    tensors.insert(name.into(), (Dtype::F16, shape.to_vec(), bytes));
}

#[test]
fn everything_that_does_not_fit_is_in_one_message() {
    let message = with_tensors("tiny-llama", |t| {
        t.remove("model.layers.1.mlp.up_proj.weight");
        t.remove("model.norm.weight");
        add(t, "model.layers.0.self_attn.q_proj.bias", &[7]);
        add(t, "model.layers.0.mlp.router.weight", &[8, 12]);
        if let Some(norm) = t.get_mut("model.layers.0.input_layernorm.weight") {
            norm.0 = Dtype::I16;
        }
    })
    .unwrap_err()
    .to_string();
    for word in [
        "2 missing",
        "`model.layers.1.mlp.up_proj.weight`",
        "`model.norm.weight`",
        "`model.layers.0.self_attn.q_proj.bias` has shape [7] where [48] is needed",
        "`model.layers.0.input_layernorm.weight` has the unsupported element type I16",
        "1 unknown",
        "layers.0.mlp.router.weight",
    ] {
        assert!(message.contains(word), "no {word:?} in: {message}");
    }
}

#[test]
fn names_with_and_without_the_prefix_and_harmless_extras_are_accepted() {
    let model = with_tensors("tiny-llama", |t| {
        *t = std::mem::take(t)
            .into_iter()
            .map(|(n, v)| (n.strip_prefix("model.").map(str::to_owned).unwrap_or(n), v))
            .collect();
        add(t, "layers.0.self_attn.rotary_emb.inv_freq", &[4]);
    });
    assert!(model.unwrap().notices.is_empty());
    let model = with_tensors("tiny-gpt2", |t| {
        *t = std::mem::take(t).into_iter().map(|(n, v)| (format!("transformer.{n}"), v)).collect();
        add(t, "lm_head.weight", &[19, 12]);
        add(t, "transformer.h.1.attn.masked_bias", &[1]);
    });
    assert_eq!(model.unwrap().info.parameters, 19 * 12 + 16 * 12 + 2 * (12 * 12 * 12 + 13 * 12) + 2 * 12);
}

#[test]
fn one_parameter_under_two_names_is_refused() {
    let message =
        with_tensors("tiny-gpt2", |t| add(t, "transformer.wte.weight", &[19, 12])).unwrap_err().to_string();
    assert!(
        message.contains("`transformer.wte.weight` and `wte.weight`") || message.contains("`wte.weight` and"),
        "{message}"
    );
}

#[test]
fn weights_of_another_model_are_refused() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let weights = Some(data.join("tiny-gpt2"));
    let options = LoadOptions { batch_rows: 1, seq: None, weights, seed: 0 };
    let message = load(&data.join("tiny-llama/config.json"), &options).unwrap_err().to_string();
    assert!(message.contains("not of this model") && message.contains("35 missing"), "{message}");
}
