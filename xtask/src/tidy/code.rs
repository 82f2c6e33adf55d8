//! Checks of the Rust text itself.

use super::source::{Source, is_word};
use super::tree::{Finding, Tree};

/// A file longer than this holds more than one idea.
const LONGEST: usize = 600;

/// Where unsafe code may stand: these files, and all files of these folders.
const UNSAFE_MODULES: &[&str] = &[
    "codegen/src/emit/ir.rs", // inkwell's instruction builder: address arithmetic
    "codegen/src/emit/tests/harness.rs", // calls the code just generated
    "cuda-sim/blaslt/src/api.rs", // functions that C calls
    "cuda-sim/blaslt/src/driver.rs", // finds the stand-in for libcuda
    "cuda-sim/driver/src/api/", // functions that C calls, and the pointers it calls them with
    "cuda-sim/driver/src/host.rs", // memory of the host that copies name
    "cuda-sim/driver/tests/", // calls the driver's interface as C has it
    "cuda-sim/nccl/src/",     // likewise, and finds the stand-in for libcuda
    "frontend/src/weights/mapping.rs", // weight files mapped into memory
    "fuzz/src/bounds.rs",     // an allocator that ends what takes too much
    "runtime/benches/limits.rs", // a mapping in huge pages, and the library products it measures
    "runtime/src/affinity.rs", // pins workers to cores
    "runtime/src/artifact/exchange.rs", // exchanges two directories in one system call
    "runtime/src/attention/", // queries, keys and values: raw pointers and vector instructions
    "runtime/src/cuda/blaslt.rs", // calls cuBLASLt
    "runtime/src/cuda/driver.rs", // calls the driver
    "runtime/src/cuda/load.rs", // loads the driver's library, or what stands in for it
    "runtime/src/cuda/nccl.rs", // loads and calls NCCL
    "runtime/src/kernel_object/", // loads the artifact's kernels and calls them
    "runtime/src/memory/",    // buffers that several workers read and write in turn
    "runtime/src/product/",   // matrix products: raw pointers and vector instructions
];

/// Where that list stands.
const LIST: &str = "xtask/src/tidy/code.rs";

/// Names that say nothing about what a module holds.
const EMPTY_NAMES: [&str; 6] = ["utils", "util", "helpers", "helper", "common", "manager"];

/// Marks of unfinished work, in code. Spelt in two pieces, or this file would break its own rule.
const STUBS: [&str; 3] = [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("#[ign", "ore")];

/// Marks of unfinished work, anywhere in the text.
const NOTES: [&str; 2] = [concat!("FIX", "ME"), concat!("XX", "X")];

pub(super) fn length(tree: &Tree) -> Vec<Finding> {
    let rust = tree.files.iter().filter(|(path, _)| path.ends_with(".rs"));
    let long = rust.map(|(path, text)| (path, text.lines().count())).filter(|(_, lines)| *lines > LONGEST);
    long.map(|(path, lines)| finding(path, 0, format!("{lines} lines; the limit is {LONGEST}"))).collect()
}

pub(super) fn names(tree: &Tree) -> Vec<Finding> {
    let empty = |path: &&String| path.split(['/', '.']).any(|part| EMPTY_NAMES.contains(&part));
    let rust = tree.sources.keys().filter(empty);
    rust.map(|path| finding(path, 0, "name the module for what it holds")).collect()
}

pub(super) fn stubs(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, source) in &tree.sources {
        for (index, code) in source.code.iter().enumerate() {
            for mark in STUBS.iter().filter(|mark| code.contains(**mark)) {
                findings.push(finding(path, index + 1, format!("`{mark}` is unfinished work")));
            }
        }
    }
    for (path, text) in &tree.files {
        for (index, line) in text.lines().enumerate() {
            for mark in NOTES.iter().filter(|mark| contains_word(line, mark)) {
                findings.push(finding(path, index + 1, format!("{mark} is unfinished work")));
            }
        }
    }
    findings
}

/// `unwrap()`, `expect("...")` and `panic!` outside tests need a comment `// invariant: why it cannot happen`, on the
/// line or right above it. A parser's own `expect`, whose result is handed on with `?`, is no panic.
pub(super) fn panics(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, index, code) in tree.library_lines() {
        let found = panicking_call(code);
        let excused = tree.sources[path].has_comment(index, "invariant:");
        if let Some(call) = found.filter(|_| !excused) {
            let message =
                format!("`{call}` without `// invariant: reason`; return a Diagnostic on bad input");
            findings.push(finding(path, index + 1, message));
        }
    }
    findings
}

fn panicking_call(code: &str) -> Option<&'static str> {
    if code.contains(".unwrap()") || code.contains(".unwrap_err()") {
        return Some("unwrap()");
    }
    // Strings are blanked, so this finds a literal message, and the call ends right behind it.
    let expects = [".expect(\"\")", ".expect(&format!("];
    let handed_on = |at: usize, length: usize| code[at + length..].trim_start().starts_with('?');
    for pattern in expects {
        if code.match_indices(pattern).any(|(at, found)| !handed_on(at, found.len())) {
            return Some("expect()");
        }
    }
    let start = code.find("panic!(")?;
    let own_word = !code[..start].ends_with(is_word);
    own_word.then_some("panic!")
}

pub(super) fn unsafety(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let named = |path: &str| UNSAFE_MODULES.iter().any(|module| in_module(path, module));
    for (path, source) in tree.sources.iter().filter(|(path, _)| !named(path)) {
        findings.extend(unsafe_lines(source).map(|line| {
            finding(path, line + 1, format!("unsafe code outside the modules listed in {LIST}"))
        }));
    }
    // A name in the list that nothing answers to would let unsafe code in later, unseen.
    let stale =
        UNSAFE_MODULES.iter().filter(|module| !tree.sources.keys().any(|path| in_module(path, module)));
    findings.extend(stale.map(|module| finding(LIST, 0, format!("lists {module}, which does not exist"))));
    findings
}

fn unsafe_lines(source: &Source) -> impl Iterator<Item = usize> {
    let lines = source.code.iter().enumerate();
    lines.filter(|(_, code)| contains_word(code, "unsafe")).map(|(index, _)| index)
}

fn in_module(path: &str, module: &str) -> bool {
    match module.strip_suffix('/') {
        // A folder `a/` and the file `a.rs` beside it are one module.
        Some(folder) => path.starts_with(module) || path.strip_suffix(".rs") == Some(folder),
        None => path == module,
    }
}

fn contains_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

fn finding(path: &str, line: usize, message: impl Into<String>) -> Finding {
    Finding { path: path.to_owned(), line, message: message.into() }
}

#[cfg(test)]
mod tests {
    use super::super::tree::tree;
    use super::*;

    fn lines(findings: Vec<Finding>) -> Vec<usize> {
        findings.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_long_file_is_found() {
        let text = "x\n".repeat(LONGEST + 1);
        assert_eq!(length(&tree(&[("ir/src/a.rs", &text)])).len(), 1);
        assert!(length(&tree(&[("ir/src/a.rs", &text[2..]), ("a.md", &text)])).is_empty());
    }

    #[test]
    fn an_empty_name_is_found() {
        assert_eq!(
            names(&tree(&[("ir/src/utils.rs", ""), ("ir/src/common/a.rs", ""), ("ir/src/mesh.rs", "")]))
                .len(),
            2
        );
    }

    #[test]
    fn stubs_are_found_in_code_and_notes_anywhere() {
        let text =
            ["fn f() { ", STUBS[0], ") }\n", STUBS[2], "]\n// ", NOTES[0], "\nlet s = \"", STUBS[1], "\";"]
                .concat();
        assert_eq!(lines(stubs(&tree(&[("ir/src/a.rs", &text)]))), [1, 2, 3]);
        assert_eq!(stubs(&tree(&[("README.md", NOTES[1])])).len(), 1);
        assert!(stubs(&tree(&[("README.md", "hexXXXX")])).is_empty());
    }

    #[test]
    fn a_panic_in_library_code_is_found() {
        let text = "a.unwrap();\nb.expect(\"why\");\npanic!(\"no\");\nc.expect(&format!(\"{d}\"));";
        assert_eq!(lines(panics(&tree(&[("ir/src/a.rs", text)]))), [1, 2, 3, 4]);
        assert!(panics(&tree(&[("ir/tests/a.rs", text)])).is_empty());
    }

    #[test]
    fn a_panic_with_a_reason_a_parsers_expect_and_tests_pass() {
        let text = "// invariant: set above\na.unwrap();\nb.unwrap(); // invariant: never empty\nself.expect(\"(\")?;\n\
                    c.unwrap_or(0);\nstd::panic::catch_unwind(f);\n#[cfg(test)]\nmod tests { fn t() { a.unwrap() } }";
        assert!(panics(&tree(&[("ir/src/a.rs", text)])).is_empty());
    }

    #[test]
    fn unsafe_code_is_found_outside_its_modules() {
        let text = "// unsafe in prose\nunsafe { f() }";
        let made = tree(&[
            ("ir/src/a.rs", text),
            ("runtime/src/memory/a.rs", text),
            ("runtime/src/memory.rs", text),
        ]);
        let found: Vec<_> = unsafety(&made).into_iter().filter(|finding| finding.path != LIST).collect();
        let message = format!("unsafe code outside the modules listed in {LIST}");
        assert_eq!(found, [finding("ir/src/a.rs", 2, message)]);
        let prose = unsafety(&tree(&[("ir/src/lib.rs", "#![deny(unsafe_code)]")]));
        assert!(prose.iter().all(|finding| finding.path == LIST));
    }

    #[test]
    fn a_listed_module_that_is_gone_is_found() {
        let stale =
            |tree| unsafety(&tree).iter().any(|finding| finding.message.contains("runtime/src/memory/,"));
        assert!(stale(tree(&[])));
        assert!(!stale(tree(&[("runtime/src/memory/mod.rs", "")])));
    }
}
