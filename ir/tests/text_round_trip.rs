//! Random modules survive printing and parsing, and the verifier has an answer to each of them, whatever they hold.

use pcc_ir::graph::{Entry, Func, FuncId, Inst, Label, Module, Param, Role, State, Value, ValueId};
use pcc_ir::mesh::{Axis, AxisRef, Mesh};
use pcc_ir::ops::{
    BinaryKind, Broadcast, Collective, CompareKind, Constant, DotGeneral, Gather, Iota, Literal, MaskTail,
    Op, Reduce, ShardBase, ShardSlice, Slice, Softmax, UnaryKind, Update,
};
use pcc_ir::repeat::Repeat;
use pcc_ir::sharding::{Claim, Pad, Sharding, Term};
use pcc_ir::types::{DType, ReduceKind, Type};
use pcc_ir::{ParamSource, text, verifier};
use proptest::prelude::*;

/// Decisions, read one after the other; 0 when they run out, so that shorter tapes make smaller modules.
struct Tape<'a>(std::slice::Iter<'a, u32>);

impl Tape<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.0.next().map_or(0, |&x| x as usize % n)
    }

    fn chance(&mut self) -> bool {
        self.below(3) == 1
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    fn many<T>(&mut self, most: usize, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| item(self)).collect()
    }

    fn name(&mut self) -> String {
        self.pick(&["", "x", "a b", "\"", "\\", "λ\n\t", "// no", "%0", "sharding [{tp}]", "\u{0}", "}"])
            .to_owned()
    }

    fn float(&mut self) -> f64 {
        self.pick(&[
            0.0,
            -0.0,
            1.0,
            0.1,
            -1e300,
            5e-324,
            1e-6,
            f64::INFINITY,
            f64::NEG_INFINITY,
            123456789.125,
        ])
    }

    fn dtype(&mut self) -> DType {
        use DType::*;
        self.pick(&[F32, F64, BF16, F16, I64, I32, Bool])
    }

    fn ty(&mut self) -> Type {
        let dtype = self.dtype();
        Type::new(dtype, self.many(4, |t| 1 + t.below(9)))
    }

    fn dim(&mut self) -> usize {
        self.pick(&[0, 1, 2, 7, 1 << 40, usize::MAX])
    }

    fn dims(&mut self) -> Vec<usize> {
        self.many(3, Self::dim)
    }

    fn kind(&mut self) -> ReduceKind {
        self.pick(&[ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min])
    }

    /// An axis that the mesh has: what the text form can say of a sharding.
    fn axis(&mut self, mesh: &Mesh) -> AxisRef {
        let axis = self.pick(&Axis::ALL);
        let (pre, size) = (1 + self.below(4) as u32, 1 + self.below(4) as u32);
        mesh.part(axis, pre, size).unwrap_or_else(|| mesh.whole(axis))
    }

    fn sharding(&mut self, mesh: &Mesh) -> Sharding {
        let dims = self.many(3, |t| t.many(2, |t| t.axis(mesh)));
        Sharding { dims, partial: self.many(2, |t| (t.axis(mesh), t.kind())) }
    }

    fn term(&mut self, depth: usize) -> Term {
        match depth > 0 && self.chance() {
            false => Term::Value(ValueId::from_u32(self.below(99) as u32)),
            true => Term::Sum((0..1 + self.below(3)).map(|_| self.term(depth - 1)).collect()),
        }
    }

    fn value(&mut self, mesh: &Mesh) -> Value {
        let mut value = Value { name: self.name(), ..Value::new(self.ty()) };
        value.labels = self.many(3, |t| t.pick(&[None, Some(Label::Batch), Some(Label::Seq)]));
        value.sharding = self.chance().then(|| self.sharding(mesh));
        value.claim = self.chance().then(|| Claim {
            term: self.term(3),
            sharding: self.sharding(mesh),
            pad: self.many(3, |t| t.pick(&[Pad::Zero, Pad::Unspecified])),
        });
        value
    }

    fn base(&mut self, mesh: &Mesh) -> Option<ShardBase> {
        self.chance().then(|| ShardBase { global: self.dim(), axes: self.many(2, |t| t.axis(mesh)) })
    }

    /// Attributes that need not fit the operands. Axes of attributes need not exist either.
    fn op(&mut self, mesh: &Mesh, funcs: usize) -> Op {
        let axes = |t: &mut Self| {
            t.many(2, |t| AxisRef {
                axis: t.pick(&Axis::ALL),
                pre: 1 + t.below(3) as u32,
                size: 1 + t.below(4) as u32,
            })
        };
        match self.below(28) {
            0 => Op::Unary(self.pick(&[UnaryKind::Neg, UnaryKind::Exp])),
            1 => Op::Binary(self.pick(&[BinaryKind::Add, BinaryKind::Mul])),
            2 => Op::Constant(Constant { ty: self.ty(), value: Literal::Splat(self.float()) }),
            3 => Op::Constant(Constant { ty: self.ty(), value: Literal::Dense(self.many(4, Self::float)) }),
            4 => Op::Iota(Iota { ty: self.ty(), dim: self.dim(), base: self.base(mesh) }),
            5 => Op::Compare(CompareKind::Lt),
            6 => Op::Select,
            7 => Op::Convert(self.dtype()),
            8 => Op::Broadcast(Broadcast { shape: self.dims(), dims: self.dims() }),
            9 => Op::Reshape(self.dims()),
            10 => Op::Transpose(self.dims()),
            11 => Op::Slice(Slice { start: self.dims(), limit: self.dims() }),
            12 => Op::Concat(self.dim()),
            13 => Op::DotGeneral(DotGeneral {
                lhs_batch: self.dims(),
                rhs_batch: self.dims(),
                lhs_contract: self.dims(),
                rhs_contract: self.dims(),
                result: None,
            }),
            14 => Op::Reduce(Reduce { kind: self.kind(), dims: self.dims() }),
            15 => Op::Gather(Gather { batch: self.dim(), base: self.base(mesh) }),
            16 => Op::Update(Update { batch: self.dim(), base: self.base(mesh) }),
            17 => Op::Softmax(Softmax { dim: self.dim() }),
            18 if funcs > 0 => Op::Call(FuncId::from_u32(self.below(funcs) as u32)),
            19 => Op::Reshard(self.sharding(mesh)),
            20 => Op::Collective(Collective::AllReduce { axes: axes(self), kind: self.kind() }),
            21 => Op::Collective(Collective::AllGather {
                axes: axes(self),
                dim: self.dim(),
                global: self.dim(),
            }),
            22 => Op::Collective(Collective::ReduceScatter {
                axes: axes(self),
                dim: self.dim(),
                kind: self.kind(),
                global: self.dim(),
            }),
            23 => Op::Collective(Collective::AllToAll {
                axes: axes(self),
                split: self.dim(),
                split_global: self.dim(),
                concat: self.dim(),
                concat_global: self.dim(),
            }),
            24 => Op::ShardSlice(ShardSlice { axes: axes(self), dim: self.dim(), global: self.dim() }),
            25 => Op::MaskTail(MaskTail {
                axes: axes(self),
                dim: self.dim(),
                global: self.dim(),
                value: self.float(),
            }),
            26 => Op::Send { stage: self.below(3) as u32, tag: self.below(3) as u32 },
            _ => Op::Recv { stage: self.below(3) as u32, tag: self.below(3) as u32, ty: self.ty() },
        }
    }

    fn func(&mut self, mesh: &Mesh, funcs: usize) -> Func {
        let mut f = Func::new(self.name());
        f.args = self.many(3, |t| t.value(mesh)).into_iter().map(|v| f.values.push(v)).collect();
        for _ in 0..self.below(6) {
            let op = self.op(mesh, funcs);
            let n = f.values.len();
            let args = if n > 0 { self.many(3, |t| ValueId::from_u32(t.below(n) as u32)) } else { vec![] };
            let made = self.many(2, |t| t.value(mesh));
            // Half of the time the types are those of the op.
            let types: Vec<Type> = args.iter().map(|&v| f.ty(v).clone()).collect();
            let fit = op.infer(&types.iter().collect::<Vec<_>>()).ok().filter(|_| self.chance());
            let made = match fit {
                Some(types) => types.into_iter().map(Value::new).collect(),
                None => made,
            };
            let results = made.into_iter().map(|v| f.values.push(v)).collect();
            f.insts.push(Inst { op, args, results, loc: self.name() });
        }
        if self.chance() {
            f.values.push(self.value(mesh));
        }
        let n = f.values.len();
        f.results = if n > 0 { self.many(3, |t| ValueId::from_u32(t.below(n) as u32)) } else { vec![] };
        f
    }

    fn stack(&mut self) -> Option<u32> {
        self.chance().then(|| self.below(1000) as u32)
    }

    fn entry(&mut self, m: &Module) -> Entry {
        let args = self.many(4, |t| match t.below(3) {
            1 if !m.params.is_empty() => Role::Param(m.params.keys().next().unwrap()),
            2 if !m.states.is_empty() => Role::State(m.states.keys().next().unwrap()),
            _ => Role::Input(t.name()),
        });
        Entry {
            name: self.name(),
            func: m.funcs.keys().nth(self.below(m.funcs.len())).unwrap(),
            args,
            results: self.many(3, Self::name),
            aliases: self.many(2, |t| (t.below(4), t.below(4))),
            weight: self.pick(&[1.0, 0.1, 1e-9, -2.5, 1e20]),
            repeats: self.many(2, |t| Repeat {
                first: t.below(9),
                calls: t.below(3),
                count: t.below(99) as u32,
            }),
        }
    }

    fn module(&mut self) -> Module {
        let mut size = || 1 + self.below(6) as u32;
        let mesh = Mesh { pp: size(), dp: size(), cp: 1, ep: 1, tp: size() };
        let mut m = Module { name: self.name(), mesh, ..Module::default() };
        for _ in 0..self.below(3) {
            let ty = self.ty();
            let source = match self.chance() {
                false => ParamSource::constant(ty.shape.clone(), self.float() as f32),
                true => ParamSource::random(ty.shape.clone(), self.below(9) as u64, self.name(), 0.5),
            };
            let source = if source.validate().is_ok() { source } else { ParamSource::ones(ty.shape.clone()) };
            let sharding = self.chance().then(|| self.sharding(&mesh));
            m.params.push(Param { name: self.name(), ty, source, sharding, stack: self.stack() });
        }
        for _ in 0..self.below(2) {
            let sharding = self.chance().then(|| self.sharding(&mesh));
            m.states.push(State { name: self.name(), ty: self.ty(), sharding, stack: self.stack() });
        }
        let funcs = self.below(4);
        for _ in 0..funcs {
            let f = self.func(&mesh, funcs);
            m.funcs.push(f);
        }
        if funcs > 0 {
            m.entries = self.many(2, |t| t.entry(&m));
        }
        m
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn modules_survive_their_text(tape in prop::collection::vec(any::<u32>(), 0..600)) {
        let m = Tape(tape.iter()).module();
        let printed = m.to_string();
        let back = text::parse(&printed).map_err(|d| TestCaseError::fail(format!("{d}\n{printed}")))?;
        prop_assert_eq!(back.to_string(), printed.clone());
        prop_assert_eq!(&back, &m, "{}", printed);
        let _ = verifier::verify(&m);
    }
}

#[test]
fn attributes_are_of_every_shape() {
    // The generator reaches ops with attributes of all kinds: a sample keeps it honest.
    let mut names = std::collections::BTreeSet::new();
    for seed in 0..400u32 {
        let tape: Vec<u32> =
            (0..400u32).map(|i| (i ^ seed.rotate_left(i % 32)).wrapping_mul(2_654_435_761) >> 7).collect();
        let m = Tape(tape.iter()).module();
        names.extend(m.funcs.values().flat_map(|f| &f.insts).map(|i| i.op.name()));
    }
    for name in [
        "constant",
        "iota",
        "gather",
        "call",
        "reshard",
        "all_to_all",
        "mask_tail",
        "send",
        "recv",
        "broadcast",
    ] {
        assert!(names.contains(name), "no {name} among {names:?}");
    }
}
