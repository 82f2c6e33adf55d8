//! The graph of calls: functions exist, and none is reached from itself.

use super::broken;
use crate::diagnostic::Diagnostic;
use crate::graph::{Func, FuncId, Module};
use crate::ops::Op;
use cranelift_entity::{EntitySet, SecondaryMap};

/// Most instructions of a function, calls carried out.
const MAX_EXPANDED: u64 = 1 << 24;

fn callees(f: &Func) -> impl Iterator<Item = FuncId> + '_ {
    f.insts.iter().filter_map(|i| match i.op {
        Op::Call(callee) => Some(callee),
        _ => None,
    })
}

/// M5 and M6, without recursion: chains of calls may be long. Gives the functions that some function calls.
pub(super) fn check(module: &Module) -> Result<EntitySet<FuncId>, Diagnostic> {
    let mut called = EntitySet::new();
    let mut callers: SecondaryMap<FuncId, Vec<FuncId>> = SecondaryMap::new();
    let mut waiting: SecondaryMap<FuncId, usize> = SecondaryMap::new();
    for (id, f) in &module.funcs {
        for callee in callees(f) {
            if module.funcs.get(callee).is_none() {
                return Err(broken(place(f), format!("it calls {callee}, which does not exist")));
            }
            called.insert(callee);
            callers[callee].push(id);
            waiting[id] += 1;
        }
    }
    let mut ready: Vec<FuncId> = module.funcs.keys().filter(|&id| waiting[id] == 0).collect();
    let mut expanded: SecondaryMap<FuncId, u64> = SecondaryMap::new();
    let mut done = 0;
    while let Some(id) = ready.pop() {
        let Some(f) = module.funcs.get(id) else { continue };
        done += 1;
        expanded[id] = callees(f).fold(f.insts.len() as u64, |n, c| n.saturating_add(expanded[c]));
        if expanded[id] > MAX_EXPANDED {
            let why = format!("with its calls it has more than {MAX_EXPANDED} instructions");
            return Err(broken(place(f), why));
        }
        for &caller in &callers[id] {
            waiting[caller] -= 1;
            if waiting[caller] == 0 {
                ready.push(caller);
            }
        }
    }
    if done == module.funcs.len() { Ok(called) } else { Err(recursion(module, &waiting)) }
}

/// Names a function on a cycle: from any that waits for ever, following callees that wait, one comes back.
fn recursion(module: &Module, waiting: &SecondaryMap<FuncId, usize>) -> Diagnostic {
    let mut seen: Vec<bool> = vec![false; module.funcs.len()];
    let mut at = module.funcs.keys().find(|&id| waiting[id] > 0);
    while let Some(id) = at {
        if std::mem::replace(&mut seen[id.as_u32() as usize], true) {
            return broken(place(&module.funcs[id]), "it calls itself, directly or through others");
        }
        at = callees(&module.funcs[id]).find(|&c| waiting[c] > 0);
    }
    broken("the functions", "some call each other in a circle")
}

fn place(f: &Func) -> String {
    format!("function `{}`", f.name)
}
