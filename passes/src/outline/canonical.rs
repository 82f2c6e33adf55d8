//! A segment as a function in canonical form: equal structure gives equal text, whatever the order of the list it came from.

use pcc_ir::{Func, Inst, Op, Type, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::ops::Range;

/// What an argument of a segment is to the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Made by an earlier segment or call.
    Chain,
    Input,
    Param,
    State,
}

impl Kind {
    /// What tells segments apart, and orders their arguments: the first layer takes the entry's input where the others take
    /// the value carried along.
    fn role(self) -> u8 {
        match self {
            Kind::Chain | Kind::Input => 0,
            Kind::Param => 1,
            Kind::State => 2,
        }
    }
}

/// What is known of the entry's values.
pub struct Scope {
    kinds: BTreeMap<ValueId, Kind>,
    /// The instruction that makes each value.
    pub made_by: BTreeMap<ValueId, usize>,
    /// The instructions that use each value.
    pub used_by: BTreeMap<ValueId, Vec<usize>>,
    results: BTreeSet<ValueId>,
    /// Instructions that depend on inputs and constants only and are recomputed wherever they are used.
    pub cheap: Vec<bool>,
}

/// A segment taken out: its function, the entry's values it takes and gives, and the text that tells its structure.
pub struct Extracted {
    pub func: Func,
    pub args: Vec<ValueId>,
    pub results: Vec<ValueId>,
    pub key: String,
    /// Where in the model, for messages.
    pub place: String,
}

impl Scope {
    pub fn new(f: &Func, kinds: &BTreeMap<ValueId, Kind>) -> Self {
        let mut s = Self {
            kinds: kinds.clone(),
            made_by: BTreeMap::new(),
            used_by: BTreeMap::new(),
            results: f.results.iter().copied().collect(),
            cheap: vec![false; f.insts.len()],
        };
        for (i, inst) in f.insts.iter().enumerate() {
            s.made_by.extend(inst.results.iter().map(|&v| (v, i)));
            for &v in &inst.args {
                s.used_by.entry(v).or_default().push(i);
            }
        }
        for (i, inst) in f.insts.iter().enumerate() {
            let from_inputs = inst.args.iter().all(|v| match s.made_by.get(v) {
                Some(&at) => s.cheap[at],
                None => s.kinds.get(v) == Some(&Kind::Input),
            });
            let seen = inst.results.iter().any(|v| s.results.contains(v) || s.called_with(f, *v));
            s.cheap[i] = from_inputs && !seen && recomputable(&inst.op);
        }
        s
    }

    /// Whether a call the user wrote takes the value: it must exist in the chain then.
    fn called_with(&self, f: &Func, v: ValueId) -> bool {
        let users = self.used_by.get(&v);
        users.is_some_and(|users| users.iter().any(|&i| matches!(f.insts[i].op, Op::Call(_))))
    }

    /// Whether the value is a parameter.
    pub fn is_param(&self, v: ValueId) -> bool {
        self.kinds.get(&v) == Some(&Kind::Param)
    }

    /// Whether the value is made in `range` and used after it, or is a result of the entry.
    fn leaves(&self, v: ValueId, range: &Range<usize>) -> bool {
        let after = |users: &Vec<usize>| users.iter().any(|i| *i >= range.end && !self.cheap[*i]);
        self.results.contains(&v) || self.used_by.get(&v).is_some_and(after)
    }

    /// The segment of the instructions of `range` that are not cheap, with the cheap ones they use.
    pub fn extract(&self, f: &Func, range: Range<usize>) -> Extracted {
        let made = range.clone().filter(|&i| !self.cheap[i]).flat_map(|i| f.insts[i].results.iter().copied());
        let results: Vec<ValueId> = made.filter(|&v| self.leaves(v, &range)).collect();
        let (order, args) = self.order(f, &range, &results);
        let mut func = Func::default();
        let mut map: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        let mut key = String::new();
        for &v in &args {
            let id = func.values.push(f.values[v].clone());
            func.args.push(id);
            map.insert(v, id);
            let _ = writeln!(key, "{id} {} {}", self.kind(v).role(), f.ty(v));
        }
        for &i in &order {
            let inst = &f.insts[i];
            let inner: Vec<ValueId> = inst.args.iter().filter_map(|v| map.get(v).copied()).collect();
            let made: Vec<ValueId> =
                inst.results.iter().map(|&v| func.values.push(f.values[v].clone())).collect();
            map.extend(inst.results.iter().copied().zip(made.iter().copied()));
            let types: Vec<&Type> = inst.results.iter().map(|&v| f.ty(v)).collect();
            let _ = writeln!(key, "{:?} {inner:?} {types:?}", inst.op);
            func.insts.push(Inst { op: inst.op.clone(), args: inner, results: made, loc: inst.loc.clone() });
        }
        func.results = results.iter().filter_map(|v| map.get(v).copied()).collect();
        let _ = write!(key, "{:?}", func.results);
        let place = order.first().map(|&i| f.insts[i].loc.clone()).unwrap_or_default();
        Extracted { func, args, results, key, place }
    }

    fn kind(&self, v: ValueId) -> Kind {
        self.kinds.get(&v).copied().unwrap_or(Kind::Chain)
    }

    /// Instructions in depth-first post-order from the results, which does not depend on the order they are listed in, and the
    /// outer values they take: carried values and inputs first, then parameters, then states, each as first met.
    fn order(&self, f: &Func, range: &Range<usize>, results: &[ValueId]) -> (Vec<usize>, Vec<ValueId>) {
        let inside =
            |v: &ValueId| self.made_by.get(v).copied().filter(|i| range.contains(i) || self.cheap[*i]);
        let mut order = Vec::new();
        let mut entered: BTreeSet<usize> = BTreeSet::new();
        let mut args: Vec<ValueId> = Vec::new();
        let mut met: BTreeSet<ValueId> = BTreeSet::new();
        for result in results {
            // An explicit stack of (instruction, next operand): graphs may be deep.
            let mut stack: Vec<(usize, usize)> = Vec::new();
            if let Some(i) = inside(result).filter(|i| entered.insert(*i)) {
                stack.push((i, 0));
            }
            while let Some((i, next)) = stack.pop() {
                let Some(v) = f.insts[i].args.get(next) else {
                    order.push(i);
                    continue;
                };
                stack.push((i, next + 1));
                match inside(v) {
                    Some(j) if entered.insert(j) => stack.push((j, 0)),
                    Some(_) => {}
                    None if met.insert(*v) => args.push(*v),
                    None => {}
                }
            }
        }
        args.sort_by_key(|&v| self.kind(v).role());
        (order, args)
    }
}

/// Ops cheap enough to run once more in every segment: elementwise, shapes and constants.
fn recomputable(op: &Op) -> bool {
    !matches!(
        op,
        Op::DotGeneral(_)
            | Op::Attention(_)
            | Op::TopK(_)
            | Op::Sample(_)
            | Op::Softmax(_)
            | Op::RmsNorm(_)
            | Op::LayerNorm(_)
            | Op::Update(_)
            | Op::Call(_)
            | Op::Gather(_)
    )
}
