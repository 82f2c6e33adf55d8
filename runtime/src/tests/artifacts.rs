//! Writing, replacing and loading artifacts, with a kernel object made by the C compiler.

use super::fixture::*;
use crate::{Artifact, Contents, NoWeights, Options, Session};
use pcc_ir::program::*;
use pcc_ir::{Fault, Sharding};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder that goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pcc-runtime-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Names of what is in the folder.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `y = x + 1` on 2 devices, by code that does more than the kernel says.
fn add_one() -> Program {
    let stage = StageProgram {
        arena_bytes: 0,
        shared_bytes: 0,
        steps: vec![call(0, &[Slot::Input(0), Slot::Output(0)])],
    };
    let spec = |name: &str| io(name, &[2, 3], Sharding::replicated(2));
    let mut p = program(mesh(1, 1, 2), vec![], vec![spec("x")], vec![spec("y")], vec![stage]);
    let kernel = map_kernel(&mut p, "", 2, 3, [slot(0), slot(1)]);
    p.kernels.values_mut().for_each(|k| k.name = k.symbol());
    p.funcs = vec![func("f", &[24], &[24], 0, vec![kernel])];
    p
}

/// The kernel by the calling convention of pcc_ir::kernel.
fn compile_object(folder: &Path, symbol: &str) -> PathBuf {
    let (source, object) = (folder.join("k.c"), folder.join("k.so"));
    let code = "struct A { float *const *ptrs; const long *extents, *strides, *scalars; };\n\
        void SYMBOL(const struct A *a, long begin, long end) {\n\
          for (long r = begin; r < end; r++)\n\
            for (long i = 0; i < a->extents[1]; i++)\n\
              a->ptrs[1][r * a->strides[2] + i] = a->ptrs[0][r * a->strides[0] + i] + 1;\n\
        }\n";
    fs::write(&source, code.replace("SYMBOL", symbol)).unwrap();
    let status =
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&object).arg(&source).status();
    assert!(status.unwrap().success());
    object
}

fn write(folder: &Folder, program: &Program, version: u32) -> PathBuf {
    let symbol = program.kernels.values().next().unwrap().name.clone();
    let object = compile_object(&folder.0, &symbol);
    let dir = folder.0.join("a.pcc");
    let (report, plan) = (json!({ "version": version }), json!({}));
    Artifact::write(
        &dir,
        &Contents { program, kernels: Some(&object), report: &report, plan: &plan, levels: None },
    )
    .unwrap();
    fs::remove_file(folder.0.join("k.c")).unwrap();
    fs::remove_file(object).unwrap();
    dir
}

#[test]
fn an_artifact_is_written_replaced_loaded_and_run() {
    let folder = Folder::new("write");
    for version in [1, 2] {
        let dir = write(&folder, &add_one(), version);
        assert_eq!(folder.names(), ["a.pcc"], "nothing temporary stays");
        let artifact = Artifact::load(&dir).unwrap();
        assert_eq!(artifact.report["version"], version);
        let kernels = artifact.kernels().unwrap();
        let options = Options { workers: 2, ..Options::default() };
        let mut session = Session::new(artifact.program, kernels, &NoWeights, &options, &|_, _| {}).unwrap();
        let x = numbers(6, 1);
        let out = forward(&mut session, &[("x", &[2, 3], x.clone())], 1).unwrap();
        assert_eq!(out["y"].as_f32().unwrap(), x.iter().map(|v| v + 1.0).collect::<Vec<_>>());
    }
}

#[test]
fn what_is_no_artifact_is_not_replaced() {
    let folder = Folder::new("keep");
    let program = program(mesh(1, 1, 1), vec![], vec![], vec![], vec![StageProgram::default()]);
    let contents =
        Contents { program: &program, kernels: None, report: &json!({}), plan: &json!({}), levels: None };
    let write = |name: &str| Artifact::write(&folder.0.join(name), &contents);
    fs::create_dir(folder.0.join("music")).unwrap();
    fs::write(folder.0.join("music/song"), "la").unwrap();
    fs::write(folder.0.join("file"), "text").unwrap();
    assert_eq!(write("music").unwrap_err().fault, Fault::Input);
    assert_eq!(write("file").unwrap_err().fault, Fault::Input);
    assert_eq!(fs::read_to_string(folder.0.join("music/song")).unwrap(), "la");
    assert_eq!(write("nowhere/a.pcc").unwrap_err().fault, Fault::Run);
    fs::create_dir(folder.0.join("empty")).unwrap();
    write("empty").unwrap();
    assert_eq!(folder.names(), ["empty", "file", "music"]);
}

#[test]
fn a_failed_write_leaves_the_old_artifact() {
    let folder = Folder::new("failed");
    let dir = write(&folder, &add_one(), 1);
    let missing = folder.0.join("missing.so");
    let contents = Contents {
        program: &add_one(),
        kernels: Some(&missing),
        report: &json!({}),
        plan: &json!({}),
        levels: None,
    };
    assert_eq!(Artifact::write(&dir, &contents).unwrap_err().fault, Fault::Run);
    assert_eq!(folder.names(), ["a.pcc"]);
    assert!(Artifact::load(&dir).is_ok());
}

#[test]
fn damaged_artifacts_are_refused_with_the_reason() {
    let folder = Folder::new("damaged");
    let dir = write(&folder, &add_one(), 1);
    let text = fs::read_to_string(dir.join("program.json")).unwrap();
    let refused = || {
        let e = Artifact::load(&dir).unwrap_err();
        assert_eq!(e.fault, Fault::Input);
        e.to_string()
    };
    for end in (0..text.len()).step_by(97) {
        fs::write(dir.join("program.json"), &text[..end]).unwrap();
        assert!(refused().contains("damaged"));
    }
    let of_version =
        |n: u32| text.replacen(&format!("\"version\":{VERSION}"), &format!("\"version\":{n}"), 1);
    for other in [VERSION - 1, VERSION + 1] {
        fs::write(dir.join("program.json"), of_version(other)).unwrap();
        assert!(refused().contains(&format!("version {other}")));
    }
    fs::write(dir.join("program.json"), [0xFF, 0xFE, 0x00]).unwrap();
    refused();
    fs::write(dir.join("program.json"), "[".repeat(100_000)).unwrap();
    refused();
    fs::write(dir.join("program.json"), &text).unwrap();
    assert!(Artifact::load(&dir).is_ok());
    // Of another artifact, however well formed.
    for file in ["report.json", "plan.json"] {
        let bytes = fs::read(dir.join(file)).unwrap();
        fs::write(dir.join(file), r#"{"version":2}"#).unwrap();
        assert!(refused().contains("changed"), "{file}");
        fs::remove_file(dir.join(file)).unwrap();
        assert!(refused().contains("cannot be read"), "{file}");
        fs::write(dir.join(file), bytes).unwrap();
    }
    let object = dir.join("kernels.x86.so");
    let mut bytes = fs::read(&object).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&object, &bytes).unwrap();
    assert!(refused().contains("SHA-256"));
    fs::remove_file(&object).unwrap();
    assert!(refused().contains("cannot be read"));
    let none = Artifact::load(&folder.0.join("none.pcc")).unwrap_err();
    assert!(none.to_string().contains("does not exist"));
}

#[test]
fn kernels_of_another_machine_or_without_a_symbol_are_refused() {
    let folder = Folder::new("machine");
    let mut p = add_one();
    p.target.features = vec!["avx1024".into()];
    let artifact = Artifact::load(&write(&folder, &p, 1)).unwrap();
    assert!(artifact.kernels().err().unwrap().to_string().contains("avx1024"));
    // The object lacks the kernel's code.
    let object = compile_object(&folder.0, "add_two");
    let nothing = json!({});
    fn contents<'a>(program: &'a Program, object: &'a Path, nothing: &'a serde_json::Value) -> Contents<'a> {
        Contents { program, kernels: Some(object), report: nothing, plan: nothing, levels: None }
    }
    let mut p = add_one();
    let dir = folder.0.join("b.pcc");
    Artifact::write(&dir, &contents(&p, &object, &nothing)).unwrap();
    let symbol = &p.kernels.values().next().unwrap().name.clone();
    assert!(Artifact::load(&dir).unwrap().kernels().err().unwrap().to_string().contains(symbol));
    // A kernel under another's name.
    p.kernels.values_mut().for_each(|k| k.name = "add_two".into());
    Artifact::write(&dir, &contents(&p, &object, &nothing)).unwrap();
    assert!(
        Artifact::load(&dir).unwrap_err().to_string().contains("`add_two` is the name of another kernel")
    );
}
