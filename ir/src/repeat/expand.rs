//! Modules without repeats.

use super::{Bound, Chain, Numbering, names};
use crate::diagnostic::Diagnostic;
use crate::graph::{Entry, Func, Inst, Module, Param, ParamId, Role, State, StateId, Value, ValueId};
use crate::ops::Op;
use crate::sharding::Term;
use std::borrow::Cow;
use std::collections::HashMap;

impl Module {
    /// Whether anything of the module is folded.
    pub fn is_folded(&self) -> bool {
        self.entries.iter().any(|e| !e.repeats.is_empty())
            || self.params.values().any(|p| p.stack.is_some())
            || self.states.values().any(|s| s.stack.is_some())
    }

    /// The module without repeats and stacks: every layer by itself, in order.
    ///
    /// # Errors
    /// A repeat that is not well formed, or one of more than a million calls.
    pub fn expanded(&self) -> Result<Cow<'_, Module>, Diagnostic> {
        if !self.is_folded() {
            return Ok(Cow::Borrowed(self));
        }
        let fault = |why: String| Diagnostic::input("a repeat of the module is not well formed").why(why);
        let params = Numbering::new(self.params.values().map(|p| p.stack)).map_err(fault)?;
        let states = Numbering::new(self.states.values().map(|s| s.stack)).map_err(fault)?;
        let mut out = Module {
            params: Default::default(),
            states: Default::default(),
            entries: Vec::new(),
            ..self.clone()
        };
        for (row, k) in (0..params.len()).filter_map(|n| params.origin(n)) {
            let p = &self.params[ParamId::from_u32(row)];
            out.params.push(match p.stack {
                None => p.clone(),
                Some(_) => Param {
                    name: names::element(&p.name, k),
                    source: p.source.element(k),
                    stack: None,
                    ..p.clone()
                },
            });
        }
        for (row, k) in (0..states.len()).filter_map(|n| states.origin(n)) {
            let s = &self.states[StateId::from_u32(row)];
            out.states.push(match s.stack {
                None => s.clone(),
                Some(_) => State { name: names::element(&s.name, k), stack: None, ..s.clone() },
            });
        }
        for entry in &self.entries {
            let place = |why: String| fault(why).at(format!("entry `{}`", entry.name));
            if entry.repeats.is_empty()
                && params.len() as usize == self.params.len()
                && states.len() as usize == self.states.len()
            {
                out.entries.push(entry.clone());
                continue;
            }
            let chain = match Chain::with(self, entry, &params, &states) {
                Ok(chain) => chain,
                Err(why) => return Err(place(why)),
            };
            let (entry, func) = expand(self, entry, &chain);
            out.funcs[entry.func] = func;
            out.entries.push(entry);
        }
        Ok(Cow::Owned(out))
    }
}

/// An entry and its function, every call by itself.
fn expand(module: &Module, entry: &Entry, chain: &Chain) -> (Entry, Func) {
    let old = &module.funcs[entry.func];
    let mut func = Func { name: old.name.clone(), ..Func::default() };
    let inputs: Vec<&String> =
        entry.args.iter().filter_map(|r| if let Role::Input(name) = r { Some(name) } else { None }).collect();
    for (&origin, &k) in chain.origins.iter().zip(&chain.elements) {
        let value = &old.values[origin];
        let mut value = Value { name: names::element(&value.name, k), ..value.clone() };
        // Claims of entries name the value of their own number at the level above.
        if let Some(claim) = &mut value.claim
            && claim.term == Term::Value(origin)
        {
            claim.term = Term::Value(func.values.next_key());
        }
        func.values.push(value);
    }
    let id = |v: &u32| ValueId::from_u32(*v);
    for call in &chain.calls {
        let inst = &old.insts[call.inst as usize];
        let args: Vec<ValueId> = chain.args_of(call).iter().map(id).collect();
        let results: Vec<ValueId> = chain.results_of(call).iter().map(id).collect();
        let loc = names::element(&inst.loc, call.repetition);
        func.insts.push(Inst { op: Op::Call(call.func), args, results, loc });
    }
    let mut args = Vec::new();
    for (v, bound) in &chain.args {
        func.args.push(id(v));
        args.push(match bound {
            Bound::Input(n) => {
                Role::Input(inputs.get(*n as usize).map_or_else(String::new, |s| (*s).clone()))
            }
            Bound::Param(n) => Role::Param(ParamId::from_u32(*n)),
            Bound::State(n) => Role::State(StateId::from_u32(*n)),
        });
    }
    let states = args.iter().enumerate().filter_map(|(i, r)| match r {
        Role::State(s) => Some((s.as_u32(), i)),
        _ => None,
    });
    let of_state: HashMap<u32, usize> = states.collect();
    let (mut results, mut aliases) = (Vec::new(), Vec::new());
    for (i, r) in chain.results.iter().enumerate() {
        func.results.push(id(&r.value));
        results.push(names::element(&entry.results[r.index as usize], r.element));
        if let Some(&a) = r.state.and_then(|s| of_state.get(&s)) {
            aliases.push((a, i));
        }
    }
    (Entry { args, results, aliases, repeats: Vec::new(), ..entry.clone() }, func)
}
