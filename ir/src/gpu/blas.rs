//! Elementwise kernels behind a product that cuBLASLt does with it, where that takes the product.
//!
//! It computes `out = f(alpha a b + add + bias)`, in f32, and rounds once: f is nothing, relu or gelu; the bias is a row, added to every row
//! (for the library, whose matrices are column-major: a column); `add` is a matrix like out. (cuBLAS documentation, `cublasLtMatmul` and
//! `cublasLtEpilogue_t`.) A kernel that does the same in steps may round in between, and sum in another order; where a NaN comes in,
//! the library's relu may give 0.

use crate::kernel::{AccessId, Kernel, Node, NodeId};
use crate::ops::{BinaryKind, UnaryKind};
use crate::program::{FuncProgram, Gemm, InstrKind, Launch, Program, reads_of_result};
use crate::types::DType;

/// What is done with a product, in terms of the kernel's accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlasEpilogue {
    pub activation: Activation,
    pub bias: Option<AccessId>,
    pub add: Option<AccessId>,
    pub out: AccessId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    None,
    Relu,
    /// In its form with tanh, the only one that the library has.
    GeluTanh,
}

/// What the kernel behind the product at `at` does, if it may run with the product and the library has it; and the kernel's launch over
/// a batch, rows and columns of the product. The product's own result is not stored: whoever reads it later must be looked for.
pub fn blas_epilogue_of(program: &Program, func: &FuncProgram, at: usize) -> Option<(BlasEpilogue, Launch)> {
    let launch = func.epilogue_launch(at, &program.kernels)?;
    let InstrKind::Gemm(gemm) = &func.instrs.get(at)?.kind else { return None };
    let epilogue = matched(gemm, &launch, program.kernels.get(launch.kernel)?)?;
    Some((epilogue, launch))
}

fn matched(gemm: &Gemm, launch: &Launch, kernel: &Kernel) -> Option<BlasEpilogue> {
    let [store] = kernel.stores.as_slice() else { return None };
    let dtype = |access: AccessId| kernel.accesses.get(access as usize).map(|a| a.dtype);
    let out = dtype(store.access)?;
    if store.at.is_some() || !out.is_float() || gemm.accumulate {
        return None;
    }
    let (activation, sum) = match kernel.nodes.get(plain(kernel, store.node, out) as usize)? {
        Node::Unary(UnaryKind::Relu, of) => (Activation::Relu, *of),
        Node::Unary(UnaryKind::GeluTanh, of) => (Activation::GeluTanh, *of),
        _ => (Activation::None, store.node),
    };
    let reads = reads_of_result(gemm, launch, kernel)?;
    let (mut products, mut bias, mut add) = (0, None, None);
    for access in terms(kernel, sum, out)? {
        let strides: &[i64; 3] = launch.strides.get(3 * access as usize..)?.first_chunk()?;
        if reads.get(access as usize) == Some(&true) {
            products += 1;
        } else if dtype(access) != Some(out) {
            return None;
        } else if bias.is_none() && *strides == [0, 0, 1] {
            bias = Some(access);
        } else if strides[1] == 0 || add.replace(access).is_some() {
            return None;
        }
    }
    (products == 1).then_some(BlasEpilogue { activation, bias, add, out: store.access })
}

/// A node without conversions that change nothing, or that round to what the result is rounded to at last.
fn plain(kernel: &Kernel, mut node: NodeId, out: DType) -> NodeId {
    while let Some(Node::Convert(to, of)) = kernel.nodes.get(node as usize) {
        if *to != out && *to != DType::F32 {
            break;
        }
        node = *of;
    }
    node
}

/// Terms of a sum that are what is loaded: the product, a bias and a matrix at most.
fn terms(kernel: &Kernel, sum: NodeId, out: DType) -> Option<Vec<AccessId>> {
    let (mut terms, mut nodes) = (vec![], vec![sum]);
    while let Some(node) = nodes.pop() {
        match kernel.nodes.get(plain(kernel, node, out) as usize)? {
            Node::Binary(BinaryKind::Add, a, b) => nodes.extend([*a, *b]),
            Node::Load(access) if terms.len() < 3 => terms.push(*access),
            _ => return None,
        }
    }
    Some(terms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::Extent;
    use crate::kernel::{Access, KernelId, Lane, Store};
    use crate::program::{Base, Loc, Matrix};
    use cranelift_entity::EntityRef;

    const C: AccessId = 0;
    const BIAS: AccessId = 1;
    const ADD: AccessId = 2;
    const OUT: AccessId = 3;

    /// A product of bf16 matrices, 4 rows and 6 columns of f32, and a kernel over c, a bias, a matrix and its result.
    struct Case {
        gemm: Gemm,
        launch: Launch,
        kernel: Kernel,
    }

    fn case(out: DType, nodes: &[Node]) -> Case {
        let at = |slot| Loc { base: Base::Slot(slot), offset: 0 };
        let matrix = |slot, dtype, row| Matrix { loc: at(slot), dtype, row, col: 1 };
        let gemm = Gemm {
            m: Extent::full(4),
            n: Extent::full(6),
            k: Extent::full(8),
            alpha: 1.0,
            a: matrix(4, DType::BF16, 8),
            b: matrix(5, DType::BF16, 6),
            c: matrix(0, DType::F32, 6),
            batch: vec![],
            accumulate: false,
            packed: None,
        };
        let launch = Launch {
            kernel: KernelId::new(0),
            ptrs: (0..4).map(at).collect(),
            extents: vec![Extent::full(1), Extent::full(4), Extent::full(6)],
            strides: [[0, 6, 1], [0, 0, 1], [0, 6, 1], [0, 6, 1]].concat(),
            scalars: vec![],
        };
        let access = |dtype, write| Access { dtype, lane: Lane::Unit, write };
        let kernel = Kernel {
            name: String::new(),
            rank: 2,
            accesses: vec![
                access(DType::F32, false),
                access(out, false),
                access(out, false),
                access(out, true),
            ],
            scalars: 0,
            nodes: nodes.to_vec(),
            stores: vec![Store { access: OUT, node: nodes.len() as u32 - 1, at: None }],
        };
        Case { gemm, launch, kernel }
    }

    impl Case {
        fn matched(&self) -> Option<(Activation, Option<AccessId>, Option<AccessId>)> {
            let epilogue = matched(&self.gemm, &self.launch, &self.kernel)?;
            assert_eq!(epilogue.out, OUT);
            Some((epilogue.activation, epilogue.bias, epilogue.add))
        }
    }

    fn add(a: NodeId, b: NodeId) -> Node {
        Node::Binary(BinaryKind::Add, a, b)
    }

    const LOADS: [Node; 3] = [Node::Load(C), Node::Load(BIAS), Node::Load(ADD)];

    fn with(nodes: &[Node]) -> Vec<Node> {
        [&LOADS, nodes].concat()
    }

    #[test]
    fn sums_with_a_bias_and_a_matrix_are_matched_in_any_order() {
        let of = |nodes: &[Node]| case(DType::F32, &with(nodes)).matched();
        assert_eq!(of(&[add(0, 1)]), Some((Activation::None, Some(BIAS), None)));
        assert_eq!(of(&[add(2, 0)]), Some((Activation::None, None, Some(ADD))));
        assert_eq!(of(&[add(0, 1), add(2, 3)]), Some((Activation::None, Some(BIAS), Some(ADD))));
        assert_eq!(of(&[add(1, 2), add(3, 0)]), Some((Activation::None, Some(BIAS), Some(ADD))));
        // Nothing but a copy.
        assert_eq!(case(DType::BF16, &[Node::Load(C)]).matched(), Some((Activation::None, None, None)));
        // Without the product, with it twice, with a matrix twice.
        assert_eq!(of(&[add(1, 2)]), None);
        assert_eq!(of(&[add(0, 0)]), None);
        assert_eq!(of(&[add(2, 2), add(0, 3)]), None);
        assert_eq!(of(&[Node::Binary(BinaryKind::Sub, 0, 1)]), None);
        let doubled: Vec<Node> = (2..200).map(|i| add(i, i)).collect();
        assert_eq!(of(&doubled), None);
    }

    #[test]
    fn activations_are_those_that_the_library_has() {
        let of = |nodes: &[Node]| case(DType::BF16, &with(nodes)).matched();
        let unary = |kind| of(&[add(0, 1), Node::Unary(kind, 3)]);
        assert_eq!(unary(UnaryKind::Relu), Some((Activation::Relu, Some(BIAS), None)));
        assert_eq!(unary(UnaryKind::GeluTanh), Some((Activation::GeluTanh, Some(BIAS), None)));
        assert_eq!(unary(UnaryKind::Gelu), None, "the library has no erf");
        assert_eq!(unary(UnaryKind::Silu), None);
        // Of the product alone.
        assert_eq!(of(&[Node::Unary(UnaryKind::Relu, 0)]), Some((Activation::Relu, None, None)));
        // What is added behind the activation, or goes through two.
        assert_eq!(of(&[Node::Unary(UnaryKind::Relu, 0), add(1, 3)]), None);
        let twice = [Node::Unary(UnaryKind::Relu, 0), Node::Unary(UnaryKind::GeluTanh, 3)];
        assert_eq!(of(&twice), None);
    }

    #[test]
    fn roundings_to_the_results_type_may_be_left_out() {
        let round = |dtype, node| Node::Convert(dtype, node);
        let nodes =
            |dtype| with(&[add(0, 1), round(dtype, 3), Node::Unary(UnaryKind::Relu, 4), round(dtype, 5)]);
        let relu = Some((Activation::Relu, Some(BIAS), None));
        assert_eq!(case(DType::BF16, &nodes(DType::BF16)).matched(), relu);
        assert_eq!(case(DType::F32, &nodes(DType::F32)).matched(), relu);
        // To less than the result has.
        assert_eq!(case(DType::F32, &nodes(DType::BF16)).matched(), None);
        assert_eq!(case(DType::BF16, &nodes(DType::I32)).matched(), None);
    }

    #[test]
    fn operands_are_of_the_results_type_and_lie_as_the_library_wants() {
        let of = |change: &dyn Fn(&mut Case)| {
            let mut case = case(DType::F32, &with(&[add(0, 1), add(3, 2)]));
            change(&mut case);
            case.matched()
        };
        assert!(of(&|_| ()).is_some());
        assert_eq!(of(&|c| c.kernel.accesses[1].dtype = DType::BF16), None);
        assert_eq!(of(&|c| c.kernel.accesses[2].dtype = DType::I32), None);
        assert_eq!(of(&|c| c.gemm.accumulate = true), None);
        // Two rows: one of them would have to be a matrix.
        assert_eq!(of(&|c| c.launch.strides[7] = 0), None);
        // A column is no bias.
        assert_eq!(of(&|c| c.launch.strides[4..6].copy_from_slice(&[1, 0])), None);
        // The product is read elsewhere too.
        assert_eq!(of(&|c| c.launch.strides[1] = 7), None);
        let mut two = case(DType::F32, &with(&[add(0, 1)]));
        two.kernel.stores.push(Store { access: OUT, node: 0, at: None });
        assert_eq!(two.matched(), None);
    }
}
