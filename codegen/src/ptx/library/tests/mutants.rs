//! Kernels broken on purpose in their PTX. The simulator or the comparison must notice each change, but for those listed with the reason why
//! they change nothing.

use super::attentions::{Case as Attends, kernel};
use super::products::Case as Multiplies;
use super::{attention_ptx, ptx};
use pcc_ir::gpu::attention::{AttentionKernel, AttentionPath};
use pcc_ir::gpu::gemm::{GemmKernel, GemmPath};
use pcc_ir::gpu::{Arch, LibraryKernel, Shape};
use pcc_ir::types::DType;

/// Orders of blocks and warps, one of which must show what is wrong.
const SEEDS: [u64; 2] = [1, 2];

/// A kernel, and what is computed with it.
struct Subject {
    name: &'static str,
    kernel: LibraryKernel,
    products: Vec<(Multiplies, Shape)>,
    attentions: Vec<Attends>,
}

impl Subject {
    /// What is wrong with a text of the kernel.
    fn fault(&self, text: &str) -> Option<String> {
        let runs = SEEDS.into_iter().flat_map(|seed| {
            let products = self.products.iter().map(move |(case, shape)| case.check_at(text, *shape, seed));
            products.chain(self.attentions.iter().map(move |case| {
                let shape = case.kernel.shape(case.b, case.s, case.g, case.r);
                case.check_at(text, Shape { grid: [shape.grid[0], 1, 1], ..shape }, seed)
            }))
        });
        runs.filter_map(Result::err).next()
    }
}

/// Products whose blocks have more than one tile, of extents that end at different places of a tile.
fn product(
    name: &'static str,
    path: GemmPath,
    c: DType,
    (a_by_k, b_by_k): (bool, bool),
    shapes: &[(u64, u64, u64)],
) -> Subject {
    let rows = match path {
        GemmPath::Few => 2,
        GemmPath::Wgmma => 128,
        GemmPath::Mma | GemmPath::Simt => 64,
    };
    let kernel = GemmKernel { path, a: DType::BF16, b: DType::BF16, c, rows, a_by_k, b_by_k, epilogue: None };
    let case = |&(m, n, k): &(u64, u64, u64)| {
        let shape = kernel.shape(m, n, 1);
        let case = Multiplies { batch: [1, 1, 2], alpha: 0.5, ..Multiplies::new(kernel, (m, n, k)) };
        (case, Shape { grid: [shape.grid[0], 1, 1], ..shape })
    };
    let products = shapes.iter().map(case).collect();
    Subject { name, kernel: LibraryKernel::Gemm(kernel), products, attentions: vec![] }
}

fn attention(name: &'static str, path: AttentionPath, split: bool) -> Subject {
    let kernel = AttentionKernel {
        split,
        window: true,
        slopes: path != AttentionPath::Wide,
        ..kernel(path, DType::BF16, 16, 16)
    };
    // So many keys that every warp has several tiles, also where the warps share them.
    let (s, t, near) = match path {
        AttentionPath::Few => (5, 450, 350),
        _ if split => (3, 550, 300),
        _ => (67, 150, 40),
    };
    let case = |r: u64, window: u64| {
        let start = t as i64 - 80;
        Attends { window, scattered: true, start, ..Attends::new(kernel, (2, s, t, 1, r)) }
    };
    let attentions = vec![case(1, near), case(1, 90), case(3, 17)];
    Subject { name, kernel: LibraryKernel::Attention(kernel), products: vec![], attentions }
}

fn subjects() -> [Subject; 13] {
    let shapes = [(70, 104, 200), (104, 70, 180)];
    let few = [(3, 20, 1100), (1, 3, 531)];
    // More turns than stages.
    let wide = [(136, 264, 330)];
    [
        product("mma, by k", GemmPath::Mma, DType::F32, (true, true), &shapes),
        product("mma, not by k", GemmPath::Mma, DType::BF16, (false, false), &shapes),
        product("wgmma, by k", GemmPath::Wgmma, DType::F32, (true, true), &wide),
        product("wgmma, not by k", GemmPath::Wgmma, DType::BF16, (false, false), &wide),
        product("simt", GemmPath::Simt, DType::F32, (true, false), &[(70, 104, 40), (104, 70, 33)]),
        product("few, by k", GemmPath::Few, DType::F32, (true, true), &few),
        product("few, not by k", GemmPath::Few, DType::F32, (false, false), &few),
        attention("attention, mma", AttentionPath::Mma, false),
        attention("attention, wide", AttentionPath::Wide, false),
        attention("attention, few", AttentionPath::Few, false),
        attention("attention, simt", AttentionPath::Simt, false),
        attention("attention, few, split", AttentionPath::Few, true),
        attention("attention, simt, split", AttentionPath::Simt, true),
    ]
}

/// How a text is changed, one place at a time.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// One text instead of another.
    Replace(&'static str, &'static str),
    /// Two registers of an operand of `mma.sync` change places: those of this line behind the opcode, of these numbers.
    Swap(usize, usize, usize),
}
use Change::{Replace, Swap};

impl Change {
    /// The text changed at the n-th place.
    fn apply(self, text: &str, n: usize) -> Option<String> {
        match self {
            Replace(from, to) => {
                let at = text.match_indices(from).nth(n)?.0;
                Some(format!("{}{to}{}", &text[..at], &text[at + from.len()..]))
            }
            Swap(line, i, j) => {
                let at = text.match_indices("mma.sync").nth(n)?.0;
                let first = text[..at].matches('\n').count() + line;
                let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                let (open, close) = (lines[first].find('{')?, lines[first].find('}')?);
                let mut registers: Vec<String> =
                    lines[first][open + 1..close].split(", ").map(str::to_owned).collect();
                registers.swap(i, j);
                lines[first] =
                    [&lines[first][..=open], &registers.join(", "), &lines[first][close..]].concat();
                Some(lines.join("\n"))
            }
        }
    }
}

const BARRIER: Change = Replace("bar.sync \t0;", "");
const WARP_BARRIER: Change = Replace("bar.warp.sync \t-1;", "");
const COMMIT: Change = Replace("cp.async.commit_group;", "");
const ROWS: Change = Swap(2, 1, 2);
const DEPTHS: Change = Swap(3, 0, 1);
const SUMS: Change = Swap(4, 1, 2);
const TRANSPOSED: Change = Replace(".x4.shared", ".x4.trans.shared");
const STRAIGHT: Change = Replace(".x4.trans.shared", ".x4.shared");
const BANKS: Change = Replace("xor.b32", "or.b32");
const HALF_A_WARP: Change = Replace(", 31, -1;", ", 31, 65535;");
const NEXT_LANE: Change = Replace(", 1, 31, -1;", ", 2, 31, -1;");
const FAR_LANE: Change = Replace(", 16, 31, -1;", ", 8, 31, -1;");
const BOUND: Change = Replace("setp.lt.s32", "setp.le.s32");
/// The same, said of what is not inside.
const BEYOND: Change = Replace("setp.ge.s32", "setp.gt.s32");
const MOST: Change = Replace("min.s32", "max.s32");
const NO_WAIT_2: Change = Replace("cp.async.wait_group \t2;", "");
const WAIT_3: Change = Replace("cp.async.wait_group \t2;", "cp.async.wait_group \t3;");
const NO_WAIT_0: Change = Replace("cp.async.wait_group \t0;", "");
const WAIT_1: Change = Replace("cp.async.wait_group \t0;", "cp.async.wait_group \t1;");

const NO_WAIT_COPY: Change = Replace("cp.async.wait_group \t1;", "");
const WAIT_COPY_2: Change = Replace("cp.async.wait_group \t1;", "cp.async.wait_group \t2;");
const NO_PROXY_FENCE: Change = Replace("fence.proxy.async.shared::cta;", "");
const FENCE: Change = Replace("wgmma.fence.sync.aligned;", "");
const GROUP: Change = Replace("wgmma.commit_group.sync.aligned;", "");
const NO_WAIT_PRODUCT: Change = Replace("wgmma.wait_group.sync.aligned 1;", "");
const WAIT_PRODUCT_2: Change =
    Replace("wgmma.wait_group.sync.aligned 1;", "wgmma.wait_group.sync.aligned 2;");
const NO_LAST_WAIT: Change = Replace("wgmma.wait_group.sync.aligned 0;", "");
const LAST_WAIT_1: Change = Replace("wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;");
const STAGE: Change = Replace(", 49152;", ", 32768;");
const START: Change = Replace(", 4, 14;", ", 5, 14;");
const NEGATED: Change = Replace(", p, 1, 1,", ", p, 1, -1,");
const NOT_CLEARED: Change = Replace("mov.f32 %sum9, 0f00000000;", "");
/// What all kernels of warpgroups have.
const WARPGROUPS: [Change; 17] = [
    BARRIER,
    COMMIT,
    BANKS,
    MOST,
    NO_WAIT_COPY,
    WAIT_COPY_2,
    NO_PROXY_FENCE,
    FENCE,
    GROUP,
    NO_WAIT_PRODUCT,
    WAIT_PRODUCT_2,
    NO_LAST_WAIT,
    LAST_WAIT_1,
    STAGE,
    START,
    NEGATED,
    NOT_CLEARED,
];
/// Of descriptors of operands by k, whose swizzle is of 128 bytes, stride 1024 bytes and leading offset 16: a swizzle of 64 bytes, half the stride, and the
/// second instruction's as far on as the third's.
const SWIZZLE: Change = Replace("4611686293305360384", "9223372311732748288");
const STRIDE: Change = Replace("4611686293305360384", "4611686155866406912");
const DEEPER: Change = Replace("4611686293305360386", "4611686293305360388");
/// Likewise of others, with a leading offset of 8192 bytes.
const SWIZZLE_APART: Change = Replace("4611686293338849280", "9223372311766237184");
const STRIDE_APART: Change = Replace("4611686293338849280", "4611686155899895808");
const DEEPER_APART: Change = Replace("4611686293338849408", "4611686293338849536");
const A_BY_M: Change = Replace("1, 1, 0, 0;", "1, 1, 1, 0;");
const B_BY_N: Change = Replace("1, 1, 0, 0;", "1, 1, 0, 1;");
const A_BY_K: Change = Replace("1, 1, 1, 1;", "1, 1, 0, 1;");
const B_BY_K: Change = Replace("1, 1, 1, 1;", "1, 1, 1, 0;");

/// Ranges begin elsewhere.
const RANGE: Change = Replace("shl.b64", "shr.u64");
/// What is not there is read.
const NO_SUM: Change = Replace("setp.neu.f32", "setp.leu.f32");

/// Changes that are noticed wherever they are made; of many places some are tried.
const NOTICED: [(&str, &[Change]); 15] = [
    ("mma, by k", &[BARRIER, NO_WAIT_2, WAIT_3, COMMIT, ROWS, DEPTHS, SUMS, TRANSPOSED, BANKS, MOST]),
    ("mma, not by k", &[BARRIER, NO_WAIT_2, WAIT_3, COMMIT, ROWS, DEPTHS, SUMS, STRAIGHT, BANKS, MOST]),
    ("wgmma, by k", &WARPGROUPS),
    ("wgmma, by k", &[SWIZZLE, STRIDE, DEEPER, A_BY_M, B_BY_N]),
    ("wgmma, not by k", &WARPGROUPS),
    ("wgmma, not by k", &[SWIZZLE_APART, STRIDE_APART, DEEPER_APART, A_BY_K, B_BY_K]),
    ("simt", &[BARRIER]),
    ("few, by k", &[HALF_A_WARP, NEXT_LANE, FAR_LANE, BEYOND, MOST]),
    ("few, not by k", &[BARRIER, HALF_A_WARP, FAR_LANE, MOST]),
    (
        "attention, mma",
        &[BARRIER, NO_WAIT_0, WAIT_1, COMMIT, ROWS, DEPTHS, SUMS, TRANSPOSED, STRAIGHT, BANKS, HALF_A_WARP],
    ),
    ("attention, wide", &[BARRIER, NO_WAIT_0, WAIT_1, COMMIT, ROWS, DEPTHS, SUMS, HALF_A_WARP]),
    ("attention, few", &[BARRIER, WARP_BARRIER, NO_WAIT_0, WAIT_1, COMMIT, ROWS, DEPTHS, HALF_A_WARP]),
    ("attention, simt", &[HALF_A_WARP, NEXT_LANE, FAR_LANE]),
    (
        "attention, few, split",
        &[BARRIER, WARP_BARRIER, NO_WAIT_0, WAIT_1, COMMIT, ROWS, DEPTHS, HALF_A_WARP, RANGE, NO_SUM],
    ),
    ("attention, simt, split", &[BARRIER, HALF_A_WARP, NEXT_LANE, RANGE, NO_SUM]),
];

/// Bounds of which so many are noticed to be off by one. The others bound what these extents do not end at, or choose the smaller of two
/// numbers, where equal ones are alike.
const BOUNDS: [(&str, usize); 3] = [("mma, by k", 13), ("simt", 7), ("few, not by k", 3)];

/// Changes that change nothing, and why.
const ALIKE: [(&str, Change, &str); 1] = [(
    "few, by k",
    Replace(", 1, 31, -1;", ", 1, 15, -1;"),
    "With 15 for 31 lanes 16 to 31 keep their values. Both halves of the warp have equal sums since the first exchange, with the lane 16 \
     further; later ones stay within a half; and what is stored comes from lanes below 4.",
)];

/// Places of one change that are tried: the first ones and the last.
const PLACES: usize = 3;

/// The texts that a change makes, but for those it leaves as they are: registers that change places may be one.
fn mutants(change: Change, text: &str) -> Vec<String> {
    let all: Vec<String> =
        (0..).map_while(|n| change.apply(text, n)).filter(|m| m.trim_end() != text.trim_end()).collect();
    assert!(!all.is_empty(), "{change:?} is nowhere");
    all
}

fn some(mut all: Vec<String>) -> Vec<String> {
    let last = all.split_off(all.len().saturating_sub(1).max(PLACES - 1).min(all.len()));
    all.into_iter().take(PLACES - 1).chain(last).collect()
}

#[test]
fn every_mutant_is_noticed_or_changes_nothing() {
    let mut count = 0;
    for subject in subjects() {
        let name = subject.name;
        let arch = Arch::ALL.into_iter().find(|&arch| subject.kernel.exists_for(arch)).unwrap();
        let text = match &subject.kernel {
            LibraryKernel::Attention(kernel) => attention_ptx(arch, kernel),
            kernel => ptx(arch, kernel),
        };
        assert_eq!(subject.fault(&text), None, "{name}");
        for &change in NOTICED.iter().filter(|(of, _)| *of == name).flat_map(|(_, changes)| *changes) {
            for (n, mutant) in some(mutants(change, &text)).iter().enumerate() {
                assert!(subject.fault(mutant).is_some(), "{name}: {change:?}, {n}");
                count += 1;
            }
        }
        for (_, least) in BOUNDS.iter().filter(|(of, _)| *of == name) {
            let noticed = mutants(BOUND, &text).iter().filter(|m| subject.fault(m).is_some()).count();
            assert!(noticed >= *least, "{name}: {noticed} bounds");
            count += noticed;
        }
        for (_, change, why) in ALIKE.iter().filter(|(of, ..)| *of == name) {
            for mutant in mutants(*change, &text) {
                assert_eq!(subject.fault(&mutant), None, "{name}: {change:?} is noticed, though: {why}");
            }
        }
    }
    assert!(count >= 100, "{count} mutants");
}
