//! model.json: the examples, writing and reading back, and everything that can be wrong with a file.

use pcc_frontend::{LoadOptions, Model, describe, export, load, schema};
use pcc_ir::eval::{Tensor, eval_entry};
use pcc_ir::source::{NoWeights, ReadParams};
use pcc_ir::{Diagnostic, Type};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name)
}

/// Loads with the capacities the file fixes.
fn load_as_is(path: &Path) -> Result<Model, Diagnostic> {
    let summary = describe(path)?;
    let rows = summary.rows.unwrap_or(2);
    load(path, &LoadOptions { batch_rows: rows, seq: summary.seq, weights: None, seed: 3 })
}

fn load_text(text: &str) -> Result<Model, Diagnostic> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.json");
    std::fs::write(&path, text).unwrap();
    load_as_is(&path)
}

/// Runs `forward` on one input.
fn run(model: &Model, input: &str, x: Tensor) -> Tensor {
    let read = |p: &pcc_ir::Param| {
        let slice: Vec<_> = p.ty.shape.iter().map(|&d| 0..d).collect();
        let mut values = vec![0f32; p.ty.elements()];
        NoWeights.read_param_slice(&p.source, &slice, &mut values).unwrap();
        Tensor::new(p.ty.clone(), values.into_iter().map(f64::from).collect()).unwrap()
    };
    let params: Vec<Tensor> = model.module.params.values().map(read).collect();
    let inputs = BTreeMap::from([(input.to_owned(), x)]);
    let entry = &model.module.entries[0];
    let mut outputs = eval_entry(&model.module, entry, &inputs, &params, &mut []).unwrap();
    outputs.pop_first().unwrap().1
}

#[test]
fn the_mlp_gives_probabilities() {
    let model = load_as_is(&example("mlp.json")).unwrap();
    assert_eq!(model.info.parameters, 20 * 48 + 48 + 48 * 10 + 10);
    let y = run(&model, "x", Tensor::from_fn(Type::f32([8, 20]), |i| (i as f64 * 0.7).sin()));
    assert_eq!(y.ty, Type::f32([8, 10]));
    for row in y.data.chunks(10) {
        assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-6);
    }
}

#[test]
fn the_transformer_is_causal() {
    let model = load_as_is(&example("transformer.json")).unwrap();
    assert_eq!(model.module.funcs.len(), 4, "the blocks are one function");
    let attention = 2 * (32 * 4 * 8) + 2 * (32 * 2 * 8);
    assert_eq!(model.info.parameters, 2 * 96 * 32 + 32 + 4 * (attention + 3 * 32 * 64 + 2 * 32));
    let tokens =
        |last: f64| Tensor::from_fn(Type::i32([2, 16]), |i| if i == 15 { last } else { (i * 7 % 96) as f64 });
    let (a, b) = (run(&model, "tokens", tokens(1.0)), run(&model, "tokens", tokens(2.0)));
    let differs = |i: usize| a.data[i * 96..(i + 1) * 96] != b.data[i * 96..(i + 1) * 96];
    let changed: Vec<usize> = (0..32).filter(|&i| differs(i)).collect();
    assert_eq!(changed, [15], "only the changed position of the first row sees the change");
}

#[test]
fn skip_connections_join_what_they_should() {
    let model = load_as_is(&example("skip.json")).unwrap();
    assert_eq!(model.info.parameters, 40 * 24 + 24 * 12 + 12 * 12 + 24 * 24 + 48 * 40);
    // All weights act through odd functions, and the skip adds x itself: y(-x) = -y(x), and y(0) = 0.
    let x = |sign: f64| Tensor::from_fn(Type::f32([6, 40]), |i| sign * (i as f64 * 0.3).cos());
    let (plus, minus) = (run(&model, "x", x(1.0)), run(&model, "x", x(-1.0)));
    assert!(plus.data.iter().zip(&minus.data).all(|(a, b)| (a + b).abs() < 1e-6));
    assert!(run(&model, "x", x(0.0)).data.iter().all(|&y| y == 0.0));
}

#[test]
fn every_kind_of_model_comes_back_equal() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut paths: Vec<PathBuf> = ["llama", "mistral", "qwen2", "qwen3", "gpt2", "bert"]
        .iter()
        .map(|n| data.join(format!("tiny-{n}")))
        .collect();
    paths.extend(["tiny-llama", "mlp.json", "skip.json", "transformer.json"].map(example));
    for path in paths {
        let model = load_as_is(&path).unwrap();
        let again = load_text(&export(&model).unwrap()).unwrap();
        // A model.json has every layer by itself.
        let model = model.unfolded().unwrap();
        assert_eq!(again.module, model.module, "{}", path.display());
        assert_eq!(again.checkpoint.is_some(), model.checkpoint.is_some());
        assert_eq!(again.max_seq, model.max_seq);
        let seq = again.info.seq;
        assert_eq!(again.info, pcc_ir::program::ModelInfo { seq, ..model.info });
    }
}

/// `y = (x + x) * w` in two instructions.
fn document() -> Value {
    json!({
        "pcc": 1, "name": "m",
        "params": [{"name": "w", "type": "f32[2,3]", "values": {"constant": 0.5}}],
        "functions": [{
            "name": "main",
            "args": [{"name": "x", "type": "f32[2,3]", "labels": ["batch", null]}, {"name": "w", "type": "f32[2,3]"}],
            "body": [
                {"op": "add", "in": ["x", "x"], "out": ["twice"]},
                {"op": "mul", "in": ["twice", "w"], "out": ["y"]},
            ],
            "results": ["y"],
        }],
        "entries": [{"name": "forward", "function": "main", "args": [{"input": "x"}, {"param": "w"}], "results": ["y"]}],
    })
}

#[test]
fn instructions_and_functions_come_in_any_order() {
    let model = load_text(&document().to_string()).unwrap();
    let x = Tensor::from_fn(Type::f32([2, 3]), |i| i as f64);
    assert_eq!(run(&model, "x", x.clone()).data, x.data, "2 x * 0.5");
    let mut shuffled = document();
    shuffled["functions"][0]["body"].as_array_mut().unwrap().reverse();
    assert_eq!(load_text(&shuffled.to_string()).unwrap().module, model.module);
}

#[test]
fn weights_are_found_listed_or_random() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny-gpt2/model.safetensors");
    let mut doc = document();
    doc["params"] = json!([{"name": "w", "type": "f32[19,12]", "values": {"tensor": "wte.weight"}}]);
    doc["functions"][0]["args"] =
        json!([{"name": "x", "type": "f32[19,12]"}, {"name": "w", "type": "f32[19,12]"}]);
    assert!(load_text(&doc.to_string()).unwrap().notices[0].contains("random"));
    doc["weights"] = json!(data.display().to_string());
    let model = load_text(&doc.to_string()).unwrap();
    assert!(model.notices[0].contains("not used"), "{:?}", model.notices);
    assert!(model.checkpoint.is_some());
    doc["params"][0]["values"] = json!({"tensor": "absent.weight"});
    assert!(load_text(&doc.to_string()).unwrap_err().to_string().contains("`absent.weight`"));
    doc["params"][0]["values"] = json!({"tensor": "wpe.weight"});
    assert!(load_text(&doc.to_string()).unwrap_err().to_string().contains("[16, 12]"));
}

/// The message after one change to the document.
fn refusal(change: impl FnOnce(&mut Value)) -> String {
    let mut doc = document();
    change(&mut doc);
    load_text(&doc.to_string()).expect_err(&doc.to_string()).to_string()
}

#[test]
fn wrong_graphs_are_refused_at_their_place() {
    fn body(doc: &mut Value) -> &mut Value {
        &mut doc["functions"][0]["body"]
    }
    let op = |op: Value| move |d: &mut Value| body(d)[1]["op"] = op;
    let cases: Vec<(String, &[&str])> = vec![
        (refusal(op(json!("mull"))), &["functions[0].body[1].op", "`mull` is no op", "`mul`"]),
        (refusal(op(json!({"dot_generl": {}}))), &["`dot_general`"]),
        (refusal(op(json!("reshape"))), &["needs attributes"]),
        (refusal(op(json!({"add": {}}))), &["no attributes"]),
        (refusal(op(json!({"softmax": {"dim": 0, "axis": 1}}))), &["body[1].op", "axis"]),
        (refusal(op(json!({"softmax": {"dim": 7}}))), &["functions[0].body[1]", "softmax"]),
        (refusal(op(json!({"reshape": [4, 4]}))), &["functions[0].body[1]", "reshape"]),
        (refusal(op(json!({"call": "mian"}))), &["body[1].op.call", "`main`"]),
        (refusal(op(json!({"call": "main"}))), &["circle", "`main`"]),
        (refusal(|d| body(d)[1]["in"] = json!(["twice"])), &["functions[0].body[1]", "mul"]),
        (refusal(|d| body(d)[1]["in"] = json!(["twise", "w"])), &["functions[0].body[1].in[0]", "`twice`"]),
        (refusal(|d| body(d)[1]["out"] = json!(["twice"])), &["defined twice", "body[1].out[0]", "body[0]"]),
        (refusal(|d| body(d)[1]["out"] = json!(["y", "z"])), &["functions[0].body[1]", "1 results"]),
        (refusal(|d| body(d)[0]["in"] = json!(["x", "y"])), &["circle", "`twice`", "`y`"]),
        (refusal(|d| d["functions"][0]["results"] = json!(["z"])), &["functions[0].results[0]"]),
        (
            refusal(|d| d["functions"][0]["args"][0]["type"] = json!("f32[3,2]")),
            &["body[1]", "f32[3,2]", "f32[2,3]"],
        ),
        (
            refusal(|d| d["functions"][0]["args"][0]["type"] = json!("f32[0,3]")),
            &["args[0].type", "dim of 0"],
        ),
        (
            refusal(|d| d["params"][0]["type"] = json!("f32[4294967296,4294967296]")),
            &["params[0].type", "2^60"],
        ),
        (
            refusal(|d| d["params"][0]["type"] = json!("f32[99999999999999999999]")),
            &["params[0].type", "no size"],
        ),
        (refusal(|d| d["params"][0]["type"] = json!("f33[2]")), &["params[0].type", "f32"]),
        (refusal(|d| d["params"][0]["type"] = json!("f32[3,2]")), &["entries[0].args[1]", "`w`"]),
        (refusal(|d| d["params"][0]["values"] = json!({"constants": 1})), &["params[0].values"]),
        (refusal(|d| d["functions"][0]["args"][0]["labels"] = json!(["batch"])), &["args[0].labels"]),
        (refusal(|d| d["entries"][0]["args"][1] = json!({"param": "v"})), &["entries[0].args[1]", "`w`"]),
        (refusal(|d| d["entries"][0]["args"] = json!([{"input": "x"}])), &["entries[0].args", "it has 2"]),
        (refusal(|d| d["entries"][0]["function"] = json!("mainn")), &["entries[0].function", "`main`"]),
        (refusal(|d| d["entries"] = json!([])), &["no entry"]),
        (refusal(|d| d["info"] = json!({"task": "causal_lm"})), &["info.task", "`forward`"]),
        (refusal(|d| d["pcc"] = json!(2)), &["version 2"]),
        (refusal(|d| d["name"] = Value::Null), &["name"]),
        (refusal(|d| d["extra"] = json!(1)), &["extra"]),
        (
            refusal(|d| {
                let again = d["functions"][0].clone();
                d["functions"].as_array_mut().unwrap().push(again);
            }),
            &["functions[1].name", "twice"],
        ),
    ];
    for (message, words) in cases {
        for word in words {
            assert!(message.contains(word), "no {word:?} in: {message}");
        }
    }
}

#[test]
fn hostile_files_end_in_a_message() {
    let nested = format!("{{\"pcc\": 1, \"functions\": {}", "[".repeat(1 << 20));
    assert!(load_text(&nested).unwrap_err().to_string().contains("recursion"));
    let text = document().to_string();
    for end in 0..text.len() {
        assert!(load_text(&text[..end]).is_err(), "truncated at {end}");
    }
    // Each function calls the one before twice: 2^40 instructions once all calls are followed.
    let mut doc = document();
    let functions = doc["functions"].as_array_mut().unwrap();
    functions[0]["name"] = json!("f0");
    for i in 1..40 {
        let call = |k: &str| json!({"op": {"call": format!("f{}", i - 1)}, "in": ["x", "w"], "out": [k]});
        let mut f = functions[0].clone();
        f["name"] = json!(format!("f{i}"));
        f["body"] = json!([call("y"), call("z")]);
        functions.push(f);
    }
    doc["entries"][0]["function"] = json!("f39");
    assert!(load_text(&doc.to_string()).unwrap_err().to_string().contains("too far"));
}

#[test]
fn sizes_fixed_in_the_file_are_kept() {
    let path = example("mlp.json");
    let options = LoadOptions { batch_rows: 3, seq: None, weights: None, seed: 0 };
    assert!(load(&path, &options).unwrap_err().to_string().contains("has 8, not 3"));
}

#[test]
fn the_schema_names_every_field() {
    let text = schema().to_string();
    for word in [
        "\"dot_general\"",
        "\"functions\"",
        "\"lhs_contract\"",
        "\"gelu_tanh\"",
        "\"file_shape\"",
        "f32[2,3]",
    ] {
        assert!(text.contains(word), "{word}");
    }
}

/// Pseudo-random numbers: the tests need many different changes, not good ones.
struct Changes(u64);

impl Changes {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    /// Puts something else at a random place of the tree.
    fn change(&mut self, v: &mut Value) {
        let inside = match v {
            Value::Array(list) if !list.is_empty() => {
                let i = self.below(list.len());
                list.get_mut(i)
            }
            Value::Object(fields) if !fields.is_empty() => {
                let i = self.below(fields.len());
                fields.values_mut().nth(i)
            }
            _ => None,
        };
        match inside {
            Some(inside) if self.below(12) > 0 => self.change(inside),
            _ => {
                let others = [
                    json!(0),
                    json!(1),
                    json!(-1),
                    json!(7),
                    json!(u64::MAX),
                    json!(1u64 << 40),
                    json!(1e308),
                    json!(null),
                    json!(true),
                    json!(""),
                    json!("x"),
                    json!("f32[1]"),
                    json!("i32[2,16]"),
                    json!([]),
                    json!({}),
                    json!([0, 0]),
                    json!([9]),
                    json!("nan"),
                ];
                *v = others[self.below(others.len())].clone();
            }
        }
    }
}

#[test]
fn changed_files_load_or_end_in_a_message() {
    let mut changes = Changes(1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.json");
    let mut loaded = 0;
    for name in ["mlp.json", "transformer.json", "skip.json"] {
        let original: Value = serde_json::from_str(&std::fs::read_to_string(example(name)).unwrap()).unwrap();
        for _ in 0..600 {
            let mut doc = original.clone();
            changes.change(&mut doc);
            std::fs::write(&path, doc.to_string()).unwrap();
            loaded += usize::from(load_as_is(&path).is_ok());
        }
    }
    assert!(loaded > 0, "some changes are harmless");
}
