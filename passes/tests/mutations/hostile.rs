//! An artifact is checked as it was read, so anything may stand in it: every number, list and word of the levels is changed in turn,
//! and the checker answers each time, without a panic.

use super::{check, models};
use pcc_ir::Mesh;
use pcc_passes::driver::Compiled;
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Paths of everything inside a JSON value.
fn paths(value: &Value, at: &mut Vec<String>, found: &mut Vec<String>) {
    found.push(at.iter().map(|p| format!("/{p}")).collect());
    let children: Vec<(String, &Value)> = match value {
        Value::Array(a) => a.iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect(),
        Value::Object(o) => o.iter().map(|(k, v)| (k.clone(), v)).collect(),
        _ => vec![],
    };
    for (key, child) in children {
        at.push(key);
        paths(child, at, found);
        at.pop();
    }
}

/// The `k`-th way to spoil a value; `None` when there are no more.
fn spoiled(value: &Value, k: usize) -> Option<Value> {
    match value {
        Value::Number(n) => {
            let n = n.as_i64().unwrap_or(0);
            let others = [0, 1, n + 1, n - 1, n * 2, 7, 1 << 31, (1 << 32) - 2, 1 << 40, i64::MAX, -1];
            others.get(k).map(|&n| n.into()).or((k == others.len()).then(|| u64::MAX.into()))
        }
        Value::Array(a) => match k {
            0 => Some(Value::Array(vec![])),
            1 if !a.is_empty() => Some(Value::Array(a[1..].to_vec())),
            2 if !a.is_empty() => Some(Value::Array([&a[..], &a[a.len() - 1..]].concat())),
            3 if a.len() > 1 => Some(Value::Array(a.iter().rev().cloned().collect())),
            _ => None,
        },
        Value::Object(o) if k == 0 && !o.is_empty() => {
            Some(Value::Object(o.iter().skip(1).map(|(k, v)| (k.clone(), v.clone())).collect()))
        }
        Value::String(_) => (k == 0).then(|| "max".into()),
        _ => None,
    }
}

#[derive(Clone, Copy)]
enum Level {
    Graph,
    Sharded,
    Local,
    Program,
}

impl Level {
    fn of(self, c: &Compiled) -> Value {
        let json = match self {
            Level::Graph => serde_json::to_value(&c.graph),
            Level::Sharded => serde_json::to_value(&c.sharded),
            Level::Local => serde_json::to_value(&c.local),
            Level::Program => serde_json::to_value(&c.program),
        };
        json.unwrap_or_else(|e| panic!("{e}"))
    }

    /// The compile with this level replaced, if the JSON still is one.
    fn with(self, c: &Compiled, json: Value) -> Option<Compiled> {
        let mut c = c.clone();
        match self {
            Level::Graph => c.graph = serde_json::from_value(json).ok()?,
            Level::Sharded => c.sharded = serde_json::from_value(json).ok()?,
            Level::Local => c.local = serde_json::from_value(json).ok()?,
            Level::Program => c.program = serde_json::from_value(json).ok()?,
        }
        Some(c)
    }
}

#[test]
fn no_content_of_the_levels_makes_the_checker_panic() {
    let mesh = Mesh { tp: 4, pp: 2, ..Mesh::default() };
    let c = models::compiled(models::llama(2, 8, true), mesh, 2, false);
    let (mut tried, mut panics) = (0, vec![]);
    let stride = std::env::var("HOSTILE_STRIDE").ok().and_then(|s| s.parse().ok()).unwrap_or(97);
    for level in [Level::Graph, Level::Sharded, Level::Local, Level::Program] {
        let json = level.of(&c);
        let mut found = vec![];
        paths(&json, &mut vec![], &mut found);
        let all = found.iter().flat_map(|p| (0..12).map(move |k| (p, k)));
        for (path, k) in all.step_by(stride) {
            let mut changed = json.clone();
            let Some(place) = changed.pointer_mut(path) else { continue };
            let Some(other) = spoiled(place, k) else { continue };
            *place = other;
            let Some(mutant) = level.with(&c, changed) else { continue };
            tried += 1;
            if catch_unwind(AssertUnwindSafe(|| check(&mutant).is_ok())).is_err() {
                panics.push(format!("{path} way {k}"));
            }
        }
    }
    assert!(tried > 300, "only {tried}");
    assert!(panics.is_empty(), "{} of {tried} panic:\n{}", panics.len(), panics.join("\n"));
}
