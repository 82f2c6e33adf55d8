//! Builds a module from a parsed document, checking everything on the way.

use super::document::{Document, FuncJson, InfoJson, InstJson, LabelName, ParamJson, TaskName, ValuesJson};
use super::op::{OpJson, WithAttributes};
use super::order::order;
use super::{VERSION, entries, nearest};
use pcc_ir::graph::Label;
use pcc_ir::program::Task;
use pcc_ir::source::TensorView;
use pcc_ir::{Diagnostic, Func, FuncId, Module, Op, Param, ParamSource, State, ValueId};
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// A module, and what the file says beside it.
pub(crate) struct Loaded {
    pub(crate) module: Module,
    pub(crate) info: Info,
    /// Path as the file has it.
    pub(crate) weights: Option<String>,
}

/// What a file may say of a model beyond its graph.
#[derive(Clone, Debug)]
pub(crate) struct Info {
    pub(crate) family: String,
    pub(crate) class: String,
    pub(crate) task: Task,
    pub(crate) vocab: usize,
    pub(crate) layers: usize,
    /// 0 when the file does not say.
    pub(crate) max_seq: usize,
    /// Path as the file has it.
    pub(crate) tokenizer: Option<String>,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Vec<u32>,
}

impl From<InfoJson> for Info {
    fn from(i: InfoJson) -> Self {
        let task = match i.task {
            TaskName::CausalLm => Task::CausalLm,
            TaskName::Encoder => Task::Encoder,
            TaskName::Graph => Task::Graph,
        };
        let family = if i.family.is_empty() { "graph".to_owned() } else { i.family };
        Self {
            family,
            class: i.class,
            task,
            vocab: i.vocab,
            layers: i.layers,
            max_seq: i.max_seq,
            tokenizer: i.tokenizer,
            bos: i.bos,
            eos: i.eos,
        }
    }
}

/// Standard deviation of random parameters.
const STD: f32 = 0.02;

/// Instructions that calls may expand to: beyond, passes that look through calls would not end in time.
const MAX_EXPANDED: u64 = 1 << 24;
/// Functions that may be inside one another.
const MAX_DEPTH: u64 = 32;

/// Reads a document. Parameters without values are the tensors of their names if there are weights (`weights` says so, or
/// the file), else random from `seed`.
///
/// # Errors
/// One diagnostic with the path inside the file: wrong fields, unknown ops, names that are missing or twice there, cycles,
/// types that do not fit.
pub(crate) fn read(value: Value, weights: bool, seed: u64) -> Result<Loaded, Diagnostic> {
    let document: Document = serde_path_to_error::deserialize(value).map_err(|e| {
        let path = e.path().to_string();
        let what = Diagnostic::input("the model.json is wrong").why(e.into_inner().to_string());
        if path == "." { what } else { what.at(path) }
    })?;
    if document.pcc != VERSION {
        return Err(Diagnostic::input(format!("version {} of model.json is not supported", document.pcc))
            .at("pcc")
            .help(format!("this release reads version {VERSION}")));
    }
    let weights = weights || document.weights.is_some();
    let mut module = Module { name: document.name.clone(), ..Module::default() };
    check_names(document.params.iter().map(|p| &*p.name), "params", "parameter")?;
    check_names(document.states.iter().map(|s| &*s.name), "states", "state")?;
    check_names(document.functions.iter().map(|f| &*f.name), "functions", "function")?;
    check_names(document.entries.iter().map(|e| &*e.name), "entries", "entry")?;
    for (i, p) in document.params.iter().enumerate() {
        let source = source(p, weights, seed).map_err(|d| d.at(format!("params[{i}]")))?;
        module.params.push(Param {
            name: p.name.clone(),
            ty: p.ty.0.clone(),
            source,
            sharding: None,
            stack: None,
        });
    }
    for s in &document.states {
        module.states.push(State { name: s.name.clone(), ty: s.ty.0.clone(), sharding: None, stack: None });
    }
    read_functions(&document, &mut module)?;
    entries::read(&document, &mut module)?;
    Ok(Loaded { module, info: document.info.unwrap_or_default().into(), weights: document.weights })
}

/// Where a parameter's values come from.
fn source(p: &ParamJson, weights: bool, seed: u64) -> Result<ParamSource, Diagnostic> {
    let shape = p.ty.0.shape.clone();
    let source = match &p.values {
        Some(ValuesJson::Constant(x)) => ParamSource::constant(shape, *x),
        Some(ValuesJson::Random { seed, name, scale }) => ParamSource::random(shape, *seed, name, *scale),
        _ if !weights => ParamSource::random(shape, seed, &*p.name, STD),
        None => ParamSource::tensor(TensorView::whole(&*p.name, shape)),
        Some(ValuesJson::Tensor(name)) => ParamSource::tensor(TensorView::whole(name, shape)),
        Some(ValuesJson::View(view)) => {
            ParamSource { shape, values: pcc_ir::source::Values::Tensor(view.clone()) }
        }
    };
    source.validate()?;
    Ok(source)
}

/// Names must be there, differ, and be printable.
fn check_names<'a>(names: impl Iterator<Item = &'a str>, path: &str, what: &str) -> Result<(), Diagnostic> {
    let mut seen = HashMap::new();
    for (i, name) in names.enumerate() {
        check_name(name, &format!("{path}[{i}].name"))?;
        if let Some(first) = seen.insert(name, i) {
            return Err(Diagnostic::input(format!("the {what} `{name}` is there twice"))
                .at(format!("{path}[{i}].name"))
                .why(format!("{path}[{first}] has that name")));
        }
    }
    Ok(())
}

pub(super) fn check_name(name: &str, path: &str) -> Result<(), Diagnostic> {
    let wrong = |c: char| c.is_control() || c.is_whitespace() || "\"'`\\".contains(c);
    if name.is_empty() || name.len() > 256 || name.contains(wrong) {
        return Err(Diagnostic::input("a name is not usable").at(path).why(
            "a name has 1 to 256 characters, none of them a space, a quote, a backslash or a control character",
        ));
    }
    Ok(())
}

/// Builds the functions, callees first; their numbers are their places in the file.
fn read_functions(document: &Document, module: &mut Module) -> Result<(), Diagnostic> {
    let ids: HashMap<&str, FuncId> =
        document.functions.iter().map(|f| (&*f.name, module.funcs.push(Func::new(&*f.name)))).collect();
    let mut needs = Vec::with_capacity(document.functions.len());
    for (i, f) in document.functions.iter().enumerate() {
        let mut callees = Vec::new();
        for (j, inst) in f.body.iter().enumerate() {
            if let OpJson::With(WithAttributes::Call(name)) = &inst.op {
                let id = ids.get(&**name).ok_or_else(|| {
                    let near = nearest(name, ids.keys().copied());
                    Diagnostic::input(format!("there is no function `{name}`{near}"))
                        .at(format!("functions[{i}].body[{j}].op.call"))
                })?;
                callees.push(id.as_u32() as usize);
            }
        }
        needs.push(callees);
    }
    let order = order(&needs).map_err(|cycle| {
        let names: Vec<String> =
            cycle.iter().filter_map(|&i| Some(format!("`{}`", document.functions.get(i)?.name))).collect();
        Diagnostic::input("functions call one another in a circle").at("functions").why(names.join(" calls "))
    })?;
    check_expansion(document, &needs, &order)?;
    for i in order {
        let Some(f) = document.functions.get(i) else { continue };
        let func = read_function(f, &format!("functions[{i}]"), &ids, module)?;
        module.funcs[FuncId::from_u32(i as u32)] = func;
    }
    Ok(())
}

/// Bounds what looking through all calls would cost.
fn check_expansion(document: &Document, needs: &[Vec<usize>], order: &[usize]) -> Result<(), Diagnostic> {
    let mut size = vec![0u64; needs.len()];
    let mut depth = vec![0u64; needs.len()];
    for &i in order {
        let own = document.functions.get(i).map_or(0, |f| f.body.len() as u64);
        size[i] = needs[i].iter().fold(own, |sum, &c| sum.saturating_add(size[c]));
        depth[i] = needs[i].iter().map(|&c| depth[c] + 1).max().unwrap_or(0);
        if size[i] > MAX_EXPANDED || depth[i] > MAX_DEPTH {
            return Err(Diagnostic::input("the calls of a function go too far")
                .at(format!("functions[{i}]"))
                .why(format!(
                    "{} instructions, {} calls deep, once all calls are followed",
                    size[i], depth[i]
                ))
                .help(format!(
                    "at most {MAX_EXPANDED} instructions and {MAX_DEPTH} calls deep are supported"
                )));
        }
    }
    Ok(())
}

/// The values of a function by their names.
struct Names<'a> {
    /// Instruction that defines a value; `None` for arguments.
    defined_by: HashMap<&'a str, Option<usize>>,
}

impl<'a> Names<'a> {
    fn collect(f: &'a FuncJson, path: &str) -> Result<Self, Diagnostic> {
        let mut defined_by: HashMap<&str, Option<usize>> = HashMap::new();
        let args = f.args.iter().enumerate().map(|(i, a)| (&*a.name, None, format!("{path}.args[{i}].name")));
        let outs = f.body.iter().enumerate().flat_map(|(j, inst)| {
            inst.out
                .iter()
                .enumerate()
                .map(move |(k, n)| (&**n, Some(j), format!("{path}.body[{j}].out[{k}]")))
        });
        for (name, by, at) in args.chain(outs) {
            check_name(name, &at)?;
            if let Some(first) = defined_by.insert(name, by) {
                let first = match first {
                    Some(j) => format!("{path}.body[{j}] defines it"),
                    None => "it is an argument".into(),
                };
                return Err(Diagnostic::input(format!("the value `{name}` is defined twice"))
                    .at(at)
                    .why(first));
            }
        }
        Ok(Self { defined_by })
    }

    fn missing(&self, name: &str, at: String) -> Diagnostic {
        let near = nearest(name, self.defined_by.keys().copied());
        Diagnostic::input(format!("there is no value `{name}` in this function{near}")).at(at)
    }
}

fn read_function(
    f: &FuncJson,
    path: &str,
    ids: &HashMap<&str, FuncId>,
    module: &Module,
) -> Result<Func, Diagnostic> {
    let names = Names::collect(f, path)?;
    let mut needs = Vec::with_capacity(f.body.len());
    for (j, inst) in f.body.iter().enumerate() {
        let mut list = Vec::new();
        for (k, name) in inst.args.iter().enumerate() {
            match names.defined_by.get(&**name) {
                None => return Err(names.missing(name, format!("{path}.body[{j}].in[{k}]"))),
                Some(None) => {}
                Some(&Some(by)) => list.push(by),
            }
        }
        needs.push(list);
    }
    let order = order(&needs).map_err(|cycle| {
        let shown = |&j: &usize| Some(format!("body[{j}] `{}`", f.body.get(j)?.out.first()?));
        let members: Vec<String> = cycle.iter().filter_map(shown).take(8).collect();
        Diagnostic::input("instructions need one another in a circle").at(path).why(members.join(" needs "))
    })?;
    let mut func = Func::new(&*f.name);
    let mut values: HashMap<&str, ValueId> = HashMap::new();
    for (i, a) in f.args.iter().enumerate() {
        let v = func.arg(a.ty.0.clone(), named(&a.name));
        if !a.labels.is_empty() {
            if a.labels.len() != a.ty.0.rank() {
                return Err(Diagnostic::input("labels do not fit the type")
                    .at(format!("{path}.args[{i}].labels"))
                    .why(format!(
                        "there are {} for the {} dims of {}",
                        a.labels.len(),
                        a.ty.0.rank(),
                        a.ty.0
                    )));
            }
            func.values[v].labels = a.labels.iter().map(|l| l.map(label)).collect();
        }
        values.insert(&a.name, v);
    }
    for j in order {
        let Some(inst) = f.body.get(j) else { continue };
        let made =
            apply(&mut func, inst, ids, module, &values).map_err(|d| d.at(format!("{path}.body[{j}]")))?;
        for (name, v) in inst.out.iter().zip(made) {
            func.values[v].name = named(name);
            values.insert(name, v);
        }
    }
    for (k, name) in f.results.iter().enumerate() {
        let v = values.get(&**name).ok_or_else(|| names.missing(name, format!("{path}.results[{k}]")))?;
        func.results.push(*v);
    }
    Ok(func)
}

/// Adds one instruction whose operands are all there.
fn apply(
    func: &mut Func,
    inst: &InstJson,
    ids: &HashMap<&str, FuncId>,
    module: &Module,
    values: &HashMap<&str, ValueId>,
) -> Result<Vec<ValueId>, Diagnostic> {
    let args: Vec<ValueId> = inst.args.iter().filter_map(|n| values.get(&**n).copied()).collect();
    let op = inst
        .op
        .to_op(|name| ids.get(name).copied())
        .ok_or_else(|| Diagnostic::internal("a call of a function that was checked to be there"))?;
    let name = op.name();
    let made = match op {
        Op::Call(id) => func.call(id, &module.funcs[id], &args, &inst.loc)?,
        op => func.apply(op, &args, &inst.loc)?,
    };
    if made.len() != inst.out.len() {
        return Err(Diagnostic::input(format!("`{name}` has {} results", made.len()))
            .why(format!("`out` names {}", inst.out.len())));
    }
    Ok(made)
}

fn label(l: LabelName) -> Label {
    match l {
        LabelName::Batch => Label::Batch,
        LabelName::Seq => Label::Seq,
    }
}

/// The name a value keeps: none for `v` and digits, which export gives to unnamed values.
fn named(name: &str) -> String {
    if is_number(name) { String::new() } else { name.to_owned() }
}

pub(super) fn is_number(name: &str) -> bool {
    name.strip_prefix('v').is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
}

/// Names that occur twice in a list.
pub(super) fn first_repeated<'a>(names: impl Iterator<Item = &'a str>) -> Option<(usize, &'a str)> {
    let mut seen = HashSet::new();
    names.enumerate().find(|(_, n)| !seen.insert(*n))
}
