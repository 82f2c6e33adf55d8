//! Chooses the form in which devices hold each parameter.
//!
//! A parameter that is only a weight of matrix products goes into panels; where its rows are also looked up (a tied embedding), they
//! are read out of the panels. One form a parameter: a function is lowered once, so that all parameters that calls bind to one of its
//! arguments take one form, and so do all arguments that one parameter is bound to. Panels of one matrix are one form whether they
//! hold f32 or what the checkpoint has quantised: products ask the parameter at hand.

use pcc_ir::graph::Role;
use pcc_ir::program::{PackedMatrix, Storage};
use pcc_ir::source::Values;
use pcc_ir::storage::PANEL;
use pcc_ir::{DType, Func, FuncId, Inst, Module, Op, ParamId, Type, ValueId};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Padding that panels may add to any parameter, in bytes.
const FEW_BYTES: u64 = 64 << 10;

/// The forms chosen; dense where none is.
#[derive(Default)]
pub(super) struct Storages {
    args: HashMap<(FuncId, usize), Storage>,
    params: HashMap<ParamId, Storage>,
}

impl Storages {
    /// The form of a parameter.
    pub(super) fn param(&self, param: ParamId) -> Storage {
        self.params.get(&param).cloned().unwrap_or_default()
    }

    /// The form of each argument of a function.
    pub(super) fn args(&self, id: FuncId, func: &Func) -> Vec<Storage> {
        (0..func.args.len()).map(|i| self.args.get(&(id, i)).cloned().unwrap_or_default()).collect()
    }
}

/// What uses of a value ask for.
#[derive(Clone, Debug, PartialEq)]
enum Wish {
    /// Nothing uses it.
    Nothing,
    /// Only rows are looked up.
    Rows,
    /// It is a weight; panels in this form serve every use.
    Panels(Storage),
    Dense,
}

/// A parameter or an argument.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Node {
    Param(ParamId),
    Arg(FuncId, usize),
}

/// Chooses the forms for all entries of a local module.
pub(super) fn choose(local: &Module, sharded: &Module) -> Storages {
    let mut groups = Groups::default();
    let mut wishes: BTreeMap<Node, Wish> = BTreeMap::new();
    let mut known: HashMap<FuncId, Uses<'_>> = HashMap::new();
    for entry in &local.entries {
        let main = &local.funcs[entry.func];
        let bound = main.args.iter().zip(&entry.args).filter_map(|(&v, role)| match role {
            Role::Param(p) => Some((v, *p)),
            Role::Input(_) | Role::State(_) => None,
        });
        let bound: HashMap<ValueId, ParamId> = bound.collect();
        let param = |v: &ValueId| bound.get(v).copied();
        for inst in &main.insts {
            let callee = if let Op::Call(id) = inst.op { Some(id) } else { None };
            for (i, v) in inst.args.iter().enumerate() {
                let Some(id) = callee else {
                    param(v).into_iter().for_each(|p| drop(wishes.insert(Node::Param(p), Wish::Dense)));
                    continue;
                };
                let arg = Node::Arg(id, i);
                let func = &local.funcs[id];
                let uses = known.entry(id).or_insert_with(|| uses(func));
                wishes.entry(arg).or_insert_with(|| wish(func, uses, func.args[i]));
                match param(v) {
                    Some(p) => groups.join(arg, Node::Param(p)),
                    None => drop(wishes.insert(arg, Wish::Dense)),
                }
            }
        }
        // A parameter that is a result of the entry is copied as it lies.
        for p in main.results.iter().filter_map(param) {
            wishes.insert(Node::Param(p), Wish::Dense);
        }
    }
    let mut agreed: HashMap<Node, Wish> = HashMap::new();
    for (&node, wish) in &wishes {
        let all = agreed.entry(groups.root(node)).or_insert(Wish::Nothing);
        *all = agree(all, wish);
    }
    // A table whose rows alone are looked up is worth panels only where they are quantised.
    for (p, param) in &local.params {
        let root = groups.root(Node::Param(p));
        if agreed.get(&root) == Some(&Wish::Rows) {
            let table = Storage::Panels { k: (1..param.ty.rank()).collect(), n: vec![0] };
            if quantised(local, sharded, p, &table).is_some() {
                agreed.insert(root, Wish::Panels(table));
            }
        }
    }
    let mut form = |node: Node| match agreed.get(&groups.root(node)) {
        Some(Wish::Panels(storage)) => storage.clone(),
        _ => Storage::Dense,
    };
    let args: Vec<(FuncId, usize)> =
        wishes.keys().filter_map(|n| if let Node::Arg(f, i) = n { Some((*f, *i)) } else { None }).collect();
    Storages {
        args: args.into_iter().map(|(f, i)| ((f, i), form(Node::Arg(f, i)))).collect(),
        params: local
            .params
            .keys()
            .map(|p| {
                let panels = form(Node::Param(p));
                (p, quantised(local, sharded, p, &panels).unwrap_or(panels))
            })
            .collect(),
    }
}

/// Instructions that use each value of a function, for something that a result depends on.
type Uses<'a> = HashMap<ValueId, Vec<&'a Inst>>;

fn uses(func: &Func) -> Uses<'_> {
    let mut uses: Uses<'_> = HashMap::new();
    for inst in super::materialise::live_insts(func).into_iter().map(|at| &func.insts[at]) {
        for (i, &v) in inst.args.iter().enumerate() {
            if !inst.args[..i].contains(&v) {
                uses.entry(v).or_default().push(inst);
            }
        }
    }
    uses
}

/// The form of a parameter in these panels that keeps what its checkpoint has quantised, if all devices can.
fn quantised(local: &Module, sharded: &Module, p: ParamId, panels: &Storage) -> Option<Storage> {
    let (param, global) = (&local.params[p], &sharded.params[p]);
    let stored = matches!(&param.source.values, Values::Tensor(view) if view.blocks.is_some());
    if !stored || *panels == Storage::Dense || param.ty.dtype != DType::F32 {
        return None;
    }
    let sharding = global.sharding.as_ref()?;
    let slice = |position: usize| -> Vec<Range<usize>> {
        let dims = global.ty.shape.iter().enumerate();
        let span = |(d, &n): (usize, &usize)| sharding.span(&local.mesh, position, d, n);
        dims.map(span).map(|s| s.start..s.start + s.len).collect()
    };
    // Positions of a stage differ in few slices.
    let mut slices: Vec<Vec<Range<usize>>> = (0..local.mesh.stage_devices()).map(slice).collect();
    slices.sort_unstable_by(|a, b| a.iter().map(|r| r.start).cmp(b.iter().map(|r| r.start)));
    slices.dedup();
    panels.quantised(&param.source, &slices, &sharding.local_shape(&global.ty.shape))
}

/// What the uses of an argument ask for. An argument that nothing uses has no form of its own to be bound in, and is left dense.
fn wish(func: &Func, uses: &Uses<'_>, v: ValueId) -> Wish {
    if func.results.contains(&v) {
        return Wish::Dense;
    }
    let uses = uses.get(&v).into_iter().flatten();
    let all = uses.fold(Wish::Nothing, |all, inst| agree(&all, &wish_of_use(func, inst, v)));
    match all {
        Wish::Panels(storage) if worth(&storage, func.ty(v)) => Wish::Panels(storage),
        Wish::Rows => Wish::Rows,
        _ => Wish::Dense,
    }
}

fn wish_of_use(func: &Func, inst: &Inst, v: ValueId) -> Wish {
    match &inst.op {
        Op::DotGeneral(dot) => match weight_side(func, inst) {
            Some(side) if inst.args[side] == v => {
                let mut k = if side == 0 { dot.lhs_contract.clone() } else { dot.rhs_contract.clone() };
                k.sort_unstable();
                let n = (0..func.ty(v).rank()).filter(|d| !k.contains(d)).collect();
                Wish::Panels(Storage::Panels { k, n })
            }
            _ => Wish::Dense,
        },
        Op::Gather(g) if g.batch == 0 && inst.args[0] == v && inst.args[1] != v => Wish::Rows,
        _ => Wish::Dense,
    }
}

/// Which operand of a product can be a weight in panels: an argument of the function that has no batch dims, of a type that panels
/// hold.
pub(super) fn weight_side(func: &Func, inst: &Inst) -> Option<usize> {
    let Op::DotGeneral(dot) = &inst.op else { return None };
    let types = [inst.args[0], inst.args[1], inst.results[0]].map(|v| func.ty(v).dtype);
    let known = matches!(
        types,
        [DType::F32, DType::F32, DType::F32] | [DType::BF16, DType::BF16, DType::F32 | DType::BF16]
    );
    let plain = known && dot.lhs_batch.is_empty() && inst.args[0] != inst.args[1];
    // Products of two parameters: the right one.
    (0..2).rev().find(|&side| plain && func.args.contains(&inst.args[side]))
}

fn agree(a: &Wish, b: &Wish) -> Wish {
    match (a, b) {
        (Wish::Nothing, other) | (other, Wish::Nothing) => other.clone(),
        (Wish::Rows, Wish::Rows) => Wish::Rows,
        // Rows of a table are its dim 0: they lie in columns if that alone is n.
        (Wish::Rows, Wish::Panels(s)) | (Wish::Panels(s), Wish::Rows) => match s {
            Storage::Panels { n, .. } if *n == [0] => Wish::Panels(s.clone()),
            _ => Wish::Dense,
        },
        (Wish::Panels(x), Wish::Panels(y)) if x == y => a.clone(),
        _ => Wish::Dense,
    }
}

/// Whether panels pad little: a narrow matrix is better left as it is.
fn worth(storage: &Storage, ty: &Type) -> bool {
    let Some(PackedMatrix { k, n }) = storage.matrix(&ty.shape) else { return false };
    let padding = (n.next_multiple_of(PANEL) - n).saturating_mul(k).saturating_mul(ty.dtype.bytes() as u64);
    padding <= FEW_BYTES.max(ty.bytes() as u64 / 4)
}

/// Nodes that must take one form.
#[derive(Default)]
struct Groups(HashMap<Node, Node>);

impl Groups {
    fn root(&mut self, node: Node) -> Node {
        let mut at = node;
        while let Some(&up) = self.0.get(&at) {
            at = up;
        }
        // The path is cut short, so that long chains of calls stay cheap.
        let mut walk = node;
        while walk != at {
            walk = self.0.insert(walk, at).unwrap_or(at);
        }
        at
    }

    fn join(&mut self, a: Node, b: Node) {
        let (a, b) = (self.root(a), self.root(b));
        if a != b {
            self.0.insert(b, a);
        }
    }
}
