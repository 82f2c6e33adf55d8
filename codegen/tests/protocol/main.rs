//! The executable as `pcc compile` uses it.

mod gpu;

use pcc_ir::Fault;
use pcc_ir::codegen_protocol::{Built, Cpu, Reply, Request};
use pcc_ir::kernel::{Access, Kernel, Lane, Node, Store};
use pcc_ir::ops::UnaryKind;
use pcc_ir::types::DType;
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

fn kernel(name: &str, kind: UnaryKind) -> Kernel {
    let access = |write| Access { dtype: DType::F32, lane: Lane::Unit, write };
    Kernel {
        name: name.into(),
        rank: 1,
        accesses: vec![access(false), access(true)],
        scalars: 0,
        nodes: vec![Node::Load(0), Node::Unary(kind, 0)],
        stores: vec![Store { access: 1, node: 1, at: None }],
    }
}

fn request(kernels: &[Kernel], out: &Path, cache: Option<&Path>) -> String {
    let path = |p: &Path| p.to_str().unwrap().to_owned();
    let request = Request {
        kernels: kernels.to_vec(),
        cpu: Cpu::Native,
        gpu: None,
        out: path(out),
        cache: cache.map(path),
    };
    serde_json::to_string(&request).unwrap()
}

/// Sends lines to one process; its replies.
fn talk(lines: &[impl AsRef<[u8]>]) -> Vec<Reply> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pcc-codegen"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input: Vec<u8> = lines.iter().flat_map(|l| [l.as_ref(), b"\n"].concat()).collect();
    let writer = std::thread::spawn(move || stdin.write_all(&input).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    output
        .stdout
        .split(|&b| b == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).unwrap())
        .collect()
}

fn build(kernels: &[Kernel], out: &Path, cache: Option<&Path>) -> Built {
    match talk(&[request(kernels, out, cache)]).pop() {
        Some(Reply::Built(built)) => built,
        other => panic!("{other:?}"),
    }
}

#[test]
fn equal_kernels_are_generated_once_and_objects_repeat() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a.so"), folder.path().join("b.so"));
    let kernels =
        [kernel("one", UnaryKind::Exp), kernel("two", UnaryKind::Log), kernel("three", UnaryKind::Exp)];
    let built = build(&kernels, &a, None);
    assert_eq!(built.symbols[0], built.symbols[2]);
    assert_ne!(built.symbols[0], built.symbols[1]);
    assert_eq!(built.generated, 2);
    assert!(["avx2", "fma", "f16c"].iter().all(|f| built.features.iter().any(|b| b == f)));
    assert_eq!(build(&kernels, &b, None).object_digest, built.object_digest);
    let bytes = std::fs::read(&a).unwrap();
    assert_eq!(bytes, std::fs::read(&b).unwrap());
    let digest: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(digest, built.object_digest);
    // Nothing but the objects is left behind.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn the_cache_serves_and_survives_corruption() {
    let folder = tempfile::tempdir().unwrap();
    let (out, cache) = (folder.path().join("k.so"), folder.path().join("cache/objects"));
    let kernels = [UnaryKind::Exp, UnaryKind::Tanh, UnaryKind::Sin].map(|k| kernel("k", k));
    let first = build(&kernels, &out, Some(&cache));
    assert_eq!((first.generated, first.cached), (3, 0));
    let second = build(&kernels[..2], &out, Some(&cache));
    assert_eq!((second.generated, second.cached), (0, 2));
    let entries: Vec<_> = std::fs::read_dir(&cache).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(entries.len(), 3);
    std::fs::write(&entries[0], b"short").unwrap();
    let mut flipped = std::fs::read(&entries[1]).unwrap();
    *flipped.last_mut().unwrap() ^= 1;
    std::fs::write(&entries[1], flipped).unwrap();
    let third = build(&kernels, &out, Some(&cache));
    assert_eq!((third.generated, third.cached), (2, 1));
    assert_eq!(third.object_digest, first.object_digest);
}

#[test]
fn many_processes_share_a_cache() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let kernels = [UnaryKind::Exp, UnaryKind::Cos].map(|k| kernel("k", k));
    let digests: Vec<String> = std::thread::scope(|scope| {
        let build =
            |i: usize| build(&kernels, &folder.path().join(format!("{i}.so")), Some(&cache)).object_digest;
        let threads: Vec<_> = (0..4).map(|i| scope.spawn(move || build(i))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(digests.iter().all(|d| *d == digests[0]));
    assert_eq!(build(&kernels, &folder.path().join("k.so"), Some(&cache)).cached, 2);
}

#[test]
fn a_cache_that_cannot_be_used_is_done_without() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let built = build(&[kernel("k", UnaryKind::Neg)], &folder.path().join("k.so"), Some(&file));
    assert_eq!(built.generated, 1);
}

#[test]
fn no_kernels_give_an_object_without_functions() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("none.so");
    assert!(build(&[], &out, None).symbols.is_empty());
    assert_eq!(std::fs::read(&out).unwrap()[..4], *b"\x7fELF");
}

#[test]
fn bad_requests_are_answered_and_the_next_one_served() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("k.so");
    let good = request(&[kernel("k", UnaryKind::Abs)], &out, None);
    let mut invalid = kernel("broken", UnaryKind::Abs);
    invalid.nodes[1] = Node::Unary(UnaryKind::Abs, 9);
    let lines: Vec<Vec<u8>> = vec![
        b"hello".to_vec(),
        b"\xff\xfe".to_vec(),
        good.as_bytes()[..good.len() / 2].to_vec(),
        "[".repeat(100_000).into_bytes(),
        br#"{"kernels":[],"out":"x","colour":1}"#.to_vec(),
        request(&[invalid], &out, None).into_bytes(),
        request(&[kernel("k", UnaryKind::Abs)], &folder.path().join("no/such/folder/k.so"), None)
            .into_bytes(),
        good.replace(r#""native""#, r#"{"features":["sse9"]}"#).into_bytes(),
        good.replace(r#""native""#, r#"{"features":["avx2"]}"#).into_bytes(),
        b"  ".to_vec(),
        good.into_bytes(),
    ];
    let replies = talk(&lines);
    // The line of spaces has no reply.
    assert_eq!(replies.len(), 10);
    let expected = [
        (Fault::Input, "malformed"),
        (Fault::Input, "malformed"),
        (Fault::Input, "malformed"),
        (Fault::Input, "malformed"),
        (Fault::Input, "unknown field `colour`"),
        (Fault::Internal, "broken): node 1: uses node 9"),
        (Fault::Run, "no/such/folder"),
        (Fault::Usage, "unknown CPU feature \"sse9\""),
        (Fault::Usage, "without fma"),
    ];
    for (reply, (fault, text)) in replies.iter().zip(expected) {
        let Reply::Failed { error } = reply else { panic!("{reply:?} for {text}") };
        assert_eq!(error.fault, fault, "{error}");
        assert!(error.to_string().contains(text), "{error} lacks {text}");
    }
    assert!(matches!(&replies[9], Reply::Built(b) if b.generated == 1));
}
