//! Checks of the documents: what they name exists, what exists is named, and nothing belongs to one machine.

use super::source::is_word;
use super::tree::{Finding, Tree};

/// Hosts of package registries: projects are set up through the registries' clients, which know their hosts. Spelt in
/// two pieces, or this file would break its own rule.
const HOSTS: [&str; 6] = [
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("npmjs", ".org"),
    concat!("deb.", "debian.org"),
    concat!("proxy.", "golang.org"),
];

/// Folders that only one machine has.
const MACHINE_FOLDERS: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

pub(super) fn hosts(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    // cargo writes the registry's address into the lock file.
    for (path, text) in tree.files.iter().filter(|(path, _)| *path != "Cargo.lock") {
        for (index, line) in text.lines().enumerate() {
            for host in HOSTS.iter().filter(|host| line.contains(**host)) {
                findings.push(finding(path, index + 1, format!("names the registry host {host}")));
            }
            for folder in MACHINE_FOLDERS.iter().filter(|folder| starts_path(line, folder)) {
                findings.push(finding(path, index + 1, format!("{folder} is a folder of one machine")));
            }
        }
    }
    findings
}

/// Whether `folder` occurs as the start of an absolute path, not in the middle of one.
fn starts_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder)
        .any(|(at, _)| !line[..at].ends_with(|c| is_word(c) || matches!(c, '.' | '-' | '}' | '~')))
}

/// `cargo xtask NAME` and `pcc NAME` in code spans and blocks must be commands that there are.
pub(super) fn commands(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, line, code) in code_in_docs(tree) {
        for name in words_after(code, "cargo xtask ") {
            if !crate::COMMANDS.iter().any(|(known, _, _)| *known == name) {
                findings.push(finding(path, line, format!("there is no `cargo xtask {name}`")));
            }
        }
        for name in words_after(code, "pcc ").filter(|name| !subcommands(tree).any(|known| known == *name)) {
            findings.push(finding(path, line, format!("there is no src/cmd/{name}.rs for `pcc {name}`")));
        }
    }
    findings
}

/// A path in a code span or a link must be in the tree. A part in capitals stands for any name and is not looked up.
pub(super) fn paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in documents(tree) {
        for (index, line) in prose(text) {
            let spans = line.split('`').skip(1).step_by(2).filter(|span| looks_like_a_path(tree, span));
            let links = line.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
            let links = links.filter(|link| !link.is_empty() && !link.contains("://"));
            for named in spans.chain(links) {
                if !tree.files.contains_key(named) && !tree.has_folder(named) {
                    findings.push(finding(path, index + 1, format!("{named} does not exist")));
                }
            }
        }
    }
    findings
}

/// README names every subcommand of `pcc` and of xtask, ARCHITECTURE every crate.
pub(super) fn coverage(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut require = |document: &str, text: String| {
        if !tree.files.get(document).is_some_and(|file| file.contains(&text)) {
            findings.push(finding(document, 0, format!("does not mention `{text}`")));
        }
    };
    subcommands(tree).for_each(|name| require("README.md", format!("pcc {name}")));
    for (name, _, _) in crate::COMMANDS {
        require("CONTRIBUTING.md", format!("cargo xtask {name}"));
    }
    for folder in tree.files.keys().filter_map(|path| path.strip_suffix("/src/lib.rs")) {
        require("ARCHITECTURE.md", format!("`{folder}/`"));
    }
    findings
}

/// The subcommands of `pcc`: one file, or one folder, each under `src/cmd`.
fn subcommands(tree: &Tree) -> impl Iterator<Item = &str> {
    let inside = tree.files.keys().filter_map(|path| path.strip_prefix("src/cmd/"));
    inside.filter_map(|path| match path.split_once('/') {
        Some((folder, "mod.rs")) => Some(folder),
        Some(_) => None,
        None => path.strip_suffix(".rs").filter(|name| *name != "mod"),
    })
}

fn documents(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    let markdown = tree.files.iter().filter(|(path, _)| path.ends_with(".md"));
    markdown.map(|(path, text)| (path.as_str(), text.as_str()))
}

/// (path, line counted from 1, code) of every code span and every line of a code block.
fn code_in_docs(tree: &Tree) -> Vec<(&str, usize, &str)> {
    let mut found = Vec::new();
    for (path, text) in documents(tree) {
        let mut inside = false;
        for (index, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                inside = !inside;
            } else if inside {
                found.push((path, index + 1, line));
            } else {
                found.extend(line.split('`').skip(1).step_by(2).map(|span| (path, index + 1, span)));
            }
        }
    }
    found
}

/// The lines outside code blocks, counted from 0.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut inside = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    })
}

/// The lower-case words that follow `command`, where that starts a word of its own.
fn words_after<'a>(code: &'a str, command: &'a str) -> impl Iterator<Item = &'a str> {
    code.match_indices(command).filter_map(move |(at, start)| {
        let before = code[..at].trim_start();
        // At the start, after a prompt, or behind `&&`, `|` or `;`: elsewhere it is an argument or prose.
        let starts =
            before.is_empty() || before.ends_with("$ ") || before.trim_end().ends_with(['|', '&', ';', '(']);
        let rest = &code[at + start.len()..];
        let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(rest.len());
        (starts && end > 0 && !rest.starts_with('-')).then(|| &rest[..end])
    })
}

fn looks_like_a_path(tree: &Tree, span: &str) -> bool {
    let path_like = |c: char| is_word(c) || matches!(c, '/' | '.' | '-');
    let Some((first, _)) = span.split_once('/') else { return false };
    let placeholder = |part: &str| {
        let stem = part.split('.').next().unwrap_or(part);
        stem.chars().any(|c| c.is_ascii_uppercase()) && !stem.chars().any(|c| c.is_ascii_lowercase())
    };
    span.chars().all(path_like) && !span.split('/').any(placeholder) && tree.has_folder(first)
}

fn finding(path: &str, line: usize, message: String) -> Finding {
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
    fn a_registry_host_or_a_machines_folder_is_found() {
        let host = format!("see {}", HOSTS[0]);
        let folder = format!("cd {}x", MACHINE_FOLDERS[0]);
        let middle = format!("net{}x", MACHINE_FOLDERS[0]);
        assert_eq!(
            hosts(&tree(&[("a.md", &host), ("b.sh", &folder), ("c.sh", &middle), ("Cargo.lock", &host)]))
                .len(),
            2
        );
    }

    #[test]
    fn a_command_that_does_not_exist_is_found() {
        let text =
            "Run `cargo xtask fly`, then `pcc soar x`.\n```sh\n$ pcc run a && pcc glide b\n```\nthe pcc dive";
        let made = tree(&[("README.md", text), ("src/cmd/run.rs", ""), ("src/cmd/opt/mod.rs", "")]);
        assert_eq!(
            messages(commands(&made)),
            [
                "there is no `cargo xtask fly`",
                "there is no src/cmd/soar.rs for `pcc soar`",
                "there is no src/cmd/glide.rs for `pcc glide`"
            ]
        );
        assert!(
            commands(&tree(&[("README.md", "`cargo xtask tidy` `pcc opt`"), ("src/cmd/opt/mod.rs", "")]))
                .is_empty()
        );
    }

    #[test]
    fn a_path_that_does_not_exist_is_found() {
        let text = "`ir/src/gone.rs`, `ir/src`, `ir/src/mesh.rs`, `ir/src/ops/NAME.rs`, `1/2`, [a](gone.md), [b](a.md)";
        let made = tree(&[("a.md", text), ("ir/src/mesh.rs", "")]);
        assert_eq!(messages(paths(&made)), ["ir/src/gone.rs does not exist", "gone.md does not exist"]);
    }

    #[test]
    fn what_the_docs_leave_out_is_found() {
        let contributing: String =
            crate::COMMANDS.iter().skip(1).map(|(name, _, _)| format!("cargo xtask {name}\n")).collect();
        let made = tree(&[
            ("README.md", "pcc run"),
            ("CONTRIBUTING.md", &contributing),
            ("ARCHITECTURE.md", "`ir/`"),
            ("src/cmd/run.rs", ""),
            ("src/cmd/opt.rs", ""),
            ("ir/src/lib.rs", ""),
            ("passes/src/lib.rs", ""),
        ]);
        assert_eq!(
            messages(coverage(&made)),
            [
                "does not mention `pcc opt`",
                "does not mention `cargo xtask setup`",
                "does not mention ``passes/``"
            ]
        );
    }
}
