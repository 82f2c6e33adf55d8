//! Models that draw their tokens: what the families become, and what is refused.

use pcc_frontend::{LoadOptions, Model, load};
use pcc_ir::eval::{Tensor, eval_entry};
use pcc_ir::graph::Role;
use pcc_ir::ops::{Op, Sample};
use pcc_ir::{Entry, Type, verifier};
use std::collections::BTreeMap;

const FAMILIES: [&str; 5] = ["tiny-llama", "tiny-gpt2", "tiny-mistral", "tiny-qwen2", "tiny-qwen3"];

fn loaded(family: &str) -> Model {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{family}"));
    load(&path, &LoadOptions { batch_rows: 2, seq: Some(6), weights: None, seed: 3 }).unwrap()
}

fn entry(model: &Model, name: &str) -> Entry {
    model.module.entries.iter().find(|e| e.name == name).unwrap().clone()
}

fn inputs(model: &Model, name: &str) -> BTreeMap<String, Tensor> {
    let entry = entry(model, name);
    let f = &model.module.funcs[entry.func];
    let mut inputs = BTreeMap::new();
    for (&v, role) in f.args.iter().zip(&entry.args) {
        let Role::Input(input) = role else { continue };
        let value = |i: usize| match input.as_str() {
            "lengths" => [3.0, 6.0][i],
            "positions" => [3.0, 5.0][i],
            // Greedy, and a draw among four.
            "settings" => [0.0, 1.0, 2.0, 1.0][i],
            "key" => [0.0, 0.0, 0.0, 0.0, 4.0, 9.0, 1.0, 2.0][i],
            _ => (i % 7) as f64,
        };
        inputs.insert(input.clone(), Tensor::from_fn(f.ty(v).clone(), value));
    }
    inputs
}

/// What an entry gives, with parameters that are the same numbers for every model.
fn run(model: &Model, name: &str, inputs: &BTreeMap<String, Tensor>) -> BTreeMap<String, Tensor> {
    let value = |i: usize| ((i * 37 + 11) % 101) as f64 / 50.0 - 1.0;
    let params: Vec<_> = model.module.params.values().map(|p| Tensor::from_fn(p.ty.clone(), value)).collect();
    let mut states: Vec<_> = model.module.states.values().map(|s| Tensor::zeros(s.ty.clone())).collect();
    let taken = entry(model, name);
    let own =
        inputs.iter().filter(|(n, _)| taken.args.iter().any(|r| matches!(r, Role::Input(i) if i == *n)));
    let own = own.map(|(n, t)| (n.clone(), t.clone())).collect();
    eval_entry(&model.module, &taken, &own, &params, &mut states).unwrap()
}

#[test]
fn families_give_the_token_of_their_logits() {
    for family in FAMILIES {
        let before = loaded(family).unfolded().unwrap();
        assert!(before.can_draw_tokens());
        let folded = loaded(family).draw_tokens().unwrap();
        verifier::verify(&folded.module).unwrap();
        let text = folded.module.to_string();
        assert_eq!(pcc_ir::text::parse(&text).unwrap(), folded.module, "what is emitted reads back");
        let after = loaded(family).draw_tokens().unwrap().unfolded().unwrap();
        for name in ["prefill", "decode"] {
            let (old, new) = (entry(&before, name), entry(&after, name));
            let calls = |m: &Model, e: &Entry| m.module.funcs[e.func].insts.len();
            assert_eq!(calls(&before, &old), calls(&after, &new), "{family}: the head draws");
            assert_eq!((old.aliases.len(), old.results.len()), (new.aliases.len(), new.results.len()));
            let inputs = inputs(&after, name);
            let (logits, out) = (run(&before, name, &inputs)["logits"].clone(), run(&after, name, &inputs));
            assert!(!out.contains_key("logits"));
            let operands = [&logits, &inputs["settings"], &inputs["key"]];
            let want = Op::Sample(Sample {}).eval(&operands, &[&Type::i32([2])], Default::default()).unwrap();
            assert_eq!(out["token"], want[0], "{family}, {name}");
        }
        assert!(entry(&after, "forward").results.contains(&"logits".to_owned()), "{family}");
    }
}

#[test]
fn names_that_are_taken_are_refused() {
    let renamed = |change: &dyn Fn(&mut Entry)| {
        let mut model = loaded(FAMILIES[0]);
        let prefill = model.module.entries.iter_mut().find(|e| e.name == "prefill").unwrap();
        change(prefill);
        model.draw_tokens().unwrap_err().to_string()
    };
    let input = renamed(&|e| {
        let lengths = e.args.iter_mut().find(|r| matches!(r, Role::Input(n) if n == "lengths")).unwrap();
        *lengths = Role::Input("settings".to_owned());
    });
    assert!(input.contains("an input has a name"), "{input}");
    let output = renamed(&|e| "token".clone_into(e.results.last_mut().unwrap()));
    assert!(output.contains("`token`"), "{output}");
}

/// An entry whose function, or whose head, another entry has too leaves that as it is.
#[test]
fn what_others_run_stays() {
    let mut model = loaded(FAMILIES[0]);
    let mut twin = entry(&model, "prefill");
    "twin".clone_into(&mut twin.name);
    model.module.entries.push(twin);
    let before = model.module.to_string();
    let after = model.draw_tokens().unwrap();
    verifier::verify(&after.module).unwrap();
    let old = pcc_ir::text::parse(&before).unwrap();
    let kept = |m: &pcc_ir::Module| {
        let twin = m.entries.iter().find(|e| e.name == "twin").unwrap();
        (twin.results.clone(), m.funcs[twin.func].results.len(), m.funcs[twin.func].args.len())
    };
    assert_eq!(kept(&old), kept(&after.module));
    assert!(entry(&after, "prefill").results.contains(&"token".to_owned()));
}
