//! Decides which values own a buffer.
//!
//! A value owns one if something other than a kernel made or needs it (matrix products, collectives, tables of gathers, results), if it
//! is the result of a row reduction or of an op that writes its output in parts, or if several instructions would recompute it.

use super::func::{dense_strides, unit_reshape};
use pcc_ir::ops::{Literal, Op};
use pcc_ir::{Func, InstId, ValueId};
use std::collections::{HashMap, HashSet};

/// Inlined expressions deeper than this are cut: kernels stay of a size that compiles fast.
const MAX_EXPRESSION: u32 = 48;

pub(super) struct Materialise {
    pub def: HashMap<ValueId, InstId>,
    pub owned: HashSet<ValueId>,
    pub layout: HashMap<ValueId, Vec<i64>>,
    /// Instructions whose results nothing uses.
    pub dead: HashSet<InstId>,
}

/// Ops that are strided views of their operand.
fn is_view(op: &Op) -> bool {
    matches!(op, Op::Transpose(_) | Op::Broadcast(_) | Op::Slice(_) | Op::Reshape(_))
}

/// Ops whose value a consumer may compute for itself, element by element.
fn is_inlinable(op: &Op) -> bool {
    is_view(op)
        || matches!(
            op,
            Op::Iota(_)
                | Op::Unary(_)
                | Op::Binary(_)
                | Op::Compare(_)
                | Op::Select
                | Op::Convert(_)
                | Op::MaskTail(_)
                | Op::Gather(_)
                | Op::ShardSlice(_)
        )
        || matches!(op, Op::Constant(c) if matches!(c.value, Literal::Splat(_)))
}

/// Cheap enough to recompute in every consumer.
fn is_free(op: &Op) -> bool {
    is_view(op) || matches!(op, Op::Iota(_) | Op::Constant(_))
}

/// Whether the op reads operand `i` through a kernel that can inline it.
fn reads_inlined(op: &Op, i: usize) -> bool {
    match op {
        Op::DotGeneral(_) | Op::Attention(_) | Op::TopK(_) | Op::Sample(_) => false,
        Op::Collective(_) | Op::Call(_) | Op::ShardSlice(_) => false,
        Op::Gather(_) => i == 1,
        _ => true,
    }
}

/// Instructions that some result depends on.
pub(super) fn live_insts(func: &Func) -> Vec<InstId> {
    let dead = dead_insts(func, &definitions(func));
    (0..func.insts.len()).filter(|at| !dead.contains(at)).collect()
}

fn definitions(func: &Func) -> HashMap<ValueId, InstId> {
    let insts = func.insts.iter().enumerate();
    insts.flat_map(|(at, inst)| inst.results.iter().map(move |&r| (r, at))).collect()
}

/// `packed` lists the arguments that are parameters in panels.
pub(super) fn plan(func: &Func, packed: &HashSet<ValueId>) -> Materialise {
    let def = definitions(func);
    let dead = dead_insts(func, &def);
    let uses = count_uses(func, &dead);
    let mut p = Planner { func, def: &def, packed, owned: HashSet::new() };
    for &v in &func.results {
        p.own(v);
    }
    for (_, inst) in func.insts.iter().enumerate().filter(|(at, _)| !dead.contains(at)) {
        p.visit(inst, &uses);
    }
    let mut owned = p.owned;
    fuse_conversions(func, &def, &dead, &uses, &mut owned);
    cut_deep_expressions(func, &dead, &mut owned);
    let layout = transposed_layouts(func, &dead, &uses, &owned, packed);
    Materialise { def, owned, layout, dead }
}

fn dead_insts(func: &Func, def: &HashMap<ValueId, InstId>) -> HashSet<InstId> {
    let mut live = HashSet::new();
    let mut work: Vec<ValueId> = func.results.clone();
    while let Some(v) = work.pop() {
        if let Some(&at) = def.get(&v)
            && live.insert(at)
        {
            let inst = &func.insts[at];
            work.extend((0..inst.args.len()).filter(|&i| inst.op.reads(i)).map(|i| inst.args[i]));
        }
    }
    (0..func.insts.len()).filter(|at| !live.contains(at)).collect()
}

fn count_uses(func: &Func, dead: &HashSet<InstId>) -> HashMap<ValueId, u32> {
    let mut uses = HashMap::new();
    for (_, inst) in func.insts.iter().enumerate().filter(|(at, _)| !dead.contains(at)) {
        for &a in &inst.args {
            *uses.entry(a).or_insert(0) += 1;
        }
    }
    uses
}

struct Planner<'a> {
    func: &'a Func,
    def: &'a HashMap<ValueId, InstId>,
    packed: &'a HashSet<ValueId>,
    owned: HashSet<ValueId>,
}

impl Planner<'_> {
    fn own(&mut self, v: ValueId) {
        self.owned.insert(v);
    }

    /// Makes sure `v` has a view: what lies under its shape ops is owned.
    fn own_base(&mut self, v: ValueId) {
        match self.def.get(&v).map(|&at| &self.func.insts[at]) {
            Some(inst) if is_view(&inst.op) => {
                let under = inst.args[0];
                if let Op::Reshape(to) = &inst.op
                    && unit_reshape(&self.func.ty(under).shape, to).is_none()
                    && !self.is_dense_source(under)
                {
                    // The view needs its operand row-major; make the reshape's operand a buffer of its own.
                    self.own(under);
                    return;
                }
                self.own_base(under);
            }
            Some(inst) if matches!(&inst.op, Op::Constant(c) if matches!(c.value, Literal::Dense(_))) => {}
            _ => self.own(v),
        }
    }

    /// Whether `v` may be a view that reads an element several times.
    fn repeats(&self, v: ValueId) -> bool {
        match self.def.get(&v).map(|&at| &self.func.insts[at]) {
            Some(inst) if is_view(&inst.op) => {
                matches!(inst.op, Op::Broadcast(_)) || self.repeats(inst.args[0])
            }
            _ => false,
        }
    }

    /// Whether `v` will have a row-major view if its base is owned.
    fn is_dense_source(&self, v: ValueId) -> bool {
        match self.def.get(&v).map(|&at| &self.func.insts[at]) {
            None => true,
            Some(inst) => match &inst.op {
                Op::Reshape(_) => self.is_dense_source(inst.args[0]),
                op => !is_view(op),
            },
        }
    }

    fn visit(&mut self, inst: &pcc_ir::Inst, uses: &HashMap<ValueId, u32>) {
        for &r in &inst.results {
            let shared = uses.get(&r).copied().unwrap_or(0) > 1 && !is_free(&inst.op);
            let dense_constant = matches!(&inst.op, Op::Constant(c) if matches!(c.value, Literal::Dense(_)));
            // No kernel reads panels: rows of such a table are looked up first.
            let looked_up = matches!(inst.op, Op::Gather(_)) && self.packed.contains(&inst.args[0]);
            if !dense_constant && (!is_inlinable(&inst.op) || shared || looked_up) {
                self.own(r);
            }
        }
        for (i, &a) in inst.args.iter().enumerate() {
            // Rows are selected from where each element has a place of its own.
            let repeated = matches!(inst.op, Op::TopK(_) | Op::Sample(_)) && self.repeats(a);
            if repeated {
                self.own(a);
            } else if inst.op.reads(i) && !reads_inlined(&inst.op, i) {
                self.own_base(a);
            }
        }
        // A general reshape inside an expression needs its operand as a row-major buffer.
        if let Op::Reshape(to) = &inst.op
            && unit_reshape(&self.func.ty(inst.args[0]).shape, to).is_none()
        {
            let under = inst.args[0];
            if self.is_dense_source(under) { self.own_base(under) } else { self.own(under) }
        }
    }
}

/// Norms and rotations that only a conversion reads are computed where it is made, in its type, and not stored before.
fn fuse_conversions(
    func: &Func,
    def: &HashMap<ValueId, InstId>,
    dead: &HashSet<InstId>,
    uses: &HashMap<ValueId, u32>,
    owned: &mut HashSet<ValueId>,
) {
    for (at, inst) in func.insts.iter().enumerate() {
        let (Op::Convert(_), &[from], &[to]) = (&inst.op, &inst.args[..], &inst.results[..]) else {
            continue;
        };
        let Some(&made) = def.get(&from) else { continue };
        let only = uses.get(&from) == Some(&1) && !func.results.contains(&from);
        if dead.contains(&at) || !only || !owned.contains(&to) || !func.ty(to).dtype.is_float() {
            continue;
        }
        let fits = match &func.insts[made].op {
            Op::Rope(_) => true,
            // Reductions stay in the order of the function, in which they are checked.
            Op::RmsNorm(_) | Op::LayerNorm(_) => func.insts[made + 1..at].iter().all(|i| !reduces(&i.op)),
            _ => false,
        };
        if fits {
            owned.remove(&from);
        }
    }
}

/// Ops that become kernels which reduce rows.
fn reduces(op: &Op) -> bool {
    matches!(op, Op::RmsNorm(_) | Op::LayerNorm(_) | Op::Softmax(_) | Op::Reduce(_))
}

/// Owns intermediate values of very large expressions.
fn cut_deep_expressions(func: &Func, dead: &HashSet<InstId>, owned: &mut HashSet<ValueId>) {
    let mut size: HashMap<ValueId, u32> = HashMap::new();
    for (at, inst) in func.insts.iter().enumerate() {
        if dead.contains(&at) {
            continue;
        }
        let total = 1 + inst
            .args
            .iter()
            .filter(|a| !owned.contains(a))
            .map(|a| size.get(a).copied().unwrap_or(1))
            .sum::<u32>();
        for &r in &inst.results {
            if total > MAX_EXPRESSION {
                owned.insert(r);
            }
            size.insert(r, if owned.contains(&r) { 1 } else { total });
        }
    }
}

/// A dot whose only consumer is a transpose is written in the transpose's order, so that what follows is dense.
fn transposed_layouts(
    func: &Func,
    dead: &HashSet<InstId>,
    uses: &HashMap<ValueId, u32>,
    owned: &HashSet<ValueId>,
    packed: &HashSet<ValueId>,
) -> HashMap<ValueId, Vec<i64>> {
    let mut layout = HashMap::new();
    let dots: HashSet<ValueId> = func
        .insts
        .iter()
        // Columns of panels must step evenly through the result.
        .filter(|i| matches!(i.op, Op::DotGeneral(_)) && !i.args.iter().any(|a| packed.contains(a)))
        .flat_map(|i| i.results.iter().copied())
        .filter(|r| uses.get(r) == Some(&1) && !func.results.contains(r))
        .collect();
    for (at, inst) in func.insts.iter().enumerate() {
        if dead.contains(&at) {
            continue;
        }
        if let Op::Transpose(perm) = &inst.op
            && dots.contains(&inst.args[0])
            && !owned.contains(&inst.results[0])
        {
            let outer = dense_strides(&func.ty(inst.results[0]).shape);
            let mut strides = vec![0; perm.len()];
            for (i, &p) in perm.iter().enumerate() {
                strides[p] = outer[i];
            }
            layout.insert(inst.args[0], strides);
        }
    }
    layout
}
