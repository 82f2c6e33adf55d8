//! Proves that a compiled program is the function it was made from, with nothing but the IR and the ops' own rules.
//!
//! No pass is trusted and none is imported. Every function instance is checked once, in time linear in its ops, whatever the
//! number of layers and devices; only bindings are checked per call.
//!
//! 1. **Structure** ([`structure`]): values are defined once and before use, types fit the ops, axes exist in the mesh.
//! 2. **Sharded = graph** ([`erase`]): without its reshards each function instance is the function of the graph, op for op; parameters,
//!    states and entries are the same.
//! 3. **Local claims** ([`claims`]): each local value stands for the term it claims, laid out as it claims. By op:
//!    - an op that computes is the local form of the op of the graph that makes the claimed value, its operands stand for that op's
//!      operands, its split is one that the op's rule allows, the axes of reduction factors become partial, and partial operands are
//!      met only where the op is linear in them;
//!    - sums may be rearranged: terms are compared as multisets of values ([`terms`]);
//!    - a collective changes the claim as it moves data: an all-reduce ends exactly the partials it names, an all-gather takes axes
//!      from the minor end of a dim, a reduce-scatter and an all-to-all move them, a slice adds axes that nothing used
//!      ([`collectives`], [`layout`]);
//!    - a dim that is reduced has the identity of the reduction in its padding on every operand, and no claim promises padding that
//!      the op does not make ([`padding`]);
//!    - the arguments and results of a call are laid out as the callee claims; results of entries are reduced.
//! 4. **Instructions** ([`instrs`], [`memory`], [`footprint`]): every access stays in its buffer, nothing reads what was not written or
//!    what something else overwrote, each product, collective and result of the local function reads exactly the values it depends
//!    on, and the collectives are those of the function, each once, in order.
//!    Row-reducing kernels are matched in order too, and device-dependent scalars are those of the function's ops. The arithmetic of a
//!    kernel between what it reads and what it writes is not proved here; running the program against the reference shows it.
//!    Positions that a run does not have may be left out of keys, tables and states only if the sharded module shows that nothing
//!    of the run sees them ([`pcc_ir::absent`]); the task that a model names plays no part.
//! 5. **Steps** ([`stages`], [`io`]): each call of each entry runs once, in order, on one stage, bound to its own layer's parameters and
//!    states; values between calls are where they are read and not overwritten before; sends and recvs match in order, and a run of
//!    several micro-batches over links of bounded capacity ends.

mod claims;
mod collectives;
mod compute;
mod cuts;
mod erase;
mod expect;
mod fault;
mod footprint;
mod instrs;
mod io;
mod layout;
mod links;
mod memory;
mod needs;
mod padding;
mod stages;
mod structure;
mod terms;

use pcc_ir::absent::is_unseen;
use pcc_ir::program::Program;
use pcc_ir::{Diagnostic, Module};

/// The levels of one compile.
#[derive(Clone, Copy, Debug)]
pub struct CheckInput<'a> {
    /// The graph, outlined: entries are chains of calls.
    pub graph: &'a Module,
    pub sharded: &'a Module,
    pub local: &'a Module,
    pub program: &'a Program,
}

/// What was proved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Local values whose claims hold.
    pub values: usize,
    /// Function instances.
    pub functions: usize,
}

/// Checks all levels against each other.
///
/// # Errors
/// A diagnostic of fault `Check` that names the first value found to be wrong, where it is in the user's model, what is wrong with it
/// and what was expected.
pub fn check(input: &CheckInput<'_>) -> Result<Summary, Diagnostic> {
    check_sharded(input.graph, input.sharded)?;
    let summary = check_local(input.sharded, input.local)?;
    check_program(input.sharded, input.local, input.program)?;
    Ok(summary)
}

/// Checks that a sharded module is the graph with reshards.
///
/// # Errors
/// As [`check`].
pub fn check_sharded(graph: &Module, sharded: &Module) -> Result<(), Diagnostic> {
    structure::check(graph, structure::Level::Graph)?;
    structure::check(sharded, structure::Level::Sharded)?;
    erase::check(graph, sharded)
}

/// Checks every claim of a local module against the sharded module it was made from.
///
/// # Errors
/// As [`check`].
pub fn check_local(sharded: &Module, local: &Module) -> Result<Summary, Diagnostic> {
    let summary = check_functions(sharded, local)?;
    claims::check_entries(sharded, local)?;
    Ok(summary)
}

/// Checks the functions of a local module, but not what its entries promise: that results are reduced, that parameters and states come
/// as they are stored.
///
/// # Errors
/// As [`check`].
pub fn check_functions(sharded: &Module, local: &Module) -> Result<Summary, Diagnostic> {
    structure::check(sharded, structure::Level::Sharded)?;
    structure::check(local, structure::Level::Local)?;
    claims::check(sharded, local)
}

/// Checks that a program runs a local module.
///
/// # Errors
/// As [`check`].
pub fn check_program(sharded: &Module, local: &Module, program: &Program) -> Result<(), Diagnostic> {
    structure::check(sharded, structure::Level::Sharded)?;
    structure::check(local, structure::Level::Local)?;
    if program.unseen && !is_unseen(sharded) {
        return Err(Diagnostic::check(
            "the program leaves out positions that a run does not have, but the model may see them",
        )
        .why(
            "its graph does not show that keys, looked-up rows and states of such positions are never read",
        ));
    }
    io::check(sharded, local, program)?;
    stages::check(sharded, local, program)
}
