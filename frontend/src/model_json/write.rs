//! Writes a graph-level module as model.json.

use super::VERSION;
use super::attribute::TypeText;
use super::document::{
    ArgJson, Document, EntryJson, FuncJson, InfoJson, InstJson, LabelName, ParamJson, ResultJson, RoleJson,
    StateJson, TaskName, ValuesJson,
};
use super::op::OpJson;
use super::read::{check_name, is_number};
use crate::Model;
use crate::canonical::renumber;
use pcc_ir::graph::{Entry, Label, Role};
use pcc_ir::program::Task;
use pcc_ir::source::Values;
use pcc_ir::{Diagnostic, Func, Module, Param, ValueId};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::path::Path;

/// The text of a model.json that loads back to an equal module, every layer by itself. Its weights and tokenizer are named by absolute
/// paths.
///
/// # Errors
/// A module of another level than the graph's.
pub fn export(model: &Model) -> Result<String, Diagnostic> {
    let mut module = model.module.expanded()?;
    if let Cow::Owned(unfolded) = &mut module {
        // Values without a name are written by number, and a module that is loaded has them numbered so.
        unfolded.funcs.values_mut().for_each(renumber);
    }
    let module = &*module;
    let document = Document {
        pcc: VERSION,
        name: module.name.clone(),
        info: Some(info(model)),
        weights: model.checkpoint.as_ref().map(|c| absolute(c.path())),
        params: module.params.values().map(param).collect(),
        states: module
            .states
            .values()
            .map(|s| StateJson { name: s.name.clone(), ty: TypeText(s.ty.clone()) })
            .collect(),
        functions: module.funcs.values().map(|f| function(f, module)).collect::<Result<_, _>>()?,
        entries: module.entries.iter().map(|e| entry(e, module)).collect(),
    };
    let value = serde_json::to_value(&document)
        .map_err(|e| Diagnostic::internal("a model cannot be written as JSON").why(e.to_string()))?;
    let mut text = String::new();
    layout(&value, 0, &mut text);
    text.push('\n');
    Ok(text)
}

fn absolute(path: &Path) -> String {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf()).display().to_string()
}

fn info(model: &Model) -> InfoJson {
    let i = &model.info;
    InfoJson {
        family: i.family.clone(),
        class: i.class.clone(),
        task: match i.task {
            Task::CausalLm => TaskName::CausalLm,
            Task::Encoder => TaskName::Encoder,
            Task::Graph => TaskName::Graph,
        },
        vocab: i.vocab,
        layers: i.layers,
        max_seq: model.max_seq,
        tokenizer: model.tokenizer.as_deref().map(absolute),
        bos: i.bos,
        eos: i.eos.clone(),
    }
}

fn param(p: &Param) -> ParamJson {
    let values = match &p.source.values {
        Values::Tensor(view) => ValuesJson::View(view.clone()),
        Values::Constant(x) => ValuesJson::Constant(*x),
        Values::Random(r) => ValuesJson::Random { seed: r.seed, name: r.name.clone(), scale: r.scale },
    };
    ParamJson { name: p.name.clone(), ty: TypeText(p.ty.clone()), values: Some(values) }
}

/// A name for each value: its own where that is usable and unique, else `v` and its number.
fn names(f: &Func) -> HashMap<ValueId, String> {
    let mut taken = HashSet::new();
    let mut name = |(id, v): (ValueId, &pcc_ir::Value)| {
        let own = !is_number(&v.name) && check_name(&v.name, "").is_ok() && taken.insert(v.name.clone());
        (id, if own { v.name.clone() } else { format!("v{}", id.as_u32()) })
    };
    f.values.iter().map(&mut name).collect()
}

fn function(f: &Func, module: &Module) -> Result<FuncJson, Diagnostic> {
    let names = names(f);
    let list = |vs: &[ValueId]| -> Vec<String> { vs.iter().filter_map(|v| names.get(v).cloned()).collect() };
    let arg = |v: &ValueId| ArgJson {
        name: names.get(v).cloned().unwrap_or_default(),
        ty: TypeText(f.ty(*v).clone()),
        labels: f.values[*v].labels.iter().map(|l| l.map(label)).collect(),
    };
    let inst = |i: &pcc_ir::Inst| {
        let op = OpJson::from_op(&i.op, |id| module.funcs[id].name.clone()).ok_or_else(|| {
            Diagnostic::input(format!("`{}` is no op of the graph level", i.op.name()))
                .at(f.name.clone())
                .why("model.json holds models before they are sharded")
        })?;
        Ok(InstJson { op, args: list(&i.args), out: list(&i.results), loc: i.loc.clone() })
    };
    Ok(FuncJson {
        name: f.name.clone(),
        args: f.args.iter().map(arg).collect(),
        body: f.insts.iter().map(inst).collect::<Result<_, Diagnostic>>()?,
        results: list(&f.results),
    })
}

fn label(l: Label) -> LabelName {
    match l {
        Label::Batch => LabelName::Batch,
        Label::Seq => LabelName::Seq,
    }
}

fn entry(e: &Entry, module: &Module) -> EntryJson {
    let role = |r: &Role| match r {
        Role::Input(name) => RoleJson::Input(name.clone()),
        Role::Param(id) => RoleJson::Param(module.params[*id].name.clone()),
        Role::State(id) => RoleJson::State(module.states[*id].name.clone()),
    };
    let result = |(i, name): (usize, &String)| match e.aliases.iter().any(|a| a.1 == i) {
        true => ResultJson::State { state: name.clone() },
        false => ResultJson::Output(name.clone()),
    };
    EntryJson {
        name: e.name.clone(),
        function: module.funcs[e.func].name.clone(),
        args: e.args.iter().map(role).collect(),
        results: e.results.iter().enumerate().map(result).collect(),
        weight: e.weight,
    }
}

/// Characters a line may have before an array or object is broken into lines.
const LINE: usize = 130;

/// Lays out JSON for people: what fits a line is one.
fn layout(value: &Value, depth: usize, out: &mut String) {
    let compact = value.to_string();
    let (open, close) = match value {
        Value::Array(list) if !list.is_empty() => ('[', ']'),
        Value::Object(fields) if !fields.is_empty() => ('{', '}'),
        _ => return out.push_str(&compact),
    };
    if compact.len() + depth <= LINE {
        return out.push_str(&compact);
    }
    out.push(open);
    let start = |out: &mut String, i: usize| {
        let _ = write!(out, "{}\n{:width$}", if i == 0 { "" } else { "," }, "", width = depth + 1);
    };
    match value {
        Value::Array(list) => list.iter().enumerate().for_each(|(i, v)| {
            start(out, i);
            layout(v, depth + 1, out);
        }),
        Value::Object(fields) => fields.iter().enumerate().for_each(|(i, (k, v))| {
            start(out, i);
            let _ = write!(out, "{}: ", Value::String(k.clone()));
            layout(v, depth + 1, out);
        }),
        _ => {}
    }
    let _ = write!(out, "\n{:depth$}{close}", "");
}
