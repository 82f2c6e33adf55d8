//! The files that the checks look at. Held in memory, so that a test can make up a tree.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use super::source::Source;
use crate::project::Project;

/// Text files by their path from the root, with `/` between the parts. Rust files come parsed as well.
pub(crate) struct Tree {
    pub(crate) files: BTreeMap<String, String>,
    pub(crate) sources: BTreeMap<String, Source>,
}

/// A broken rule: where, and what to do about it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    pub(crate) path: String,
    /// Counted from 1; 0 when the finding is about the file.
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl Tree {
    /// All files that git tracks or would add; a file that is not UTF-8 is left out.
    pub(crate) fn read(project: &Project) -> Result<Self> {
        let listing = crate::step::call("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
            .dir(&project.root)
            .read()?;
        let mut files = BTreeMap::new();
        for path in listing.split('\0').filter(|path| !path.is_empty()) {
            let file = project.root.join(path);
            // A tracked file may just have been deleted, and a submodule or link may be no file.
            if !file.is_file() {
                continue;
            }
            let bytes = std::fs::read(&file).with_context(|| format!("cannot read {path}"))?;
            if let Ok(text) = String::from_utf8(bytes) {
                files.insert(path.to_owned(), text);
            }
        }
        Ok(Tree::new(files))
    }

    pub(crate) fn new(files: BTreeMap<String, String>) -> Self {
        let rust = files.iter().filter(|(path, _)| path.ends_with(".rs"));
        let mut sources: BTreeMap<String, Source> =
            rust.map(|(path, text)| (path.clone(), Source::parse(text))).collect();
        for prefix in test_module_prefixes(&sources) {
            for (path, source) in &mut sources {
                if path.strip_prefix(&prefix).is_some_and(|rest| rest == ".rs" || rest.starts_with('/')) {
                    source.test.fill(true);
                }
            }
        }
        for (path, source) in &mut sources {
            if is_test_path(path) {
                source.test.fill(true);
            }
        }
        Tree { files, sources }
    }

    /// Every line of non-test code as (path, line counted from 0, code).
    pub(crate) fn library_lines(&self) -> impl Iterator<Item = (&str, usize, &str)> {
        self.sources.iter().flat_map(|(path, source)| {
            let lines = source.code.iter().enumerate().filter(|(index, _)| !source.test[*index]);
            lines.map(move |(index, code)| (path.as_str(), index, code.as_str()))
        })
    }

    pub(crate) fn has_folder(&self, folder: &str) -> bool {
        let start = format!("{}/", folder.trim_end_matches('/'));
        self.files.range(start.clone()..).next().is_some_and(|(path, _)| path.starts_with(&start))
    }
}

/// Files that hold only tests by where they lie: the integration tests, benchmarks, and modules named `tests`.
fn is_test_path(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "tests" | "benches" | "tests.rs"))
}

/// `a/b` for a test module whose file is `a/b.rs` or lies under `a/b/`.
fn test_module_prefixes(sources: &BTreeMap<String, Source>) -> Vec<String> {
    let mut prefixes = Vec::new();
    for (path, source) in sources {
        let folder = module_folder(path);
        prefixes.extend(source.test_modules.iter().map(|name| format!("{folder}{name}")));
    }
    prefixes
}

/// The folder, with a trailing `/`, in which the submodules of this file lie.
fn module_folder(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').map_or(("", path), |(folder, name)| (folder, name));
    let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    match Path::new(name).file_stem().and_then(|stem| stem.to_str()) {
        Some("mod" | "lib" | "main") | None => folder,
        Some(stem) => format!("{folder}{stem}/"),
    }
}

/// A made-up tree, for the tests of the checks.
#[cfg(test)]
pub(crate) fn tree(files: &[(&str, &str)]) -> Tree {
    Tree::new(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_module_in_another_file_is_no_library_code() {
        let made = tree(&[
            ("ir/src/lib.rs", "#[cfg(test)]\nmod samples;\nmod graph;"),
            ("ir/src/samples.rs", "fn f() {}"),
            ("ir/src/samples/deep.rs", "fn f() {}"),
            ("ir/src/graph.rs", "fn g() {}"),
            ("tests/cli.rs", "fn h() {}"),
        ]);
        let paths: Vec<_> = made.library_lines().map(|(path, line, _)| (path, line)).collect();
        assert_eq!(paths, [("ir/src/graph.rs", 0), ("ir/src/lib.rs", 2)]);
    }

    #[test]
    fn a_folder_is_known_by_its_files() {
        let made = tree(&[("docs/a.md", ""), ("docs-old.md", "")]);
        assert!(made.has_folder("docs/"));
        assert!(!made.has_folder("doc"));
        assert!(!made.has_folder("docs-old"));
    }
}
