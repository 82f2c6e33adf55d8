//! One test per kind of fault: the right kernel passes, the broken one ends with the fault, in every order of execution.

use super::harness::{Run, kernel};
use pcc_cuda_sim::exec::{Launch, run};
use pcc_cuda_sim::memory::Memory;
use pcc_cuda_sim::ptx::Module;

/// The kernel gives a fault that says all of this.
#[track_caller]
fn faults(body: &str, threads: u32, says: &[&str]) {
    let fault = Run::new(body, threads).fault(&[1; 1024], 64);
    for part in says {
        assert!(fault.contains(part), "no {part:?} in: {fault}");
    }
}

/// Two kernels that differ in one piece of text.
#[track_caller]
fn mutant(body: &str, piece: &str, instead: &str, threads: u32, says: &[&str]) {
    assert!(body.contains(piece));
    let mut right = Run::new(body, threads);
    for seed in 0..8 {
        right.seed = seed;
        right.words(&[1; 1024], 64).unwrap_or_else(|e| panic!("{e}"));
    }
    faults(&body.replace(piece, instead), threads, says);
}

const REVERSE: &str =
    "ld.global.u32 %r2, [%rd4]; mov.u64 %rd6, dyn; add.s64 %rd7, %rd6, %rd3; st.shared.u32 [%rd7], %r2;
    bar.sync 0;
    sub.s64 %rd8, 252, %rd3; add.s64 %rd9, %rd6, %rd8; ld.shared.u32 %r3, [%rd9]; st.global.u32 [%rd5], %r3;";

#[test]
fn a_dropped_barrier_is_a_race() {
    mutant(REVERSE, "bar.sync 0;", "", 64, &["race: it ", "line 1", "block (0, 0, 0), thread ("]);
}

#[test]
fn a_barrier_for_too_few_is_a_race() {
    let body = REVERSE.replace("bar.sync 0;", "bar.sync 0, 64;");
    mutant(&body, "bar.sync 0, 64;", "bar.sync 0, 32;", 64, &["race"]);
}

#[test]
fn a_write_after_others_read_is_a_race() {
    let body = format!("{REVERSE} bar.sync 0; st.shared.u32 [%rd7], %r3;");
    mutant(&body, "bar.sync 0; st.shared", "st.shared", 64, &["race"]);
}

#[test]
fn lanes_in_step_are_not_ordered() {
    let body = "mov.u64 %rd6, dyn; add.s64 %rd7, %rd6, %rd3; st.shared.u32 [%rd7], %r1; bar.warp.sync -1;
        xor.b64 %rd8, %rd7, 4; ld.shared.u32 %r3, [%rd8]; @%p9 bra NEVER; NEVER: st.global.u32 [%rd5], %r3;
        add.u32 %r4, %r1, 32; mul.wide.u32 %rd9, %r4, 4; add.s64 %rd9, %rd2, %rd9; st.global.u32 [%rd9], 0;"
        .replace("@%p9 bra NEVER; NEVER:", "");
    mutant(&body, "bar.warp.sync -1;", "", 32, &["race", "warp 0 lane"]);
    // A shuffle orders no memory.
    let shuffled = body.replace("bar.warp.sync -1;", "shfl.sync.bfly.b32 %r9, %r1, 1, 31, -1;");
    faults(&shuffled, 32, &["race"]);
}

#[test]
fn two_writes_of_one_byte_are_a_race() {
    faults(
        "mov.u64 %rd6, dyn; st.shared.u32 [%rd6], %r1;",
        32,
        &["race: it writes shared memory", "wrote in line 11"],
    );
    faults(
        "mov.u64 %rd6, dyn; atom.shared.add.u32 %r2, [%rd6], 1; ld.shared.u32 %r3, [%rd6];",
        32,
        &["race"],
    );
}

const COPIES: &str =
    "mul.wide.u32 %rd6, %r1, 16; add.s64 %rd7, %rd1, %rd6; mov.u64 %rd8, dyn; add.s64 %rd9, %rd8, %rd6;
    cp.async.cg.shared.global [%rd9], [%rd7], 16; cp.async.commit_group;
    cp.async.cg.shared.global [%rd9+1024], [%rd7], 16; cp.async.commit_group;
    cp.async.wait_group 1; bar.sync 0;
    sub.s64 %rd10, 252, %rd3; add.s64 %rd10, %rd8, %rd10; ld.shared.u32 %r3, [%rd10];
    cp.async.wait_group 0; bar.sync 1;
    ld.shared.u32 %r4, [%rd10+1024]; add.u32 %r3, %r3, %r4; st.global.u32 [%rd5], %r3;";

#[test]
fn a_dropped_or_wider_wait_is_found() {
    mutant(COPIES, "cp.async.wait_group 1;", "", 64, &["cp.async", "still filling"]);
    mutant(COPIES, "cp.async.wait_group 1;", "cp.async.wait_group 2;", 64, &["still filling"]);
    mutant(COPIES, "cp.async.wait_group 0;", "cp.async.wait_group 1;", 64, &["still filling"]);
    // One group too few is committed.
    mutant(
        COPIES,
        "[%rd7], 16; cp.async.commit_group;\n    cp.async.wait",
        "[%rd7], 16;\n    cp.async.wait",
        64,
        &["still filling"],
    );
}

#[test]
fn a_wait_is_for_the_own_copies_only() {
    mutant(COPIES, "cp.async.wait_group 1; bar.sync 0;", "cp.async.wait_group 1;", 64, &[""]);
    mutant(COPIES, "bar.sync 1;", "", 64, &[""]);
    // The barrier comes before the wait.
    mutant(COPIES, "cp.async.wait_group 0; bar.sync 1;", "bar.sync 1; cp.async.wait_group 0;", 64, &[""]);
}

#[test]
fn a_buffer_is_not_refilled_while_it_is_read() {
    let body =
        format!("{COPIES} bar.sync 2; cp.async.cg.shared.global [%rd9+1024], [%rd7], 16; cp.async.wait_all;");
    mutant(&body, "bar.sync 2; cp", "cp", 64, &["race: it writes"]);
}

#[test]
fn barriers_need_whole_warps_and_all_warps() {
    let odd = "and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0;";
    faults(&format!("{odd} @%p1 bar.sync 0;"), 32, &["barrier divergence"]);
    faults(&format!("{odd} @%p1 bra A; bar.sync 0; ret; A: bar.sync 0;"), 64, &["barrier divergence"]);
    faults(&format!("{odd} @%p1 ret; bar.sync 0;"), 64, &["barrier divergence", "exited"]);
    faults("setp.lt.u32 %p1, %r1, 32; @%p1 ret; bar.sync 0;", 64, &["deadlock: barrier 0", "have ended: 0"]);
    faults("setp.lt.u32 %p1, %r1, 32; @%p1 bra A; bar.sync 1; ret; A: bar.sync 0;", 64, &["deadlock"]);
    faults("bar.sync 0, 96;", 64, &["deadlock: barrier 0 for 96 threads"]);
    faults("bar.sync 16;", 32, &["barrier number 16"]);
}

#[test]
fn shuffles_need_their_lanes() {
    faults("shfl.sync.bfly.b32 %r3, %r1, 1, 31, 0xffff;", 32, &["mask 0xffff lacks the lane itself"]);
    let half = "setp.lt.u32 %p1, %r1, 16;";
    faults(
        &format!("{half} @%p1 shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;"),
        32,
        &["names lanes 0xffff0000 that"],
    );
    faults(&format!("{half} @%p1 ret; shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;"), 32, &["not there"]);
    faults(
        &format!("{half} @%p1 shfl.sync.idx.b32 %r3, %r1, 20, 31, 0xffff;"),
        32,
        &["reads lane 20, which is not in its mask"],
    );
    faults("shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;", 24, &["names lanes 0xff000000 that are not there"]);
    faults(
        "selp.u32 %r2, 1, 3, %p1; vote.sync.ballot.b32 %r3, %p2, -1; st.global.u32 [%rd5], %r3;",
        32,
        &["never written"],
    );
    faults("shfl.sync.bfly.b32 %r3, %r1, %r70, 31, -1;", 32, &["uninitialised lane of a shuffle"]);
}

#[test]
fn tensor_cores_need_whole_warps() {
    let mma = "mov.b32 %r2, 0; mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%r3, %r4, %r5, %r6}, {%r2, %r2}, {%r2}, {%r2, %r2, %r2, %r2};";
    faults(&format!("setp.lt.u32 %p1, %r1, 16; @%p1 bra E; {mma} E:"), 32, &["only lanes 0xffff0000"]);
    faults(mma, 48, &["not whole"]);
    faults(
        "mov.u64 %rd6, dyn; setp.eq.u32 %p1, %r1, 0; @%p1 ret; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%rd6];",
        32,
        &["not whole"],
    );
}

#[test]
fn uninitialised_values_matter_where_they_decide() {
    faults("@%p1 bra E; E:", 32, &["predicate that depends on an uninitialised value"]);
    faults("add.s32 %r3, %r2, 1; setp.eq.u32 %p1, %r3, 0; @%p1 st.global.u32 [%rd5], 0;", 32, &["predicate"]);
    faults(
        "add.s64 %rd6, %rd2, %rd7; st.global.u32 [%rd6], 0;",
        32,
        &["address that depends on an uninitialised"],
    );
    faults(
        "mov.u64 %rd6, dyn; add.s64 %rd6, %rd6, %rd3; ld.shared.u32 %r2, [%rd6]; st.global.u32 [%rd5], %r2;",
        64,
        &["never written", "offset 0 of"],
    );
    faults("st.global.u32 [%rd5], %r2;", 64, &["never written"]);
    faults("mov.u32 %r3, 0; div.u32 %r2, %r1, %r3; st.global.u32 [%rd5], %r2;", 64, &["never written"]);
    faults(
        "setp.lt.u32 %p1, %r1, 63; @%p1 st.global.u32 [%rd5], %r1;",
        64,
        &["never written", "offset 252 of"],
    );
}

#[test]
fn accesses_stay_within_bounds() {
    let offset =
        |n: u32| format!("mov.u32 %r2, 0; st.global.u32 [%rd5], %r2; ld.global.u32 %r2, [%rd4+{n}];");
    mutant(
        &offset(4096 - 256),
        "3840",
        "3844",
        64,
        &["out of bounds", "offset 4096 of the 4096 bytes", "thread (63, 0, 0)"],
    );
    faults("st.global.u32 [%rd5+4], %r1;", 64, &["offset 256 of the 256 bytes"]);
    faults("st.global.u32 [%rd5-4], %r1;", 64, &["out of bounds"]);
    faults("mov.u64 %rd6, 16; st.global.u32 [%rd6], %r1;", 64, &["nothing is allocated"]);
    faults(
        "mov.u64 %rd6, dyn; st.shared.u32 [%rd6+4096], %r1;",
        1,
        &["out of bounds: 4 bytes at offset 4096 of the 4096 bytes of dynamic"],
    );
    faults("mov.u64 %rd6, dyn; st.shared.u32 [%rd6-4], %r1;", 1, &["out of bounds"]);
    faults(
        ".shared .align 4 .b8 a[12]; .shared .align 4 .b8 b[12]; st.shared.u32 [a+12], %r1;",
        1,
        &["offset 12 of the 12 bytes of a"],
    );
    faults(".local .align 4 .b8 a[12]; st.local.u32 [a+12], %r1;", 1, &["offset 12 of local memory"]);
    let text = kernel("mov.u64 %rd6, t; ld.global.nc.u16 %rs1, [%rd6+6];")
        .replace(".extern", ".global .align 2 .b8 t[6] = {1, 2};\n.extern");
    let fault = Run::text(&text, 1).fault(&[0], 1);
    assert!(fault.contains("offset 6 of the 6 bytes of t"), "{fault}");
}

#[test]
fn accesses_are_aligned() {
    faults("ld.global.u32 %r2, [%rd4+2];", 32, &["misaligned: 4 bytes"]);
    faults("ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd4+8];", 1, &["misaligned: 16 bytes"]);
    faults("mov.u64 %rd6, dyn; st.shared.u16 [%rd6+1], 1;", 1, &["misaligned: 2 bytes"]);
    faults(
        "mov.u64 %rd6, dyn; cp.async.cg.shared.global [%rd6+8], [%rd1], 16;",
        1,
        &["misaligned: 16 bytes"],
    );
}

#[test]
fn blocks_do_not_depend_on_each_other() {
    let run = |body: &str| {
        let mut run = Run::new(body, 32);
        run.grid = [4, 1, 1];
        run
    };
    let fault = run("st.global.u32 [%rd5], %r1;").fault(&[1], 32);
    assert!(fault.contains("race between blocks: it writes what block"), "{fault}");
    let other = "mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 32, %r1; mul.wide.u32 %rd6, %r3, 4; add.s64 %rd6, %rd2, %rd6; st.global.u32 [%rd6], %r3;";
    assert!(run(other).words(&[1], 128).is_ok());
    let fault = run(&format!("{other} ld.global.u32 %r4, [%rd5];")).fault(&[1], 128);
    assert!(fault.contains("race between blocks"), "{fault}");
    // Bytes next to each other are no race.
    let bytes = "mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 1, 0; cvt.u64.u32 %rd6, %r3; add.s64 %rd6, %rd2, %rd6; setp.ne.u32 %p1, %r1, 0; @%p1 ret; st.global.u8 [%rd6], %r3;";
    assert!(run(bytes).words(&[1], 1).is_ok());
    let adds = "red.global.add.u32 [%rd1], 1; mov.u32 %r2, %ctaid.x; setp.ne.u32 %p1, %r2, 0; @%p1 ret; st.global.u32 [%rd5], 0;";
    assert!(run(adds).words(&[1], 32).is_ok());
}

#[test]
fn global_memory_needs_barriers_too() {
    let body = "st.global.u32 [%rd5], %r1; bar.sync 0; sub.s64 %rd8, 252, %rd3; add.s64 %rd8, %rd2, %rd8; ld.global.u32 %r3, [%rd8];";
    mutant(body, "bar.sync 0;", "", 64, &["race: it ", "no barrier between"]);
    let body = body.replace("ld.global.u32 %r3, [%rd8]", "st.global.u32 [%rd8], %r1");
    mutant(&body, "bar.sync 0;", "bar.warp.sync -1;", 64, &["race: it writes what"]);
}

#[test]
fn global_memory_is_not_written_under_readers() {
    // Every thread reads the mirrored word, then writes its own.
    let body = "sub.s64 %rd8, 252, %rd3; add.s64 %rd8, %rd1, %rd8; ld.global.u32 %r3, [%rd8]; bar.sync 0; st.global.u32 [%rd4], %r3;
        st.global.u32 [%rd5], %r3;";
    mutant(body, "bar.sync 0;", "", 64, &["race: it "]);
    // All read one word, and one thread of a warp, or of a block, writes it.
    let body =
        "ld.global.u32 %r3, [%rd1]; bar.warp.sync -1; st.global.u32 [%rd5], %r3; st.global.u32 [%rd5+128], 0;
        setp.ne.u32 %p1, %r1, 0; @%p1 ret; st.global.u32 [%rd1], 7;";
    mutant(body, "bar.warp.sync -1;", "", 32, &["race: it writes what warp 0 lane", "read, with no barrier"]);
    let body = "ld.global.u32 %r3, [%rd1]; bar.sync 0; st.global.u32 [%rd5], %r3; setp.ne.u32 %p1, %r1, 0; @%p1 ret; st.global.u32 [%rd1], 7;";
    mutant(body, "bar.sync 0;", "bar.warp.sync -1;", 64, &["race: it "]);
}

#[test]
fn constant_loads_are_of_constant_data() {
    faults(
        "st.global.u32 [%rd5], %r1; ld.global.nc.u32 %r2, [%rd5];",
        64,
        &["ld.global.nc of what block 0 wrote"],
    );
    faults(
        "ld.global.nc.u32 %r2, [%rd4]; st.global.u32 [%rd4], %r1;",
        64,
        &["writes what block 0 read by ld.global.nc"],
    );
}

#[test]
fn loops_end() {
    faults("A: bra A;", 32, &["endless loop", "1048576 instructions"]);
    faults(
        "mov.u64 %rd6, dyn; st.shared.u32 [%rd6], 0; A: ld.volatile.shared.u32 %r2, [%rd6]; setp.eq.u32 %p1, %r2, 0; @%p1 bra A;",
        1,
        &["endless loop"],
    );
    faults("trap;", 32, &["the kernel traps"]);
    faults("setp.eq.u32 %p1, %r1, 0; @%p1 bra.uni A; A:", 32, &["lanes part at a bra.uni"]);
}

#[test]
fn devices_keep_their_memory() {
    let module = Module::load(&kernel("ld.global.u32 %r2, [%rd4];")).unwrap();
    let memory = Memory::new();
    let a = memory.alloc(1, 128).unwrap();
    memory.set(a, 0, 128).unwrap();
    let launch = |device: u32, params: &[Vec<u8>], threads: u32| {
        let kernel = module.kernel("k").unwrap();
        run(
            &memory,
            &Launch { kernel, device, grid: [1; 3], block: [threads, 1, 1], shared: 0, params, seed: 0 },
        )
    };
    let pointer = a.to_le_bytes().to_vec();
    let params = [pointer.clone(), pointer.clone()];
    assert!(launch(1, &params, 32).is_ok());
    assert!(launch(0, &params, 32).unwrap_err().what.contains("memory of device 1, by a kernel on device 0"));
    assert!(launch(1, &params[..1], 32).unwrap_err().what.contains("1 parameters instead of 2"));
    assert!(launch(1, &[pointer.clone(), vec![0; 4]], 32).unwrap_err().what.contains("4 bytes instead of 8"));
    assert!(launch(1, &params, 1025).unwrap_err().what.contains("block of [1025, 1, 1]"));
    memory.free(a).unwrap();
    assert!(launch(1, &params, 32).unwrap_err().what.contains("which was freed"));
}

#[test]
fn launches_fit_their_kernels() {
    let text = kernel("st.global.u32 [%rd5], %r1;");
    let with = |directive: &str| Run::text(&text.replace("\n{\n", &format!("\n{directive}\n{{\n")), 64);
    assert!(with(".maxntid 128, 1, 1").words(&[0], 64).is_ok());
    assert!(with(".reqntid 64").words(&[0], 64).is_ok());
    assert!(with(".maxntid 32").words(&[0], 64).unwrap_err().what.contains("more than its .maxntid"));
    assert!(
        with(".reqntid 128")
            .words(&[0], 64)
            .unwrap_err()
            .what
            .contains("64 threads a block, where .reqntid is 128")
    );
    let mut run = with("");
    run.shared = 228 << 10;
    assert!(run.words(&[0], 64).unwrap_err().what.contains("227 KiB"));
    run.shared = 0;
    run.grid = [1, 65536, 1];
    assert!(run.words(&[0], 64).unwrap_err().what.contains("grid of [1, 65536, 1]"));
}

#[test]
fn devices_run_at_the_same_time() {
    let module =
        Module::load(&kernel("ld.global.u32 %r2, [%rd4]; add.u32 %r2, %r2, 1; st.global.u32 [%rd4], %r2;"))
            .unwrap();
    let memory = Memory::new();
    std::thread::scope(|scope| {
        for device in 0..4 {
            let (module, memory) = (&module, &memory);
            scope.spawn(move || {
                let a = memory.alloc(device, 256).unwrap();
                memory.set(a, 0, 256).unwrap();
                let params = [a.to_le_bytes().to_vec(), a.to_le_bytes().to_vec()];
                for seed in 0..50 {
                    let kernel = module.kernel("k").unwrap();
                    let launch = Launch {
                        kernel,
                        device,
                        grid: [1; 3],
                        block: [64, 1, 1],
                        shared: 0,
                        params: &params,
                        seed,
                    };
                    run(memory, &launch).unwrap();
                }
                assert!(memory.read(a, 256).unwrap().chunks(4).all(|x| x == [50, 0, 0, 0]));
            });
        }
    });
}

#[test]
fn what_is_not_known_is_refused() {
    for (body, says) in [
        ("add.f33 %r2, %r2, %r2;", "unknown modifier .f33"),
        ("add.rz.f32 %r2, %r2, %r2;", "unknown modifier .rz"),
        ("add.s32.wide %r2, %r2, %r2;", "unknown modifier .wide"),
        ("frobnicate.b32 %r2, %r2;", "unknown opcode frobnicate"),
        ("wgmma.fence.sync.aligned;", "sm_90 has no wgmma"),
        ("add.s32 %r2, %r2;", "2 operands instead of 3"),
        ("add.s32 %r2, %r2, %rd3;", "register %rd3 of type B(8)"),
        ("add.f32 %r2, %p1, %r2;", "register %p1"),
        ("add.s32 %r2, %r2, %r900;", "unknown register %r900"),
        ("mov.u32 %r2, %clock;", "unknown register %clock"),
        ("mov.u16 %rs1, 70000;", "70000 does not fit"),
        ("setp.lo.s32 %p1, %r1, %r1;", "comparison .lo is not known"),
        ("setp.lt.b32 %p1, %r1, %r1;", "comparison .lt is not known"),
        ("ld.global.nc.cv.u32 %r2, [%rd1];", "unknown modifier .cv"),
        ("ld.global.v3.u32 %r2, [%rd1];", "unknown modifier .v3"),
        ("ld.global.v2.u32 %r2, [%rd1];", "1 results of a load of 2"),
        ("ld.param.u64 %rd6, [pa+8];", "offset 8 of parameter pa"),
        ("st.const.u32 [%rd1], %r1;", "unknown modifier .const"),
        ("cp.async.cg.shared.global [%rd1], [%rd1], 8;", "cp.async.cg of 8 bytes"),
        ("cp.async.bulk.commit_group;", "modifier .ca or .cg is missing"),
        ("mma.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 %r2, %r2, %r2, %r2;", "unknown shape of mma"),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.f16.f32 %r2, %r2, %r2, %r2;",
            "modifier .bf16 is missing",
        ),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r2, %r3}, [%rd1];", "2 results of ldmatrix .x4"),
        ("shfl.bfly.b32 %r2, %r1, 1, 31;", "modifier .sync is missing"),
        ("barrier.sync 0;", "modifier .aligned is missing"),
        ("bra NOWHERE;", "no label NOWHERE"),
        ("cvt.f32.s32 %r2, %r1;", "rounds by .rn"),
        ("cvt.s32.f32 %r2, %r1;", "says how it rounds"),
        ("cvt.f16.f32 %rs1, %r1;", "rounding"),
        ("cvt.rn.f32.f16 %r1, %rs1;", "rounding"),
        (".shared .b8 x[];", "has an extent"),
        (".callprototype x;", "unknown directive"),
        ("A: A: ret;", "label A stands twice"),
        ("add.s32 %r2, %r2, %r2", "is missing"),
    ] {
        let fault = Module::load(&kernel(body)).unwrap_err();
        assert!(fault.to_string().contains(says), "{body}: {fault}");
        assert!(fault.at.contains("line "), "{body}: {fault}");
    }
    let fault = Module::load(&kernel("\n\n  add.rz.f32 %r2, %r2, %r2;")).unwrap_err();
    assert_eq!(fault.to_string(), "unknown modifier .rz: add.rz.f32 %r2, %r2, %r2; at line 13");
    for (text, says) in [
        ("", ".version and .target"),
        (".version 8.0\n.target sm_90\n.func f() {}", "unknown directive .func"),
        (".version 8.0\n.target sm_90\n.address_size 32", "64 bits"),
        (".version 8.0\n.target sm_90\n.global .b32 x;", "no initial value"),
        (".version 8.0\n.target sm_90\n.visible .entry k() .cluster {}", "unknown directive .cluster"),
        (".version 8.0\n.target sm_90\n.visible .entry k() {", "missing"),
    ] {
        let fault = Module::load(text)
            .and_then(|m| m.kernel("x").map(|_| ()).ok_or(pcc_cuda_sim::Fault::new("loaded")))
            .unwrap_err();
        assert!(fault.to_string().contains(says), "{text}: {fault}");
    }
}
