//! Small programs, and kernels in Rust.

use crate::kernels::{KernelCall, KernelSet};
use crate::{HostTensor, NoWeights, Options, Session};
use pcc_ir::kernel::{Access, Kernel, Lane, Node, Store};
use pcc_ir::program::*;
use pcc_ir::source::ParamSource;
use pcc_ir::{Axis, AxisRef, DType, Diagnostic, Mesh, ReduceKind, Sharding, Type};
use std::collections::BTreeMap;
use std::ops::Range;

/// A kernel as a Rust function.
pub(crate) type Function = Box<dyn Fn(&KernelCall<'_>, Range<i64>) + Send + Sync>;

/// Kernels of a test, by number.
pub(crate) struct Functions(pub(crate) Vec<Function>);

impl KernelSet for Functions {
    fn call(&self, call: &KernelCall<'_>, rows: Range<i64>) {
        use cranelift_entity::EntityRef;
        self.0[call.kernel.index()](call, rows);
    }
}

pub(crate) fn mesh(pp: u32, dp: u32, tp: u32) -> Mesh {
    Mesh { pp, dp, tp, ..Mesh::default() }
}

pub(crate) fn tp(mesh: &Mesh) -> AxisRef {
    mesh.whole(Axis::Tp)
}

/// Dim `dim` of `rank` split by `axes`.
pub(crate) fn split(rank: usize, dim: usize, axes: &[AxisRef]) -> Sharding {
    let mut sharding = Sharding::replicated(rank);
    sharding.dims[dim] = axes.to_vec();
    sharding
}

pub(crate) fn io(name: &str, shape: &[usize], sharding: Sharding) -> IoSpec {
    IoSpec { name: name.into(), ty: Type::f32(shape), sharding, batch_dim: None, seq_dim: None }
}

pub(crate) fn frame(offset: u64) -> Loc {
    Loc { base: Base::Frame, offset }
}

pub(crate) fn slot(slot: u32) -> Loc {
    Loc { base: Base::Slot(slot), offset: 0 }
}

/// A function with one note.
pub(crate) fn func(
    name: &str,
    args: &[u64],
    results: &[u64],
    frame_bytes: u64,
    kinds: Vec<InstrKind>,
) -> FuncProgram {
    FuncProgram {
        name: name.into(),
        slot_bytes: args.iter().chain(results).copied().collect(),
        args: args.len() as u32,
        results: results.len() as u32,
        in_place: vec![],
        frame_bytes,
        shared_bytes: 0,
        shared: vec![],
        instrs: kinds.into_iter().map(|kind| Instr { kind, note: 0, once: false }).collect(),
        notes: vec![Note { what: format!("the op of {name}"), why: String::new() }],
    }
}

pub(crate) fn call(func: u32, slots: &[Slot]) -> Step {
    Step::Call { func, slots: slots.to_vec(), layer: None }
}

/// A program of one entry `forward`.
pub(crate) fn program(
    mesh: Mesh,
    funcs: Vec<FuncProgram>,
    inputs: Vec<IoSpec>,
    outputs: Vec<IoSpec>,
    stages: Vec<StageProgram>,
) -> Program {
    Program {
        version: VERSION,
        // Lengths mask what is past a row's end, as in language models.
        model: ModelInfo { task: Task::CausalLm, ..ModelInfo::default() },
        mesh,
        dtype: DType::F32,
        batch: BatchPlan { batch: 1, replicas: 1, micro_batches: 1 },
        kernels: Default::default(),
        funcs,
        params: vec![],
        states: vec![],
        constants: vec![],
        team: vec![],
        entries: vec![EntryProgram { name: "forward".into(), inputs, outputs, stages }],
        target: Target { name: "cpu".into(), ..Target::default() },
        weights: None,
        levels_digest: String::new(),
        unseen: false,
    }
}

pub(crate) fn param(name: &str, shape: &[usize], sharding: Sharding) -> LocalParam {
    let source = ParamSource::random(shape, 5, name, 0.5);
    let ty = Type::f32(shape);
    LocalParam { name: name.into(), source, ty, sharding, stack: None, storage: Storage::Dense }
}

/// All values of a parameter, as its source defines them.
pub(crate) fn values(param: &LocalParam) -> Vec<f32> {
    let mut out = vec![0.0; param.ty.elements()];
    let all: Vec<Range<usize>> = param.ty.shape.iter().map(|&n| 0..n).collect();
    assert!(param.source.fill(&all, &mut out).unwrap());
    out
}

/// `c[m,n] = a[m,k] b[k,n]`, all row-major.
pub(crate) fn gemm(m: u64, n: u64, k: u64, a: Loc, b: Loc, c: Loc) -> InstrKind {
    let matrix = |loc, row: u64| Matrix { loc, dtype: DType::F32, row: row as i64, col: 1 };
    InstrKind::Gemm(Gemm {
        m: m.into(),
        n: n.into(),
        k: k.into(),
        alpha: 1.0,
        a: matrix(a, k),
        b: matrix(b, n),
        c: matrix(c, n),
        batch: vec![],
        accumulate: false,
        packed: None,
    })
}

pub(crate) fn collective(
    kind: CollectiveKind,
    axes: &[AxisRef],
    shapes: [&[u64]; 2],
    dims: [u32; 2],
    at: [Loc; 2],
) -> CollectiveCall {
    CollectiveCall {
        kind,
        axes: axes.to_vec(),
        reduce: ReduceKind::Sum,
        dtype: DType::F32,
        src: at[0],
        dst: at[1],
        src_shape: shapes[0].to_vec(),
        dst_shape: shapes[1].to_vec(),
        split_dim: dims[0],
        concat_dim: dims[1],
        logical_bytes: 0,
        there: Vec::new(),
    }
}

/// A kernel `y = f(x)` over `n` f32 elements in rows of `lane`, with its launch: access 0 is read, access 1 written.
pub(crate) fn map_kernel(program: &mut Program, name: &str, rows: i64, lane: i64, at: [Loc; 2]) -> InstrKind {
    let access = |write| Access { dtype: DType::F32, lane: Lane::Unit, write };
    let kernel = program.kernels.push(Kernel {
        name: name.into(),
        rank: 2,
        accesses: vec![access(false), access(true)],
        scalars: 0,
        nodes: vec![Node::Load(0)],
        stores: vec![Store { access: 1, node: 0, at: None }],
    });
    InstrKind::Kernel(Launch {
        kernel,
        ptrs: at.to_vec(),
        extents: vec![(rows as u64).into(), (lane as u64).into()],
        strides: [lane, 1, lane, 1].to_vec(),
        scalars: vec![],
    })
}

/// The Rust form of [`map_kernel`].
pub(crate) fn map(f: impl Fn(f64) -> f64 + Send + Sync + 'static) -> Function {
    Box::new(move |call, rows| {
        let at =
            |access: usize, row, lane| row * call.strides[2 * access] + lane * call.strides[2 * access + 1];
        for row in rows {
            for lane in 0..call.extents[1] {
                let x = call.operands[0].load(DType::F32, at(0, row, lane)).unwrap();
                call.operands[1].store(DType::F32, at(1, row, lane), f(x)).unwrap();
            }
        }
    })
}

pub(crate) fn session(program: Program, functions: Vec<Function>, workers: usize) -> Session {
    let options = Options { workers, ..Options::default() };
    Session::new(program, Box::new(Functions(functions)), &NoWeights, &options, &|_, _| {}).unwrap()
}

/// Runs `forward` on f32 inputs.
pub(crate) fn forward(
    session: &mut Session,
    inputs: &[(&str, &[usize], Vec<f32>)],
    rows: usize,
) -> Result<BTreeMap<String, HostTensor>, Diagnostic> {
    let named = |(name, shape, data): &(&str, &[usize], Vec<f32>)| {
        ((*name).to_owned(), HostTensor::f32(*shape, data.clone()))
    };
    session.run("forward", &inputs.iter().map(named).collect(), rows)
}

/// Repeatable small numbers.
pub(crate) fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let value = |i: u64| ((i + 3).wrapping_mul(seed * 2 + 0x9E37_79B9) >> 7) % 33;
    (0..count as u64).map(|i| value(i) as f32 / 8.0 - 2.0).collect()
}
