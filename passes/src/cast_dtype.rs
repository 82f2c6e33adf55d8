//! Computes matrix products and attention in a 16-bit type.
//!
//! What: parameters that products multiply or gathers look up, and states that attention or products read, are stored in the type;
//! operands of products and attention are converted to it. Sums of products, and all else, stay f32. Why: products then read half
//! the bytes and run at twice the rate, while the residual stream, norms and softmax keep their digits. Everything is rounded by a
//! `convert` of the graph, so that the reference evaluator rounds at the same places.
//!
//! ```text
//! %2: f32[4,8] = dot_general(%0, %w)       %2: bf16[4,6] = convert(%0) {bf16}
//!                                    ->    %3: f32[4,8] = dot_general(%2, %w) {.., "result":"f32"}
//! ```
//!
//! For CPUs, parameters that their file has quantised stay as they are: in 16 bits they would be several times larger, and products expand
//! the file's own codes. So do the products that read them, in f32. GPUs hold no codes, so there they are cast like others.
//!
//! The storage of a value is decided once for all functions that pass it on: values that are one tensor (an argument and what calls
//! give for it, a state and its updates, strided views) form a class, and a class is cast as a whole or not at all.

use pcc_ir::graph::{Entry, Role, Value};
use pcc_ir::ops::{DotGeneral, Op};
use pcc_ir::program::DeviceKind;
use pcc_ir::source::Values;
use pcc_ir::{DType, Diagnostic, Func, FuncId, Inst, Module, Type, ValueId};
use std::collections::{HashMap, HashSet};

/// Casts a graph of f32 to `dtype`; what is not f32 stays as it is.
///
/// # Errors
/// The module is no graph: its values have shardings or claims.
pub fn cast_dtype(module: &Module, dtype: DType, device: DeviceKind) -> Result<Module, Diagnostic> {
    let mut values = module.funcs.values().flat_map(|f| f.values.values());
    if values.any(|v| v.sharding.is_some() || v.claim.is_some()) {
        return Err(Diagnostic::usage("`cast_dtype` cannot run on a sharded or local module")
            .help("run it on a graph, before outline"));
    }
    let (cast, kept) = cast_classes(module, device);
    let mut out = module.clone();
    for (id, param) in out.params.iter_mut() {
        if cast.contains(&Place::Param(id)) {
            param.ty.dtype = dtype;
        }
    }
    for (id, state) in out.states.iter_mut() {
        if cast.contains(&Place::State(id)) {
            state.ty.dtype = dtype;
        }
    }
    for (id, func) in &module.funcs {
        out.funcs[id] = Caster {
            module,
            id,
            old: func,
            new: Func::new(func.name.clone()),
            cast: &cast,
            kept: &kept,
            dtype,
            forms: HashMap::new(),
        }
        .run();
    }
    Ok(out)
}

/// Something that holds a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Value(FuncId, ValueId),
    Param(pcc_ir::ParamId),
    State(pcc_ir::StateId),
}

/// Places of equal storage: a union-find, with what is known of each class at its root.
#[derive(Default)]
struct Classes {
    index: HashMap<Place, usize>,
    parent: Vec<usize>,
    /// Made by an op, or given by or to the user: not stored by the program.
    fixed: Vec<bool>,
    stored: Vec<bool>,
    /// Used by what computes in the type.
    wanted: Vec<bool>,
    /// Quantised.
    kept: Vec<bool>,
}

impl Classes {
    fn of(&mut self, place: Place) -> usize {
        let next = self.parent.len();
        let mut at = *self.index.entry(place).or_insert(next);
        if at == next {
            self.parent.push(next);
            self.fixed.push(false);
            self.stored.push(matches!(place, Place::Param(_) | Place::State(_)));
            self.wanted.push(false);
            self.kept.push(false);
        }
        while self.parent[at] != at {
            self.parent[at] = self.parent[self.parent[at]];
            at = self.parent[at];
        }
        at
    }

    fn join(&mut self, a: Place, b: Place) {
        let (a, b) = (self.of(a), self.of(b));
        self.parent[b] = a;
        for marks in [&mut self.fixed, &mut self.stored, &mut self.wanted, &mut self.kept] {
            marks[a] |= marks[b];
        }
    }

    fn fix(&mut self, place: Place) {
        let at = self.of(place);
        self.fixed[at] = true;
    }

    fn keep(&mut self, place: Place) {
        let at = self.of(place);
        self.kept[at] = true;
    }

    fn want(&mut self, place: Place) {
        let at = self.of(place);
        self.wanted[at] = true;
    }
}

/// Strided views have their operand's storage.
fn is_view(op: &Op) -> bool {
    matches!(op, Op::Transpose(_) | Op::Broadcast(_) | Op::Slice(_) | Op::Reshape(_))
}

/// Every place whose class is cast, and every one whose class is kept because it is quantised.
fn cast_classes(module: &Module, device: DeviceKind) -> (HashSet<Place>, HashSet<Place>) {
    let mut c = Classes::default();
    for (id, func) in &module.funcs {
        let at = |v: ValueId| Place::Value(id, v);
        for (v, value) in &func.values {
            match value.ty.dtype {
                DType::F32 => _ = c.of(at(v)),
                _ => c.fix(at(v)),
            }
        }
        for inst in &func.insts {
            join_inst(&mut c, module, inst, &at);
        }
    }
    for entry in &module.entries {
        join_entry(&mut c, module, entry);
    }
    for (id, param) in &module.params {
        let quantised = matches!(&param.source.values, Values::Tensor(view) if view.blocks.is_some());
        if quantised && device == DeviceKind::Cpu {
            c.keep(Place::Param(id));
        }
    }
    let places: Vec<Place> = c.index.keys().copied().collect();
    let (mut cast, mut kept) = (HashSet::new(), HashSet::new());
    for place in places {
        let at = c.of(place);
        if c.kept[at] {
            kept.insert(place);
        } else if c.stored[at] && c.wanted[at] && !c.fixed[at] {
            cast.insert(place);
        }
    }
    (cast, kept)
}

fn join_inst(c: &mut Classes, module: &Module, inst: &Inst, at: &impl Fn(ValueId) -> Place) {
    match &inst.op {
        Op::Call(id) => {
            let callee = &module.funcs[*id];
            let pairs = inst.args.iter().zip(&callee.args).chain(inst.results.iter().zip(&callee.results));
            pairs.for_each(|(&outer, &inner)| c.join(at(outer), Place::Value(*id, inner)));
            return;
        }
        Op::DotGeneral(_) => inst.args.iter().for_each(|&v| c.want(at(v))),
        Op::Attention(_) => inst.args.iter().skip(1).take(2).for_each(|&v| c.want(at(v))),
        Op::Gather(_) => c.want(at(inst.args[0])),
        Op::Update(_) => return c.join(at(inst.args[0]), at(inst.results[0])),
        op if is_view(op) => return c.join(at(inst.args[0]), at(inst.results[0])),
        _ => {}
    }
    inst.results.iter().for_each(|&v| c.fix(at(v)));
}

fn join_entry(c: &mut Classes, module: &Module, entry: &Entry) {
    let func = &module.funcs[entry.func];
    let at = |v: ValueId| Place::Value(entry.func, v);
    for (&v, role) in func.args.iter().zip(&entry.args) {
        match role {
            Role::Input(_) => c.fix(at(v)),
            Role::Param(p) => c.join(at(v), Place::Param(*p)),
            Role::State(s) => c.join(at(v), Place::State(*s)),
        }
    }
    for (i, &v) in func.results.iter().enumerate() {
        match entry.aliases.iter().find(|a| a.1 == i) {
            Some(&(arg, _)) => c.join(at(v), at(func.args[arg])),
            None => c.fix(at(v)),
        }
    }
}

/// A value of the old function in the new one: as it is made there, and converted.
#[derive(Clone, Copy)]
struct Forms {
    made: ValueId,
    converted: Option<ValueId>,
}

/// Rewrites one function.
struct Caster<'a> {
    module: &'a Module,
    id: FuncId,
    old: &'a Func,
    new: Func,
    cast: &'a HashSet<Place>,
    kept: &'a HashSet<Place>,
    dtype: DType,
    forms: HashMap<ValueId, Forms>,
}

impl Caster<'_> {
    fn run(mut self) -> Func {
        let old = self.old;
        for &v in &old.args {
            let ty = self.stored_type(self.id, v, old);
            let made = self.make(v, ty);
            self.new.args.push(made);
        }
        for inst in &old.insts {
            self.inst(inst);
        }
        self.new.results = old
            .results
            .iter()
            .map(|&v| self.form(v, self.cast.contains(&Place::Value(self.id, v)), ""))
            .collect();
        self.new
    }

    /// Type of a value that calls pass: cast with its class.
    fn stored_type(&self, id: FuncId, v: ValueId, func: &Func) -> Type {
        let ty = func.ty(v).clone();
        if self.cast.contains(&Place::Value(id, v)) { Type { dtype: self.dtype, ..ty } } else { ty }
    }

    /// The new value for an old one, with its name and labels.
    fn make(&mut self, v: ValueId, ty: Type) -> ValueId {
        let made = self.new.values.push(Value { ty, ..self.old.values[v].clone() });
        self.forms.insert(v, Forms { made, converted: None });
        made
    }

    /// Whether the new value is made in the 16-bit type.
    fn is_half(&self, v: ValueId) -> bool {
        self.forms.get(&v).is_some_and(|f| self.new.ty(f.made) != self.old.ty(v))
    }

    /// A value in the 16-bit type, or as it was; converted once.
    fn form(&mut self, v: ValueId, half: bool, loc: &str) -> ValueId {
        // Every operand is made before it is used; a graph in which it is not stays as it is, for the verifier to refuse.
        let Some(forms) = self.forms.get(&v).copied() else { return v };
        if self.old.ty(v).dtype != DType::F32 || self.is_half(v) == half {
            return forms.made;
        }
        if let Some(converted) = forms.converted {
            return converted;
        }
        let to = if half { self.dtype } else { DType::F32 };
        let ty = Type { dtype: to, ..self.new.ty(forms.made).clone() };
        let converted = self.new.push(Op::Convert(to), vec![forms.made], vec![ty], loc)[0];
        self.new.values[converted].labels = self.old.values[v].labels.clone();
        self.forms.insert(v, Forms { converted: Some(converted), ..forms });
        converted
    }

    fn inst(&mut self, inst: &Inst) {
        let is_f32 = |v: &ValueId| self.old.ty(*v).dtype == DType::F32;
        let types = |s: &Self, half: bool| -> Vec<Type> {
            let to = |t: &Type| if half { Type { dtype: s.dtype, ..t.clone() } } else { t.clone() };
            inst.results.iter().map(|&v| to(s.old.ty(v))).collect()
        };
        let first_is_half = inst.args.first().is_some_and(|&v| self.is_half(v));
        let all = vec![false; inst.args.len()];
        let is_kept = |v: &ValueId| self.kept.contains(&Place::Value(self.id, *v));
        let (op, halves, results) = match &inst.op {
            Op::DotGeneral(dot) if inst.args.iter().all(is_f32) && !inst.args.iter().any(is_kept) => {
                let result = Some(dot.result.unwrap_or(DType::F32));
                (Op::DotGeneral(DotGeneral { result, ..dot.clone() }), vec![true; 2], types(self, false))
            }
            Op::Attention(_) if inst.args.first().is_some_and(is_f32) => {
                let halves = (0..inst.args.len()).map(|i| i < 3).collect();
                (inst.op.clone(), halves, types(self, true))
            }
            Op::Gather(_) | Op::Update(_) => {
                // The table or the cache as it is stored, and new rows of the cache alike.
                let count = if matches!(inst.op, Op::Update(_)) { 2 } else { 1 };
                let halves = (0..inst.args.len()).map(|i| first_is_half && i < count).collect();
                (inst.op.clone(), halves, types(self, first_is_half))
            }
            op if is_view(op) => (op.clone(), vec![first_is_half], types(self, first_is_half)),
            Op::Call(id) => {
                let callee = &self.module.funcs[*id];
                let is = |v: &ValueId| self.cast.contains(&Place::Value(*id, *v));
                let halves = callee.args.iter().map(is).collect();
                let results = callee.results.iter().map(|&v| self.stored_type(*id, v, callee)).collect();
                (inst.op.clone(), halves, results)
            }
            op => (op.clone(), all, types(self, false)),
        };
        let args = inst.args.iter().zip(halves).map(|(&v, half)| self.form(v, half, &inst.loc)).collect();
        let results = inst.results.iter().zip(results).map(|(&v, ty)| self.make(v, ty)).collect();
        self.new.insts.push(Inst { op, args, results, loc: inst.loc.clone() });
    }
}
