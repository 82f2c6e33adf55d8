//! Code for many kernels, over the machine's cores.

use pcc_ir::Diagnostic;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Code of the units in `missing`, the most work first, over as many threads as there are cores and enough work; every thread has a generator
/// of its own.
pub(crate) fn generate<G>(
    missing: &[usize],
    work: impl Fn(usize) -> u32,
    generator: impl Fn() -> Result<G, String> + Sync,
    code: impl Fn(&G, usize) -> Result<Vec<u8>, String> + Sync,
) -> Result<Vec<(usize, Vec<u8>)>, Diagnostic> {
    let mut order = missing.to_vec();
    order.sort_by_key(|&i| std::cmp::Reverse(work(i)));
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = cores.min(missing.len().div_ceil(3)).min(16);
    let (next, done, failed) = (AtomicUsize::new(0), Mutex::new(vec![]), Mutex::new(None));
    let run = || {
        let worker = || -> Result<(), String> {
            let generator = generator()?;
            while let Some(&i) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                let code = code(&generator, i)?;
                done.lock().map_err(|e| e.to_string())?.push((i, code));
            }
            Ok(())
        };
        if let Err(error) = worker() {
            // No more work for the others; the first message counts.
            next.store(usize::MAX / 2, Ordering::Relaxed);
            if let Ok(mut failed) = failed.lock() {
                failed.get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(run);
        }
        if !order.is_empty() {
            run();
        }
    });
    match failed.into_inner() {
        Ok(None) => done.into_inner().map_err(|e| Diagnostic::internal(e.to_string())),
        Ok(Some(error)) => Err(Diagnostic::internal(error)),
        Err(error) => Err(Diagnostic::internal(error.to_string())),
    }
}
