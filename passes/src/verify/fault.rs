//! Messages in the user's terms: which value, where in the model, what is wrong, what was expected.

use pcc_ir::{Diagnostic, Func, Inst, ValueId};

/// What messages call a value: its name and number.
pub(super) fn value(func: &Func, v: ValueId) -> String {
    match func.values.get(v).map(|x| x.name.as_str()) {
        Some("") | None => match definition(func, v) {
            Some(inst) => format!("value {v}, the result of `{}`", inst.op.name()),
            None => format!("value {v}"),
        },
        Some(name) => format!("value `{name}` ({v})"),
    }
}

fn definition(func: &Func, v: ValueId) -> Option<&Inst> {
    func.insts.iter().find(|i| i.results.contains(&v))
}

/// Where a value is made: the function, and the place in the model that its op came from.
pub(super) fn place(func: &Func, v: ValueId) -> String {
    match definition(func, v).map(|i| i.loc.as_str()) {
        Some("") | None => format!("function `{}`", func.name),
        Some(loc) => format!("`{loc}` in function `{}`", func.name),
    }
}

/// A fault of a value. `what` follows the value's name: `"is read after it was overwritten"`.
pub(super) fn of_value(func: &Func, v: ValueId, what: &str) -> Diagnostic {
    Diagnostic::check(format!("{} {what}", value(func, v))).at(place(func, v))
}

/// A fault of a function as a whole.
pub(super) fn of_func(func: &Func, what: &str) -> Diagnostic {
    Diagnostic::check(format!("function `{}` {what}", func.name))
}

/// The fault of an instruction, told of its first result.
pub(super) fn of_inst(func: &Func, inst: &Inst, what: &str) -> Diagnostic {
    match inst.results.first() {
        Some(&v) => of_value(func, v, what),
        None => of_func(func, &format!("has a `{}` that {what}", inst.op.name())),
    }
}
