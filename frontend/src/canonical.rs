//! The numbering of values that every function from the frontend has: arguments in order, then the results of the
//! instructions in order. Text forms print it, and a module written as model.json comes back with it.

use cranelift_entity::PrimaryMap;
use pcc_ir::{Func, ValueId};
use std::collections::HashMap;

/// Renumbers a function's values, dropping those nothing defines.
pub fn renumber(func: &mut Func) {
    let order = func.args.iter().chain(func.insts.iter().flat_map(|i| &i.results)).copied();
    let (mut values, mut map) = (PrimaryMap::new(), HashMap::<ValueId, ValueId>::new());
    for old in order {
        map.entry(old).or_insert_with(|| values.push(func.values[old].clone()));
    }
    func.values = values;
    let ids = func.insts.iter_mut().flat_map(|i| i.args.iter_mut().chain(i.results.iter_mut()));
    for v in ids.chain(func.args.iter_mut()).chain(func.results.iter_mut()) {
        if let Some(&new) = map.get(v) {
            *v = new;
        }
    }
}
