//! Products with epilogues: c against the product in f64, what the epilogue writes against the interpreter of kernels on that c.

use super::data::{Data, Device, View, decode, rounded_off};
use super::products::Case;
use super::{GemmKernel, GemmPath, arch_of, gemms, ptx_with};
use crate::emit::tests::gpu::{keep, ptx};
use pcc_ir::gpu::{Arch, Epilogue, LibraryKernel, Shape};
use pcc_ir::kernel::{Access, Kernel, Lane, Node, Store};
use pcc_ir::kernel_eval::{KernelData, eval_kernel};
use pcc_ir::ops::{BinaryKind, UnaryKind};
use pcc_ir::types::DType;

/// `out = max(c, row) * gate + bias`, and in place `residual = residual + c * scalar`.
fn kernel(c: DType, rank: u32) -> Kernel {
    let access = |dtype, lane, write| Access { dtype, lane, write };
    let (unit, strided, once) = (Lane::Unit, Lane::Strided, Lane::Broadcast);
    let binary = Node::Binary;
    Kernel {
        name: String::new(),
        rank,
        accesses: vec![
            access(DType::F32, unit, false),
            access(DType::F32, unit, true),
            access(c, strided, false),
            access(DType::F16, strided, false),
            access(DType::BF16, unit, false),
            access(DType::F32, once, false),
            access(DType::BF16, strided, true),
        ],
        scalars: 1,
        nodes: vec![
            Node::Load(0),
            Node::Load(2),
            Node::Load(3),
            Node::Load(4),
            Node::Load(5),
            Node::Scalar(0),
            Node::Convert(DType::F32, 5),
            binary(BinaryKind::Max, 1, 4),
            binary(BinaryKind::Mul, 7, 2),
            binary(BinaryKind::Add, 8, 3),
            binary(BinaryKind::Mul, 1, 6),
            binary(BinaryKind::Add, 0, 10),
        ],
        stores: vec![Store { access: 6, node: 9, at: None }, Store { access: 1, node: 11, at: None }],
    }
}

/// `out = c / (1 + exp(-c)) * gate`, as of a gated MLP.
fn gated(c: DType) -> Kernel {
    let access = |write| Access { dtype: c, lane: Lane::Unit, write };
    Kernel {
        name: String::new(),
        rank: 2,
        accesses: vec![access(false), access(false), access(true)],
        scalars: 0,
        nodes: vec![
            Node::Load(0),
            Node::Load(1),
            Node::Unary(UnaryKind::Neg, 0),
            Node::Unary(UnaryKind::Exp, 2),
            Node::Const { dtype: DType::F32, bits: 1f32.to_bits().into() },
            Node::Binary(BinaryKind::Add, 3, 4),
            Node::Binary(BinaryKind::Div, 0, 5),
            Node::Binary(BinaryKind::Mul, 6, 1),
        ],
        stores: vec![Store { access: 2, node: 7, at: None }],
    }
}

const C: usize = 2;
const SCALAR: i64 = -3;

/// A product and its epilogue.
struct Fused {
    case: Case,
    kernel: Kernel,
}

impl Fused {
    fn new(plain: GemmKernel, sizes: (u64, u64, u64), rank: u32) -> Self {
        Self::over(1, plain, sizes, rank)
    }

    /// Of so many products.
    fn over(batch: u64, plain: GemmKernel, (m, n, k): (u64, u64, u64), rank: u32) -> Self {
        let kernel = kernel(plain.c, rank);
        let epilogue = Some(Epilogue { batch: batch > 1, ..Epilogue::new(&kernel, 1 << C) });
        let plain = Case::new(GemmKernel { epilogue, ..plain }, (m, n, k));
        Fused { case: Case { alpha: 0.5, batch: [1, 1, batch], ..plain }, kernel }
    }

    fn batch(&self) -> u64 {
        self.case.batch[2]
    }

    fn library(&self) -> LibraryKernel {
        LibraryKernel::Gemm(self.case.kernel)
    }

    /// For the architecture, if there can be one.
    fn text(&self, arch: Arch) -> String {
        let arch = if self.library().exists_for(arch) { arch } else { arch_of(&self.case.kernel) };
        ptx_with(arch, &self.library(), Some(&self.kernel))
    }

    fn shape(&self) -> Shape {
        self.case.kernel.shape(self.case.m, self.case.n, self.batch())
    }

    /// What the buffers of the accesses look like, c's aside: numbers of the kernel's accesses with them.
    fn views(&self) -> Vec<(Vec<usize>, View)> {
        let extents = [self.batch(), self.case.m, self.case.n];
        let whole = |dtype, order: [usize; 3], pad| View::new(dtype, &extents, &order, 1, pad);
        let part =
            |dtype, strides: [i64; 3]| View { dtype, extents: extents.to_vec(), strides: strides.to_vec() };
        let rows = self.case.m as i64;
        vec![
            (vec![0, 1], whole(DType::F32, [2, 1, 0], 3)),
            (vec![3], whole(DType::F16, [1, 2, 0], 5)),
            (vec![4], part(DType::BF16, [0, 0, 1])),
            (vec![5], part(DType::F32, [2 * rows + 1, 2, 0])),
            (vec![6], whole(DType::BF16, [1, 2, 0], 2)),
        ]
    }

    fn check_at(&self, text: &str, shape: Shape, seed: u64) -> Result<(), String> {
        let device = Device::new();
        let operands = self.case.operands(&device)?;
        let data: Vec<(Vec<usize>, Data)> = self
            .views()
            .into_iter()
            .enumerate()
            .map(|(i, (of, view))| (of, Data::noise(view, 10 + i as u64)))
            .collect();
        let strides_of_c = operands.c.strides[2..].to_vec();
        let count = self.kernel.accesses.len();
        let (mut places, mut strides) = (vec![operands.place; count], vec![strides_of_c; count]);
        for (of, data) in &data {
            // What is only written is not there before.
            let place = device.put(data, |_| of != &[6])?;
            for &access in of {
                (places[access], strides[access]) = (place, data.view.strides.clone());
            }
        }
        let mut params = operands.params.clone();
        params.extend(&places);
        // Along rows and columns, then the batch.
        let along = if self.batch() > 1 { 3 } else { 2 };
        params.extend(
            strides.iter().flat_map(|s| [s[1], s[2], s[0]].into_iter().take(along)).map(|s| s as u64),
        );
        params.push(SCALAR as u64);
        device.run(text, &self.library(), shape, &params, seed)?;
        self.case.compare(&device, &operands)?;
        let view = View {
            extents: vec![self.batch(), self.case.m, self.case.n],
            strides: strides[C].clone(),
            ..operands.c
        };
        let c = device.get(operands.place, &view)?;
        let images = self.interpret(&c, &data, &strides);
        for (number, (_, data)) in data.iter().enumerate() {
            let image = &images[number];
            device.compare(places[data_access(number)], &data.view, |index| {
                let at = data.view.offset(index) as usize;
                let want = decode(data.view.dtype, &image[at..at + data.view.dtype.bytes()]);
                // Both round in the same places.
                (want, rounded_off(DType::F64, want))
            })?;
        }
        Ok(())
    }

    /// The buffers after the kernel, c's being the last.
    fn interpret(&self, c: &Data, data: &[(Vec<usize>, Data)], strides: &[Vec<i64>]) -> Vec<Vec<u8>> {
        let mut images: Vec<Vec<u8>> = data.iter().map(|(_, data)| data.image()).collect();
        let buffer =
            |access: usize| data.iter().position(|(of, _)| of.contains(&access)).unwrap_or(data.len());
        let bases: Vec<(usize, usize)> = (0..self.kernel.accesses.len()).map(|a| (buffer(a), 0)).collect();
        images.push(c.image());
        let (rank, batch, rows) = (self.kernel.rank as usize, self.batch() as i64, self.case.m as i64);
        let strides: Vec<i64> = strides.iter().flat_map(|s| &s[3 - rank..]).copied().collect();
        let mut run = KernelData {
            buffers: &mut images,
            bases: &bases,
            extents: &[batch, rows, self.case.n as i64][3 - rank..],
            strides: &strides,
            scalars: &[SCALAR],
        };
        eval_kernel(&self.kernel, &mut run, 0..batch * rows).unwrap();
        images
    }
}

/// An access of a buffer.
fn data_access(number: usize) -> usize {
    [0, 3, 4, 5, 6][number]
}

fn gemm(path: GemmPath, a: DType, c: DType, rows: u32, by_k: (bool, bool)) -> GemmKernel {
    GemmKernel { path, a, b: a, c, rows, a_by_k: by_k.0, b_by_k: by_k.1, epilogue: None }
}

fn cases() -> Vec<Fused> {
    use GemmPath::{Few, Mma, Simt, Wgmma};
    let (bf16, f16, f32) = (DType::BF16, DType::F16, DType::F32);
    vec![
        Fused::new(gemm(Few, bf16, bf16, 1, (true, true)), (1, 37, 300), 2),
        Fused::new(gemm(Few, bf16, f32, 1, (true, false)), (1, 41, 90), 1),
        Fused::new(gemm(Few, f32, f32, 4, (true, true)), (3, 35, 50), 2),
        Fused::new(gemm(Few, bf16, bf16, 8, (true, true)), (7, 21, 530), 2),
        Fused::new(gemm(Few, f16, f16, 8, (false, false)), (6, 69, 45), 2),
        Fused::new(gemm(Simt, f32, f32, 64, (true, false)), (70, 67, 19), 2),
        Fused::new(gemm(Simt, DType::F64, DType::F64, 64, (false, true)), (5, 130, 7), 2),
        Fused::new(gemm(Simt, f32, bf16, 64, (true, true)), (1, 70, 33), 1),
        Fused::new(gemm(Mma, bf16, bf16, 64, (true, true)), (45, 93, 70), 2),
        Fused::new(gemm(Mma, f16, f32, 128, (true, false)), (140, 133, 40), 2),
        Fused::new(gemm(Mma, bf16, f16, 128, (false, true)), (97, 70, 33), 2),
        Fused::new(gemm(Wgmma, bf16, bf16, 128, (true, true)), (140, 269, 72), 2),
        Fused::new(gemm(Wgmma, f16, f32, 128, (false, true)), (97, 70, 33), 2),
        Fused::over(3, gemm(Few, bf16, bf16, 4, (true, true)), (4, 21, 90), 3),
        Fused::over(2, gemm(Simt, f32, f32, 64, (true, false)), (66, 67, 19), 3),
        Fused::over(3, gemm(Mma, bf16, f32, 64, (true, true)), (40, 70, 40), 3),
        Fused::over(2, gemm(Wgmma, bf16, bf16, 128, (true, true)), (70, 130, 40), 3),
    ]
}

#[test]
fn epilogues_are_what_the_kernels_are_behind_the_product() {
    for (i, fused) in cases().into_iter().enumerate() {
        let text = fused.text(Arch::ALL[i % Arch::ALL.len()]);
        let shape = fused.shape();
        // Blocks go on with other tiles, too.
        let few = Shape { grid: [shape.grid[0], 1, 1], ..shape };
        for (seed, shape) in [(1, shape), (2, few)] {
            let Case { kernel, m, n, k, .. } = fused.case;
            fused.check_at(&text, shape, seed).unwrap_or_else(|e| panic!("{e}\n{kernel:?} {m} {n} {k}"));
        }
        keep(std::slice::from_ref(&fused.kernel), &[fused.library()]);
    }
}

/// Every product with a costly epilogue and with one of many accesses, for those who look at registers.
#[test]
fn epilogues_go_with_every_product() {
    let types: Vec<DType> = gemms().iter().map(|g| g.c).collect();
    let kernels: Vec<Kernel> = types.iter().flat_map(|&c| [kernel(c, 2), gated(c)]).collect();
    let with = |plain: &GemmKernel| {
        let epilogues = [Epilogue::new(&kernel(plain.c, 2), 1 << C), Epilogue::new(&gated(plain.c), 1)];
        epilogues.map(|e| LibraryKernel::Gemm(GemmKernel { epilogue: Some(e), ..*plain }))
    };
    let library: Vec<LibraryKernel> = gemms().iter().flat_map(with).collect();
    keep(&kernels, &library);
    let text = ptx(&kernels, &library[..4], Arch::Sm80);
    assert!(library[..4].iter().all(|k| text.contains(&format!(".entry {}(", k.symbol()))));
}

/// Strides of an access that are taken for each other's, or pointers, are noticed on every path, and so is a bound that lets one more in.
#[test]
fn mutants_of_epilogues_are_noticed() {
    let cases = cases();
    for fused in [3, 4, 5, 8, 12, 13, 14, 15, 16].map(|i| &cases[i]) {
        let text = fused.text(Arch::Sm80);
        let noticed =
            |text: &str| [1, 2].iter().any(|&seed| fused.check_at(text, fused.shape(), seed).is_err());
        assert!(!noticed(&text));
        let (first, count) = (GemmKernel::PARAMS, fused.kernel.accesses.len());
        let each = if fused.batch() > 1 { 3 } else { 2 };
        let (strides, scalar) = (first + count, first + (1 + each) * count);
        let stride = |access: usize, dim: usize| strides + each * access + dim;
        let mut swaps = vec![(first, first + 5), (first + 1, first + 6), (scalar, 3)];
        swaps.extend([
            (stride(0, 0), stride(6, 0)),
            (stride(1, 0), stride(3, 0)),
            (stride(4, 0), stride(5, 0)),
        ]);
        swaps.extend([(stride(3, 0), stride(3, 1)), (stride(6, 0), stride(6, 1))]);
        if each == 3 {
            swaps.extend([
                (stride(0, 2), stride(6, 2)),
                (stride(4, 2), stride(5, 2)),
                (stride(3, 0), stride(3, 2)),
            ]);
        }
        for (a, b) in swaps {
            let [a, b] = [a, b].map(|i| format!("_param_{i}]"));
            assert!(text.contains(&a) && text.contains(&b), "{a}, {b}");
            let mutant = text.replace(&a, "_other").replace(&b, &a).replace("_other", &b);
            assert!(noticed(&mutant), "{a} for {b}: {:?}", fused.case);
        }
        let places = text.match_indices("setp.lt.s32").map(|(at, _)| at);
        let bounds = places
            .filter(|&at| noticed(&[&text[..at], "setp.le.s32", &text[at + "setp.lt.s32".len()..]].concat()));
        assert!(bounds.count() >= 2, "{:?}", fused.case);
    }
}
