//! File tests: `filetests/<phase>/<name>.pcir`, each a module with comment lines that say what to run and what to expect.
//!
//! ```text
//! // RUN: opt --pass assign_shardings,partition --sp     what to do with the module
//! module "m" mesh(tp=2) ...
//! // RUN: compile --emit program                         or: for the module's mesh, instructions one a line
//! // CHECK: all_reduce                                   the output has lines with these texts, in this order
//! // CHECK-NOT: all_gather                               no line of the output has this text
//! // ERROR: no axis                                      or: the diagnostic has this text (then there is no output)
//! // EXPECT                                              the whole output follows
//! ```
//!
//! `PCC_BLESS=1 cargo test --test tests filetests` rewrites what follows `// EXPECT`. What is written is then to be checked by
//! reasoning, as any change of it: the files document what passes do.

use pcc_ir::program::{BatchPlan, ModelInfo};
use pcc_ir::{DType, Diagnostic, Module, text, verifier};
use pcc_passes::driver::{Options, Pass, compile, run_passes};
use std::fmt::Write;
use std::path::{Path, PathBuf};

const MARKER: &str = "// EXPECT\n";

/// One file, read.
struct FileTest {
    run: Run,
    checks: Vec<String>,
    never: Vec<String>,
    errors: Vec<String>,
    /// Everything up to the expected output: comments and the input module.
    input: String,
    expected: Option<String>,
}

enum Run {
    /// Passes, and whether sequences are split.
    Opt(Vec<Pass>, bool),
    Program,
}

impl FileTest {
    fn read(content: &str) -> Result<Self, String> {
        let (input, expected) = match content.split_once(MARKER) {
            Some((input, expected)) => (input, Some(expected.to_owned())),
            None => (content, None),
        };
        let lines = |key: &str| -> Vec<String> {
            let start = format!("// {key}: ");
            input.lines().filter_map(|l| l.strip_prefix(&start)).map(|l| l.trim().to_owned()).collect()
        };
        let runs = lines("RUN");
        let [run] = runs.as_slice() else { return Err("a file has one RUN line".into()) };
        let test = Self {
            run: arguments(run)?,
            checks: lines("CHECK"),
            never: lines("CHECK-NOT"),
            errors: lines("ERROR"),
            input: input.to_owned(),
            expected,
        };
        match test.checks.is_empty() && test.errors.is_empty() && test.expected.is_none() {
            true => Err("the file expects nothing".into()),
            false => Ok(test),
        }
    }

    /// What `pcc opt` or `pcc compile` does.
    fn output(&self) -> Result<String, Diagnostic> {
        let module = text::parse(&self.input)?;
        verifier::verify(&module)?;
        let check = |pass: Pass, m: &Module| {
            verifier::verify(m).map_err(|d| d.help(format!("after {}", pass.name())))
        };
        match &self.run {
            Run::Opt(passes, sp) => Ok(run_passes(module, passes, *sp, check)?.to_string()),
            Run::Program => program(module),
        }
    }

    /// Compares; `Ok(Some)` is the file's new content when blessing changes it.
    fn run(&self) -> Result<Option<String>, String> {
        match (self.output(), self.errors.is_empty()) {
            (Ok(output), true) => self.compare(&output),
            (Ok(output), false) => Err(format!("no error, but the output\n{output}")),
            (Err(d), true) => Err(format!("{d}")),
            (Err(d), false) => match self.errors.iter().find(|e| !d.to_string().contains(*e)) {
                None => Ok(None),
                Some(e) => Err(format!("the error has no `{e}`: {d}")),
            },
        }
    }

    fn compare(&self, output: &str) -> Result<Option<String>, String> {
        let mut lines = output.lines();
        for check in &self.checks {
            if !lines.any(|l| l.contains(check)) {
                return Err(format!("after the checks before it, no line has `{check}`:\n{output}"));
            }
        }
        if let Some(never) = self.never.iter().find(|n| output.contains(*n)) {
            return Err(format!("the output has `{never}`:\n{output}"));
        }
        if matches!(self.run, Run::Opt(..)) {
            // Every level of modules round-trips.
            let again =
                text::parse(output).map_err(|d| format!("the output does not parse: {d}"))?.to_string();
            if again != output {
                return Err(format!("the output reads back as\n{again}"));
            }
        }
        match &self.expected {
            Some(expected) if expected != output => match std::env::var_os("PCC_BLESS") {
                Some(_) => Ok(Some(format!("{}{MARKER}{output}", self.input))),
                None => Err(difference(expected, output)),
            },
            _ => Ok(None),
        }
    }
}

/// The instructions of the program, with the checker's consent.
fn program(module: Module) -> Result<String, Diagnostic> {
    let replicas = module.mesh.dp as usize;
    let options = Options {
        mesh: module.mesh,
        sp: false,
        batch: BatchPlan { batch: replicas, replicas, micro_batches: 1 },
        dtype: DType::F32,
        device: Default::default(),
        memory: None,
        info: ModelInfo::default(),
        weights: None,
        print_after: None,
        plan: None,
    };
    let compiled = compile(module, &options)?;
    let mut out = String::new();
    for func in &compiled.program.funcs {
        let _ = writeln!(out, "fn {}", func.name);
        for instr in &func.instrs {
            let text = serde_json::to_string(&instr.kind).map_err(|e| Diagnostic::internal(e.to_string()))?;
            let _ = writeln!(out, "  {text}");
        }
    }
    Ok(out)
}

/// What a RUN line says.
fn arguments(run: &str) -> Result<Run, String> {
    if run == "compile --emit program" {
        return Ok(Run::Program);
    }
    let mut words = run.split_whitespace();
    if words.next() != Some("opt") {
        return Err(format!("`{run}` does not run opt"));
    }
    let (mut passes, mut sp) = (Vec::new(), false);
    while let Some(word) = words.next() {
        match word {
            "--sp" => sp = true,
            "--pass" => {
                for name in words.next().unwrap_or_default().split(',') {
                    passes.push(Pass::from_name(name).ok_or_else(|| format!("there is no pass `{name}`"))?);
                }
            }
            _ => return Err(format!("`{word}` in `{run}` is not understood")),
        }
    }
    Ok(Run::Opt(passes, sp))
}

/// The first line that differs, with both outputs.
fn difference(expected: &str, output: &str) -> String {
    let (e, o) = (expected.lines(), output.lines());
    let at = e.clone().zip(o.clone()).take_while(|(a, b)| a == b).count();
    let line = |mut l: std::str::Lines<'_>| l.nth(at).unwrap_or("(the end)").to_owned();
    format!(
        "line {} of the output differs\n  expected: {}\n  is:       {}\nwhole output:\n{output}",
        at + 1,
        line(e),
        line(o)
    )
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "pcir") {
            found.push(path);
        }
    }
    Ok(())
}

#[test]
fn filetests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    let mut paths = Vec::new();
    files(&root, &mut paths).expect("the folder of file tests can be read");
    paths.sort();
    assert!(paths.len() >= 20, "only {} file tests were found", paths.len());
    let mut failures = Vec::new();
    for path in &paths {
        let name = path.strip_prefix(&root).unwrap_or(path).display();
        let content = std::fs::read_to_string(path).expect("a file test can be read");
        match FileTest::read(&content).and_then(|t| t.run()) {
            Ok(None) => {}
            Ok(Some(blessed)) => std::fs::write(path, blessed).expect("a file test can be written"),
            Err(why) => failures.push(format!("== {name}: {why}")),
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {} file tests fail\n{}",
        failures.len(),
        paths.len(),
        failures.join("\n")
    );
}

/// Every pass that `opt` runs has at least two files in the folder of its name.
#[test]
fn every_pass_has_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    for pass in Pass::ALL.into_iter().filter(|p| p.is_module_pass()) {
        let mut found = Vec::new();
        files(&root.join(pass.name()), &mut found).unwrap_or_else(|e| panic!("{}: {e}", pass.name()));
        assert!(found.len() >= 2, "{} has {} file tests", pass.name(), found.len());
    }
}
