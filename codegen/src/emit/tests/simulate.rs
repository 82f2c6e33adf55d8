//! PTX run by the simulator, which faults on whatever a GPU would hide: accesses outside buffers, what was never written, races, missing
//! barriers.

use super::gpu::ptx;
use super::harness::*;
use pcc_cuda_sim::exec::{Launch, run};
use pcc_cuda_sim::memory::Memory;
use pcc_cuda_sim::ptx::Module;
use pcc_ir::gpu::{Arch, Shape, fused};
use pcc_ir::kernel::{Kernel, Lane, Node};
use pcc_ir::ops::BinaryKind;
use pcc_ir::types::DType;

/// How a case is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Elements by which each buffer's address is off a multiple of 256.
    pub skew: usize,
    /// Blocks and threads, where not what [`fused::shape`] says.
    pub shape: Option<(u32, u32)>,
    /// Decides the order in which blocks and warps run.
    pub seed: u64,
}

/// As the runtime launches it.
pub(crate) const PLAIN: Run = Run { skew: 0, shape: None, seed: 1 };

/// Ways that must all give what the interpreter gives: few threads have to go round more than once, and addresses off their alignment need single
/// elements.
pub(super) fn runs(kernel: &Kernel) -> [Run; 3] {
    let shape = if fused::reduces(kernel) { (2, 64) } else { (2, 40) };
    [PLAIN, Run { skew: 1, seed: 2, ..PLAIN }, Run { skew: 0, shape: Some(shape), seed: 3 }]
}

/// Launches a kernel of a text.
///
/// # Errors
/// What the simulator finds wrong.
pub(crate) fn launch(
    module: &Module,
    memory: &Memory,
    symbol: &str,
    shape: Shape,
    params: &[u64],
    seed: u64,
) -> Result<(), String> {
    let kernel = module.kernel(symbol).ok_or_else(|| format!("no kernel {symbol}"))?;
    let params: Vec<Vec<u8>> = params.iter().map(|p| p.to_le_bytes().to_vec()).collect();
    let block = [shape.threads, 1, 1];
    let launch =
        Launch { kernel, device: 0, grid: shape.grid, block, shared: shape.shared, params: &params, seed };
    run(memory, &launch).map(|_| ()).map_err(|fault| fault.to_string())
}

impl Case {
    /// Buffers after the kernel has run, all in one memory if it is run `in_place`.
    ///
    /// # Errors
    /// What the simulator finds wrong.
    pub(super) fn simulate(&self, module: &Module, how: Run, in_place: bool) -> Result<Vec<Vec<u8>>, String> {
        let memory = Memory::new();
        let fault = |fault: pcc_cuda_sim::Fault| fault.to_string();
        let mut places = vec![];
        for (bytes, access) in self.buffers.iter().zip(&self.kernel.accesses) {
            if let Some(&first) = places.first().filter(|_| in_place) {
                places.push(first);
                continue;
            }
            let skew = (how.skew * access.dtype.bytes()) as u64;
            let place = memory.alloc(0, skew + bytes.len().max(1) as u64).map_err(fault)? + skew;
            memory.write(place, bytes).map_err(fault)?;
            places.push(place);
        }
        let extents: Vec<u64> = self.extents.iter().map(|&e| e as u64).collect();
        let numbers = [&self.extents, &self.strides, &self.scalars].into_iter().flatten();
        let params: Vec<u64> = places.iter().copied().chain(numbers.map(|&n| n as u64)).collect();
        let mut shape = fused::shape(&self.kernel, &extents);
        if let Some((blocks, threads)) = how.shape {
            shape = Shape { grid: [blocks, 1, 1], threads, ..shape };
        }
        launch(module, &memory, &self.kernel.symbol(), shape, &params, how.seed)?;
        let read = |(&place, bytes): (&u64, &Vec<u8>)| memory.read(place, bytes.len() as u64).map_err(fault);
        places.iter().zip(&self.buffers).map(read).collect()
    }

    /// Runs every way and compares with the interpreter. Whether addresses are aligned must not change a bit.
    pub(super) fn check_simulated(&self, module: &Module, tolerance: f64) {
        // A launch of nothing is never made.
        if self.extents.contains(&0) {
            return;
        }
        let expected = self.expected();
        let results = runs(&self.kernel).map(|how| {
            let got = self.simulate(module, how, false);
            let got = got.unwrap_or_else(|e| panic!("{e}\n{how:?}\n{self:?}"));
            self.compare(&got, &expected, tolerance);
            got
        });
        assert!(results[0] == results[1], "bits depend on the addresses' alignment\n{self:?}");
    }
}

/// Rows and lanes in reverse, and one element for all: strides that are negative, and 0.
#[test]
fn strides_may_be_negative_or_zero() {
    let accesses = [
        read(DType::F32, Lane::Strided),
        read(DType::F32, Lane::Strided),
        read(DType::F32, Lane::Unit),
        write(DType::F32, Lane::Unit),
    ];
    let nodes = [
        Node::Load(0),
        Node::Load(1),
        Node::Load(2),
        Node::Binary(BinaryKind::Add, 0, 1),
        Node::Binary(BinaryKind::Add, 3, 2),
    ];
    let k = kernel(2, 0, &accesses, &nodes, &[store(3, 4)]);
    let module = Module::load(&ptx(std::slice::from_ref(&k), &[], Arch::Sm90)).unwrap();
    let (rows, n) = (3u64, 10u64);
    let memory = Memory::new();
    let values = |from: usize| elements(DType::F32, (from..from + 30).map(|x| x as f64));
    let [a, b, c, out] = [0, 100, 1000, 0].map(|from| {
        let place = memory.alloc(0, 120).unwrap();
        memory.write(place, &values(from)).unwrap();
        place
    });
    // The last element of a, backwards; b's fifth; rows of c from the last to the first.
    let places = [a + 29 * 4, b + 5 * 4, c + 20 * 4, out];
    let strides = [-(n as i64), -1, 0, 0, -(n as i64), 1, n as i64, 1].map(|s| s as u64);
    let params: Vec<u64> = places.into_iter().chain([rows, n]).chain(strides).collect();
    launch(&module, &memory, &k.symbol(), fused::shape(&k, &[rows, n]), &params, 1).unwrap();
    let want = (0..rows * n).map(|i| {
        let (row, lane) = (i / n, i % n);
        (29 - i) as f64 + 105.0 + (1000 + (2 - row) * n + lane) as f64
    });
    assert_eq!(memory.read(out, 120).unwrap(), elements(DType::F32, want));
}
