//! GPU kernels through ptxas: every kernel that the tests of code generation and small models use must assemble for every architecture without spilling a
//! register, and those for tensor cores must use them.

mod models;
mod occupancy;
mod report;
mod tools;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};

use crate::project::Project;
use crate::step::Steps;
use report::Kernel;
use tools::Tools;

/// Where tests put the PTX of the kernels that they use, by architecture (`codegen/src/emit/tests/gpu.rs`).
pub(crate) const FOLDER: &str = "PCC_TEST_PTX";

/// Every architecture, as `--target` has it.
const ARCHS: [&str; 4] = ["sm_80", "sm_90", "sm_90a", "sm_100a"];

/// What runs on tensor cores, by the beginning of its symbol, and the instruction that shows it: of warps, and of warpgroups.
const TENSOR_CORES: [(&str, &str); 5] = [
    ("pcc_gemm_mma_", "HMMA"),
    ("pcc_gemm_wgmma_", "HGMMA"),
    ("pcc_attention_mma_", "HMMA"),
    ("pcc_attention_wide_", "HMMA"),
    ("pcc_attention_few_", "HMMA"),
];

/// `cargo xtask kernels [--arch A]`.
pub(crate) fn run(project: &Project, steps: &mut Steps, arguments: &[String]) -> Result<()> {
    let arch = match arguments {
        [] => None,
        [flag, arch] if flag == "--arch" && ARCHS.contains(&arch.as_str()) => Some(arch.as_str()),
        _ => bail!("it takes --arch A alone, A one of {}", ARCHS.join(" ")),
    };
    let folder = folder(project)?;
    steps.run("PTX of the tests' kernels", || {
        let test = project.cargo(["test", "--quiet", "--package", "pcc-codegen", "--lib"]);
        test.env(FOLDER, &folder).run()
    })?;
    steps.run("PTX of models", || {
        project.cargo(["build", "--quiet", "--bin", "pcc", "--bin", "pcc-codegen"]).run()?;
        models::write(project, &folder)
    })?;
    let Some(kernels) = steps.run("ptxas", || assemble(project, &folder, arch))? else { return Ok(()) };
    print!("{}", report::table(&kernels));
    check(&kernels)
}

/// An empty folder for the tests' PTX.
pub(crate) fn folder(project: &Project) -> Result<PathBuf> {
    let folder = project.target_dir()?.join("test-ptx");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    Ok(folder)
}

/// A step of `cargo xtask test`: what the tests left in the folder assembles, and the kernels of models.
pub(crate) fn gate(project: &Project, folder: &Path) -> Result<()> {
    models::write(project, folder)?;
    let Some(kernels) = assemble(project, folder, None)? else { return Ok(()) };
    println!("{}", report::summary(&kernels));
    check(&kernels)
}

/// All kernels of the folder, of one architecture or all; none where there is no ptxas.
fn assemble(project: &Project, folder: &Path, arch: Option<&str>) -> Result<Option<Vec<Kernel>>> {
    let files = files(folder, arch)?;
    if files.is_empty() {
        let of = arch.map_or(String::new(), |a| format!(" for {a}"));
        bail!("no PTX{of} in {}", folder.display());
    }
    let Some(tools) = Tools::install(&project.target_dir()?)? else {
        println!(
            "\n*** SKIPPED: ptxas could not be installed, so that {} files of PTX were NOT assembled ***\n",
            files.len()
        );
        return Ok(None);
    };
    let (next, kernels) = (AtomicUsize::new(0), Mutex::new(vec![]));
    let worker = || -> Result<()> {
        while let Some((arch, file)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut found = one(&tools, arch, file)?;
            // invariant: no thread panics while it holds the lock.
            kernels.lock().expect("another thread's panic").append(&mut found);
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let outcomes = workers.into_iter().map(|w| w.join().unwrap_or_else(|_| bail!("a worker panicked")));
        outcomes.collect::<Result<Vec<()>>>()
    })?;
    let mut kernels = kernels.into_inner().context("a worker panicked")?;
    kernels.sort();
    kernels.dedup();
    Ok(Some(kernels))
}

/// Architecture and path of every PTX file, the longest first.
fn files(folder: &Path, only: Option<&str>) -> Result<Vec<(String, PathBuf)>> {
    let mut files = vec![];
    for arch in list(folder)? {
        let name = arch.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if only.is_none_or(|only| only == name) {
            files.extend(
                list(&arch)?
                    .into_iter()
                    .filter(|f| f.extension().is_some_and(|e| e == "ptx"))
                    .map(|file| (name.clone(), file)),
            );
        }
    }
    files.sort_by_key(|(_, file)| std::cmp::Reverse(file.metadata().map_or(0, |m| m.len())));
    Ok(files)
}

fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Assembles one file.
fn one(tools: &Tools, arch: &str, file: &Path) -> Result<Vec<Kernel>> {
    let cubin = file.with_extension("cubin");
    let said = tools.assemble(arch, file, &cubin)?;
    let ptx = std::fs::read_to_string(file)?;
    let mut kernels = report::read(arch, &said, &ptx).with_context(|| format!("of {}", file.display()))?;
    if kernels.iter().any(|k| tensor_cores(&k.symbol).is_some()) {
        let sass = tools.disassemble(&cubin)?;
        for kernel in &mut kernels {
            let instruction = tensor_cores(&kernel.symbol);
            kernel.tensor_cores = instruction.map(|i| report::uses(&sass, &kernel.symbol, i));
        }
    }
    Ok(kernels)
}

/// The instruction that a kernel has on tensor cores, if it should run there.
fn tensor_cores(symbol: &str) -> Option<&'static str> {
    TENSOR_CORES.iter().find(|(start, _)| symbol.starts_with(start)).map(|&(_, instruction)| instruction)
}

/// Fails on spills, on matrix products that miss the tensor cores, and on what ptxas finds slow: that it lets only one product of a warpgroup run at a
/// time, for instance.
fn check(kernels: &[Kernel]) -> Result<()> {
    let bad: Vec<String> = kernels
        .iter()
        .filter_map(|k| {
            let why = match k {
                Kernel { spills: 1.., .. } => format!("spills {} bytes of registers", k.spills),
                Kernel { tensor_cores: Some(false), .. } => {
                    format!("has no {}", tensor_cores(&k.symbol).unwrap_or("instruction of tensor cores"))
                }
                Kernel { slow: Some(why), .. } => format!("is slow: {why}"),
                _ => return None,
            };
            Some(format!("{} on {} {why}", k.symbol, k.arch))
        })
        .collect();
    if bad.is_empty() { Ok(()) } else { bail!("{}", bad.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spills_and_missing_tensor_cores_fail() {
        let kernel = |spills, tensor_cores| Kernel { spills, tensor_cores, ..Kernel::default() };
        assert!(check(&[kernel(0, None), kernel(0, Some(true))]).is_ok());
        assert!(check(&[kernel(4, None)]).unwrap_err().to_string().contains("spills 4 bytes"));
        let named = |symbol: &str| Kernel { symbol: symbol.into(), ..kernel(0, Some(false)) };
        assert!(check(&[named("pcc_gemm_mma_1")]).unwrap_err().to_string().contains("no HMMA"));
        assert!(check(&[named("pcc_gemm_wgmma_1")]).unwrap_err().to_string().contains("no HGMMA"));
        let slow = Kernel { slow: Some("serialized".into()), ..kernel(0, Some(true)) };
        assert!(check(&[slow]).unwrap_err().to_string().contains("is slow: serialized"));
    }
}
