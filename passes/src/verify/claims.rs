//! Proves the claim of every value of every local function, op by op.

mod entry;

use super::collectives::sharding_after;
use super::compute::{self, Operand, Outcome};
use super::layout::canonical;
use super::padding::{Fill, of_claim, of_results, pads, settle};
use super::terms::{Form, Origin, Terms, combine};
use super::{Summary, fault};
use pcc_ir::ops::{BinaryKind, Op};
use pcc_ir::{Claim, Diagnostic, Func, FuncId, Inst, Module, Pad, Sharding, Term, Type, ValueId};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Checks all functions that entries reach.
pub(super) fn check(sharded: &Module, local: &Module) -> Result<Summary, Diagnostic> {
    check_tables(sharded, local)?;
    let mut summary = Summary::default();
    for id in reachable(local) {
        let (Some(global), Some(func)) = (sharded.funcs.get(id), local.funcs.get(id)) else {
            return Err(Diagnostic::check(format!("the sharded module has no function {id}")));
        };
        summary.values += FuncCheck::new(sharded, local, global, func)?.run()?;
        summary.functions += 1;
    }
    Ok(summary)
}

/// Checks what entries take and give, once their functions are checked.
pub(super) fn check_entries(sharded: &Module, local: &Module) -> Result<(), Diagnostic> {
    local.entries.iter().try_for_each(|e| entry::check(sharded, local, e))
}

/// Parameters, states and entries are the same at both levels.
fn check_tables(sharded: &Module, local: &Module) -> Result<(), Diagnostic> {
    let fault =
        |what: &str| Diagnostic::check(format!("the local module has other {what} than the sharded one"));
    if sharded.mesh != local.mesh {
        return Err(fault("mesh axes"));
    }
    if let Some((a, _)) = sharded.params.values().zip(local.params.values()).find(|(a, b)| a != b) {
        return Err(fault("parameters").at(a.name.clone()));
    }
    if let Some((a, _)) = sharded.states.values().zip(local.states.values()).find(|(a, b)| a != b) {
        return Err(fault("states").at(a.name.clone()));
    }
    let counts = |m: &Module| (m.params.len(), m.states.len(), m.entries.len());
    if counts(sharded) != counts(local) || sharded.entries != local.entries {
        return Err(fault("entries or tables"));
    }
    Ok(())
}

/// Functions that entries reach.
pub(super) fn reachable(module: &Module) -> BTreeSet<FuncId> {
    let mut seen = BTreeSet::new();
    let mut open: Vec<FuncId> = module.entries.iter().map(|e| e.func).collect();
    while let Some(id) = open.pop() {
        if seen.insert(id) {
            let calls = module.funcs[id].insts.iter().filter_map(|i| match i.op {
                Op::Call(callee) => Some(callee),
                _ => None,
            });
            open.extend(calls);
        }
    }
    seen
}

/// What has been proved of a local value.
struct Fact<'a> {
    form: Rc<Form>,
    global: &'a Type,
    sharding: &'a Sharding,
    canonical: Sharding,
    fills: Vec<Fill>,
}

struct FuncCheck<'a> {
    sharded: &'a Module,
    local: &'a Module,
    /// The function at both levels.
    global: &'a Func,
    func: &'a Func,
    terms: Terms<'a>,
    /// One a value; filled as values are proved.
    facts: Vec<Option<Fact<'a>>>,
}

impl<'a> FuncCheck<'a> {
    fn new(
        sharded: &'a Module,
        local: &'a Module,
        global: &'a Func,
        func: &'a Func,
    ) -> Result<Self, Diagnostic> {
        if global.args.len() != func.args.len() || global.results.len() != func.results.len() {
            return Err(fault::of_func(func, "does not take and give as many values as its sharded form"));
        }
        let facts = (0..func.values.len()).map(|_| None).collect();
        Ok(Self { sharded, local, global, func, terms: Terms::new(global), facts })
    }

    /// Checks everything; gives the number of values proved.
    fn run(mut self) -> Result<usize, Diagnostic> {
        for (&v, &of) in self.func.args.iter().zip(&self.global.args) {
            self.check_boundary(v, of)?;
            let fills = of_claim(&self.claim(v)?.pad);
            self.prove(v, fills)?;
        }
        for inst in &self.func.insts {
            self.inst(inst)?;
        }
        for (&v, &of) in self.func.results.iter().zip(&self.global.results) {
            self.check_boundary(v, of)?;
        }
        Ok(self.facts.iter().flatten().count())
    }

    fn claim(&self, v: ValueId) -> Result<&'a Claim, Diagnostic> {
        let claim = self.func.values[v].claim.as_ref();
        claim.ok_or_else(|| fault::of_value(self.func, v, "claims nothing"))
    }

    fn fact(&self, v: ValueId) -> Result<&Fact<'a>, Diagnostic> {
        let fact = self.facts[v.as_u32() as usize].as_ref();
        fact.ok_or_else(|| fault::of_value(self.func, v, "is used before it is proved"))
    }

    /// Arguments and results stand for those of the sharded function, laid out as it says.
    fn check_boundary(&self, v: ValueId, of: ValueId) -> Result<(), Diagnostic> {
        let claim = self.claim(v)?;
        let (form, _) = self.resolve(v, &claim.term)?;
        let wanted = self.terms.of(of).cloned().unwrap_or_default();
        if form != wanted {
            let why =
                format!("it stands for {}, not for {}", self.terms.text(&form), self.terms.text(&wanted));
            return Err(
                fault::of_value(self.func, v, "is not what the function takes or gives there").why(why)
            );
        }
        let Some(sharding) = &self.global.values[of].sharding else {
            return Err(fault::of_value(self.global, of, "was given no sharding"));
        };
        let shape = &self.global.ty(of).shape;
        let same = sharding.dims.len() == shape.len()
            && claim.sharding.dims.len() == shape.len()
            && canonical(shape, sharding) == canonical(shape, &claim.sharding);
        if !same {
            let mesh = &self.local.mesh;
            let why = format!("it is {}, but should be {}", claim.sharding.text(mesh), sharding.text(mesh));
            return Err(
                fault::of_value(self.func, v, "crosses the function's boundary laid out otherwise").why(why)
            );
        }
        Ok(())
    }

    fn resolve(&self, v: ValueId, term: &Term) -> Result<(Rc<Form>, &'a Type), Diagnostic> {
        self.terms
            .resolve(term)
            .map_err(|why| fault::of_value(self.func, v, "claims something without meaning").why(why))
    }

    /// Records that `v` is what it claims, with the padding that was proved, after checking that the claim says no more.
    fn prove(&mut self, v: ValueId, mut fills: Vec<Fill>) -> Result<(), Diagnostic> {
        let claim = self.claim(v)?;
        let (form, global) = self.resolve(v, &claim.term)?;
        let ty = self.func.ty(v);
        let fits = claim.sharding.dims.len() == global.rank()
            && claim.pad.len() == global.rank()
            && claim.sharding.local_type(global) == *ty;
        if !fits {
            let why = format!(
                "it is {ty}, but claims a piece {} of {global}",
                claim.sharding.text(&self.local.mesh)
            );
            return Err(fault::of_value(self.func, v, "has another shape than it claims").why(why));
        }
        settle(&mut fills, &claim.sharding, &global.shape);
        let promised = |d: &usize| claim.pad[*d] == Pad::Zero && fills[*d] != Fill::Zero;
        if let Some(d) = (0..fills.len()).find(promised) {
            let why = format!("its op may leave anything in the padding of dim {d}");
            return Err(fault::of_value(self.func, v, "claims zero padding that nothing puts there").why(why));
        }
        // Who writes the value goes by its claim: what that leaves open, nobody after it may rely on.
        for (d, fill) in fills.iter_mut().enumerate() {
            if *fill == Fill::Zero && claim.pad[d] != Pad::Zero && claim.sharding.pads(d, global.shape[d]) {
                *fill = Fill::Any;
            }
        }
        let canonical = canonical(&global.shape, &claim.sharding);
        self.facts[v.as_u32() as usize] =
            Some(Fact { form, global, sharding: &claim.sharding, canonical, fills });
        Ok(())
    }

    fn inst(&mut self, inst: &'a Inst) -> Result<(), Diagnostic> {
        match inst.op {
            Op::Call(callee) => self.call(inst, callee),
            Op::Collective(_) | Op::ShardSlice(_) | Op::MaskTail(_) => self.moved(inst),
            _ => self.computed(inst),
        }
    }

    /// Collectives, slices and masks: the term stays, the sharding changes.
    fn moved(&mut self, inst: &'a Inst) -> Result<(), Diagnostic> {
        let (&[arg], &[result]) = (&inst.args[..], &inst.results[..]) else {
            return Err(fault::of_inst(self.func, inst, "has an op with other than one operand and result"));
        };
        let mesh = &self.local.mesh;
        let fact = self.fact(arg)?;
        let claim = self.claim(result)?;
        let (form, global) = self.resolve(result, &claim.term)?;
        if form != fact.form || global != fact.global {
            let (claims, made) = (self.terms.text(&form), self.terms.text(&fact.form));
            let why = format!("`{}` passes on {made}, but it claims {claims}", inst.op.name());
            return Err(fault::of_value(self.func, result, "is not what it claims").why(why));
        }
        let after = match sharding_after(mesh, &inst.op, &global.shape, &fact.canonical) {
            Some(Ok(after)) => after,
            Some(Err(why)) => {
                return Err(
                    fault::of_value(self.func, result, &format!("is no valid `{}`", inst.op.name())).why(why)
                );
            }
            None => return Err(fault::of_inst(self.func, inst, "is no collective")),
        };
        if claim.sharding.dims.len() != global.rank() || after != canonical(&global.shape, &claim.sharding) {
            let (after, claimed) = (after.text(mesh), claim.sharding.text(mesh));
            let why = format!("`{}` leaves it {after}, but it claims {claimed}", inst.op.name());
            return Err(fault::of_value(self.func, result, "is not laid out as it claims").why(why));
        }
        let rule = inst.op.rule(&[self.func.ty(arg)], &[self.func.ty(result)]);
        let made = of_results(&inst.op, &rule, &[&fact.fills]);
        self.prove_all(inst, made)
    }

    fn prove_all(&mut self, inst: &'a Inst, made: Vec<Vec<Fill>>) -> Result<(), Diagnostic> {
        if made.len() != inst.results.len() {
            return Err(fault::of_inst(
                self.func,
                inst,
                "has an op that does not say what its padding holds",
            ));
        }
        inst.results.iter().zip(made).try_for_each(|(&v, fills)| self.prove(v, fills))
    }

    /// Ops that compute.
    fn computed(&mut self, inst: &'a Inst) -> Result<(), Diagnostic> {
        let facts = inst.args.iter().map(|&v| self.fact(v)).collect::<Result<Vec<_>, _>>()?;
        let operands: Vec<Operand<'_>> = facts
            .iter()
            .zip(&inst.args)
            .map(|(f, &v)| Operand {
                global: f.global,
                local: self.func.ty(v),
                sharding: f.sharding,
                canonical: &f.canonical,
                fills: &f.fills,
            })
            .collect();
        let mut results = Vec::new();
        for &v in &inst.results {
            let claim = self.claim(v)?;
            let (_, global) = self.resolve(v, &claim.term)?;
            if claim.sharding.dims.len() != global.rank() {
                return Err(fault::of_value(self.func, v, "has another rank than it claims"));
            }
            results.push(Outcome { global, local: self.func.ty(v), sharding: &claim.sharding });
        }
        let global = self.global_op(inst, &facts)?;
        let made =
            compute::check(&self.local.mesh, global, &inst.op, &operands, &results).map_err(|wrong| {
                let blamed = wrong.operand.and_then(|i| inst.args.get(i)).or(inst.results.first());
                match blamed {
                    Some(&v) if wrong.operand.is_some() => {
                        fault::of_value(self.func, v, &format!("cannot be read by `{}`", inst.op.name()))
                            .at(reader_place(self.func, inst))
                            .why(wrong.why)
                    }
                    _ => fault::of_inst(self.func, inst, "is not what it claims").why(wrong.why),
                }
            })?;
        self.prove_all(inst, made)
    }

    /// The op of the sharded function that the local one must be a form of: that which makes the claimed value of operands that stand
    /// for the same as the local ones, or the op itself where it only rearranges a sum.
    fn global_op(&self, inst: &'a Inst, facts: &[&Fact<'a>]) -> Result<&'a Op, Diagnostic> {
        let forms: Vec<&Form> = facts.iter().map(|f| f.form.as_ref()).collect();
        if let (Some(made), &[result]) = (combine(&inst.op, &forms), &inst.results[..]) {
            let (claimed, _) = self.resolve(result, &self.claim(result)?.term)?;
            if *claimed == made {
                return Ok(&inst.op);
            }
        }
        let Some(&first) = inst.results.first() else {
            return Err(fault::of_inst(self.func, inst, "makes nothing"));
        };
        let made = || {
            let parts: Vec<_> = forms.iter().map(|f| self.terms.text(f)).collect();
            format!("`{}` of {}", inst.op.name(), parts.join(", "))
        };
        let mut found = None;
        for (i, &v) in inst.results.iter().enumerate() {
            let origin = match self.claim(v)?.term {
                Term::Value(of) => self.terms.origin(of),
                Term::Sum(_) => None,
            };
            let claimed = self.resolve(v, &self.claim(v)?.term)?.0;
            let other = || {
                let why = format!("it is made as {}, but claims {}", made(), self.terms.text(&claimed));
                fault::of_value(self.func, v, "is not what it claims").why(why)
            };
            let Some(Origin::Inst(at, r)) = origin else { return Err(other()) };
            if r != i || found.is_some_and(|f| f != at) {
                return Err(other());
            }
            found = Some(at);
            let global = &self.global.insts[at];
            if global.results.len() != inst.results.len() || !self.same_operands(global, &forms, &inst.op) {
                return Err(other());
            }
            if std::mem::discriminant(&global.op) != std::mem::discriminant(&inst.op) {
                return Err(other());
            }
        }
        match found {
            Some(at) => Ok(&self.global.insts[at].op),
            None => Err(fault::of_value(self.func, first, "is made by no op of the sharded function")),
        }
    }

    /// Whether the operands of an op of the sharded function are these, in order or, where order does not matter, in the other one.
    fn same_operands(&self, global: &Inst, forms: &[&Form], op: &Op) -> bool {
        let wanted: Option<Vec<&Form>> =
            global.args.iter().map(|&v| self.terms.of(v).map(Rc::as_ref)).collect();
        let Some(mut wanted) = wanted else { return false };
        if wanted == forms {
            return true;
        }
        use BinaryKind::*;
        wanted.reverse();
        matches!(op, Op::Binary(Add | Mul | Max | Min | And | Or)) && wanted == forms
    }

    /// A call passes what the callee says it takes, and its results are what the callee says it gives.
    fn call(&mut self, inst: &'a Inst, callee: FuncId) -> Result<(), Diagnostic> {
        let facts = inst.args.iter().map(|&v| self.fact(v)).collect::<Result<Vec<_>, _>>()?;
        let global = self.global_op(inst, &facts)?;
        if *global != inst.op {
            let called = match global {
                Op::Call(f) => self.sharded.funcs.get(*f).map_or("?", |f| &f.name),
                op => op.name(),
            };
            return Err(fault::of_inst(self.func, inst, &format!("should be made by `{called}`")));
        }
        let inner = &self.local.funcs[callee];
        for ((&v, fact), &a) in inst.args.iter().zip(&facts).zip(&inner.args) {
            let wanted = self.boundary_claim(inner, a)?;
            self.check_same(v, &fact.canonical, fact.global, wanted, inner, a)?;
            let have = pads(&fact.fills);
            let padded = |d: usize| wanted.sharding.pads(d, fact.global.shape[d]);
            let lacks =
                |&d: &usize| wanted.pad.get(d) == Some(&Pad::Zero) && have[d] != Pad::Zero && padded(d);
            if let Some(d) = (0..have.len()).find(lacks) {
                let why = format!("`{}` relies on zeros in the padding of dim {d}", inner.name);
                return Err(
                    fault::of_value(self.func, v, "is passed with padding that may hold anything").why(why)
                );
            }
        }
        let mut made = Vec::new();
        for (&v, &r) in inst.results.iter().zip(&inner.results) {
            let given = self.boundary_claim(inner, r)?;
            let claim = self.claim(v)?;
            let (_, ty) = self.resolve(v, &claim.term)?;
            if claim.sharding.dims.len() != ty.rank() {
                return Err(fault::of_value(self.func, v, "has another rank than it claims"));
            }
            self.check_same(v, &canonical(&ty.shape, &claim.sharding), ty, given, inner, r)?;
            made.push(of_claim(&given.pad));
        }
        self.prove_all(inst, made)
    }

    fn boundary_claim(&self, inner: &'a Func, v: ValueId) -> Result<&'a Claim, Diagnostic> {
        inner.values[v].claim.as_ref().ok_or_else(|| fault::of_value(inner, v, "claims nothing"))
    }

    fn check_same(
        &self,
        v: ValueId,
        have: &Sharding,
        ty: &Type,
        wanted: &Claim,
        inner: &Func,
        inside: ValueId,
    ) -> Result<(), Diagnostic> {
        let fits = wanted.sharding.dims.len() == ty.rank() && wanted.pad.len() == ty.rank();
        if fits && *have == canonical(&ty.shape, &wanted.sharding) {
            return Ok(());
        }
        let mesh = &self.local.mesh;
        let (have, wanted) = (have.text(mesh), wanted.sharding.text(mesh));
        let inside = fault::value(inner, inside);
        let why = format!("it is {have} here and {wanted} as {inside} of `{}`", inner.name);
        Err(fault::of_value(self.func, v, "is laid out otherwise inside the call").why(why))
    }
}

/// Where an instruction reads, for messages about an operand.
fn reader_place(func: &Func, inst: &Inst) -> String {
    match inst.loc.as_str() {
        "" => format!("function `{}`", func.name),
        loc => format!("`{loc}` in function `{}`", func.name),
    }
}
