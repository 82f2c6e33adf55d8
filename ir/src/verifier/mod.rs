//! Structural verifier of modules of every level: what may be assumed of a module before anyone asks what it means.
//!
//! [`verify`] finds the first rule that a module breaks. It never panics, whatever the module holds, and takes time linear
//! in the module's size. Whether a partitioned module computes the right thing is the checker's question, not asked here.
//!
//! **Module**
//! - **M1** Every mesh axis has 1 to 2^20 devices, and all together at most 2^20.
//! - **M2** Parameters have different names, the elements of stacks by themselves, so have states, so have entries.
//! - **M3** Parameters and states have dims of at least 1 and less than 2^60 bytes.
//! - **M4** The source of a parameter is valid and has the parameter's shape.
//! - **M5** Calls name functions that exist, and no function calls itself, directly or through others.
//! - **M6** Carried out call by call, no function has more than 2^24 instructions.
//! - **M7** A stack has 1 to 2^20 elements, and the tables unfolded no more entries. Its name and that of its source leave the
//!   number of a layer open, the same one, which stays below 2^32.
//!
//! **Levels**
//! - **L1** All values are of one level. *Graph*: no value has a sharding or a claim. *Sharded*: every one has a sharding, none a
//!   claim. *Local*: every one has a claim, none a sharding. (Values that nothing defines do not count.)
//! - **L2** Parameters and states have a sharding exactly from the sharded level on.
//! - **L3** A reshard appears at the sharded level only; collectives, shard slices, tail masks, ops with a shard base, sends and
//!   receives at the local level only.
//!
//! **Functions**
//! - **F1** Arguments, operands, results of instructions and results of the function are values of the function.
//! - **F2** A value is defined once, as an argument or by one instruction.
//! - **F3** An operand is defined before its instruction, a result somewhere.
//! - **F4** Types have dims of at least 1 and less than 2^60 bytes.
//! - **F5** Types of results are what the op makes of the types of its operands ([`crate::Op::infer`]): arity, shapes, attributes,
//!   sizes of listed constants; at the local level extents of pieces against the extent before and the axes.
//! - **F6** A call has the function's number of operands and results, of its types.
//! - **F7** A value has no labels, or one for each dim.
//! - **F8** A shard base, and an op of the local level, names axes that exist, no axis over pp, no two that overlap; the extent of
//!   the based dim is that of a piece.
//! - **F9** A send or receive names another stage of the mesh, and is in a function that nothing calls. A function has
//!   one send (receive) for each stage and tag.
//!
//! **Shardings and claims**
//! - **S1** A sharding has one list of axes for each dim.
//! - **S2** Its axes exist in the mesh; none is of pp, whose devices run different functions.
//! - **S3** No axis or part of one appears twice, among dims and partials.
//! - **S4** A partial value is of one reduction and not boolean.
//! - **S5** The result of a reshard has the sharding the reshard names.
//! - **S6** The caller's operands and results of a call are placed as the function's arguments and results. Where the function
//!   claims zero padding of an argument the caller does too, and the other way round for results.
//! - **S7** A claim has one padding for each dim; its term nests at most 64 deep and sums at least one term.
//!
//! **Entries**
//! - **E1** An entry names a function that exists, and a role for each argument and a name for each result of it.
//! - **E2** Parameters and states that it names exist.
//! - **E3** Names of inputs are different, so are names of results, and no state is given twice.
//! - **E4** An argument that is a parameter or state has its type, at the local level the type of a piece of it, and its sharding.
//! - **E5** An alias names an argument that is a state and a result; no argument or result is aliased twice.
//! - **E6** The result has the state's name, and the argument's type and placement; its padding is zero where the argument's is.
//! - **E7** The weight is finite and not negative.
//! - **E8** No parameter, state, argument or result of an entry is partial.
//!
//! **Repeats** (of an entry that has some, or takes a stack)
//! - **R1** The function consists of calls. The bodies, and as many calls before each, are calls of the function, in order, none in
//!   two; a body has at least one call and one repetition, and the entry at most 2^20 calls.
//! - **R2** A body calls the functions that the calls before it do.
//! - **R3** A stack is an operand in one body, of as many repetitions as it has elements, and nowhere else.
//! - **R4** The new value of a stack of states is a result of the body that uses the stack, or the stack; no other result is a stack.

mod calls;
mod entry;
mod func;
mod placement;
#[cfg(test)]
mod tests;

use crate::diagnostic::Diagnostic;
use crate::graph::{Module, Param, State};
use crate::mesh::Mesh;
use crate::repeat::Numbering;
use crate::repeat::names::{Template, repeated};
use crate::sharding::Sharding;
use crate::types::Type;
use std::collections::HashSet;

/// The level of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Graph,
    Sharded,
    Local,
}

impl Level {
    /// The level that some annotation speaks for; L1 and L2 then ask it of all.
    fn of(module: &Module) -> Self {
        let values = || module.funcs.values().flat_map(|f| f.values.values());
        let shardings = module.params.values().map(|p| &p.sharding);
        let mut shardings = shardings.chain(module.states.values().map(|s| &s.sharding));
        if values().any(|v| v.claim.is_some()) {
            Level::Local
        } else if values().any(|v| v.sharding.is_some()) || shardings.any(Option::is_some) {
            Level::Sharded
        } else {
            Level::Graph
        }
    }

    fn name(self) -> &'static str {
        match self {
            Level::Graph => "graph",
            Level::Sharded => "sharded",
            Level::Local => "local",
        }
    }
}

/// Checks every rule of this module's documentation.
///
/// # Errors
/// The first rule that does not hold: where, and why. The fault is the input's; a pass that made the module says
/// otherwise.
pub fn verify(module: &Module) -> Result<(), Diagnostic> {
    mesh(&module.mesh)?;
    names(module)?;
    let level = Level::of(module);
    for p in module.params.values() {
        param(module, p, level)?;
    }
    for s in module.states.values() {
        state(module, s, level)?;
    }
    Numbering::new(module.params.values().map(|p| p.stack)).map_err(|why| broken("the parameters", why))?;
    Numbering::new(module.states.values().map(|s| s.stack)).map_err(|why| broken("the states", why))?;
    let called = calls::check(module)?;
    for (id, func) in &module.funcs {
        func::check(module, func, level)?;
        func::links(module, func, called.contains(id))?;
    }
    // Functions are well formed from here on.
    for entry in &module.entries {
        entry::check(module, entry, level)?;
    }
    Ok(())
}

/// A module that breaks a rule.
fn broken(place: impl Into<String>, why: impl Into<String>) -> Diagnostic {
    Diagnostic::input("the module is not well formed").at(place).why(why)
}

fn mesh(mesh: &Mesh) -> Result<(), Diagnostic> {
    mesh.check().map_err(|why| broken("the mesh", why))
}

fn names(module: &Module) -> Result<(), Diagnostic> {
    let twice = |what: &str, name: Option<&str>| match name {
        Some(name) => Err(broken(format!("{what} `{name}`"), format!("another {what} has this name"))),
        None => Ok(()),
    };
    twice("parameter", repeated(module.params.values().map(|p| (p.name.as_str(), p.stack))))?;
    twice("state", repeated(module.states.values().map(|s| (s.name.as_str(), s.stack))))?;
    twice("entry", first_repeated(module.entries.iter().map(|e| e.name.as_str())))
}

/// The first item that is equal to an earlier one.
fn first_repeated<T: Copy + Eq + std::hash::Hash>(items: impl IntoIterator<Item = T>) -> Option<T> {
    let mut seen = HashSet::new();
    items.into_iter().find(|&item| !seen.insert(item))
}

fn param(module: &Module, p: &Param, level: Level) -> Result<(), Diagnostic> {
    let place = format!("parameter `{}`", p.name);
    sized(&place, &p.ty)?;
    stack(&p.name, p.stack, p.source.name()).map_err(|why| broken(&place, why))?;
    p.source.validate().map_err(|d| broken(&place, d.to_string()))?;
    if p.source.shape != p.ty.shape {
        let why = format!("it is {}, but its source has the shape {:?}", p.ty, p.source.shape);
        return Err(broken(place, why));
    }
    stored(module, &place, &p.ty, p.sharding.as_ref(), level)
}

fn state(module: &Module, s: &State, level: Level) -> Result<(), Diagnostic> {
    let place = format!("state `{}`", s.name);
    sized(&place, &s.ty)?;
    stack(&s.name, s.stack, None).map_err(|why| broken(&place, why))?;
    stored(module, &place, &s.ty, s.sharding.as_ref(), level)
}

/// M7 for one stack.
fn stack(name: &str, count: Option<u32>, source: Option<&str>) -> Result<(), String> {
    let Some(count) = count else { return Ok(()) };
    let numbers = |name: &str| {
        let t = Template::parse(name).filter(|t| count > 0 && t.number(count - 1).is_some());
        let none = || format!("`{name}` does not leave open the numbers of {count} layers");
        t.map(|t| (t.first, t.step)).ok_or_else(none)
    };
    let own = numbers(name)?;
    match source.map(numbers).transpose()? {
        Some(source) if source != own => Err("its source counts layers otherwise than its name".into()),
        _ => Ok(()),
    }
}

fn sized(place: &str, ty: &Type) -> Result<(), Diagnostic> {
    match ty.checked() {
        Some(_) => Ok(()),
        None => {
            let why = format!("{ty} is empty or too large");
            Err(broken(place, why).help("every dim is at least 1, all together less than 2^60 bytes"))
        }
    }
}

/// The sharding of a parameter or state.
fn stored(
    module: &Module,
    place: &str,
    ty: &Type,
    sharding: Option<&Sharding>,
    level: Level,
) -> Result<(), Diagnostic> {
    match (level, sharding) {
        (Level::Graph, _) => Ok(()),
        (_, None) => Err(broken(place, format!("it has no sharding, in a {} module", level.name()))),
        (_, Some(s)) => {
            placement::check(&module.mesh, ty, s).map_err(|why| broken(place, why))?;
            placement::whole(s).map_err(|why| broken(place, why))
        }
    }
}
