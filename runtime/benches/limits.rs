//! What this machine can do, as one JSON line: `flops`, f32 products on all cores by the `gemm` crate, and `read`, bytes a second read
//! from memory in huge pages. Each is the best of many short rounds. (`cargo bench -p pcc-runtime --bench limits`)

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

const ROUNDS: usize = 12;

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let shapes =
        [(512, 768, 768), (512, 3072, 768), (512, 768, 3072), (1024, 1024, 1024), (2048, 2048, 1024)];
    let flops = shapes.map(|(m, n, k)| products(cores, m, n, k)).into_iter().fold(0.0, f64::max);
    println!("{{\"cores\": {cores}, \"flops\": {flops:.4e}, \"read\": {:.4e}}}", reading(cores));
}

/// Runs `work` on each core at once, in rounds that start together; the seconds of the fastest round.
fn fastest(cores: usize, work: impl Fn(usize) + Sync) -> f64 {
    let barrier = Barrier::new(cores);
    let times = std::thread::scope(|scope| {
        let each = |core: usize| {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                let mut times = [0.0; ROUNDS];
                for time in &mut times {
                    barrier.wait();
                    let start = Instant::now();
                    work(core);
                    barrier.wait();
                    *time = start.elapsed().as_secs_f64();
                }
                times
            })
        };
        let handles: Vec<_> = (0..cores).map(each).collect();
        handles.into_iter().map(|h| h.join().expect("a benchmark thread ends")).collect::<Vec<_>>()
    });
    times.concat().into_iter().fold(f64::INFINITY, f64::min)
}

/// Operations a second when each core multiplies its own row-major [m,k] by [k,n].
fn products(cores: usize, m: usize, n: usize, k: usize) -> f64 {
    let seconds = fastest(cores, |_| {
        // Made anew in each round, outside the loop that counts most of the time.
        let (a, b, mut c) = (vec![0.5f32; m * k], vec![0.25f32; k * n], vec![0.0f32; m * n]);
        for _ in 0..REPEATS {
            // SAFETY: the three slices hold m*k, k*n and m*n row-major elements.
            unsafe {
                gemm::gemm(
                    m,
                    n,
                    k,
                    c.as_mut_ptr(),
                    1,
                    n as isize,
                    false,
                    a.as_ptr(),
                    1,
                    k as isize,
                    b.as_ptr(),
                    1,
                    n as isize,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    gemm::Parallelism::None,
                );
            }
        }
        black_box(&c);
    });
    2.0 * (m * n * k * REPEATS * cores) as f64 / seconds
}

const REPEATS: usize = 8;

/// Bytes a second when each core reads its own part of a mapping larger than the caches.
fn reading(cores: usize) -> f64 {
    const WORDS: usize = 64 << 20;
    // SAFETY: an anonymous private mapping touches no existing memory; it is checked, and lives until the process ends.
    let data: &'static [u64] = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start =
            libc::mmap(std::ptr::null_mut(), WORDS * 8, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert!(start != libc::MAP_FAILED, "no memory for the benchmark");
        libc::madvise(start, WORDS * 8, libc::MADV_HUGEPAGE);
        let data = std::slice::from_raw_parts_mut(start.cast::<u64>(), WORDS);
        data.fill(1);
        data
    };
    let part = WORDS / cores;
    let seconds = fastest(cores, |core| {
        let mine = &data[core * part..(core + 1) * part];
        // Independent sums of cache lines keep many loads in flight.
        let mut sums = [0u64; 32];
        for block in mine.chunks_exact(32) {
            for (sum, word) in sums.iter_mut().zip(block) {
                *sum = sum.wrapping_add(*word);
            }
        }
        black_box(sums);
    });
    (part * cores * 8) as f64 / seconds
}
