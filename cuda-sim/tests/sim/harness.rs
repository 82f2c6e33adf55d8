//! Runs small kernels.

use pcc_cuda_sim::Fault;
use pcc_cuda_sim::exec::{Launch, Stats, run_within};
use pcc_cuda_sim::memory::Memory;
use pcc_cuda_sim::ptx::Module;

/// A text with one kernel `k` of two pointer parameters: its body, after declarations that most kernels use. `%rd1` is the first pointer, `%rd2` the
/// second, `%r1` the thread, `%rd3` 4 times the thread, `%rd4` and `%rd5` the pointers plus that.
pub fn kernel(body: &str) -> String {
    format!(
        ".version 8.0
.target sm_90
.address_size 64
.extern .shared .align 16 .b8 dyn[];
.visible .entry k(.param .u64 pa, .param .u64 pb)
{{
.reg .pred %p<20>; .reg .b16 %rs<40>; .reg .b32 %r<90>; .reg .b64 %rd<40>;
ld.param.u64 %rd1, [pa]; ld.param.u64 %rd2, [pb];
mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4;
add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
{body}
ret;
}}
"
    )
}

/// A launch of a kernel `k` over two buffers.
pub struct Run {
    pub text: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub seed: u64,
    pub budget: u64,
}

impl Run {
    /// One block of so many threads runs a body.
    pub fn new(body: &str, threads: u32) -> Self {
        Self::text(&kernel(body), threads)
    }

    /// The same of a whole text.
    pub fn text(text: &str, threads: u32) -> Self {
        let text = text.to_owned();
        Self { text, grid: [1; 3], block: [threads, 1, 1], shared: 4096, seed: 1, budget: 1 << 20 }
    }

    /// Runs it: `input` in the first buffer, and what the second of so many bytes holds then.
    pub fn bytes(&self, input: &[u8], output: u64) -> Result<Vec<u8>, Fault> {
        self.measured(input, output).map(|(bytes, _)| bytes)
    }

    pub fn measured(&self, input: &[u8], output: u64) -> Result<(Vec<u8>, Stats), Fault> {
        let module = Module::load(&self.text)?;
        let kernel = module.kernel("k").unwrap();
        let memory = Memory::new();
        let a = memory.alloc(0, input.len().max(1) as u64)?;
        memory.write(a, input)?;
        let b = memory.alloc(0, output)?;
        let params = [a.to_le_bytes().to_vec(), b.to_le_bytes().to_vec()];
        let Self { grid, block, shared, seed, .. } = *self;
        let launch = Launch { kernel, device: 0, grid, block, shared, params: &params, seed };
        let stats = run_within(&memory, &launch, self.budget)?;
        Ok((memory.read(b, output)?, stats))
    }

    /// Runs it over words, one out for each of so many threads.
    pub fn words(&self, input: &[u32], output: usize) -> Result<Vec<u32>, Fault> {
        let bytes: Vec<u8> = input.iter().flat_map(|x| x.to_le_bytes()).collect();
        let out = self.bytes(&bytes, 4 * output as u64)?;
        Ok(out.chunks(4).map(|x| u32::from_le_bytes(x.try_into().unwrap())).collect())
    }

    /// The message of the fault that several orders of execution must all end with.
    pub fn fault(mut self, input: &[u32], output: usize) -> String {
        let mut last = String::new();
        for seed in 0..8 {
            self.seed = seed;
            match self.words(input, output) {
                Ok(_) => panic!("seed {seed} finds no fault"),
                Err(fault) => last = fault.to_string(),
            }
        }
        last
    }
}

/// Numbers of a linear congruence (Knuth, MMIX).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 ^ self.0 >> 31
    }
}
