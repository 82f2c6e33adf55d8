//! Requests for GPUs.

use super::{kernel, talk};
use pcc_ir::Fault;
use pcc_ir::codegen_protocol::{Built, Cpu, Gpu, Reply, Request};
use pcc_ir::gpu::gemm::{GemmKernel, GemmPath};
use pcc_ir::gpu::{Arch, Epilogue, LibraryKernel};
use pcc_ir::kernel::{Kernel, Node};
use pcc_ir::ops::UnaryKind;
use pcc_ir::types::{DType, ReduceKind};
use sha2::{Digest, Sha256};
use std::path::Path;

const LIBRARY: [LibraryKernel; 2] = [
    LibraryKernel::Copy { bytes: 4 },
    LibraryKernel::Reduce { dtype: DType::F32, reduce: ReduceKind::Sum, members: 2 },
];

fn request(kernels: &[Kernel], library: &[LibraryKernel], arch: Arch, out: &Path, cache: &Path) -> String {
    let request = Request {
        kernels: kernels.to_vec(),
        cpu: Cpu::Native,
        gpu: Some(Gpu { arch, library: library.to_vec() }),
        out: out.to_str().unwrap().into(),
        cache: Some(cache.to_str().unwrap().into()),
    };
    serde_json::to_string(&request).unwrap()
}

fn built(reply: &Reply) -> &Built {
    match reply {
        Reply::Built(built) => built,
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_kernels_come_in_one_text() {
    let folder = tempfile::tempdir().unwrap();
    let [out, cache] = ["k.ptx", "cache"].map(|name| folder.path().join(name));
    let kernels = [UnaryKind::Exp, UnaryKind::Log, UnaryKind::Exp].map(|kind| kernel("k", kind));
    for arch in Arch::ALL {
        let replies = talk(&[request(&kernels, &LIBRARY, arch, &out, &cache)]);
        let built = built(&replies[0]);
        assert_eq!((built.generated, built.cached), (4, 0));
        assert_eq!(built.symbols, kernels.each_ref().map(Kernel::symbol));
        assert!(built.features.is_empty());
        let text = std::fs::read_to_string(&out).unwrap();
        let digest: String = Sha256::digest(&text).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(digest, built.object_digest);
        assert_eq!(text.matches(".version ").count(), 1);
        assert_eq!(text.matches(&format!(".target {}\n", arch.name())).count(), 1);
        let symbols = kernels[..2].iter().map(Kernel::symbol).chain(LIBRARY.map(|k| k.symbol()));
        for symbol in symbols {
            assert_eq!(text.matches(&format!(".visible .entry {symbol}(")).count(), 1, "{symbol}");
        }
    }
}

#[test]
fn kernels_are_kept_by_architecture() {
    let folder = tempfile::tempdir().unwrap();
    let [out, cache] = ["k.ptx", "cache"].map(|name| folder.path().join(name));
    let kernels = [kernel("k", UnaryKind::Tanh)];
    let request = |arch| request(&kernels, &LIBRARY, arch, &out, &cache);
    let replies = talk(&[request(Arch::Sm80), request(Arch::Sm80), request(Arch::Sm90)]);
    let counts: Vec<_> = replies.iter().map(|r| (built(r).generated, built(r).cached)).collect();
    assert_eq!(counts, [(3, 0), (0, 3), (3, 0)]);
    assert_eq!(built(&replies[0]).object_digest, built(&replies[1]).object_digest);
    assert_ne!(built(&replies[0]).object_digest, built(&replies[2]).object_digest);
}

#[test]
fn what_a_gpu_cannot_take_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [out, cache] = ["k.ptx", "cache"].map(|name| folder.path().join(name));
    let good = request(&[kernel("k", UnaryKind::Abs)], &LIBRARY, Arch::Sm90, &out, &cache);
    let refused =
        |kernels: &[Kernel], library: &[LibraryKernel]| request(kernels, library, Arch::Sm90, &out, &cache);
    let mut invalid = kernel("broken", UnaryKind::Abs);
    invalid.nodes[1] = Node::Unary(UnaryKind::Abs, 9);
    // Three parameters for each access of one dim, and one for the dim.
    let mut large = kernel("large", UnaryKind::Abs);
    large.rank = 3;
    large.accesses.resize(128, large.accesses[0].clone());
    let reduce = |members| LibraryKernel::Reduce { dtype: DType::F32, reduce: ReduceKind::Sum, members };
    // A product's epilogue that is not among the kernels, or that looks beyond its element.
    let elementwise = kernel("k", UnaryKind::Abs);
    let product = |epilogue: &Kernel| {
        let dtype = epilogue.accesses[0].dtype;
        let (path, epilogue) = (GemmPath::Simt, Some(Epilogue::new(epilogue, 0)));
        let (a_by_k, b_by_k) = (false, false);
        LibraryKernel::Gemm(GemmKernel {
            path,
            a: dtype,
            b: dtype,
            c: dtype,
            rows: 64,
            a_by_k,
            b_by_k,
            epilogue,
        })
    };
    let mut reducing = elementwise.clone();
    reducing.nodes.push(Node::RowReduce(ReduceKind::Sum, 0));
    let lines = [
        good.replace("sm_90", "sm_70"),
        refused(&[], &[product(&elementwise)]),
        refused(&[reducing.clone()], &[product(&reducing)]),
        refused(&[invalid], &[]),
        refused(&[large], &[]),
        refused(&[], &[LibraryKernel::Copy { bytes: 3 }]),
        refused(&[], &[reduce(0)]),
        refused(&[], &[reduce(1000)]),
        request(&[], &[], Arch::Sm90, &folder.path().join("no/such/folder/k.ptx"), &cache),
        good,
    ];
    let replies = talk(&lines);
    let expected = [
        (Fault::Input, "unknown variant `sm_70`"),
        (Fault::Internal, "no kernel has its digest"),
        (Fault::Internal, "it is not elementwise"),
        (Fault::Internal, "broken): node 1: uses node 9"),
        (Fault::Run, "515 parameters, more than the 512"),
        (Fault::Internal, "no element has 3 bytes"),
        (Fault::Internal, "it reduces nothing"),
        (Fault::Run, "too many devices reduce together"),
        (Fault::Run, "no/such/folder"),
    ];
    for (reply, (fault, text)) in replies.iter().zip(expected) {
        let Reply::Failed { error } = reply else { panic!("{reply:?} for {text}") };
        assert_eq!(error.fault, fault, "{error}");
        assert!(error.to_string().contains(text), "{error} lacks {text}");
    }
    assert!(built(&replies[9]).ok);
}

#[test]
fn no_kernels_give_a_header() {
    let folder = tempfile::tempdir().unwrap();
    let [out, cache] = ["k.ptx", "cache"].map(|name| folder.path().join(name));
    let replies = talk(&[request(&[], &[], Arch::Sm80, &out, &cache)]);
    assert!(built(&replies[0]).symbols.is_empty());
    let text = std::fs::read_to_string(&out).unwrap();
    assert!(text.ends_with(".version 7.0\n.target sm_80\n.address_size 64\n"), "{text}");
}
