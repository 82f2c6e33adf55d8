//! A request to a shared object: equal kernels once, from the cache where it has them, the others over the machine's cores.

use crate::cache::Cache;
use crate::emit;
use crate::features::Features;
use crate::link;
use crate::llvm::{self, Generator};
use crate::parallel::generate;
use pcc_ir::Diagnostic;
use pcc_ir::codegen_protocol::{Built, Request};
use pcc_ir::kernel::Kernel;
use pcc_ir::kernel_check::KernelInfo;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
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
    if let Some(gpu) = &request.gpu {
        return crate::ptx::build::build(request, gpu);
    }
    let features = Features::of(&request.cpu)?;
    let (units, symbols) = distinct(&request.kernels, &features)?;
    llvm::initialise();
    let init = start.elapsed();
    let cache = Cache::open(request.cache.as_deref().map(Path::new));
    let mut objects: Vec<Option<Vec<u8>>> = units.iter().map(|u| cache.get(&u.key)).collect();
    let missing: Vec<usize> = (0..units.len()).filter(|&i| objects[i].is_none()).collect();
    let generated = generate(
        &missing,
        |i| work(units[i].kernel),
        || Generator::new(&features),
        |generator, i| generator.object(units[i].kernel, &units[i].info, &units[i].symbol),
    )?;
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
                let info = checked(kernel)?;
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

/// What is known of a kernel that is valid.
pub(crate) fn checked(kernel: &Kernel) -> Result<KernelInfo, Diagnostic> {
    let invalid = |why| Diagnostic::internal("an invalid kernel was handed to pcc-codegen").why(why);
    kernel.check().map_err(|why| invalid(why).at(kernel.name.clone()))
}

/// Digest of the kernel but for its name, the features, this crate's sources and LLVM's version.
fn key(kernel: &Kernel, features: &Features) -> Result<String, Diagnostic> {
    let nameless = Kernel { name: String::new(), ..kernel.clone() };
    content_key(serde_json::to_vec(&nameless), &features.llvm())
}

/// Digest of what code is generated from, as JSON, what it is generated for, this crate's sources and LLVM's version.
pub(crate) fn content_key(content: serde_json::Result<Vec<u8>>, target: &str) -> Result<String, Diagnostic> {
    let json = content.map_err(|e| Diagnostic::internal(e.to_string()))?;
    let mut hash = Sha256::new();
    for part in [env!("PCC_CODEGEN_SOURCES"), &llvm::version(), target] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hash.update(json);
    Ok(hex(&hash.finalize()))
}

/// How much there is to generate for a kernel.
pub(crate) fn work(kernel: &Kernel) -> u32 {
    20 + kernel.nodes.iter().map(emit::cost).sum::<u32>()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
