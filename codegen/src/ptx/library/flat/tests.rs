//! Copies and reductions against loops over numbers, in the simulator.

use crate::emit::tests::gpu::{keep, ptx};
use crate::emit::tests::harness::{Rng, element, elements, number};
use crate::emit::tests::simulate::launch;
use half::{bf16, f16};
use pcc_cuda_sim::memory::Memory;
use pcc_cuda_sim::ptx::Module;
use pcc_ir::gpu::{Arch, COPY_RANK, LibraryKernel, Shape};
use pcc_ir::types::{DType, ReduceKind};

const DTYPES: [DType; 7] =
    [DType::F64, DType::F32, DType::BF16, DType::F16, DType::I64, DType::I32, DType::Bool];
const KINDS: [ReduceKind; 3] = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min];

/// Loads the PTX of kernels.
fn load(kernels: &[LibraryKernel]) -> Module {
    keep(&[], kernels);
    Module::load(&ptx(&[], kernels, Arch::Sm80)).unwrap()
}

/// Memory of bytes, `skew` bytes behind a multiple of 256.
fn place(memory: &Memory, bytes: &[u8], skew: usize) -> u64 {
    let at = memory.alloc(0, (skew + bytes.len()) as u64).unwrap() + skew as u64;
    memory.write(at, bytes).unwrap();
    at
}

/// A block of a packed tensor: its extents, and the strides of the tensor that it lies in.
struct View {
    shape: [usize; COPY_RANK],
    strides: [i64; COPY_RANK],
    /// Elements of the tensor.
    size: usize,
}

/// A block of a larger tensor, by `more` elements along dim `last`, whose elements are side by side.
fn view(shape: [usize; COPY_RANK], more: usize, last: usize) -> View {
    let mut order: Vec<usize> = (0..COPY_RANK).filter(|&d| d != last).collect();
    order.push(last);
    let (mut strides, mut size) = ([0; COPY_RANK], 1);
    for &d in order.iter().rev() {
        strides[d] = size as i64;
        size *= shape[d] + if d == last { more } else { 1 };
    }
    View { shape, strides, size }
}

#[test]
fn blocks_are_copied_wherever_they_lie() {
    let kernels = [1, 2, 4, 8].map(|bytes| LibraryKernel::Copy { bytes });
    let module = load(&kernels);
    let shapes = [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 3, 7], [1, 1, 1, 2, 3, 32], [2, 3, 1, 2, 2, 5]];
    let mut rng = Rng(1);
    for kernel in &kernels {
        let LibraryKernel::Copy { bytes } = *kernel else { continue };
        let bytes = bytes as usize;
        for shape in shapes {
            // Dense rows, whole in 16 bytes and not; rows that are not dense; addresses off their alignment.
            for (more, last, skew) in [(0, 5, 0), (16, 5, 0), (1, 5, 0), (0, 4, 0), (16, 5, 1)] {
                let (from, to) = (view(shape, more, last), view(shape, 2 * more, 5));
                let source: Vec<u8> = (0..from.size * bytes).map(|_| rng.next() as u8).collect();
                let mut target: Vec<u8> = vec![0xcd; to.size * bytes];
                let memory = Memory::new();
                let [src, dst] = [&source, &target].map(|b| place(&memory, b, skew * bytes));
                let mut params = vec![src, dst];
                params.extend(from.shape.map(|n| n as u64));
                params.extend([from.strides, to.strides].concat().iter().map(|&n| n as u64));
                let count: usize = shape.iter().product();
                let shape = LibraryKernel::flat_shape(count as u64);
                launch(&module, &memory, &kernel.symbol(), shape, &params, 1).unwrap();
                for e in 0..count {
                    let (mut rest, mut at) = (e, [0i64; 2]);
                    for d in (0..COPY_RANK).rev() {
                        let index = (rest % from.shape[d]) as i64;
                        rest /= from.shape[d];
                        at = [at[0] + index * from.strides[d], at[1] + index * to.strides[d]];
                    }
                    let [a, b] = at.map(|n| n as usize * bytes);
                    target[b..b + bytes].copy_from_slice(&source[a..a + bytes]);
                }
                assert!(memory.read(dst, target.len() as u64).unwrap() == target, "{kernel:?} {params:?}");
            }
        }
    }
}

/// What reductions give of one element each, in the order of the list.
fn expected(dtype: DType, kind: ReduceKind, parts: &[f64]) -> f64 {
    let combine = |a: f64, b: f64| match (dtype, kind) {
        (DType::Bool, ReduceKind::Sum) => a.max(b),
        (DType::I32, ReduceKind::Sum) => f64::from((a as i32).wrapping_add(b as i32)),
        (DType::I32 | DType::I64 | DType::F64, _) => kind.apply(a, b),
        _ => f64::from(kind.apply(a, b) as f32),
    };
    let exact = parts.iter().copied().reduce(combine).unwrap();
    match dtype {
        DType::BF16 => bf16::from_f64(exact).to_f64(),
        DType::F16 => f16::from_f64(exact).to_f64(),
        _ => exact,
    }
}

#[test]
fn buffers_are_reduced_in_order_and_in_place() {
    let kernels: Vec<LibraryKernel> = DTYPES
        .iter()
        .flat_map(|&dtype| KINDS.map(|reduce| (dtype, reduce)))
        .flat_map(|(dtype, reduce)| [1, 3].map(|members| LibraryKernel::Reduce { dtype, reduce, members }))
        .collect();
    let module = load(&kernels);
    let mut rng = Rng(2);
    for kernel in &kernels {
        let LibraryKernel::Reduce { dtype, reduce, members } = *kernel else { continue };
        let draw = |rng: &mut Rng| match dtype {
            DType::Bool => rng.below(2) as f64,
            DType::I32 => f64::from(rng.next() as i32),
            DType::I64 => rng.below(1 << 40) as f64 - 7.0,
            // What a type holds, so that only the sum is rounded.
            _ => number(dtype, &element(dtype, rng.float())),
        };
        for (n, skew, shape) in [(1000, 0, None), (37, 0, Some(2)), (37, 1, None), (3, 0, None)] {
            let columns: Vec<Vec<f64>> =
                (0..members).map(|_| (0..n).map(|_| draw(&mut rng)).collect()).collect();
            let memory = Memory::new();
            let skew = skew * dtype.bytes();
            let places: Vec<u64> =
                columns.iter().map(|c| place(&memory, &elements(dtype, c.iter().copied()), skew)).collect();
            // Into the last member.
            let dst = *places.last().unwrap();
            let params: Vec<u64> = [dst, n].into_iter().chain(places).collect();
            let plain = LibraryKernel::flat_shape(n);
            let shape = shape.map_or(plain, |threads| Shape { threads, ..plain });
            launch(&module, &memory, &kernel.symbol(), shape, &params, 1).unwrap();
            let got = memory.read(dst, n * dtype.bytes() as u64).unwrap();
            for (i, bytes) in got.chunks(dtype.bytes()).enumerate() {
                let parts: Vec<f64> = columns.iter().map(|c| c[i]).collect();
                let (got, want) = (number(dtype, bytes), expected(dtype, reduce, &parts));
                assert!(
                    got == want || got.is_nan() && want.is_nan(),
                    "{kernel:?} {parts:?}: {got}, not {want}"
                );
            }
        }
    }
}
