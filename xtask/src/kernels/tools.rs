//! NVIDIA's assembler and disassembler, from its Python wheels, in a folder of their own under cargo's target folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::step::call;

/// The wheels: 147 MB, most of it a compiler that is not used.
const PACKAGES: [&str; 2] = ["nvidia-cuda-nvcc==13.5.37", "nvidia-cuda-nvdisasm==13.5.37"];

pub(super) struct Tools {
    ptxas: PathBuf,
    nvdisasm: PathBuf,
}

impl Tools {
    /// Installs what is missing; none where that cannot be done (no network, no Python, not Linux on x86-64).
    pub(super) fn install(target: &Path) -> Result<Option<Self>> {
        let folder = target.join("tools/nvidia");
        if let Some(tools) = Self::find(&folder) {
            return Ok(Some(tools));
        }
        let install = || -> Result<()> {
            std::fs::create_dir_all(&folder)?;
            call("python3").args(["-m", "venv"]).args([&folder]).run()?;
            let pip = call(folder.join("bin/python")).args(["-m", "pip", "install", "--quiet", "--no-deps"]);
            pip.args(["--retries", "2"]).args(PACKAGES).run()
        };
        if let Err(error) = install() {
            println!("{} could not be installed: {error:#}", PACKAGES.join(" "));
            return Ok(None);
        }
        let tools = Self::find(&folder);
        Ok(Some(tools.with_context(|| format!("no ptxas and nvdisasm in {}", folder.display()))?))
    }

    fn find(folder: &Path) -> Option<Self> {
        let lib = std::fs::read_dir(folder.join("lib")).ok()?.flatten();
        let mut bins = lib.map(|python| python.path().join("site-packages/nvidia/cu13/bin"));
        let tools = |bin: PathBuf| Tools { ptxas: bin.join("ptxas"), nvdisasm: bin.join("nvdisasm") };
        bins.find_map(|bin| Some(tools(bin)).filter(|t| t.ptxas.is_file() && t.nvdisasm.is_file()))
    }

    /// What ptxas says of each kernel.
    pub(super) fn assemble(&self, arch: &str, file: &Path, cubin: &Path) -> Result<String> {
        let mut ptxas = Command::new(&self.ptxas);
        ptxas.arg(format!("-arch={arch}")).arg("-v").arg(file).arg("-o").arg(cubin);
        let output = ptxas.output().context("ptxas could not be started")?;
        let said = [output.stdout, output.stderr].map(|s| String::from_utf8_lossy(&s).into_owned()).concat();
        if !output.status.success() {
            let few: Vec<&str> = said.lines().filter(|l| !l.starts_with("ptxas info")).take(10).collect();
            bail!("ptxas refuses {} for {arch}:\n{}", file.display(), few.join("\n"));
        }
        Ok(said)
    }

    /// The machine code of an object as text.
    pub(super) fn disassemble(&self, cubin: &Path) -> Result<String> {
        let output = Command::new(&self.nvdisasm).arg("-c").arg(cubin).output();
        let output = output.context("nvdisasm could not be started")?;
        if !output.status.success() {
            bail!("nvdisasm fails: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
