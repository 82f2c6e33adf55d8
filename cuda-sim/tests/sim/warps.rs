//! Lanes of a warp, control flow, shared memory, atomics and asynchronous copies.

use super::harness::Run;

fn numbers(n: usize) -> Vec<u32> {
    (0..n as u32).map(|x| x * 7 + 3).collect()
}

#[test]
fn lanes_that_part_meet_again() {
    // Collatz steps: every lane loops another number of times.
    let body = "ld.global.u32 %r2, [%rd4]; mov.u32 %r3, 0;
        LOOP: setp.eq.u32 %p1, %r2, 1; @%p1 bra DONE;
        and.b32 %r4, %r2, 1; setp.eq.u32 %p2, %r4, 0; @%p2 bra EVEN;
        mad.lo.u32 %r2, %r2, 3, 1; bra.uni NEXT;
        EVEN: shr.u32 %r2, %r2, 1;
        NEXT: add.u32 %r3, %r3, 1; bra.uni LOOP;
        DONE: activemask.b32 %r5; setp.ne.u32 %p3, %r5, -1; selp.u32 %r3, 9999, %r3, %p3;
        st.global.u32 [%rd5], %r3;";
    let input: Vec<u32> = (1..=32).collect();
    let want: Vec<u32> = input
        .iter()
        .map(|&x| {
            let mut x = x;
            (0..)
                .find(|_| {
                    let end = x == 1;
                    x = if x % 2 == 0 { x / 2 } else { 3 * x + 1 };
                    end
                })
                .unwrap()
        })
        .collect();
    assert_eq!(Run::new(body, 32).words(&input, 32).unwrap(), want);
}

#[test]
fn exits_returns_and_tables() {
    let body = "mov.u32 %r2, 77; setp.lt.u32 %p1, %r1, 4; and.b32 %r3, %r1, 3;
        st.global.u32 [%rd5], %r2; @%p1 ret;
        T: .branchtargets A, B, C, A;
        brx.idx %r3, T;
        A: mov.u32 %r2, 10; bra D;
        B: mov.u32 %r2, 11; bra D;
        C: mov.u32 %r2, 12;
        D: st.global.u32 [%rd5], %r2;";
    let want: Vec<u32> = (0..32).map(|n| if n < 4 { 77 } else { [10, 11, 12, 10][n % 4] }).collect();
    assert_eq!(Run::new(body, 32).words(&[], 32).unwrap(), want);
}

#[test]
fn special_registers_and_blocks() {
    let body = "mov.u32 %r2, %ntid.x; mov.u32 %r3, %ctaid.y; mov.u32 %r4, %tid.y; mov.u32 %r5, %laneid; mov.u32 %r6, %warpid;
        mov.u32 %r7, %nctaid.y; mov.u32 %r8, %lanemask_lt;
        mad.lo.u32 %r10, %r4, %r2, %r1; mad.lo.u32 %r11, %r3, 64, %r10; mul.wide.u32 %rd6, %r11, 16; add.s64 %rd6, %rd2, %rd6;
        mad.lo.u32 %r12, %r6, 32, %r5; st.global.v4.u32 [%rd6], {%r12, %r7, %r8, %r3};";
    let mut run = Run::new(body, 16);
    run.block = [16, 4, 1];
    run.grid = [1, 3, 1];
    let want: Vec<u32> = (0..192u32).flat_map(|n| [n % 64, 3, (1 << (n % 32)) - 1, n / 64]).collect();
    for seed in 0..4 {
        run.seed = seed;
        assert_eq!(run.words(&[], 768).unwrap(), want);
    }
}

#[test]
fn shuffles_of_every_mode() {
    let input = numbers(32);
    let check = |instruction: &str, source: fn(usize) -> (usize, bool)| {
        let body = format!(
            "ld.global.u32 %r2, [%rd4]; {instruction}; selp.u32 %r4, 1, 0, %p1; mad.lo.u32 %r3, %r3, 2, %r4;
            st.global.u32 [%rd5], %r3;"
        );
        let got = Run::new(&body, 32).words(&input, 32).unwrap();
        let want: Vec<u32> = (0..32).map(|l| input[source(l).0] * 2 + u32::from(source(l).1)).collect();
        assert_eq!(got, want, "{instruction}");
    };
    check("shfl.sync.bfly.b32 %r3|%p1, %r2, 5, 31, -1", |l| (l ^ 5, true));
    check(
        "shfl.sync.down.b32 %r3|%p1, %r2, 3, 31, -1",
        |l| if l + 3 < 32 { (l + 3, true) } else { (l, false) },
    );
    check("shfl.sync.up.b32 %r3|%p1, %r2, 3, 0, -1", |l| if l >= 3 { (l - 3, true) } else { (l, false) });
    check("shfl.sync.idx.b32 %r3|%p1, %r2, 9, 31, -1", |_| (9, true));
    // Segments of 8: the mask 0x18 in bits 8.. and the clamp 31.
    check("shfl.sync.idx.b32 %r3|%p1, %r2, 2, 6175, -1", |l| (l / 8 * 8 + 2, true));
    check("shfl.sync.down.b32 %r3|%p1, %r2, 3, 6175, -1", |l| {
        if l % 8 + 3 < 8 { (l + 3, true) } else { (l, false) }
    });
    check(
        "shfl.sync.up.b32 %r3|%p1, %r2, 1, 6144, -1",
        |l| if l % 8 > 0 { (l - 1, true) } else { (l, false) },
    );
}

#[test]
fn votes_matches_and_reductions() {
    let input: Vec<u32> = (0..32).map(|n| n % 3).collect();
    let check = |instruction: &str, want: u32| {
        let body = format!(
            "ld.global.u32 %r2, [%rd4]; setp.eq.u32 %p1, %r2, 1; {instruction} st.global.u32 [%rd5], %r3;"
        );
        let got = Run::new(&body, 32).words(&input, 32).unwrap();
        assert_eq!(got[1], want, "{instruction}");
    };
    let ones: u32 = (0..32).filter(|n| n % 3 == 1).map(|n| 1 << n).sum();
    check("vote.sync.ballot.b32 %r3, %p1, -1;", ones);
    check("vote.sync.ballot.b32 %r3, !%p1, -1;", !ones);
    check("vote.sync.any.pred %p2, %p1, -1; selp.u32 %r3, 5, 6, %p2;", 5);
    check("vote.sync.all.pred %p2, %p1, -1; selp.u32 %r3, 5, 6, %p2;", 6);
    check("vote.sync.uni.pred %p2, %p1, -1; selp.u32 %r3, 5, 6, %p2;", 6);
    check("match.any.sync.b32 %r3, %r2, -1;", ones);
    check("match.all.sync.b32 %r3|%p2, %r2, -1;", 0);
    check("redux.sync.add.u32 %r3, %r2, -1;", input.iter().sum());
    check("redux.sync.max.s32 %r3, %r2, -1;", 2);
    check("redux.sync.xor.b32 %r3, %r2, -1;", input.iter().fold(0, |a, b| a ^ b));
}

#[test]
fn halves_of_a_warp_synchronise_apart() {
    let body = "ld.global.u32 %r2, [%rd4]; setp.lt.u32 %p1, %r1, 16; @%p1 bra LOW;
        shfl.sync.bfly.b32 %r3, %r2, 1, 31, 0xffff0000; bra END;
        LOW: shfl.sync.bfly.b32 %r3, %r2, 2, 31, 0xffff;
        END: st.global.u32 [%rd5], %r3;";
    let input = numbers(32);
    let want: Vec<u32> = (0..32).map(|l| input[if l < 16 { l ^ 2 } else { l ^ 1 }]).collect();
    assert_eq!(Run::new(body, 32).words(&input, 32).unwrap(), want);
}

#[test]
fn a_late_half_is_waited_for() {
    // The lower lanes come to the shuffle first, since the others' code lies behind it.
    let body = "ld.global.u32 %r2, [%rd4]; setp.ge.u32 %p1, %r1, 16; @%p1 bra FAR;
        NEAR: shfl.sync.bfly.b32 %r3, %r2, 16, 31, -1; st.global.u32 [%rd5], %r3; ret;
        FAR: add.u32 %r2, %r2, 100; bra NEAR;";
    let input = numbers(32);
    let value = |l: usize| input[l] + if l < 16 { 0 } else { 100 };
    let want: Vec<u32> = (0..32).map(|l| value(l ^ 16)).collect();
    assert_eq!(Run::new(body, 32).words(&input, 32).unwrap(), want);
}

#[test]
fn barriers_order_shared_memory() {
    // Reverses 256 words through shared memory, twice in the same place.
    let body =
        "ld.global.u32 %r2, [%rd4]; mov.u64 %rd6, dyn; add.s64 %rd7, %rd6, %rd3; st.shared.u32 [%rd7], %r2;
        bar.sync 0;
        sub.s64 %rd8, 1020, %rd3; add.s64 %rd9, %rd6, %rd8; ld.shared.u32 %r3, [%rd9];
        barrier.sync.aligned 0;
        add.u32 %r3, %r3, 1; st.shared.u32 [%rd7], %r3;
        bar.sync 1, 256;
        ld.shared.u32 %r4, [%rd9]; st.global.u32 [%rd5], %r4;";
    let input = numbers(256);
    let want: Vec<u32> = input.iter().map(|x| x + 1).collect();
    let mut run = Run::new(body, 256);
    for seed in 0..10 {
        run.seed = seed;
        assert_eq!(run.words(&input, 256).unwrap(), want);
    }
}

#[test]
fn producers_arrive_and_consumers_wait() {
    let body = "mov.u64 %rd6, dyn; setp.lt.u32 %p1, %r1, 32; @%p1 bra CONSUME;
        ld.global.u32 %r2, [%rd4]; add.s64 %rd7, %rd6, %rd3; st.shared.u32 [%rd7], %r2; bar.arrive 3, 64; ret;
        CONSUME: bar.sync 3, 64; add.s64 %rd7, %rd6, %rd3; ld.shared.u32 %r3, [%rd7+128]; st.global.u32 [%rd5], %r3;";
    let input = numbers(64);
    assert_eq!(Run::new(body, 64).words(&input, 32).unwrap(), input[32..]);
}

#[test]
fn lanes_share_through_a_warp_barrier() {
    let body = "ld.global.u32 %r2, [%rd4]; mov.u64 %rd6, dyn; add.s64 %rd7, %rd6, %rd3; st.shared.u32 [%rd7], %r2;
        bar.warp.sync -1;
        xor.b64 %rd8, %rd3, 4; add.s64 %rd8, %rd6, %rd8; ld.shared.u32 %r3, [%rd8]; st.global.u32 [%rd5], %r3;";
    let input = numbers(32);
    let want: Vec<u32> = (0..32).map(|l| input[l ^ 1]).collect();
    assert_eq!(Run::new(body, 32).words(&input, 32).unwrap(), want);
}

#[test]
fn atomics_of_global_and_shared_memory() {
    let body = "mov.u64 %rd6, dyn; setp.ne.u32 %p1, %r1, 0; @%p1 bra GO; st.shared.u32 [%rd6], 5;
        GO: bar.sync 0; atom.shared.add.u32 %r2, [%rd6], 2; red.global.max.u32 [%rd1], %r1; atom.global.add.f32 %r3, [%rd1+4], 0f3F800000;
        atom.global.cas.b32 %r4, [%rd1+8], 0, 9; atom.relaxed.gpu.global.exch.b32 %r6, [%rd1+12], 4;
        bar.sync 0; ld.shared.u32 %r5, [%rd6]; @%p1 ret;
        ld.global.u32 %r7, [%rd1]; ld.global.u32 %r8, [%rd1+4]; ld.global.u32 %r9, [%rd1+8];
        st.global.v4.u32 [%rd2], {%r5, %r7, %r8, %r9};";
    let got = Run::new(body, 64).words(&[0, 1f32.to_bits(), 0, 0], 4).unwrap();
    assert_eq!(got, [5 + 128, 63, 65f32.to_bits(), 9]);
}

#[test]
fn copies_land_when_they_are_waited_for() {
    // Two groups: the first is waited for alone, then the second; each copy's tail is zeros.
    let body = "mul.wide.u32 %rd6, %r1, 16; add.s64 %rd7, %rd1, %rd6; mov.u64 %rd8, dyn; add.s64 %rd8, %rd8, %rd6;
        cp.async.cg.shared.global [%rd8], [%rd7], 16; cp.async.commit_group;
        mov.u32 %r9, 8; cp.async.ca.shared.global.L2::128B [%rd8+1024], [%rd7], 16, %r9; cp.async.commit_group;
        cp.async.wait_group 1; ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%rd8]; add.u32 %r2, %r2, %r5;
        cp.async.wait_all; ld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [%rd8+1024]; add.u32 %r3, %r7, %r9;
        mul.wide.u32 %rd9, %r1, 8; add.s64 %rd9, %rd2, %rd9; st.global.v2.u32 [%rd9], {%r2, %r3};";
    let input = numbers(128);
    let want: Vec<u32> = (0..32).flat_map(|l| [input[4 * l] + input[4 * l + 3], input[4 * l + 1]]).collect();
    assert_eq!(Run::new(body, 32).words(&input, 64).unwrap(), want);
}

#[test]
fn generic_addresses_and_local_memory() {
    let text = super::harness::kernel(
        ".local .align 4 .b8 depot[64]; .reg .b64 %SP, %SPL;
        mov.b64 %SPL, depot; cvta.local.u64 %SP, %SPL; and.b64 %rd6, %rd3, 28; add.s64 %rd7, %SP, %rd6;
        st.u32 [%rd7], %r1; add.s64 %rd8, %SPL, %rd6; ld.local.u32 %r2, [%rd8];
        mov.u64 %rd9, dyn; cvta.shared.u64 %rd10, %rd9; add.s64 %rd10, %rd10, %rd3; st.u32 [%rd10], %r2; ld.u32 %r3, [%rd10];
        cvta.to.global.u64 %rd11, %rd5; isspacep.shared %p1, %rd10; selp.u32 %r4, 1000, 0, %p1; add.u32 %r3, %r3, %r4;
        st.u32 [%rd11], %r3;",
    );
    let want: Vec<u32> = (0..32).map(|l| l + 1000).collect();
    assert_eq!(Run::text(&text, 32).words(&[], 32).unwrap(), want);
}

#[test]
fn tables_of_the_module() {
    let text = super::harness::kernel(
        "and.b64 %rd6, %rd3, 12; mov.u64 %rd7, c; add.s64 %rd7, %rd7, %rd6; ld.const.u32 %r2, [%rd7];
        mov.u64 %rd8, g; shr.u64 %rd9, %rd6, 1; add.s64 %rd8, %rd8, %rd9; ld.global.nc.u16 %rs1, [%rd8]; ld.global.u16 %rs2, [g+2];
        cvt.u32.u16 %r3, %rs1; cvt.u32.u16 %r4, %rs2; mad.lo.u32 %r2, %r3, 1000, %r2; mad.lo.u32 %r2, %r4, 100000, %r2;
        st.global.u32 [%rd5], %r2;",
    );
    let tables = ".const .align 4 .u32 c[4] = {5, 6, 7};\n.global .align 2 .u16 g[4] = {1, 2, 3, 4};\n.shared .b8 unused[1000];\n.extern";
    let text = text.replace(".extern", tables);
    let want: Vec<u32> = (0..32).map(|n| [5, 6, 7, 0][n % 4] + 1000 * (n as u32 % 4 + 1) + 200_000).collect();
    assert_eq!(Run::text(&text, 32).words(&[], 32).unwrap(), want);
    let module = pcc_cuda_sim::ptx::Module::load(&text).unwrap();
    assert_eq!(module.kernel("k").unwrap().shared, 0);
}

#[test]
fn poison_stays_in_its_bytes() {
    // The high half of %r2 is never written, and never matters.
    let body = "ld.global.u16 %rs1, [%rd4]; mov.b32 %r2, {%rs1, %rs9}; and.b32 %r3, %r2, 0xffff; shl.b32 %r4, %r2, 16; shr.u32 %r4, %r4, 16;
        prmt.b32 %r5, %r2, 0, 0x4410; mov.b32 {%rs2, %rs3}, %r2; cvt.u32.u16 %r6, %rs2; xor.b32 %r7, %r3, %r4; xor.b32 %r8, %r5, %r6;
        or.b32 %r7, %r7, %r8; selp.b32 %r9, %r3, %r80, %p1; mov.u32 %r10, %r81;
        setp.eq.u32 %p1, %r7, 0; selp.b32 %r9, %r3, %r80, %p1; st.global.u32 [%rd5], %r9;";
    let input = numbers(32);
    assert_eq!(Run::new(body, 32).words(&input, 32).unwrap(), input);
}

#[test]
fn instructions_are_counted_once_a_thread() {
    let body = "setp.lt.u32 %p1, %r1, 8; @%p1 add.rn.ftz.f32 %r2, 0f00000000, 0f00000000; st.global.u32 [%rd5], %r1;";
    let (_, stats) = Run::new(body, 64).measured(&[], 256).unwrap();
    // 6 before the body, 3 in it, and the return; the addition is of 8 threads.
    assert_eq!(stats.instructions, 64 * 9 + 8);
}
