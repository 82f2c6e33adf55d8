//! Damaged texts are refused, or run to an end or a fault: nothing panics.

use super::harness::{Random, Run, kernel};
use pcc_cuda_sim::exec::{Launch, run_within};
use pcc_cuda_sim::memory::Memory;
use pcc_cuda_sim::ptx::Module;

/// A kernel of everything.
fn everything() -> String {
    kernel(
        ".shared .align 16 .b8 a[64];
.local .align 4 .b8 l[32];
mov.u64 %rd6, dyn;
mul.wide.u32 %rd7, %r1, 16;
add.s64 %rd8, %rd6, %rd7;
add.s64 %rd9, %rd1, %rd7;
mov.u32 %r2, 12;
cp.async.cg.shared.global [%rd8], [%rd9], 16, %r2;
cp.async.commit_group;
cp.async.wait_group 0;
bar.sync 0;
ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r10, %r11, %r12, %r13}, [%rd8];
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r20, %r21, %r22, %r23}, {%r10, %r11, %r12, %r13}, {%r10, %r11}, {%r10, %r11, %r12, %r13};
mov.b32 {%rs1, %rs2}, %r20;
cvt.f32.f16 %r3, %rs1;
cvt.rni.s32.f32 %r4, %r3;
setp.lt.and.s32 %p1|%p2, %r4, 5, %p3;
setp.gt.f32 %p3, %r3, 0f3F800000;
bfe.u32 %r5, %r4, 3, 7;
bfi.b32 %r5, %r4, %r5, 3, 7;
prmt.b32 %r6, %r4, %r5, 0x1234;
shf.l.wrap.b32 %r6, %r6, %r5, 9;
lop3.b32 %r6, %r4, %r5, %r6, 0x96;
or.b32 %r5, %r5, 1;
div.s32 %r7, %r6, %r5;
and.b32 %r7, %r7, 28;
mov.u64 %rd10, l;
cvt.u64.u32 %rd11, %r7;
add.s64 %rd10, %rd10, %rd11;
st.local.u32 [%rd10], %r6;
atom.shared.add.u32 %r8, [a], 1;
shfl.sync.bfly.b32 %r9|%p4, %r6, 4, 31, -1;
vote.sync.ballot.b32 %r14, %p3, -1;
@%p3 bra SKIP;
mov.u32 %r15, 0;
LOOP: add.u32 %r15, %r15, 1;
setp.lt.u32 %p5, %r15, 4;
@%p5 bra LOOP;
SKIP: bar.warp.sync -1;
T: .branchtargets A, B;
and.b32 %r16, %r1, 1;
brx.idx %r16, T;
A: mov.u32 %r17, 1;
B: fma.rn.ftz.f32 %r18, %r3, %r3, %r20;
add.rn.bf16x2 %r18, %r18, %r20;
st.global.u32 [%rd5], %r18;",
    )
}

/// A product of a warpgroup, over 4 KiB of shared memory. Descriptors are of no swizzle, the offsets 1024 and 128 bytes.
fn warpgroup() -> String {
    let body = ".reg .f32 %d<4>; .reg .pred %adds;
mov.u64 %rd6, dyn;
mul.wide.u32 %rd7, %r1, 32;
add.s64 %rd8, %rd6, %rd7;
mov.b32 %r2, 0;
st.shared.v4.b32 [%rd8], {%r2, %r2, %r2, %r2};
st.shared.v4.b32 [%rd8+16], {%r2, %r2, %r2, %r2};
fence.proxy.async.shared::cta;
bar.sync 0;
shr.u64 %rd9, %rd6, 4;
or.b64 %rd9, %rd9, 34363932672;
setp.ne.b32 %adds, %r2, 0;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%d0, %d1, %d2, %d3}, %rd9, %rd9, %adds, 1, 1, 0, 0;
wgmma.commit_group.sync.aligned;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%d0, %d1, %d2, %d3}, %rd9, %rd9, 1, -1, 1, 0, 0;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 1;
wgmma.wait_group.sync.aligned 0;
add.f32 %d0, %d1, %d2;
st.global.f32 [%rd5], %d0;";
    kernel(body)
        .replace(".target sm_90\n", ".target sm_90a\n")
        .replace(".param .u64 pb)", ".param .u64 pb) .reqntid 128")
}

fn damage(text: &str, random: &mut Random) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for _ in 0..1 + random.next() % 3 {
        let n = random.next() as usize % lines.len();
        let other = random.next() as usize % lines.len();
        match random.next() % 6 {
            0 => {
                lines.remove(n);
            }
            1 => lines.swap(n, other),
            2 => {
                let line = lines[n].clone();
                lines.insert(other, line);
            }
            3 => {
                // A word of one line where another had one.
                let word = lines[other]
                    .split([' ', ',', '.'])
                    .nth(random.next() as usize % 4)
                    .unwrap_or("")
                    .to_owned();
                let old =
                    lines[n].split([' ', ',', '.']).nth(random.next() as usize % 4).unwrap_or("").to_owned();
                if !old.is_empty() {
                    lines[n] = lines[n].replacen(&old, &word, 1);
                }
            }
            4 => {
                let digits: Vec<usize> =
                    lines[n].match_indices(|c: char| c.is_ascii_digit()).map(|m| m.0).collect();
                if let Some(&at) = digits.get(random.next() as usize % digits.len().max(1)) {
                    let number = ["0", "9", "31", "-1", "18446744073709551615", "4294967296"]
                        [random.next() as usize % 6];
                    lines[n].replace_range(at..=at, number);
                }
            }
            _ => {
                let at = random.next() as usize % (lines[n].len() + 1);
                lines[n].insert(at, b",.;:{}[]()<>@!+-=|%$ a0\"/"[random.next() as usize % 25] as char);
            }
        }
    }
    lines.join("\n")
}

/// Whether the text loads and one of its kernels ends without a fault.
fn attempt(text: &str, seed: u64) -> bool {
    let Ok(module) = Module::load(text) else { return false };
    module.kernels().iter().fold(false, |ran, kernel| {
        let memory = Memory::new();
        let params: Vec<Vec<u8>> = kernel
            .params
            .iter()
            .map(|&bytes| {
                let at = memory.alloc(0, 2048).unwrap();
                memory.set(at, 1, 2000).unwrap();
                let mut param = at.to_le_bytes().to_vec();
                param.resize(bytes as usize, 0);
                param
            })
            .collect();
        let launch = Launch {
            kernel,
            device: 0,
            grid: [1; 3],
            block: [kernel.threads.unwrap_or(64).min(1024), 1, 1],
            shared: 4096,
            params: &params,
            seed,
        };
        ran | run_within(&memory, &launch, 2000).is_ok()
    })
}

#[test]
fn damaged_texts_never_panic() {
    let texts = [
        everything(),
        include_str!("../kernels/softmax.ptx").to_owned(),
        include_str!("../kernels/wide.ptx").to_owned(),
        include_str!("../kernels/mixed.ptx").to_owned(),
        warpgroup(),
    ];
    assert!(Run::new("", 1).bytes(&[], 1).is_err());
    assert!(attempt(&texts[0], 1) && attempt(&texts[4], 1));
    let count = std::env::var("DAMAGED_TEXTS").map_or(300, |n| n.parse().unwrap());
    let mut random = Random(count);
    let mut ran = 0;
    for n in 0..count {
        let text = damage(&texts[n as usize % texts.len()], &mut random);
        ran += u64::from(attempt(&text, n));
    }
    assert!(ran > 0, "none of {count} ran");
}
