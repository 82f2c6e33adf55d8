//! The checker proves what the passes made, so it may share no code with them: `passes/src/verify` may use pcc-ir and
//! itself. Tests inside it are exempt, since they need a partitioned program to check.

use super::source::is_word;
use super::tree::{Finding, Tree};

const FOLDER: &str = "passes/src/verify/";
const ROOT_FILES: [&str; 2] = ["passes/src/verify.rs", "passes/src/verify/mod.rs"];

pub(super) fn independence(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, index, code) in tree.library_lines() {
        if !path.starts_with(FOLDER) && !ROOT_FILES.contains(&path) {
            continue;
        }
        for message in
            [foreign_path(code), climbs_out(code, depth(path)), names_crate(code)].into_iter().flatten()
        {
            findings.push(Finding { path: path.to_owned(), line: index + 1, message });
        }
    }
    findings
}

/// How many modules lie between this file's module and `verify`; 0 for `verify` itself.
fn depth(path: &str) -> usize {
    if ROOT_FILES.contains(&path) {
        return 0;
    }
    let inside = path.strip_prefix(FOLDER).unwrap_or_default();
    inside.strip_suffix("/mod.rs").unwrap_or(inside).split('/').count()
}

/// A `crate::` path that leads anywhere but into `verify`.
fn foreign_path(code: &str) -> Option<String> {
    code.match_indices("crate::").find_map(|(at, start)| {
        let own_word = !code[..at].ends_with(is_word);
        let rest = code[at + start.len()..].strip_prefix("verify");
        let inside = rest.is_some_and(|rest| !rest.starts_with(is_word));
        (own_word && !inside).then(|| "the checker may use `crate::verify` and pcc-ir, no pass".to_owned())
    })
}

/// A chain of `super::` longer than the way up to `verify`.
fn climbs_out(code: &str, depth: usize) -> Option<String> {
    let mut longest = 0;
    let mut rest = code;
    while let Some(at) = rest.find("super::") {
        rest = &rest[at..];
        let mut chain = 0;
        while let Some(after) = rest.strip_prefix("super::") {
            (chain, rest) = (chain + 1, after);
        }
        longest = longest.max(chain);
    }
    (longest > depth).then(|| "`super::` leads out of the checker".to_owned())
}

fn names_crate(code: &str) -> Option<String> {
    code.contains("pcc_passes::").then(|| "the checker may not name its own crate".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::tree::tree;
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        independence(&tree(&[(path, text)])).len()
    }

    #[test]
    fn a_pass_used_by_the_checker_is_found() {
        assert_eq!(found("passes/src/verify/claims.rs", "use crate::partition::split;"), 1);
        assert_eq!(found("passes/src/verify/claims.rs", "use crate::{partition, verify};"), 1);
        assert_eq!(found("passes/src/verify/claims.rs", "use crate::verify_old::f;"), 1);
        assert_eq!(found("passes/src/verify/mod.rs", "use super::partition;"), 1);
        assert_eq!(found("passes/src/verify/claims.rs", "use super::super::partition;"), 1);
        assert_eq!(found("passes/src/verify/lemmas/ring.rs", "use super::super::super::cost;"), 1);
        assert_eq!(found("passes/src/verify.rs", "use pcc_passes::cost;"), 1);
    }

    #[test]
    fn the_checkers_own_modules_pcc_ir_and_tests_pass() {
        assert_eq!(found("passes/src/verify/claims.rs", "use crate::verify::term;\nuse super::term;"), 0);
        assert_eq!(
            found("passes/src/verify/lemmas/ring.rs", "use super::super::term;\nuse pcc_ir::Mesh;"),
            0
        );
        assert_eq!(found("passes/src/verify/a.rs", "#[cfg(test)]\nmod tests { use crate::partition; }"), 0);
        assert_eq!(found("passes/src/partition.rs", "use crate::cost;"), 0);
    }
}
