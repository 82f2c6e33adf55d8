//! The same cases as PTX.

use super::harness::Case;
use crate::build::build;
use pcc_cuda_sim::ptx::Module;
use pcc_ir::codegen_protocol::{Cpu, Gpu, Request};
use pcc_ir::gpu::{Arch, LibraryKernel};
use pcc_ir::kernel::Kernel;
use sha2::{Digest, Sha256};
use std::path::Path;

/// Names a folder that the PTX of all kernels that the tests use is written to, for every architecture, in folders by name:
/// `cargo xtask kernels` assembles them.
const FOLDER: &str = "PCC_TEST_PTX";

/// PTX of kernels.
pub(crate) fn ptx(kernels: &[Kernel], library: &[LibraryKernel], arch: Arch) -> String {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("kernels.ptx");
    let request = Request {
        kernels: kernels.to_vec(),
        cpu: Cpu::Native,
        gpu: Some(Gpu { arch, library: library.to_vec() }),
        out: out.to_str().unwrap().into(),
        cache: None,
    };
    build(&request).unwrap();
    std::fs::read_to_string(out).unwrap()
}

/// Writes the PTX of kernels to the folder, if there is one.
pub(crate) fn keep(kernels: &[Kernel], library: &[LibraryKernel]) {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    for arch in Arch::ALL {
        let library: Vec<_> = library.iter().filter(|k| k.exists_for(arch)).copied().collect();
        let text = ptx(kernels, &library, arch);
        let digest: String = Sha256::digest(&text)[..8].iter().map(|b| format!("{b:02x}")).collect();
        let folder = Path::new(&folder).join(arch.name());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{digest}.ptx")), text).unwrap();
    }
}

/// Checks cases as PTX, one after another for another architecture.
pub(super) fn check_all(cases: &[Case], tolerance: f64) {
    let kernels: Vec<Kernel> = cases.iter().map(|c| c.kernel.clone()).collect();
    keep(&kernels, &[]);
    for (i, arch) in Arch::ALL.into_iter().enumerate() {
        let of = || cases.iter().skip(i).step_by(Arch::ALL.len());
        let kernels: Vec<Kernel> = of().map(|c| c.kernel.clone()).collect();
        let module = Module::load(&ptx(&kernels, &[], arch)).unwrap_or_else(|e| panic!("{arch:?}: {e}"));
        of().for_each(|case| case.check_simulated(&module, tolerance));
    }
}
