//! Matrix products against products in f64.

use super::data::{Data, Device, View, rounded_off};
use super::{arch_of, ptx};
use pcc_ir::gpu::gemm::{GemmKernel, GemmPath};
use pcc_ir::gpu::{Arch, LibraryKernel, Shape, f32_param};
use pcc_ir::types::DType;

/// A product of matrices of noise.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub kernel: GemmKernel,
    pub m: u64,
    pub n: u64,
    pub k: u64,
    pub batch: [u64; 3],
    pub alpha: f32,
    /// Elements between rows, and whether c has its columns apart and its rows side by side.
    pub pad: i64,
    pub c_by_m: bool,
    /// Whether all members of the batch have one b.
    pub shared_b: bool,
}

impl Case {
    pub fn new(kernel: GemmKernel, (m, n, k): (u64, u64, u64)) -> Self {
        Case { kernel, m, n, k, batch: [1; 3], alpha: 1.0, pad: 0, c_by_m: false, shared_b: false }
    }

    fn shape(&self) -> Shape {
        self.kernel.shape(self.m, self.n, self.batch.iter().product())
    }

    /// Runs the kernel's text as the runtime would and compares.
    pub fn check(&self, text: &str, seed: u64) -> Result<(), String> {
        self.check_at(text, self.shape(), seed)
    }

    pub fn check_at(&self, text: &str, shape: Shape, seed: u64) -> Result<(), String> {
        let device = Device::new();
        let operands = self.operands(&device)?;
        device.run(text, &LibraryKernel::Gemm(self.kernel), shape, &operands.params, seed)?;
        self.compare(&device, &operands)
    }

    /// Puts the operands into a device's memory.
    pub fn operands(&self, device: &Device) -> Result<Operands, String> {
        let Case { kernel, m, n, k, batch, alpha, pad, .. } = *self;
        let matrix = |dtype: DType, rows: u64, cols: u64, rows_inside: bool, aligned: bool| {
            let order = if rows_inside { [3, 4, 2, 1, 0] } else { [4, 3, 2, 1, 0] };
            let align = if aligned { 16 / dtype.bytes() as i64 } else { 1 };
            View::new(dtype, &[batch[0], batch[1], batch[2], rows, cols], &order, align, pad)
        };
        let aligned = kernel.path != GemmPath::Simt;
        let a = Data::noise(matrix(kernel.a, m, k, !kernel.a_by_k, aligned), 1);
        let mut b = matrix(kernel.b, k, n, kernel.b_by_k, aligned);
        if self.shared_b {
            b.strides[..3].fill(0);
        }
        let b = Data::noise(b, 2);
        let c = matrix(kernel.c, m, n, self.c_by_m, false);
        let places = [device.put(&a, |_| true)?, device.put(&b, |_| true)?, device.alloc(&c)?];
        let mut params = places.to_vec();
        params.extend([m, n, k]);
        for view in [&a.view, &b.view, &c] {
            params.extend(view.strides[3..].iter().map(|&s| s as u64));
        }
        params.push(f32_param(alpha));
        for (dim, &extent) in batch.iter().enumerate() {
            params.push(extent);
            params.extend([&a.view, &b.view, &c].map(|view| view.strides[dim] as u64));
        }
        Ok(Operands { a, b, c, place: places[2], params })
    }

    /// Compares c with the product.
    pub fn compare(&self, device: &Device, operands: &Operands) -> Result<(), String> {
        let Case { kernel, k, alpha, .. } = *self;
        let Operands { a, b, c, place, .. } = operands;
        device.compare(*place, c, |index| {
            let &[x, y, z, row, col] = index else { unreachable!() };
            let terms = (0..k).map(|i| a.at(&[x, y, z, row, i]) * b.at(&[x, y, z, i, col]));
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
            let (sum, size) = (sum * f64::from(alpha), size * f64::from(alpha).abs());
            // Every sum and the factor are rounded; tensor cores cut off what is below the last digit of the largest term.
            let most = (k + 4) as f64 * f64::powi(2.0, -22) * size + rounded_off(kernel.c, sum);
            (sum, most)
        })
    }
}

/// Where a case has what.
pub(super) struct Operands {
    a: Data,
    b: Data,
    pub c: View,
    /// Of c.
    pub place: u64,
    /// The product's parameters.
    pub params: Vec<u64>,
}

/// Checks each case with its kernel, under two orders of blocks and warps.
fn check_all(cases: &[Case]) {
    for case in cases {
        let text = ptx(arch_of(&case.kernel), &LibraryKernel::Gemm(case.kernel));
        for seed in [1, 2] {
            case.check(&text, seed).unwrap_or_else(|e| panic!("{e}\nseed {seed}, {case:?}"));
        }
    }
}

/// Extents that are no multiples of anything, and some that are.
const SHAPES: [(u64, u64, u64); 9] = [
    (1, 1, 1),
    (7, 33, 16),
    (33, 7, 129),
    (129, 16, 33),
    (16, 129, 7),
    (64, 128, 32),
    (130, 131, 40),
    (128, 128, 160),
    (5, 300, 257),
];

fn mma(rows: u32, dtype: DType, c: DType, a_by_k: bool, b_by_k: bool) -> GemmKernel {
    GemmKernel { path: GemmPath::Mma, a: dtype, b: dtype, c, rows, a_by_k, b_by_k, epilogue: None }
}

const ORIENTATIONS: [(bool, bool); 4] = [(true, true), (true, false), (false, true), (false, false)];

#[test]
fn tensor_cores_of_any_extents_and_orientations() {
    for (i, (a_by_k, b_by_k)) in ORIENTATIONS.into_iter().enumerate() {
        let types = [(DType::BF16, DType::F32), (DType::F16, DType::F16), (DType::BF16, DType::BF16)];
        let case = |(j, &shape): (usize, &(u64, u64, u64))| {
            let (dtype, c) = types[(i + j) % 3];
            let rows = if (i + j).is_multiple_of(2) { 128 } else { 64 };
            let case = Case::new(mma(rows, dtype, c, a_by_k, b_by_k), shape);
            let alpha = [1.0, -0.625, 3.0][j % 3];
            Case { alpha, pad: [0, 3, 8][(i + j) % 3], c_by_m: j % 4 == 2, ..case }
        };
        check_all(&SHAPES.iter().enumerate().map(case).collect::<Vec<_>>());
    }
}

#[test]
fn tensor_cores_over_a_batch() {
    let kernel = mma(64, DType::BF16, DType::F32, true, true);
    let case = Case { batch: [2, 3, 2], ..Case::new(kernel, (9, 70, 24)) };
    check_all(&[case.clone(), Case { shared_b: true, pad: 1, ..case.clone() }]);
    // Few blocks go round: rows and the batch.
    let text = ptx(Arch::Sm80, &LibraryKernel::Gemm(kernel));
    let case = Case { m: 150, batch: [1, 1, 3], k: 100, ..case };
    let shape = Shape { grid: [2, 2, 2], ..case.shape() };
    case.check_at(&text, shape, 3).unwrap();
    case.check_at(&text, Shape { grid: [2, 1, 1], ..shape }, 4).unwrap();
    // More rows of blocks than go down together, of which the last are fewer.
    let tall = Case { m: 64 * 10 + 1, n: 200, k: 16, batch: [1; 3], ..case };
    tall.check(&text, 5).unwrap();
    tall.check_at(&text, Shape { grid: [4, 9, 1], ..tall.shape() }, 6).unwrap();
}

#[test]
fn f32_tiles_of_any_types_and_strides() {
    let types = [
        (DType::F32, DType::F32, DType::F32),
        (DType::F64, DType::F32, DType::F64),
        (DType::BF16, DType::F32, DType::F16),
        (DType::F16, DType::BF16, DType::BF16),
    ];
    let mut cases = vec![];
    for (j, shape) in SHAPES.into_iter().enumerate() {
        let (a, b, c) = types[j % 4];
        // The kernel does not ask which strides are 1; here the flags make them.
        let (a_by_k, b_by_k) = ORIENTATIONS[j % 4];
        let kernel = GemmKernel { path: GemmPath::Simt, a, b, c, rows: 64, a_by_k, b_by_k, epilogue: None };
        cases.push(Case { alpha: 0.5, pad: j as i64 % 3, c_by_m: j % 2 == 1, ..Case::new(kernel, shape) });
    }
    let kernel = GemmKernel { a_by_k: true, ..cases[0].kernel };
    let batch = Case { batch: [2, 1, 3], shared_b: true, ..Case::new(kernel, (10, 66, 20)) };
    cases.push(batch);
    check_all(&cases);
}

#[test]
fn few_rows_of_any_types_and_orientations() {
    let types = [
        (DType::BF16, DType::BF16, DType::BF16),
        (DType::F32, DType::BF16, DType::F32),
        (DType::F32, DType::F32, DType::F32),
        (DType::F16, DType::F32, DType::F16),
        (DType::BF16, DType::F64, DType::F64),
    ];
    let rows_of = [1, 1, 3, 8, 5, 2, 7, 4, 1];
    let mut cases = vec![];
    for (i, (a_by_k, b_by_k)) in ORIENTATIONS.into_iter().enumerate() {
        for (j, (n, k)) in [(1, 7), (33, 300), (70, 129), (16, 1100), (40, 513)].into_iter().enumerate() {
            let (a, b, c) = types[(i + j) % 5];
            let m = rows_of[(i * 2 + j) % 9];
            let rows = (m as u32).next_power_of_two();
            let kernel = GemmKernel { path: GemmPath::Few, a, b, c, rows, a_by_k, b_by_k, epilogue: None };
            let alpha = [1.0, -2.0][j % 2];
            cases.push(Case { alpha, pad: j as i64 % 3, c_by_m: j == 3, ..Case::new(kernel, (m, n, k)) });
        }
    }
    let kernel = GemmKernel { rows: 2, ..cases[0].kernel };
    cases.push(Case { batch: [2, 2, 1], ..Case::new(kernel, (5, 20, 40)) });
    check_all(&cases);
}

fn wgmma(dtype: DType, c: DType, (a_by_k, b_by_k): (bool, bool)) -> GemmKernel {
    GemmKernel { path: GemmPath::Wgmma, ..mma(128, dtype, c, a_by_k, b_by_k) }
}

#[test]
fn warpgroups_of_any_extents_and_orientations() {
    for (i, orientation) in ORIENTATIONS.into_iter().enumerate() {
        let types = [(DType::BF16, DType::F32), (DType::F16, DType::F16), (DType::BF16, DType::BF16)];
        // More turns than there are stages, more columns and rows than a tile has.
        let shapes = [
            (5, 9, 0),
            (1, 1, 1),
            (7, 33, 16),
            (129, 16, 40),
            (70, 300, 328),
            (33, 257, 129),
            (130, 131, 448),
        ];
        let case = |(j, &shape): (usize, &(u64, u64, u64))| {
            let (dtype, c) = types[(i + j) % 3];
            let alpha = [1.0, -0.625, 3.0][j % 3];
            let case = Case::new(wgmma(dtype, c, orientation), shape);
            Case { alpha, pad: [0, 3, 8][(i + j) % 3], c_by_m: j % 4 == 2, ..case }
        };
        check_all(&shapes.iter().enumerate().map(case).collect::<Vec<_>>());
    }
}

#[test]
fn warpgroups_over_a_batch() {
    let kernel = wgmma(DType::BF16, DType::F32, (true, false));
    let case = Case { batch: [2, 1, 2], ..Case::new(kernel, (9, 70, 24)) };
    check_all(&[case.clone(), Case { shared_b: true, pad: 1, ..case.clone() }]);
    // Few blocks go round: rows and the batch.
    let text = ptx(Arch::Sm90a, &LibraryKernel::Gemm(kernel));
    let case = Case { m: 270, n: 300, batch: [1, 1, 2], k: 200, ..case };
    let shape = Shape { grid: [2, 2, 1], ..case.shape() };
    case.check_at(&text, shape, 3).unwrap();
    case.check_at(&text, Shape { grid: [2, 1, 1], ..shape }, 4).unwrap();
}
