//! Products of warpgroups, `wgmma`, against plain loops. Where operands and sums lie is written here as the PTX ISA has it ("Asynchronous Warpgroup Level
//! Matrix Multiply-Accumulate Instructions"): CuTe layouts and figures.

use crate::harness::{Random, Run, kernel};
use half::{bf16, f16};
use pcc_cuda_sim::ptx::Module;

/// Shape and stride of each part of a mode, the first fastest.
type Mode = Vec<(usize, usize)>;

fn offset(mode: &Mode, mut index: usize) -> usize {
    mode.iter().fold(0, |sum, &(shape, stride)| {
        let part = index % shape;
        index /= shape;
        sum + part * stride
    })
}

/// How an operand of a product lies in shared memory.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Bytes of the swizzle: 0, 32, 64 or 128.
    swizzle: usize,
    /// M-major of a, N-major of b.
    transposed: bool,
    /// Leading and stride dimension byte offset.
    leading: usize,
    stride: usize,
}

impl Layout {
    /// Both modes in bytes, of 16-bit elements: "Canonical Layouts" with T = 8.
    fn modes(self) -> (Mode, Mode) {
        let (t, many, lbo, sbo) = (8, 1 << 10, self.leading, self.stride);
        let w = (self.swizzle / 16).max(1);
        match (self.transposed, self.swizzle) {
            (true, 0) => (vec![(t, 2), (1, 2 * t), (many, sbo)], vec![(8, 2 * t), (many, lbo)]),
            (true, _) => (vec![(t, 2), (w, 2 * t), (many, lbo)], vec![(8, 2 * w * t), (many, sbo)]),
            (false, 0) => (vec![(8, 2 * t), (many, sbo)], vec![(t, 2), (2, lbo)]),
            (false, _) => (vec![(8, 2 * w * t), (many, sbo)], vec![(t, 2), (2, 2 * t)]),
        }
    }

    /// The address of an element of what begins at `start`: `Swizzle<B,4,3>` of it.
    fn place(self, start: usize, outer: usize, depth: usize) -> usize {
        let (rows, depths) = self.modes();
        let at = start + offset(&rows, outer) + offset(&depths, depth);
        let bits = [(32, 1), (64, 2), (128, 3)].iter().find(|(bytes, _)| *bytes == self.swizzle);
        let mask = bits.map_or(0, |(_, b)| (1 << b) - 1) << 7;
        at ^ ((at & mask) >> 3)
    }

    /// "Matrix Descriptor Format".
    fn descriptor(self, start: usize) -> u64 {
        let encode = |x: usize| ((x & 0x3ffff) >> 4) as u64;
        let mode = match self.swizzle {
            0 => 0,
            128 => 1,
            64 => 2,
            _ => 3,
        };
        encode(start) | encode(self.leading) << 16 | encode(self.stride) << 32 | mode << 62
    }
}

/// Where the shared memory of a kernel without static variables starts.
const START: usize = 1024;
/// Where b begins behind a.
const B: usize = 16 << 10;
const SHARED: usize = 80 << 10;

/// A product of one instruction.
struct Case {
    n: usize,
    kind: &'static str,
    a: Layout,
    b: Layout,
    /// Where a begins; of b it is `B`.
    at: usize,
    negative: [bool; 2],
    adds: bool,
}

impl Case {
    fn new(n: usize, a: Layout, b: Layout) -> Self {
        Case { n, kind: "bf16", a, b, at: 0, negative: [false; 2], adds: true }
    }

    fn list(&self) -> String {
        (0..self.n / 2).map(|i| format!("%d{i}")).collect::<Vec<_>>().join(", ")
    }

    fn product(&self) -> String {
        let sign = |negative: bool| if negative { -1 } else { 1 };
        let [a, b] = self.negative.map(sign);
        let [order_a, order_b] = [self.a, self.b].map(|layout| u32::from(layout.transposed));
        let (n, kind, d) = (self.n, self.kind, self.list());
        format!(
            "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} {{{d}}}, %da, %db, %adds, {a}, {b}, {order_a}, {order_b};"
        )
    }

    /// Shared memory is copied from the first buffer; sums start as 1 and go to the second, those of a thread side by side.
    fn text(&self) -> String {
        let mut body = format!(
            ".reg .f32 %d<{}>; .reg .b64 %da, %db; .reg .pred %adds;
            mov.b64 %da, {}; mov.b64 %db, {}; setp.ne.b32 %adds, {}, 0;
            mul.wide.u32 %rd6, %r1, 16; add.s64 %rd7, %rd1, %rd6; mov.u32 %r2, dyn; cvt.u32.u64 %r3, %rd6; add.u32 %r3, %r2, %r3;",
            self.n / 2,
            self.a.descriptor(START + self.at),
            self.b.descriptor(START + B),
            u32::from(self.adds),
        );
        for i in (0..SHARED).step_by(2048) {
            body += &format!(
                "ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd7+{i}]; st.shared.v4.b32 [%r3+{i}], {{%r4, %r5, %r6, %r7}};\n"
            );
        }
        for i in 0..self.n / 2 {
            body += &format!("mov.f32 %d{i}, 0f3F800000;");
        }
        body += "\nfence.proxy.async.shared::cta;\nbar.sync 0;\nwgmma.fence.sync.aligned;\n";
        body += &self.product();
        body += "\nwgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n";
        body += &format!("mul.wide.u32 %rd8, %r1, {}; add.s64 %rd8, %rd2, %rd8;", 2 * self.n);
        for i in 0..self.n / 2 {
            body += &format!("st.global.f32 [%rd8+{}], %d{i};", 4 * i);
        }
        let text = kernel(&body);
        text.replace(".target sm_90\n", ".target sm_90a\n")
            .replace(".extern .shared .align 16", ".extern .shared .align 1024")
    }

    fn run(&self, text: &str, image: &[u8], seed: u64) -> Result<Vec<f32>, String> {
        let run = Run { shared: SHARED as u32, seed, ..Run::text(text, 128) };
        let out = run.bytes(image, (128 * self.n * 2) as u64).map_err(|fault| fault.to_string())?;
        Ok(out.chunks(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect())
    }

    fn check(&self) {
        // Small integers: every sum is exact.
        let mut random = Random(self.n as u64);
        let mut draw = |n: usize| (0..n).map(|_| (random.next() % 17) as f32 - 8.0).collect::<Vec<_>>();
        let (a, b) = (draw(64 * 16), draw(self.n * 16));
        let mut image = vec![0u8; SHARED];
        let mut put = |layout: Layout, start: usize, values: &[f32]| {
            for (i, &x) in values.iter().enumerate() {
                let at = layout.place(START + start, i / 16, i % 16) - START;
                let bits =
                    if self.kind == "f16" { f16::from_f32(x).to_bits() } else { bf16::from_f32(x).to_bits() };
                image[at..at + 2].copy_from_slice(&bits.to_le_bytes());
            }
        };
        put(self.a, self.at, &a);
        put(self.b, B, &b);
        let sums = self.run(&self.text(), &image, 1).unwrap();
        let sign = if self.negative[0] == self.negative[1] { 1.0 } else { -1.0 };
        for thread in 0..128 {
            for i in 0..self.n / 2 {
                // "Register Fragments", accumulator D.
                let row = 16 * (thread / 32) + thread % 32 / 4 + 8 * (i % 4 / 2);
                let column = 8 * (i / 4) + 2 * (thread % 4) + i % 2;
                let sum: f32 = (0..16).map(|k| a[row * 16 + k] * b[column * 16 + k]).sum();
                let want = sign * sum + if self.adds { 1.0 } else { 0.0 };
                let got = sums[thread * self.n / 2 + i];
                assert_eq!(got, want, "row {row}, column {column}, n {}, {:?}, {:?}", self.n, self.a, self.b);
            }
        }
    }
}

/// Layouts of each swizzle by k, packed, and with room between patterns.
fn by_k(swizzle: usize, apart: usize) -> Layout {
    let pattern = (8 * swizzle).max(128);
    Layout {
        swizzle,
        transposed: false,
        leading: if swizzle == 0 { 4096 } else { 16 },
        stride: pattern * apart,
    }
}

/// The same not by k: `rows` are what a pattern of leading offset is repeated for.
fn not_by_k(swizzle: usize, apart: usize, rows: usize) -> Layout {
    let pattern = (8 * swizzle).max(128);
    let patterns = rows.div_ceil((swizzle / 2).max(8));
    let (near, far) = (pattern * apart, pattern * apart * patterns);
    // Without a swizzle the stride is between rows, the leading offset between depths.
    let (leading, stride) = if swizzle == 0 { (far, near) } else { (near, far) };
    Layout { swizzle, transposed: true, leading, stride }
}

#[test]
fn products_of_every_layout_are_those_of_plain_loops() {
    for swizzle in [0, 32, 64, 128] {
        for apart in [1, 2] {
            let layouts = |rows: usize| [by_k(swizzle, apart), not_by_k(swizzle, apart, rows)];
            for (i, a) in layouts(64).into_iter().enumerate() {
                for (j, b) in layouts(128).into_iter().enumerate() {
                    let n = [8, 24, 128, 104][(i + 2 * j + apart) % 4];
                    let kind = ["bf16", "f16"][(i + j) % 2];
                    Case { kind, ..Case::new(n, a, b) }.check();
                }
            }
        }
    }
    Case::new(256, by_k(128, 1), by_k(128, 1)).check();
    Case::new(256, by_k(128, 1), not_by_k(128, 1, 256)).check();
}

#[test]
fn depth_signs_and_the_predicate_are_taken() {
    let (a, b) = (by_k(128, 1), by_k(64, 1));
    // 32 bytes further in rows of 128 lie the next 16 of depth.
    Case { at: 32, ..Case::new(16, a, b) }.check();
    Case { at: 96, ..Case::new(16, a, b) }.check();
    Case { negative: [true, false], ..Case::new(16, a, b) }.check();
    Case { negative: [true, true], ..Case::new(16, a, b) }.check();
    Case { adds: false, negative: [false, true], ..Case::new(16, a, b) }.check();
}

/// A change of the text, and what is said of it.
const FAULTS: [(&str, &str, &str); 14] = [
    ("wgmma.fence.sync.aligned;", "", "no wgmma.fence comes before"),
    (
        "wgmma.fence.sync.aligned;",
        "wgmma.fence.sync.aligned; mov.f32 %d3, 0f00000000;",
        "since the last wgmma.fence",
    ),
    (
        "wgmma.fence.sync.aligned;",
        "wgmma.fence.sync.aligned; add.f32 %d3, %d3, %d3;",
        "since the last wgmma.fence",
    ),
    ("wgmma.wait_group.sync.aligned 0;", "", "has not waited for"),
    ("wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;", "has not waited for"),
    ("wgmma.commit_group.sync.aligned;", "", "has not waited for"),
    ("wgmma.wait_group.sync.aligned 0;", "ret;", "ends before it has waited"),
    ("fence.proxy.async.shared::cta;", "", "no fence.proxy.async"),
    (
        "fence.proxy.async.shared::cta;\nbar.sync 0;",
        "bar.sync 0; fence.proxy.async.shared::cta;",
        "no fence.proxy.async",
    ),
    ("bar.sync 0;", "", "race: it reads"),
    (
        "wgmma.wait_group.sync.aligned 0;",
        "st.shared.b32 [%r3], %r1; wgmma.wait_group.sync.aligned 0;",
        "still be reading",
    ),
    (
        "wgmma.wait_group.sync.aligned 0;",
        "wgmma.wait_group.sync.aligned 0; st.shared.b32 [%r3], %r1;",
        "race: it writes",
    ),
    (
        "wgmma.fence.sync.aligned;",
        "wgmma.fence.sync.aligned; setp.lt.u32 %p1, %r1, 64; @%p1 bra ON; wgmma.fence.sync.aligned; ON:",
        "another warp of its warpgroup runs its wgmma at another place",
    ),
    (
        "wgmma.fence.sync.aligned;",
        "setp.lt.u32 %p1, %r1, 7; @%p1 exit; wgmma.fence.sync.aligned;",
        "is not whole",
    ),
];

#[test]
fn what_is_missing_or_too_early_is_a_fault() {
    let case = Case::new(16, by_k(128, 1), by_k(128, 1));
    let text = case.text();
    let image = vec![0; SHARED];
    let fault = |text: &str, seed| case.run(text, &image, seed);
    assert!((0..4).all(|seed| fault(&text, seed).is_ok()));
    for (from, to, says) in FAULTS {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        for seed in 0..4 {
            let said = fault(&text.replace(from, to), seed).unwrap_err();
            assert!(said.contains(says), "{from} -> {to}, seed {seed}: {said}");
        }
    }
    // A warp that knows of no product.
    let alone = text.replace("wgmma.fence.sync", "setp.lt.u32 %p1, %r1, 32; @%p1 exit;\nwgmma.fence.sync");
    let said = fault(&alone, 1).unwrap_err();
    assert!(said.contains("ends without a wgmma"), "{said}");
    let three = Run { shared: SHARED as u32, ..Run::text(&text, 96) };
    let said = three.bytes(&image, 128 * 32).unwrap_err().to_string();
    assert!(said.contains("its warpgroup has only 3 warps"), "{said}");
    // Several products in flight may share sums, if they are of one shape.
    assert!(fault(&text.replace("wgmma.commit", &format!("{}\nwgmma.commit", case.product())), 1).is_ok());
    let smaller = Case::new(8, case.a, case.b);
    let product = smaller.product();
    let said = fault(&text.replace("wgmma.commit", &format!("{product}\nwgmma.commit")), 1).unwrap_err();
    assert!(said.contains("of another shape"), "{said}");
}

#[test]
fn descriptors_that_mean_nothing_are_faults() {
    let case = Case::new(16, by_k(128, 1), by_k(128, 1));
    let image = vec![0; SHARED];
    let good = case.a.descriptor(START);
    let with = |to: &str| case.text().replace(&format!("mov.b64 %da, {good};"), to);
    for bit in [14, 15, 30, 31, 46, 48, 52, 61] {
        let said = case.run(&with(&format!("mov.b64 %da, {};", good ^ 1 << bit)), &image, 1).unwrap_err();
        assert!(said.contains("mean nothing"), "bit {bit}: {said}");
    }
    let said = case.run(&with(&format!("mov.b64 %da, {};", good | 1 << 49)), &image, 1).unwrap_err();
    assert!(said.contains("not known here"), "{said}");
    let beyond = (good & !0x3fff) | ((START + SHARED - 1024) >> 4) as u64;
    let said = case.run(&with(&format!("mov.b64 %da, {beyond};")), &image, 1).unwrap_err();
    assert!(said.contains("out of bounds"), "{said}");
    // By warp, and by lane.
    let of =
        |shift: u32| format!("shr.u32 %r9, %r1, {shift}; cvt.u64.u32 %rd9, %r9; add.s64 %da, %rd9, {good};");
    let said = case.run(&with(&of(5)), &image, 1).unwrap_err();
    assert!(said.contains("with other operands"), "{said}");
    let said = case.run(&with(&of(4)), &image, 1).unwrap_err();
    assert!(said.contains("several descriptors"), "{said}");
}

#[test]
fn poison_of_a_row_stays_there() {
    let case = Case::new(16, by_k(128, 1), by_k(128, 1));
    // Nothing is written to the second atom of a, which has rows 8 to 15: registers 2 and 3 of each four, of the first warp.
    let text = case.text();
    let copy = text.lines().map(str::trim).find(|line| line.contains("st.shared.v4.b32 [%r3+0]")).unwrap();
    let store = &copy[copy.find("st.shared").unwrap()..];
    let half = text.replace(store, &format!("setp.lt.u32 %p2, %r1, 64; @%p2 {store}"));
    let said = case.run(&half, &vec![0; SHARED], 1).unwrap_err();
    assert!(said.contains("offset 8 of"), "{said}");
    let known = [2, 3, 6, 7].map(|i| format!("mov.f32 %d{i}, %d0;")).concat();
    let wait = "wgmma.wait_group.sync.aligned 0;";
    let known = half.replace(wait, &format!("{wait} setp.lt.u32 %p3, %r1, 32; @!%p3 bra ON; {known} ON:"));
    assert!(case.run(&known, &vec![0; SHARED], 1).is_ok());
}

#[test]
fn other_forms_are_refused() {
    let case = Case::new(16, by_k(128, 1), by_k(128, 1));
    let text = case.text();
    for (from, to, says) in [
        ("m64n16k16", "m64n12k16", "unknown shape"),
        ("m64n16k16", "m64n264k16", "unknown shape"),
        ("m64n16k16", "m64n16k8", "unknown shape"),
        ("m64n16k16", "m64n24k16", "8 sums of wgmma with n = 24"),
        (".f32.bf16.bf16", ".f16.bf16.bf16", "modifier .f32"),
        (".f32.bf16.bf16", ".f32.bf16.f16", "modifier .bf16"),
        (".f32.bf16.bf16", ".f32.e4m3.e4m3", "unknown type"),
        ("%adds, 1, 1, 0, 0", "%adds, 2, 1, 0, 0", "1 or -1"),
        ("%adds, 1, 1, 0, 0", "%adds, 1, 1, 0, 2", "0 or 1"),
        ("%adds, 1, 1, 0, 0", "%adds, 1, 1, 0", "3 operands"),
        ("%d6, %d7}", "%d6, %d6}", "two sums in one register"),
        (".target sm_90a", ".target sm_90", "sm_90 has no wgmma"),
        (".target sm_90a", ".target sm_100a", "sm_100a has no wgmma"),
        (".target sm_90a", ".target sm_80", "no asynchronous proxy"),
        ("wgmma.fence.sync.aligned", "wgmma.fence.aligned", "modifier .sync"),
        ("fence.proxy.async.shared::cta", "fence.proxy.async.global", "modifier .shared::cta"),
        ("fence.proxy.async.shared::cta", "fence.proxy.tensormap", "modifier .async"),
    ] {
        assert!(text.contains(from), "{from}");
        let said = Module::load(&text.replace(from, to)).unwrap_err().to_string();
        assert!(said.contains(says), "{from} -> {to}: {said}");
    }
}
