//! Checks of the manifests: who depends on whom, and why on anything at all.

use super::tree::{Finding, Tree};

/// Who may know whom; the folder of each crate, `.` being the `pcc` binary. The table of ARCHITECTURE.md.
const ARROWS: [(&str, &[&str]); 12] = [
    (".", &["pcc-ir", "pcc-frontend", "pcc-passes", "pcc-runtime"]),
    ("ir", &[]),
    ("frontend", &["pcc-ir"]),
    ("passes", &["pcc-ir"]),
    // The simulator runs generated kernels in tests.
    ("codegen", &["pcc-ir", "pcc-cuda-sim"]),
    ("cuda-sim", &[]),
    // Its tests load the stand-ins, and cargo builds them for that.
    ("cuda-sim/driver", &["pcc-cuda-sim", "pcc-sim-nccl", "pcc-sim-blaslt"]),
    ("cuda-sim/nccl", &[]),
    ("cuda-sim/blaslt", &[]),
    ("runtime", &["pcc-ir"]),
    ("xtask", &[]),
    ("fuzz", &["pcc-ir", "pcc-frontend", "pcc-passes", "pcc-runtime"]),
];

/// Outside libraries that only these crates may know.
const HOMES: [(&str, &[&str]); 5] = [
    ("inkwell", &["codegen"]),
    ("llvm-sys", &["codegen"]),
    ("egg", &["passes"]),
    // What stands in for the driver is tested under it.
    ("cudarc", &["runtime", "cuda-sim/driver"]),
    ("mpi", &["runtime"]),
];

pub(super) fn arrows(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for entry in manifests(tree).flat_map(|(path, folder, text)| {
        dependencies(text).into_iter().map(move |dependency| (path, folder, dependency))
    }) {
        let (path, folder, Dependency { name, line, .. }) = entry;
        let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| *known == folder) else {
            findings.push(found(
                path,
                0,
                "a crate that ARROWS in xtask/src/tidy/crates.rs does not list".to_owned(),
            ));
            continue;
        };
        if name.starts_with("pcc-") && !allowed.contains(&name) {
            findings.push(found(path, line, format!("no arrow leads from {folder} to {name}")));
        }
        if let Some((_, homes)) = HOMES.iter().find(|(l, homes)| *l == name && !homes.contains(&folder)) {
            findings.push(found(path, line, format!("only {} may know {name}", homes.join(" and "))));
        }
    }
    findings.dedup();
    findings
}

/// Each outside dependency stands in the workspace table with a comment that says what for; crates refer to it there.
pub(super) fn reasons(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, _, text) in manifests(tree) {
        for Dependency { name, line, text, .. } in dependencies(text) {
            if !text.contains("workspace = true") {
                findings.push(found(
                    path,
                    line,
                    format!("declare {name} in the workspace table: {name}.workspace = true"),
                ));
            }
        }
    }
    for Dependency { name, line, text, .. } in workspace_table(tree) {
        let reason = text.split_once('#').is_some_and(|(_, reason)| !reason.trim().is_empty());
        if !reason && !text.contains("path = ") {
            findings.push(found(
                "Cargo.toml",
                line,
                format!("{name} has no comment that says what it is for"),
            ));
        }
    }
    findings
}

pub(super) fn unused(tree: &Tree) -> Vec<Finding> {
    let used = |name: &str| {
        manifests(tree)
            .any(|(_, _, text)| dependencies(text).iter().any(|dependency| dependency.name == name))
    };
    let outside = workspace_table(tree).into_iter().filter(|dependency| !dependency.text.contains("path = "));
    let table = outside.filter(|dependency| !used(dependency.name));
    table
        .map(|dependency| found("Cargo.toml", dependency.line, format!("no crate uses {}", dependency.name)))
        .collect()
}

struct Dependency<'a> {
    name: &'a str,
    /// Counted from 1.
    line: usize,
    /// The whole line.
    text: &'a str,
}

/// (path, folder, text) of each crate's manifest.
fn manifests(tree: &Tree) -> impl Iterator<Item = (&str, &str, &str)> {
    let manifest =
        |path: &str| path == "Cargo.toml" || (path.ends_with("/Cargo.toml") && !path.contains("/fixtures/"));
    tree.files.iter().filter(move |(path, _)| manifest(path)).map(|(path, text)| {
        let folder = path.strip_suffix("/Cargo.toml").unwrap_or(".");
        (path.as_str(), folder, text.as_str())
    })
}

/// All dependencies of a crate: normal, dev, build, and those of one target.
fn dependencies(text: &str) -> Vec<Dependency<'_>> {
    section(text, |header| header.ends_with("dependencies") && !header.starts_with("workspace"))
}

fn workspace_table(tree: &Tree) -> Vec<Dependency<'_>> {
    let text = tree.files.get("Cargo.toml").map_or("", String::as_str);
    section(text, |header| header == "workspace.dependencies")
}

/// The `name = ...` and `name.workspace = ...` lines of the sections whose header fits.
fn section(text: &str, fits: impl Fn(&str) -> bool) -> Vec<Dependency<'_>> {
    let mut inside = false;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if let Some(header) = line.trim().strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            inside = fits(header);
        } else if inside && line.starts_with(|c: char| c.is_ascii_alphabetic()) {
            let name = line.split(['=', '.', ' ']).next().unwrap_or(line);
            found.push(Dependency { name, line: index + 1, text: line });
        }
    }
    found
}

fn found(path: &str, line: usize, message: String) -> Finding {
    Finding { path: path.to_owned(), line, message }
}

#[cfg(test)]
mod tests {
    use super::super::tree::tree;
    use super::*;

    fn messages(findings: Vec<Finding>) -> Vec<String> {
        findings.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_forbidden_arrow_is_found() {
        let made = tree(&[
            ("passes/Cargo.toml", "[dependencies]\npcc-ir.workspace = true\npcc-codegen.workspace = true"),
            (
                "runtime/Cargo.toml",
                "[dev-dependencies]\npcc-passes = { workspace = true }\ninkwell.workspace = true",
            ),
            ("ir/Cargo.toml", "[build-dependencies]\npcc-ir.workspace = true"),
        ]);
        assert_eq!(
            messages(arrows(&made)),
            [
                "no arrow leads from ir to pcc-ir",
                "no arrow leads from passes to pcc-codegen",
                "no arrow leads from runtime to pcc-passes",
                "only codegen may know inkwell",
            ]
        );
    }

    #[test]
    fn a_crate_nobody_listed_is_found() {
        let made = tree(&[("extra/Cargo.toml", "[dependencies]\nserde.workspace = true")]);
        assert_eq!(arrows(&made).len(), 1);
    }

    #[test]
    fn a_dependency_without_reason_or_outside_the_table_is_found() {
        let made = tree(&[
            (
                "Cargo.toml",
                "[workspace.dependencies]\npcc-ir = { path = \"ir\" }\nserde = \"1\" # artifact\negg = \"0.11\"",
            ),
            ("ir/Cargo.toml", "[dependencies]\nserde = \"1\""),
        ]);
        assert_eq!(
            messages(reasons(&made)),
            [
                "declare serde in the workspace table: serde.workspace = true",
                "egg has no comment that says what it is for"
            ]
        );
    }

    #[test]
    fn a_dependency_nobody_uses_is_found() {
        let made = tree(&[
            ("Cargo.toml", "[workspace.dependencies]\nserde = \"1\" # artifact\negg = \"0.11\" # rewriting"),
            ("ir/Cargo.toml", "[dependencies]\nserde.workspace = true"),
        ]);
        assert_eq!(messages(unused(&made)), ["no crate uses egg"]);
    }
}
