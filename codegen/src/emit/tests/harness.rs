//! Compiles kernels, runs them on buffers that end where memory ends, and compares with the interpreter.

use crate::build::build;
use pcc_ir::codegen_protocol::{Cpu, Request};
use pcc_ir::kernel::{Access, At, Kernel, KernelArgs, Lane, Node, Store};
use pcc_ir::kernel_eval::{KernelData, eval_kernel};
use pcc_ir::types::DType;
use std::cmp::Ordering;

type Function = unsafe extern "C" fn(*const KernelArgs, i64, i64);

/// Loaded code.
pub(super) struct Code {
    _library: libloading::Library,
    functions: Vec<Function>,
}

/// The CPUs to test: this one, and one with vectors of eight lanes.
pub(super) fn cpus() -> [Cpu; 2] {
    let names = ["avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt"];
    [Cpu::Native, Cpu::Features(names.map(String::from).to_vec())]
}

pub(super) fn compile(kernels: &[Kernel], cpu: Cpu) -> Code {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("kernels.so");
    let request =
        Request { kernels: kernels.to_vec(), cpu, gpu: None, out: out.to_str().unwrap().into(), cache: None };
    let built = build(&request).unwrap();
    // SAFETY: the object has no initialisers, and the functions have the type of the calling convention.
    unsafe {
        let library = libloading::Library::new(&out).unwrap();
        let function = |symbol: &String| *library.get::<Function>(symbol.as_bytes()).unwrap();
        let functions = built.symbols.iter().map(function).collect();
        Code { _library: library, functions }
    }
}

/// Memory whose last byte is followed by a page that faults, and its first preceded by one if the length is whole pages.
struct Guarded {
    map: *mut u8,
    pages: usize,
    len: usize,
}

const PAGE: usize = 4096;

impl Guarded {
    fn new(bytes: &[u8]) -> Self {
        let pages = bytes.len().div_ceil(PAGE) + 1;
        // SAFETY: a fresh anonymous map; the last page is taken away, the bytes lie before it.
        unsafe {
            let (read_write, private) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let map = libc::mmap(std::ptr::null_mut(), pages * PAGE, read_write, private, -1, 0);
            assert_ne!(map, libc::MAP_FAILED);
            let map = map.cast::<u8>();
            assert_eq!(libc::mprotect(map.add((pages - 1) * PAGE).cast(), PAGE, libc::PROT_NONE), 0);
            let guarded = Guarded { map, pages, len: bytes.len() };
            guarded.start().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            guarded
        }
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: within the map.
        unsafe { self.map.add((self.pages - 1) * PAGE - self.len) }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes were written there, and no kernel runs while the slice lives.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the map of `new`, which nothing borrows any more.
        unsafe { libc::munmap(self.map.cast(), self.pages * PAGE) };
    }
}

/// A kernel with arguments.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub kernel: Kernel,
    /// One per access.
    pub buffers: Vec<Vec<u8>>,
    pub extents: Vec<i64>,
    pub strides: Vec<i64>,
    pub scalars: Vec<i64>,
}

impl Case {
    pub fn rows(&self) -> i64 {
        self.extents[..self.extents.len() - 1].iter().product()
    }

    /// Buffers after the code has run the rows from each cut to the next.
    pub fn run(&self, code: &Code, index: usize, cuts: &[i64]) -> Vec<Vec<u8>> {
        let memory: Vec<Guarded> = self.buffers.iter().map(|b| Guarded::new(b)).collect();
        let ptrs: Vec<*mut u8> = memory.iter().map(Guarded::start).collect();
        let args = KernelArgs {
            ptrs: ptrs.as_ptr(),
            extents: self.extents.as_ptr(),
            strides: self.strides.as_ptr(),
            scalars: self.scalars.as_ptr(),
        };
        for range in cuts.windows(2) {
            // SAFETY: the tables outlive the call; whether the accesses are in range is what is tested.
            unsafe { code.functions[index](&args, range[0], range[1]) };
        }
        memory.iter().map(|m| m.bytes().to_vec()).collect()
    }

    /// The output of a kernel whose second access is the same memory as the first.
    pub fn run_in_place(&self, code: &Code) -> Vec<u8> {
        let memory = Guarded::new(&self.buffers[0]);
        let ptrs = [memory.start(); 2];
        let args = KernelArgs {
            ptrs: ptrs.as_ptr(),
            extents: self.extents.as_ptr(),
            strides: self.strides.as_ptr(),
            scalars: self.scalars.as_ptr(),
        };
        // SAFETY: as in `run`; the two accesses have the same strides.
        unsafe { code.functions[0](&args, 0, self.rows()) };
        memory.bytes().to_vec()
    }

    /// Buffers after the interpreter has run.
    pub fn expected(&self) -> Vec<Vec<u8>> {
        let mut buffers = self.buffers.clone();
        let bases: Vec<_> = (0..buffers.len()).map(|b| (b, 0)).collect();
        let mut data = KernelData {
            buffers: &mut buffers,
            bases: &bases,
            extents: &self.extents,
            strides: &self.strides,
            scalars: &self.scalars,
        };
        eval_kernel(&self.kernel, &mut data, 0..self.rows())
            .unwrap_or_else(|e| panic!("{e}\n{:?}", self.kernel));
        buffers
    }

    /// Runs whole, and cut at every place if there are few rows: bits must not depend on the cuts, and values be those of the
    /// interpreter but for the tolerance (relative to the larger of 1 and the value).
    pub fn check(&self, code: &Code, index: usize, tolerance: f64) {
        let rows = self.rows();
        let got = self.run(code, index, &[0, rows]);
        self.compare(&got, &self.expected(), tolerance);
        for cut in (1..rows).step_by((rows / 5).max(1) as usize) {
            let cut_got = self.run(code, index, &[0, cut, rows]);
            assert!(got == cut_got, "bits depend on a cut at row {cut}\n{self:?}");
        }
    }

    pub fn compare(&self, got: &[Vec<u8>], want: &[Vec<u8>], tolerance: f64) {
        if let Some(difference) = self.difference(got, want, tolerance) {
            panic!(
                "{difference}\n{:?}\nextents {:?} strides {:?} scalars {:?}",
                self.kernel, self.extents, self.strides, self.scalars
            );
        }
    }

    /// The first element that is not what it should be.
    pub fn difference(&self, got: &[Vec<u8>], want: &[Vec<u8>], tolerance: f64) -> Option<String> {
        for (a, access) in self.kernel.accesses.iter().enumerate() {
            let n = access.dtype.bytes();
            for (i, (g, w)) in got[a].chunks(n).zip(want[a].chunks(n)).enumerate() {
                let (g, w) = (number(access.dtype, g), number(access.dtype, w));
                let same = g == w || (g.is_nan() && w.is_nan());
                if !same && (g - w).abs().partial_cmp(&(tolerance * w.abs().max(1.0))) != Some(Ordering::Less)
                {
                    return Some(format!("access {a} element {i}: got {g:e}, not {w:e}"));
                }
            }
        }
        None
    }
}

/// Checks cases with the code of both CPUs, and as PTX.
pub(super) fn check_all(cases: &[Case], tolerance: f64) {
    let kernels: Vec<Kernel> = cases.iter().map(|c| c.kernel.clone()).collect();
    for cpu in cpus() {
        let code = compile(&kernels, cpu);
        cases.iter().enumerate().for_each(|(i, case)| case.check(&code, i, tolerance));
    }
    super::gpu::check_all(cases, tolerance);
}

/// An element in memory as a number.
pub(crate) fn number(dtype: DType, bytes: &[u8]) -> f64 {
    let bits = bytes.iter().rev().fold(0u64, |bits, &b| bits << 8 | u64::from(b));
    match dtype {
        DType::F64 => f64::from_bits(bits),
        DType::F32 => f64::from(f32::from_bits(bits as u32)),
        DType::BF16 => half::bf16::from_bits(bits as u16).to_f64(),
        DType::F16 => half::f16::from_bits(bits as u16).to_f64(),
        DType::I64 => bits as i64 as f64,
        DType::I32 => f64::from(bits as i32),
        DType::Bool => bits as f64,
    }
}

/// A number as an element in memory.
pub(crate) fn element(dtype: DType, x: f64) -> Vec<u8> {
    match dtype {
        DType::F64 => x.to_le_bytes().to_vec(),
        DType::F32 => (x as f32).to_le_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f64(x).to_bits().to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f64(x).to_bits().to_le_bytes().to_vec(),
        DType::I64 => (x as i64).to_le_bytes().to_vec(),
        DType::I32 => (x as i32).to_le_bytes().to_vec(),
        DType::Bool => vec![u8::from(x != 0.0)],
    }
}

pub(crate) fn elements(dtype: DType, xs: impl IntoIterator<Item = f64>) -> Vec<u8> {
    xs.into_iter().flat_map(|x| element(dtype, x)).collect()
}

pub(super) fn read(dtype: DType, lane: Lane) -> Access {
    Access { dtype, lane, write: false }
}

pub(super) fn write(dtype: DType, lane: Lane) -> Access {
    Access { dtype, lane, write: true }
}

pub(super) fn store(access: u32, node: u32) -> Store {
    Store { access, node, at: None }
}

pub(super) fn store_at(access: u32, node: u32, at: At) -> Store {
    Store { access, node, at: Some(at) }
}

pub(super) fn float(x: f32) -> Node {
    Node::Const { dtype: DType::F32, bits: u64::from(x.to_bits()) }
}

pub(super) fn kernel(
    rank: u32,
    scalars: u32,
    accesses: &[Access],
    nodes: &[Node],
    stores: &[Store],
) -> Kernel {
    let (accesses, nodes, stores) = (accesses.to_vec(), nodes.to_vec(), stores.to_vec());
    Kernel { name: "test".into(), rank, accesses, scalars, nodes, stores }
}

/// A kernel of one dim whose accesses are all of `n` packed elements, or of one where the lane is `Broadcast`. Written
/// buffers start with sevens.
pub(super) fn flat(kernel: Kernel, n: usize, inputs: &[Vec<f64>]) -> Case {
    let mut inputs = inputs.iter();
    let buffer = |access: &Access| {
        let count = if access.lane == Lane::Broadcast { 1 } else { n };
        match access.write {
            true => elements(access.dtype, vec![7.0; count]),
            false => elements(access.dtype, inputs.next().unwrap()[..count].iter().copied()),
        }
    };
    let buffers = kernel.accesses.iter().map(buffer).collect();
    let strides = vec![1; kernel.accesses.len()];
    Case { kernel, buffers, extents: vec![n as i64], strides, scalars: vec![] }
}

/// Numbers that repeat run after run (splitmix64).
pub(crate) struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// A float that a quarter divides, sometimes a special one.
    pub fn float(&mut self) -> f64 {
        match self.below(40) {
            0 => f64::NAN,
            1 => f64::INFINITY,
            2 => f64::NEG_INFINITY,
            3 => -0.0,
            4 => 1e6,
            _ => (self.below(129) as f64 - 64.0) / 4.0,
        }
    }
}
