//! Rules of this repository that no compiler checks. Each check is a function from the tree to its findings, and
//! each has a test in which it fails on a made-up tree.

mod code;
mod crates;
mod docs;
mod source;
mod tree;
mod verifier;

use anyhow::{Result, bail};

use crate::project::Project;
use crate::step::Steps;
use tree::{Finding, Tree};

type Check = fn(&Tree) -> Vec<Finding>;

/// Every check with the rule it keeps.
const CHECKS: [(&str, Check); 13] = [
    ("crates know only whom ARCHITECTURE.md says", crates::arrows),
    ("a dependency is declared once, with its reason", crates::reasons),
    ("no dependency is declared and not used", crates::unused),
    ("the checker knows no pass", verifier::independence),
    ("a file is one idea", code::length),
    ("no module is named for being useful", code::names),
    ("nothing is left to do", code::stubs),
    ("no panic on input", code::panics),
    ("unsafe code lies in named modules", code::unsafety),
    ("no registry's host, no path of one machine", docs::hosts),
    ("commands in the docs exist", docs::commands),
    ("paths in the docs exist", docs::paths),
    ("every crate and op has its place in the docs", docs::coverage),
];

pub(crate) fn run(project: &Project, steps: &mut Steps) -> Result<()> {
    steps.run("tidy", || {
        let tree = Tree::read(project)?;
        let findings: usize = CHECKS.iter().map(|(rule, check)| report(rule, check(&tree))).sum();
        if findings > 0 {
            bail!("{findings} findings");
        }
        println!("{} checks, {} files: clean", CHECKS.len(), tree.files.len());
        Ok(())
    })
}

/// Prints the findings of one check under its rule, sorted, and counts them.
fn report(rule: &str, mut findings: Vec<Finding>) -> usize {
    findings.sort();
    if !findings.is_empty() {
        println!("{rule}:");
    }
    for Finding { path, line, message } in &findings {
        match line {
            0 => println!("  {path}: {message}"),
            _ => println!("  {path}:{line}: {message}"),
        }
    }
    findings.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The repository itself keeps its rules; `cargo test` alone then shows a breach.
    #[test]
    fn this_repository_is_tidy() {
        let tree = Tree::read(&Project::find().unwrap()).unwrap();
        let found: usize = CHECKS.iter().map(|(rule, check)| report(rule, check(&tree))).sum();
        assert_eq!(found, 0, "the findings are printed above");
    }
}
