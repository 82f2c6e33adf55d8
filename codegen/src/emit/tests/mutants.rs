//! Kernels broken on purpose in their PTX: a barrier or a shuffle less, a bound off by one, another lane, another warp. The runs of the tests
//! must notice every one of them, by a fault of the simulator or by other numbers, but for those that change nothing, which are listed with
//! the reason.

use super::gpu::ptx;
use super::harness::*;
use super::rows::{layer_norm, rows_case};
use super::simulate::runs;
use pcc_cuda_sim::ptx::Module;
use pcc_ir::gpu::Arch;
use pcc_ir::kernel::{At, Lane, Node};
use pcc_ir::ops::BinaryKind;
use pcc_ir::types::{DType, ReduceKind};

/// Texts and what takes their place, one occurrence at a time.
const CHANGES: [(&str, &str); 23] = [
    ("bar.sync \t0;", ""),
    ("setp.ge.s64", "setp.gt.s64"),
    ("setp.le.s64", "setp.lt.s64"),
    ("setp.lt.s64", "setp.le.s64"),
    ("setp.gt.s64", "setp.ge.s64"),
    ("min.s64", "max.s64"),
    (", 16, 31, -1;", ", 8, 31, -1;"),
    (", 1, 31, -1;", ", 0, 31, -1;"),
    (", 31, -1;", ", 31, 65535;"),
    (", 0, 31, -1;", ", 1, 31, -1;"),
    ("st.shared.b32", "ld.shared.b32"),
    ("%ntid.x", "%nctaid.x"),
    ("%laneid", "%tid.x"),
    ("%tid.x", "%laneid"),
    ("and.pred", "or.pred"),
    (" 0f00000000;", " 0f3F800000;"),
    (" 0fFF800000;", " 0f00000000;"),
    (", 1;", ", 2;"),
    (", 2;", ", 3;"),
    (", 3;", ", 2;"),
    (", 4;", ", 3;"),
    (", 15;", ", 7;"),
    ("], {", "+16], {"),
];

/// The text with the n-th occurrence replaced.
fn change(text: &str, n: usize, (from, to): (&str, &str)) -> Option<String> {
    let at = text.match_indices(from).nth(n)?.0;
    Some(format!("{}{to}{}", &text[..at], &text[at + from.len()..]))
}

/// Whether some run of some case shows that the text is wrong.
fn noticed(text: &str, cases: &[Case]) -> bool {
    let Ok(module) = Module::load(text) else { return true };
    cases.iter().any(|case| {
        let expected = case.expected();
        runs(&case.kernel).into_iter().any(|how| match case.simulate(&module, how, false) {
            Ok(got) => case.difference(&got, &expected, 1e-5).is_some(),
            Err(_) => true,
        })
    })
}

/// Why a mutant may go unnoticed.
const EMPTY_GROUP: &str = "a group more, from the row's end to the row's end: it has no element";
const ONE_BY_ONE: &str = "the last whole groups are done one by one or element by element, in the same order";
const TWO_TURNS: &str =
    "a loop of two turns whose end lies four elements behind the second: it is never met exactly";
const FEW_WARPS: &str = "a block has 16 warps at most: lanes 16 to 31 hold what changes nothing, and a maximum may be taken twice";
const MORE_GROUPS: &str = "twice as many groups a row: those behind its end have no element";
const SAME_ROWS: &str = "rows of what is read and of what is written are aligned alike";
const ALL_EQUAL: &str = "all lanes have the same value after the shuffles, but for the sign of zero";

/// Checks that every mutant is noticed but those listed: what is changed, which occurrence, and why it changes nothing.
#[track_caller]
fn check(cases: &[Case], equivalent: &[(&str, usize, &str)]) {
    let kernels = [cases[0].kernel.clone()];
    let text = ptx(&kernels, &[], Arch::Sm90);
    assert!(!noticed(&text, cases), "the kernel itself is wrong");
    let mut missed = vec![];
    for what in CHANGES {
        for n in 0.. {
            let Some(mutant) = change(&text, n, what) else { break };
            if !noticed(&mutant, cases) {
                missed.push((what.0, n));
            }
        }
    }
    let listed: Vec<_> = equivalent.iter().map(|&(from, n, _)| (from, n)).collect();
    assert_eq!(missed, listed);
}

/// A maximum and a sum of one row in one pass, then a sum of another: two passes, with rows of several lengths.
fn reductions() -> Vec<Case> {
    let mut kernel = layer_norm(100);
    kernel.nodes.extend([
        float(5.0),
        Node::Binary(BinaryKind::Sub, 0, 12),
        Node::RowReduce(ReduceKind::Max, 13),
        Node::Binary(BinaryKind::Add, 11, 14),
    ]);
    kernel.stores[0].node = 15;
    [7, 100, 260, 1015, 1030].into_iter().map(|n| rows_case(kernel.clone(), 4, n).0).collect()
}

/// A single pass a row.
fn one_pass() -> Vec<Case> {
    let (nodes, stores) = ([Node::Load(0), Node::RowReduce(ReduceKind::Sum, 0)], [store(1, 1)]);
    let accesses = [read(DType::F32, Lane::Unit), write(DType::F32, Lane::Broadcast)];
    let case = |n: usize| {
        let (mut case, _) = rows_case(kernel(2, 0, &accesses, &nodes, &stores), 5, n);
        case.buffers[1].truncate(5 * 4);
        case.strides = vec![n as i64, 1, 1, 0];
        case
    };
    [7, 100, 260, 1015, 1030].into_iter().map(case).collect()
}

/// Rows gathered from tables, one a row, at indices of which some are out of range, in two types.
fn gather() -> Vec<Case> {
    let nodes = [Node::Load(0), Node::LoadAt { access: 1, index: 0, stride: 0, limit: 1 }];
    let accesses =
        [read(DType::I32, Lane::Broadcast), read(DType::F32, Lane::Unit), write(DType::BF16, Lane::Unit)];
    let kernel = kernel(2, 2, &accesses, &nodes, &[store(2, 1)]);
    let case = |n: usize| Case {
        kernel: kernel.clone(),
        buffers: vec![
            elements(DType::I32, [2.0, -1.0, 0.0, 3.0, 1.0]),
            elements(DType::F32, (0..15 * n).map(|i| i as f64)),
            elements(DType::BF16, vec![7.0; 5 * n]),
        ],
        extents: vec![5, n as i64],
        strides: [1, 0, 3 * n, 1, n, 1].map(|s| s as i64).to_vec(),
        scalars: vec![n as i64, 3],
    };
    [3, 16, 20, 129].into_iter().map(case).collect()
}

/// Rows stored in tables, one a row, at indices of which some are out of range.
fn scatter() -> Vec<Case> {
    let accesses =
        [read(DType::I32, Lane::Broadcast), read(DType::F32, Lane::Unit), write(DType::F32, Lane::Unit)];
    let at = At { index: 0, stride: 0, limit: 1 };
    let kernel = kernel(2, 2, &accesses, &[Node::Load(0), Node::Load(1)], &[store_at(2, 1, at)]);
    let case = |n: usize| Case {
        kernel: kernel.clone(),
        buffers: vec![
            elements(DType::I32, [2.0, -1.0, 0.0, 3.0, 1.0]),
            elements(DType::F32, (0..5 * n).map(|i| i as f64)),
            elements(DType::F32, vec![7.0; 15 * n]),
        ],
        extents: vec![5, n as i64],
        strides: [1, 0, n, 1, 3 * n, 1].map(|s| s as i64).to_vec(),
        scalars: vec![n as i64, 3],
    };
    [3, 8, 18, 129].into_iter().map(case).collect()
}

#[test]
fn broken_reductions_in_two_passes_are_noticed() {
    check(
        &reductions(),
        &[
            ("setp.ge.s64", 1, EMPTY_GROUP),
            ("setp.ge.s64", 2, TWO_TURNS),
            ("setp.ge.s64", 5, EMPTY_GROUP),
            ("setp.ge.s64", 6, TWO_TURNS),
            ("setp.ge.s64", 8, EMPTY_GROUP),
            ("setp.ge.s64", 9, TWO_TURNS),
            ("setp.le.s64", 0, ONE_BY_ONE),
            ("setp.le.s64", 1, ONE_BY_ONE),
            ("setp.le.s64", 2, ONE_BY_ONE),
            ("setp.gt.s64", 0, ONE_BY_ONE),
            ("setp.gt.s64", 1, ONE_BY_ONE),
            ("setp.gt.s64", 2, ONE_BY_ONE),
            (", 16, 31, -1;", 3, FEW_WARPS),
            (", 0, 31, -1;", 0, ALL_EQUAL),
            (", 0, 31, -1;", 1, ALL_EQUAL),
            (", 0, 31, -1;", 2, ALL_EQUAL),
            (", 15;", 1, SAME_ROWS),
        ],
    );
}

#[test]
fn broken_reductions_in_one_pass_are_noticed() {
    check(
        &one_pass(),
        &[
            ("setp.ge.s64", 1, EMPTY_GROUP),
            ("setp.ge.s64", 2, TWO_TURNS),
            ("setp.le.s64", 0, ONE_BY_ONE),
            ("setp.gt.s64", 0, ONE_BY_ONE),
            (", 0, 31, -1;", 0, ALL_EQUAL),
        ],
    );
}

#[test]
fn broken_gathers_are_noticed() {
    check(&gather(), &[("setp.le.s64", 0, ONE_BY_ONE), (", 3;", 0, MORE_GROUPS)]);
}

#[test]
fn broken_scatters_are_noticed() {
    check(&scatter(), &[("setp.le.s64", 0, ONE_BY_ONE)]);
}
