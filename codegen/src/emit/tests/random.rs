//! Random kernels against the interpreter. Most are exact, node by node, so they must agree to the value; some end in
//! transcendental functions and are compared with a tolerance.

use super::harness::*;
use pcc_ir::kernel::{Access, At, Kernel, Lane, Node, Store};
use pcc_ir::kernel_check::Kind;
use pcc_ir::ops::{BinaryKind, CompareKind, UnaryKind};
use pcc_ir::types::{DType, ReduceKind};

const LANES: [Lane; 4] = [Lane::Unit, Lane::Unit, Lane::Broadcast, Lane::Strided];

/// A kernel in the making, with its arguments.
struct Maker {
    rng: Rng,
    kernel: Kernel,
    extents: Vec<i64>,
    strides: Vec<i64>,
    buffers: Vec<Vec<u8>>,
    scalars: Vec<i64>,
}

impl Maker {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let rank = 1 + rng.below(4) as u32;
        let mut extents: Vec<i64> = (1..rank).map(|_| 1 + rng.below(4) as i64).collect();
        // Long enough, now and then, for a GPU's threads to take more than one group.
        let longest = if rng.below(6) == 0 { 600 } else { 70 };
        extents.push(1 + rng.below(longest) as i64);
        let kernel = super::harness::kernel(rank, 0, &[], &[], &[]);
        Maker { rng, kernel, extents, strides: vec![], buffers: vec![], scalars: vec![] }
    }

    fn push(&mut self, node: Node) -> u32 {
        self.kernel.nodes.push(node);
        self.kernel.nodes.len() as u32 - 1
    }

    fn scalar(&mut self, value: i64) -> u32 {
        self.scalars.push(value);
        self.kernel.scalars += 1;
        self.kernel.scalars - 1
    }

    /// An access of any layout; reading ones may repeat along dims, written ones have a place for every element. With
    /// `copies` the buffer holds so many of it. Access and elements of one copy.
    fn access(&mut self, dtype: DType, lane: Lane, write: bool, copies: i64) -> (u32, i64) {
        let rank = self.extents.len();
        let mut order: Vec<usize> = (0..rank).collect();
        // The lane dim innermost for unit strides, anywhere else for strided ones.
        let free = if lane == Lane::Strided { rank } else { rank - 1 };
        for i in (1..free).rev() {
            order.swap(i, self.rng.below(i as u64 + 1) as usize);
        }
        let mut strides = vec![0; rank];
        let mut stride = 1;
        for &dim in order.iter().rev() {
            let repeats = !write && self.rng.below(4) == 0 && (lane != Lane::Unit || dim + 1 != rank);
            if repeats || (lane == Lane::Broadcast && dim + 1 == rank) {
                continue;
            }
            strides[dim] = stride;
            stride = stride * self.extents[dim] + self.rng.below(3) as i64;
        }
        let last: i64 = strides.iter().zip(&self.extents).map(|(s, e)| s * (e - 1)).sum();
        let copy = last + 1;
        let count = (copy * copies) as usize;
        let values: Vec<f64> = (0..count).map(|_| self.number(dtype)).collect();
        self.buffers.push(elements(dtype, values));
        self.strides.extend(strides);
        self.kernel.accesses.push(Access { dtype, lane, write });
        (self.kernel.accesses.len() as u32 - 1, copy)
    }

    fn number(&mut self, dtype: DType) -> f64 {
        match Kind::of(dtype) {
            Kind::Float => self.rng.float(),
            Kind::Int => self.rng.below(12) as f64 - 4.0,
            Kind::Bool => self.rng.below(2) as f64,
        }
    }

    /// An earlier node of a kind.
    fn any(&mut self, kind: Kind) -> Option<u32> {
        let info = self.kernel.check_nodes();
        let found: Vec<u32> = (0..info.len() as u32).filter(|&n| info[n as usize] == kind).collect();
        if found.is_empty() { None } else { Some(self.rng.pick(&found)) }
    }

    fn dtype(&mut self, kind: Kind) -> DType {
        match kind {
            Kind::Float => self.rng.pick(&[DType::F32, DType::F32, DType::BF16, DType::F16, DType::F64]),
            Kind::Int => self.rng.pick(&[DType::I32, DType::I64]),
            Kind::Bool => DType::Bool,
        }
    }

    fn kind(&mut self) -> Kind {
        self.rng.pick(&[Kind::Float, Kind::Float, Kind::Float, Kind::Int, Kind::Bool])
    }

    fn load(&mut self) {
        let kind = self.kind();
        let (dtype, lane) = (self.dtype(kind), self.rng.pick(&LANES));
        let index = self.any(Kind::Int).filter(|_| self.rng.below(3) == 0);
        let (access, copy) = self.access(dtype, lane, false, if index.is_some() { 4 } else { 1 });
        let node = match index {
            None => Node::Load(access),
            Some(index) => {
                let (stride, limit) = (self.scalar(copy), self.scalar(4));
                Node::LoadAt { access, index, stride, limit }
            }
        };
        self.push(node);
    }

    /// A float made an integer between -100 and 100, so that sums are the same in any order.
    fn small_integer(&mut self, x: u32) -> u32 {
        let (low, high) = (self.push(float(-100.0)), self.push(float(100.0)));
        let x = self.push(Node::Binary(BinaryKind::Max, x, low));
        let x = self.push(Node::Binary(BinaryKind::Min, x, high));
        let x = self.push(Node::Convert(DType::I32, x));
        self.push(Node::Convert(DType::F32, x))
    }

    fn reduce(&mut self, x: u32) {
        match self.rng.pick(&[ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min]) {
            ReduceKind::Sum => {
                let x = self.small_integer(x);
                self.push(Node::RowReduce(ReduceKind::Sum, x));
            }
            kind => {
                let extreme = self.push(Node::RowReduce(kind, x));
                // Of zeros of both signs either may win: adding 0 makes them one.
                let zero = self.push(float(0.0));
                self.push(Node::Binary(BinaryKind::Add, extreme, zero));
            }
        }
    }

    fn step(&mut self) {
        let kind = self.kind();
        let (Some(a), Some(b)) = (self.any(kind), self.any(kind)) else { return self.load() };
        match self.rng.below(10) {
            0 | 1 => self.load(),
            2 => {
                let dim = self.rng.below(u64::from(self.kernel.rank)) as u32;
                self.push(Node::Index(dim));
            }
            3 if kind == Kind::Float => self.reduce(a),
            4 => {
                let to = self.kind();
                let dtype = self.dtype(to);
                self.push(Node::Convert(dtype, a));
            }
            5 => {
                let compare = self.rng.pick(CompareKind::ALL);
                self.push(Node::Compare(compare, a, b));
            }
            6 => {
                if let Some(c) = self.any(Kind::Bool) {
                    self.push(Node::Select(c, a, b));
                }
            }
            7 => {
                use UnaryKind::*;
                let unary = match kind {
                    Kind::Float => self.rng.pick(&[Neg, Abs, Sqrt, Recip, Relu]),
                    Kind::Int => self.rng.pick(&[Neg, Abs, Relu, Not]),
                    Kind::Bool => Not,
                };
                self.push(Node::Unary(unary, a));
            }
            _ => {
                use BinaryKind::*;
                let binary = match kind {
                    Kind::Float => self.rng.pick(&[Add, Sub, Mul, Div, Max, Min]),
                    Kind::Int => self.rng.pick(&[Add, Sub, Mul, Div, Max, Min, And, Or]),
                    Kind::Bool => self.rng.pick(&[And, Or]),
                };
                self.push(Node::Binary(binary, a, b));
            }
        }
    }

    /// A transcendental function of a clamped node.
    fn transcendental(&mut self) {
        let Some(x) = self.any(Kind::Float) else { return };
        let (low, high) = (self.push(float(-20.0)), self.push(float(20.0)));
        let x = self.push(Node::Binary(BinaryKind::Max, x, low));
        let x = self.push(Node::Binary(BinaryKind::Min, x, high));
        use UnaryKind::*;
        let kind = self.rng.pick(&[Exp, Log, Sin, Cos, Tanh, Erf, Sigmoid, Silu, Gelu, GeluTanh, Rsqrt]);
        self.push(Node::Unary(kind, x));
    }

    fn store(&mut self, node: u32, varies: bool) {
        let kind = self.kernel.check_nodes()[node as usize];
        // A tolerance for f32 says nothing of results rounded further.
        let dtype =
            if kind == Kind::Float { self.rng.pick(&[DType::F32, DType::F64]) } else { self.dtype(kind) };
        let lane = if varies { self.rng.pick(&[Lane::Unit, Lane::Strided]) } else { self.rng.pick(&LANES) };
        let info = self.kernel.check_varies();
        let index = self
            .any(Kind::Int)
            .filter(|&i| self.rng.below(4) == 0 && !(lane == Lane::Broadcast && info[i as usize]));
        let (access, copy) = self.access(dtype, lane, true, if index.is_some() { 4 } else { 1 });
        let at = index.map(|index| At { index, stride: self.scalar(copy), limit: self.scalar(4) });
        self.kernel.stores.push(Store { access, node, at });
    }

    fn make(mut self, exact: bool) -> Case {
        self.load();
        for _ in 0..2 + self.rng.below(14) {
            self.step();
        }
        if !exact {
            self.transcendental();
        }
        let nodes = self.kernel.nodes.len() as u64;
        let info = self.kernel.check_varies();
        self.store(nodes as u32 - 1, info[nodes as usize - 1]);
        for _ in 0..self.rng.below(3) {
            // A transcendental node is never used further, so these are exact.
            let node = self.rng.below(nodes) as u32;
            self.store(node, info[node as usize]);
        }
        Case {
            kernel: self.kernel,
            buffers: self.buffers,
            extents: self.extents,
            strides: self.strides,
            scalars: self.scalars,
        }
    }
}

/// Facts about a kernel that has no store yet.
trait Unfinished {
    fn check_nodes(&self) -> Vec<Kind>;
    fn check_varies(&self) -> Vec<bool>;
}

fn with_store(kernel: &Kernel) -> Kernel {
    let mut finished = kernel.clone();
    finished.nodes.push(float(0.0));
    finished.accesses.push(write(DType::F32, Lane::Unit));
    finished.stores = vec![store(finished.accesses.len() as u32 - 1, finished.nodes.len() as u32 - 1)];
    finished
}

impl Unfinished for Kernel {
    fn check_nodes(&self) -> Vec<Kind> {
        let mut kinds = with_store(self).check().unwrap().kinds;
        kinds.pop();
        kinds
    }

    fn check_varies(&self) -> Vec<bool> {
        with_store(self).check().unwrap().varies
    }
}

#[test]
fn exact_kernels_agree_with_the_interpreter() {
    let cases: Vec<Case> = (0..200).map(|seed| Maker::new(seed).make(true)).collect();
    check_all(&cases, 0.0);
}

#[test]
fn transcendental_kernels_agree_with_the_interpreter() {
    let cases: Vec<Case> = (1000..1060).map(|seed| Maker::new(seed).make(false)).collect();
    check_all(&cases, 2e-6);
}
