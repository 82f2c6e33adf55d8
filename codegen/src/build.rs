//! A request to a shared object: equal kernels once, from the cache where it has them, the others over the machine's cores.

use crate::cache::Cache;
use crate::emit;
use crate::features::Features;
use crate::link;
use crate::llvm::{self, Generator};
use pcc_ir::Diagnostic;
use pcc_ir::codegen_protocol::{Built, Request};
use pcc_ir::kernel::Kernel;
use pcc_ir::kernel_check::KernelInfo;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A distinct kernel.
struct Unit<'a> {
    kernel: &'a Kernel,
    info: KernelInfo,
    /// SHA-256, in hex, of all that decides the object.
    key: String,
    symbol: String,
}

/// Meets a request.
///
/// # Errors
/// Invalid kernels or features, no linker, a folder that cannot be written, or a fault of this crate.
pub(crate) fn build(request: &Request) -> Result<Built, Diagnostic> {
    let start = Instant::now();
    let features = Features::of(&request.cpu)?;
    let (units, symbols) = distinct(&request.kernels, &features)?;
    llvm::initialise();
    let init = start.elapsed();
    let cache = Cache::open(request.cache.as_deref().map(Path::new));
    let mut objects: Vec<Option<Vec<u8>>> = units.iter().map(|u| cache.get(&u.key)).collect();
    let missing: Vec<usize> = (0..units.len()).filter(|&i| objects[i].is_none()).collect();
    let generated = generate(&units, &missing, &features)?;
    cache.put(generated.iter().map(|(i, object)| (units[*i].key.as_str(), object.as_slice())));
    for (i, object) in generated {
        objects[i] = Some(object);
    }
    let mut objects: Vec<Vec<u8>> = objects.into_iter().flatten().collect();
    if objects.is_empty() {
        let empty = Generator::new(&features).and_then(|g| g.empty());
        objects.push(empty.map_err(Diagnostic::internal)?);
    }
    let emitted = start.elapsed();
    let object = link::shared_object(&objects, Path::new(&request.out))?;
    let total = start.elapsed();
    let seconds = [("init", init), ("emit", emitted - init), ("link", total - emitted), ("total", total)];
    Ok(Built {
        ok: true,
        symbols,
        features: features.names(),
        object_digest: hex(&Sha256::digest(&object)),
        generated: missing.len() as u32,
        cached: (units.len() - missing.len()) as u32,
        seconds: BTreeMap::from(seconds.map(|(name, t)| (name.to_string(), t.as_secs_f64()))),
    })
}

/// The distinct kernels, and the symbol of every kernel.
fn distinct<'a>(
    kernels: &'a [Kernel],
    features: &Features,
) -> Result<(Vec<Unit<'a>>, Vec<String>), Diagnostic> {
    let mut units: Vec<Unit> = vec![];
    let mut by_key = HashMap::new();
    let mut symbols = vec![];
    for kernel in kernels {
        let key = key(kernel, features)?;
        let unit = match by_key.get(&key) {
            Some(&unit) => unit,
            None => {
                let info = kernel.check().map_err(|why| {
                    Diagnostic::internal("an invalid kernel was handed to pcc-codegen")
                        .at(kernel.name.clone())
                        .why(why)
                })?;
                let symbol = kernel.symbol();
                units.push(Unit { kernel, info, key: key.clone(), symbol });
                by_key.insert(key, units.len() - 1);
                units.len() - 1
            }
        };
        symbols.push(units[unit].symbol.clone());
    }
    Ok((units, symbols))
}

/// Digest of the kernel but for its name, the features, this crate's sources and LLVM's version.
fn key(kernel: &Kernel, features: &Features) -> Result<String, Diagnostic> {
    let nameless = Kernel { name: String::new(), ..kernel.clone() };
    let json = serde_json::to_vec(&nameless).map_err(|e| Diagnostic::internal(e.to_string()))?;
    let mut hash = Sha256::new();
    for part in [env!("PCC_CODEGEN_SOURCES"), &llvm::version(), &features.llvm()] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hash.update(json);
    Ok(hex(&hash.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Objects of the units in `missing`, the most work first, over as many threads as there are cores and enough work.
fn generate(
    units: &[Unit],
    missing: &[usize],
    features: &Features,
) -> Result<Vec<(usize, Vec<u8>)>, Diagnostic> {
    let work = |i: usize| 20 + units[i].kernel.nodes.iter().map(emit::cost).sum::<u32>();
    let mut order = missing.to_vec();
    order.sort_by_key(|&i| std::cmp::Reverse(work(i)));
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = cores.min(missing.len().div_ceil(3)).min(16);
    let (next, done, failed) = (AtomicUsize::new(0), Mutex::new(vec![]), Mutex::new(None));
    let run = || {
        let worker = || -> Result<(), String> {
            let generator = Generator::new(features)?;
            while let Some(&i) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                let object = generator.object(units[i].kernel, &units[i].info, &units[i].symbol)?;
                done.lock().map_err(|e| e.to_string())?.push((i, object));
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
