//! PTX of the kernels of whole models, beside that of the tests' kernels.

use std::path::Path;

use anyhow::{Context, Result};

use super::ARCHS;
use crate::project::Project;
use crate::step::call;

/// Small models of several families.
const MODELS: [&str; 6] =
    ["tiny-llama", "tiny-gpt2", "tiny-bert", "tiny-qwen2", "tiny-qwen3", "tiny-mistral"];

/// Compiles every model in f32 and bf16 for every architecture, and keeps the PTX.
pub(super) fn write(project: &Project, folder: &Path) -> Result<()> {
    let pcc = project.target_dir()?.join("debug/pcc");
    for model in MODELS {
        let path = project.root.join("frontend/tests/data").join(model);
        for dtype in ["f32", "bf16"] {
            for arch in ARCHS {
                let artifact = folder.join("model.pcc");
                let compile = call(&pcc).args(["compile"]).args([&path]);
                let options = ["--target", arch, "--dtype", dtype, "--tp", "2", "--output"];
                compile.args(options).args([&artifact]).read()?;
                let to = folder.join(arch);
                std::fs::create_dir_all(&to)?;
                let ptx = artifact.join(format!("kernels.{arch}.ptx"));
                std::fs::rename(&ptx, to.join(format!("{model}-{dtype}.ptx")))
                    .with_context(|| format!("no {}", ptx.display()))?;
                std::fs::remove_dir_all(&artifact)?;
            }
        }
    }
    Ok(())
}
