//! What ptxas says of kernels, and tables of it.

use anyhow::{Context, Result, bail};

use super::occupancy;

/// One kernel on one architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kernel {
    pub(super) arch: String,
    pub(super) symbol: String,
    /// Most threads of a block.
    pub(super) threads: u32,
    /// Registers of a thread.
    pub(super) registers: u32,
    /// Bytes of registers stored to memory and loaded again.
    pub(super) spills: u32,
    /// Bytes of shared memory of a block: static, and what a launch adds.
    pub(super) shared: u32,
    /// Whether it uses tensor cores, where it should.
    pub(super) tensor_cores: Option<bool>,
    /// What ptxas says makes it slow.
    pub(super) slow: Option<String>,
}

/// Reads what `ptxas -v` said of a PTX file's kernels. Threads are in the file as `.maxntid`; the shared memory of launches is in a comment
/// before a kernel, `// shared SYMBOL BYTES`.
pub(super) fn read(arch: &str, said: &str, ptx: &str) -> Result<Vec<Kernel>> {
    let mut kernels: Vec<Kernel> = vec![];
    for line in said.lines() {
        if let Some(name) = line.split("Compiling entry function '").nth(1) {
            let symbol = name.split('\'').next().unwrap_or_default().to_owned();
            let dynamic = number_before(ptx, &format!("// shared {symbol} "), "\n").unwrap_or(0);
            let entry = ptx.split(&format!(".entry {symbol}(")).nth(1);
            let entry = entry.with_context(|| format!("no entry {symbol} in the PTX"))?;
            let threads = number_before(entry, ".maxntid ", "\n").context("no .maxntid")?;
            let arch = arch.to_owned();
            kernels.push(Kernel { arch, symbol, threads, shared: dynamic, ..Kernel::default() });
            continue;
        }
        let Some(kernel) = kernels.last_mut() else { continue };
        for part in line.split(',') {
            if part.contains("bytes spill") {
                kernel.spills += first_number(part).unwrap_or(0);
            } else if part.contains("registers") {
                kernel.registers = part.split("Used").nth(1).and_then(first_number).unwrap_or(0);
            } else if part.contains("bytes smem") {
                kernel.shared += first_number(part).unwrap_or(0);
            }
        }
    }
    for line in said.lines() {
        let Some((_, why)) = line.split_once("Potential Performance Loss: ") else { continue };
        let name = why.split("function '").nth(1).and_then(|rest| rest.split('\'').next());
        match kernels.iter_mut().find(|k| Some(k.symbol.as_str()) == name) {
            Some(kernel) => kernel.slow = Some(why.to_owned()),
            None => bail!("ptxas says: {line}"),
        }
    }
    match kernels.iter().find(|k| k.registers == 0) {
        Some(kernel) => bail!("ptxas does not say how many registers {} uses", kernel.symbol),
        None => Ok(kernels),
    }
}

/// The number behind a text, up to another.
fn number_before(text: &str, start: &str, end: &str) -> Option<u32> {
    text.split(start).nth(1)?.split(end).next()?.trim().parse().ok()
}

fn first_number(text: &str) -> Option<u32> {
    text.split_whitespace().find_map(|word| word.parse().ok())
}

/// Whether a kernel's machine code has an instruction.
pub(super) fn uses(sass: &str, symbol: &str, instruction: &str) -> bool {
    let code = sass.split(&format!(".text.{symbol}:")).nth(1).unwrap_or_default();
    code.split(".section").next().unwrap_or_default().contains(instruction)
}

/// A line a kernel.
pub(super) fn table(kernels: &[Kernel]) -> String {
    let mut lines = format!(
        "\n{:<10}{:<44}{:>8}{:>11}{:>8}{:>14}{:>12}\n",
        "arch", "kernel", "threads", "registers", "spills", "shared bytes", "occupancy %"
    );
    for k in kernels {
        lines += &format!(
            "{:<10}{:<44}{:>8}{:>11}{:>8}{:>14}{:>12}{}\n",
            k.arch,
            k.symbol,
            k.threads,
            k.registers,
            k.spills,
            k.shared,
            percent(k),
            if k.tensor_cores == Some(true) { "  tensor cores" } else { "" }
        );
    }
    lines + &summary(kernels) + "\n"
}

fn percent(k: &Kernel) -> u32 {
    occupancy::percent(&k.arch, k.registers, k.threads, k.shared)
}

/// A line an architecture.
pub(super) fn summary(kernels: &[Kernel]) -> String {
    let archs: std::collections::BTreeSet<&str> = kernels.iter().map(|k| k.arch.as_str()).collect();
    let line = |arch: &&str| {
        let of: Vec<&Kernel> = kernels.iter().filter(|k| k.arch == *arch).collect();
        let most = of.iter().map(|k| k.registers).max().unwrap_or(0);
        let spilling = of.iter().filter(|k| k.spills > 0).count();
        let cores = of.iter().filter(|k| k.tensor_cores == Some(true)).count();
        format!(
            "{arch}: {} kernels assemble, {spilling} spill, at most {most} registers, lowest occupancy {} %, {cores} on tensor cores",
            of.len(),
            of.iter().map(|k| percent(k)).min().unwrap_or(0),
        )
    };
    archs.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As ptxas 13.5 writes it.
    const SAID: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'pcc_a' for 'sm_90'
ptxas info    : Function properties for pcc_a
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 8 bytes cumulative stack size, 256 bytes smem
ptxas info    : Compile time = 53.587 ms
ptxas info    : Compiling entry function 'pcc_b' for 'sm_90'
ptxas info    : Function properties for pcc_b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
";
    const PTX: &str = "// shared pcc_b 1024\n.visible .entry pcc_a(\n)\n.maxntid 512\n{\n}\n\
                       .visible .entry pcc_b(\n)\n.maxntid 256\n.minnctapersm 1\n{\n}\n";

    #[test]
    fn figures_are_read() {
        let kernels = read("sm_90", SAID, PTX).unwrap();
        let figures: Vec<_> =
            kernels.iter().map(|k| (&*k.symbol, k.threads, k.registers, k.spills, k.shared)).collect();
        assert_eq!(figures, [("pcc_a", 512, 40, 16, 256), ("pcc_b", 256, 12, 0, 1024)]);
        assert!(summary(&kernels).contains("2 kernels assemble, 1 spill, at most 40 registers"));
    }

    #[test]
    fn what_ptxas_finds_slow_is_read() {
        let loss = "ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async instructions are serialized due to non wgmma \
                    instructions reading accumulator registers of  a wgmma between start and end of the pipeline stage in the function ";
        let kernels = read("sm_90", &format!("{loss}'pcc_b' in line 0\n{SAID}"), PTX).unwrap();
        assert_eq!(kernels[0].slow, None);
        assert!(kernels[1].slow.as_ref().unwrap().starts_with("wgmma.mma_async instructions are serialized"));
        assert!(read("sm_90", &format!("{loss}'pcc_c' in line 0\n{SAID}"), PTX).is_err());
    }

    #[test]
    fn a_kernel_that_ptxas_says_nothing_of_is_an_error() {
        let said = "Compiling entry function 'pcc_b' for 'sm_90'\n";
        assert!(read("sm_90", said, PTX).unwrap_err().to_string().contains("pcc_b"));
    }

    #[test]
    fn instructions_are_looked_for_in_the_kernel_alone() {
        let sass =
            ".section .text.k1\n.text.k1:\n  HMMA.16816.F32 R4\n.section .text.k2\n.text.k2:\n  FFMA R1\n";
        assert!(uses(sass, "k1", "HMMA") && !uses(sass, "k2", "HMMA") && !uses(sass, "k3", "HMMA"));
    }
}
