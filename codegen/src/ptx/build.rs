//! A request for a GPU to one PTX file: all distinct fused kernels and library kernels behind one header.

use super::library::epilogue::Follows;
use super::{Generator, fused, header, initialise, library};
use crate::build::{checked, content_key, hex, work};
use crate::cache::Cache;
use crate::parallel::generate;
use pcc_ir::Diagnostic;
use pcc_ir::codegen_protocol::{Built, Gpu, Request};
use pcc_ir::gpu::attention::{AttentionKernel, AttentionPath};
use pcc_ir::gpu::gemm::GemmKernel;
use pcc_ir::gpu::selection::TopKKernel;
use pcc_ir::gpu::{Arch, Epilogue, LibraryKernel};
use pcc_ir::kernel::Kernel;
use pcc_ir::kernel_check::KernelInfo;
use pcc_ir::ops::top_k;
use pcc_ir::types::DType;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::time::Instant;

/// Something that becomes an entry.
enum Unit<'a> {
    Fused(&'a Kernel, KernelInfo, String),
    /// With the epilogue of a product that has one.
    Library(&'a LibraryKernel, Option<(&'a Kernel, KernelInfo)>),
}

impl Unit<'_> {
    fn key(&self, arch: Arch) -> Result<String, Diagnostic> {
        let target = format!("ptx {}", arch.name());
        let json = match self {
            Unit::Fused(kernel, ..) => {
                serde_json::to_vec(&Kernel { name: String::new(), ..(*kernel).clone() })
            }
            Unit::Library(kernel, _) => serde_json::to_vec(kernel),
        };
        content_key(json, &target)
    }

    fn work(&self) -> u32 {
        match self {
            Unit::Fused(kernel, ..) => work(kernel),
            // Tiles and fragments, unrolled.
            Unit::Library(LibraryKernel::Gemm(_) | LibraryKernel::Attention(_), _) => 1000,
            Unit::Library(LibraryKernel::TopK(_) | LibraryKernel::Sample, _) => 300,
            Unit::Library(..) => 20,
        }
    }

    fn ptx(&self, generator: &Generator) -> Result<Vec<u8>, String> {
        let context = &generator.context;
        let ptx = match self {
            Unit::Fused(kernel, info, symbol) => {
                generator.ptx(&fused::module(context, kernel, info, symbol)?)?
            }
            Unit::Library(kernel, epilogue) => {
                let follows = follows(kernel, epilogue.as_ref());
                shared(kernel) + &generator.ptx(&library::module(context, kernel, follows)?)?
            }
        };
        Ok(ptx.into_bytes())
    }
}

/// The dynamic shared memory of a kernel's launches as a comment, for those who reckon how many blocks fit.
fn shared(kernel: &LibraryKernel) -> String {
    let bytes = kernel.shared();
    format!("// shared {} {bytes}\n", kernel.symbol())
}

/// Meets a request for a GPU.
///
/// # Errors
/// Invalid kernels, or ones that a GPU cannot take; a folder that cannot be written; or a fault of this crate.
pub(crate) fn build(request: &Request, gpu: &Gpu) -> Result<Built, Diagnostic> {
    let start = Instant::now();
    let (mut units, symbols) = distinct(&request.kernels)?;
    let library: BTreeSet<&LibraryKernel> = gpu.library.iter().collect();
    for kernel in library {
        check_library(kernel, gpu.arch)?;
        units.push(Unit::Library(kernel, epilogue(kernel, &request.kernels, &symbols)?));
    }
    initialise();
    let init = start.elapsed();
    let keys = units.iter().map(|u| u.key(gpu.arch)).collect::<Result<Vec<_>, _>>()?;
    let cache = Cache::open(request.cache.as_deref().map(Path::new));
    let mut texts: Vec<Option<Vec<u8>>> = keys.iter().map(|k| cache.get(k)).collect();
    let missing: Vec<usize> = (0..units.len()).filter(|&i| texts[i].is_none()).collect();
    let generated = generate(
        &missing,
        |i| units[i].work(),
        || Generator::new(gpu.arch),
        |generator, i| units[i].ptx(generator),
    )?;
    cache.put(generated.iter().map(|(i, text)| (keys[*i].as_str(), text.as_slice())));
    for (i, text) in generated {
        texts[i] = Some(text);
    }
    let emitted = start.elapsed();
    let mut ptx = header(gpu.arch).into_bytes();
    texts.into_iter().flatten().for_each(|text| ptx.extend(text));
    write(Path::new(&request.out), &ptx)?;
    let total = start.elapsed();
    let seconds = [("init", init), ("emit", emitted - init), ("link", total - emitted), ("total", total)];
    Ok(Built {
        ok: true,
        symbols,
        features: vec![],
        object_digest: hex(&Sha256::digest(&ptx)),
        generated: missing.len() as u32,
        cached: (units.len() - missing.len()) as u32,
        seconds: BTreeMap::from(seconds.map(|(name, t)| (name.to_string(), t.as_secs_f64()))),
    })
}

/// The distinct fused kernels, and the symbol of every kernel.
fn distinct(kernels: &[Kernel]) -> Result<(Vec<Unit<'_>>, Vec<String>), Diagnostic> {
    let mut units = vec![];
    let mut known = HashMap::new();
    let mut symbols = vec![];
    for kernel in kernels {
        let symbol = kernel.symbol();
        if known.insert(symbol.clone(), ()).is_none() {
            let info = checked(kernel)?;
            fused::params(kernel).map_err(|why| {
                Diagnostic::run("a fused kernel cannot be called on a GPU")
                    .at(kernel.name.clone())
                    .why(why)
                    .help("compile the model for the CPU")
            })?;
            units.push(Unit::Fused(kernel, info, symbol.clone()));
        }
        symbols.push(symbol);
    }
    Ok((units, symbols))
}

/// Refuses library kernels that no program asks for.
fn check_library(kernel: &LibraryKernel, arch: Arch) -> Result<(), Diagnostic> {
    let refuse = |why: String| {
        Err(Diagnostic::internal("an invalid library kernel was asked of pcc-codegen")
            .at(format!("{kernel:?}"))
            .why(why))
    };
    match *kernel {
        _ if !kernel.exists_for(arch) => refuse(format!("{} has no instructions for it", arch.name())),
        LibraryKernel::Copy { bytes } if !matches!(bytes, 1 | 2 | 4 | 8) => {
            refuse(format!("no element has {bytes} bytes"))
        }
        LibraryKernel::Attention(AttentionKernel {
            split: true,
            path: AttentionPath::Mma | AttentionPath::Wide,
            ..
        }) => refuse("only few rows have split keys".into()),
        LibraryKernel::TopK(TopKKernel { k, .. }) if k == 0 || k as usize > top_k::MOST => {
            refuse(format!("it keeps {k} elements"))
        }
        LibraryKernel::TopK(TopKKernel { dtype, .. })
            if !matches!(dtype, DType::F32 | DType::BF16 | DType::F16) =>
        {
            refuse(format!("it selects among {dtype}"))
        }
        LibraryKernel::Reduce { members: 0, .. } => refuse("it reduces nothing".into()),
        _ if kernel.params() > fused::MOST_PARAMS => Err(Diagnostic::run("too many devices reduce together")
            .at(format!("{kernel:?}"))
            .why(format!("a GPU kernel has at most {} parameters", fused::MOST_PARAMS))),
        _ => Ok(()),
    }
}

/// The fused kernel that a product has for an epilogue.
fn epilogue<'a>(
    library: &LibraryKernel,
    kernels: &'a [Kernel],
    symbols: &[String],
) -> Result<Option<(&'a Kernel, KernelInfo)>, Diagnostic> {
    let LibraryKernel::Gemm(GemmKernel { epilogue: Some(epilogue), c, .. }) = library else {
        return Ok(None);
    };
    let refuse = |why: &str| {
        Diagnostic::internal("an invalid epilogue was asked of pcc-codegen")
            .at(format!("{library:?}"))
            .why(why)
    };
    let symbol = epilogue.symbol();
    let kernel = symbols.iter().position(|s| *s == symbol).map(|at| &kernels[at]);
    let kernel = kernel.ok_or_else(|| refuse("no kernel has its digest"))?;
    epilogue.check(kernel, *c).map_err(refuse)?;
    Ok(Some((kernel, checked(kernel)?)))
}

fn follows<'a>(
    library: &LibraryKernel,
    epilogue: Option<&'a (&'a Kernel, KernelInfo)>,
) -> Option<Follows<'a>> {
    let LibraryKernel::Gemm(GemmKernel { epilogue: Some(Epilogue { reads, batch, .. }), .. }) = *library
    else {
        return None;
    };
    epilogue.map(|(kernel, info)| Follows { kernel, info, reads, batch })
}

/// Written aside and renamed.
fn write(out: &Path, ptx: &[u8]) -> Result<(), Diagnostic> {
    let folder = out.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let attempt = || -> std::io::Result<()> {
        let aside = tempfile::Builder::new().prefix(".pcc-codegen-").tempdir_in(folder)?;
        let file = aside.path().join("kernels.ptx");
        std::fs::write(&file, ptx)?;
        std::fs::rename(&file, out)
    };
    attempt().map_err(|e| {
        Diagnostic::run("the kernels' PTX cannot be written").at(out.display().to_string()).why(e.to_string())
    })
}
