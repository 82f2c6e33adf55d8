//! Installs what the build needs beyond Rust and a C compiler: LLVM 22 and the libraries that linking it pulls in.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::project::Project;
use crate::step::{Steps, call};

/// Debian's packages. llvm-sys asks for Polly and zstd because Debian's LLVM was built with them, and links the C++
/// library, whose development files a machine with only a C compiler lacks.
const PACKAGES: [&str; 4] = ["llvm-22-dev", "libpolly-22-dev", "libzstd-dev", "g++"];

/// The variable by which `.cargo/config.toml` tells llvm-sys, and us, where LLVM lies.
const PREFIX_VARIABLE: &str = "LLVM_SYS_221_PREFIX";

pub(crate) fn run(_: &Project, steps: &mut Steps) -> Result<()> {
    steps.run("setup", install_llvm)
}

fn install_llvm() -> Result<()> {
    let prefix = std::env::var(PREFIX_VARIABLE)
        .with_context(|| format!("{PREFIX_VARIABLE} is not set: run this as `cargo xtask setup`"))?;
    if missing_files(&prefix).is_empty() {
        println!("LLVM 22 is installed in {prefix}");
        return Ok(());
    }
    let Some(privilege) = Privilege::find() else {
        bail!("LLVM 22 is not installed, and this user may not install it. Run\n\n{}\n", manual_commands());
    };
    privilege.apt(&["update"])?;
    let mut install = vec!["install", "--yes", "--no-install-recommends"];
    install.extend(PACKAGES);
    privilege.apt(&install)?;
    let missing = missing_files(&prefix);
    if !missing.is_empty() {
        bail!("the packages are installed, but {} is still missing", missing.join(" and "));
    }
    Ok(())
}

/// The files, one from each package, without which the build of `pcc-codegen` fails.
fn missing_files(prefix: &str) -> Vec<String> {
    let cxx = "libstdc++.so";
    // The compiler answers with the bare name when it finds no such file.
    let found = std::process::Command::new("cc").arg(format!("-print-file-name={cxx}")).output().ok();
    let has_cxx = found.is_some_and(|output| output.stdout.contains(&b'/'));
    let wanted = [
        format!("{prefix}/bin/llvm-config"),
        format!("{prefix}/lib/libPolly.a"),
        "/usr/include/zstd.h".to_owned(),
    ];
    let missing = wanted.into_iter().filter(|file| !Path::new(file).exists());
    missing.chain((!has_cxx).then(|| cxx.to_owned())).collect()
}

fn manual_commands() -> String {
    format!(
        "  sudo apt-get update\n  sudo apt-get install --yes --no-install-recommends {}",
        PACKAGES.join(" ")
    )
}

/// How this user may install packages.
enum Privilege {
    Root,
    Sudo,
}

impl Privilege {
    fn find() -> Option<Self> {
        let says = |program: &str, args: &[&str]| {
            std::process::Command::new(program).args(args).stdin(std::process::Stdio::null()).output().ok()
        };
        if says("id", &["-u"]).is_some_and(|output| output.stdout.trim_ascii() == b"0") {
            return Some(Privilege::Root);
        }
        // -n: fail rather than ask for a password.
        says("sudo", &["-n", "true"]).filter(|output| output.status.success()).map(|_| Privilege::Sudo)
    }

    fn apt(&self, args: &[&str]) -> Result<()> {
        // sudo drops the environment, so it is told the variable as an argument.
        let quiet = "DEBIAN_FRONTEND=noninteractive";
        let start = match self {
            Privilege::Root => call("env").args([quiet, "apt-get", "-q"]),
            Privilege::Sudo => call("sudo").args(["-n", quiet, "apt-get", "-q"]),
        };
        start.args(args).run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_prefix_misses_llvm_config_and_polly() {
        let missing = missing_files("/nonexistent/llvm");
        assert!(missing.contains(&"/nonexistent/llvm/bin/llvm-config".to_owned()));
        assert!(missing.contains(&"/nonexistent/llvm/lib/libPolly.a".to_owned()));
    }

    #[test]
    fn the_commands_for_a_person_name_every_package() {
        for package in PACKAGES {
            assert!(manual_commands().contains(package));
        }
    }
}
