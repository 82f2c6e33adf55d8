//! The static checker catches every mutation: each kind below is applied wherever it can be in several compiled models, and each mutant
//! must be refused with a message that names a value it concerns.

mod hostile;
mod instrs;
mod local;
mod models;
mod once;
mod repeats;
mod selection;
mod sharded;
mod steps;

use models::{compiled, folded_llama, gpt2, llama, mlp};
use pcc_ir::Mesh;
use pcc_passes::driver::Compiled;
use pcc_passes::verify::{self, CheckInput};
use std::collections::BTreeMap;

/// A compile with one thing changed, and the names of which a message must contain one.
pub struct Mutant {
    pub compiled: Compiled,
    pub names: Vec<String>,
}

/// A kind of mutation: makes the mutant of each place where it applies.
pub type Kind = (&'static str, fn(&Compiled) -> Vec<Mutant>);

fn models() -> Vec<(&'static str, Compiled)> {
    let mesh = |tp, pp, dp| Mesh { tp, pp, dp, ..Mesh::default() };
    vec![
        ("mlp tp 4 pp 2", compiled(mlp(5), mesh(4, 2, 1), 5, false)),
        ("llama tp 4 pp 2", compiled(llama(2, 8, true), mesh(4, 2, 1), 2, false)),
        ("llama tp 8 pp 3 dp 2", compiled(llama(4, 8, true), mesh(8, 3, 2), 4, false)),
        ("llama tp 4 sp", compiled(llama(2, 6, false), mesh(4, 1, 1), 2, true)),
        ("folded llama tp 2", compiled(folded_llama(2, 6, 8), mesh(2, 1, 1), 2, false)),
        ("folded llama tp 2 pp 3", compiled(folded_llama(2, 6, 8), mesh(2, 3, 1), 2, false)),
        ("gpt2 tp 3 pp 2 dp 2", compiled(gpt2(4, 6), mesh(3, 2, 2), 4, false)),
        ("router tp 2", compiled(selection::router(5), mesh(2, 1, 1), 5, false)),
        ("router tp 4 dp 2", compiled(selection::router(6), mesh(4, 1, 2), 5, false)),
    ]
}

fn check(c: &Compiled) -> Result<verify::Summary, pcc_ir::Diagnostic> {
    let input = CheckInput { graph: &c.graph, sharded: &c.sharded, local: &c.local, program: &c.program };
    verify::check(&input)
}

#[test]
fn every_mutation_is_caught_and_named() {
    let kinds: Vec<Kind> = [
        local::KINDS,
        sharded::KINDS,
        steps::KINDS,
        instrs::KINDS,
        once::KINDS,
        repeats::KINDS,
        selection::KINDS,
    ]
    .into_iter()
    .flatten()
    .copied()
    .collect();
    assert!(kinds.len() >= 25, "only {} kinds", kinds.len());
    let mut caught: BTreeMap<&str, usize> = BTreeMap::new();
    let mut failures = Vec::new();
    for (model, c) in models() {
        let summary = check(&c).unwrap_or_else(|d| panic!("{model}: {d}"));
        assert!(summary.values > 10 && summary.functions > 1, "{model}: {summary:?}");
        for &(kind, mutate) in &kinds {
            for (i, mutant) in mutate(&c).into_iter().enumerate() {
                match check(&mutant.compiled) {
                    Ok(_) => {
                        let some = &mutant.names[..mutant.names.len().min(4)];
                        failures.push(format!("{model}: {kind} {i} ({some:?}) is not caught"));
                    }
                    Err(d) => {
                        let text = d.to_string();
                        if !mutant.names.iter().any(|n| names(&text, n)) {
                            let some = &mutant.names[..mutant.names.len().min(4)];
                            failures.push(format!("{model}: {kind} {i} names none of {some:?}..: {text}"));
                        }
                        if std::env::var_os("SHOW_MUTATIONS").is_some() && i == 0 {
                            println!("{model}: {kind}: {text}");
                        }
                        *caught.entry(kind).or_default() += 1;
                    }
                }
            }
        }
    }
    println!("{caught:#?}");
    assert!(failures.is_empty(), "{} mutants:\n{}", failures.len(), failures.join("\n"));
    for (kind, _) in kinds {
        assert!(caught.get(kind).is_some_and(|&n| n > 0), "{kind} applied nowhere");
    }
}

/// Whether a text names something: as a whole word, so that v1 is not v12.
fn names(text: &str, name: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(name).any(|(at, _)| {
        let after = text[at + name.len()..].chars().next();
        !text[..at].chars().next_back().is_some_and(word) && !after.is_some_and(word)
    })
}
