//! Every width of loads and stores, and every atomic.

use super::harness::Run;
use half::{bf16, f16};

#[test]
fn loads_extend_by_their_sign() {
    let input: Vec<u8> = (0..32).map(|n| (n * 37 + 120) as u8).collect();
    let word = |at: usize, n: usize| {
        let mut bytes = [0; 8];
        bytes[..n].copy_from_slice(&input[at..at + n]);
        u64::from_le_bytes(bytes)
    };
    let check = |load: &str, width: usize, want: u64| {
        let register = if width == 8 { "%rd10" } else { "%r10" };
        let body = format!("{load}; st.global.b{} [%rd2], {register};", 8 * width);
        let got = Run::new(&body, 1).bytes(&input, width as u64).unwrap();
        assert_eq!(got, want.to_le_bytes()[..width], "{load}");
    };
    check("ld.global.u8 %r10, [%rd1+1]", 4, word(1, 1));
    check("ld.global.s8 %r10, [%rd1+1]", 4, input[1] as i8 as u64);
    check("ld.global.s8 %rd10, [%rd1]", 8, input[0] as i8 as u64);
    check("ld.global.b16 %r10, [%rd1+2]", 4, word(2, 2));
    check("ld.global.s16 %rd10, [%rd1+4]", 8, word(4, 2) as i16 as u64);
    check("ld.global.s32 %rd10, [%rd1+4]", 8, word(4, 4) as i32 as u64);
    check("ld.global.nc.u32 %rd10, [%rd1+8]", 8, word(8, 4));
    check("ld.global.ca.b64 %rd10, [%rd1+8]", 8, word(8, 8));
    check("ld.relaxed.gpu.global.u32 %r10, [%rd1+4]", 4, word(4, 4));
    check("ld.volatile.global.u32 %r10, [%rd1+4]", 4, word(4, 4));
    check("ld.global.nc.L1::no_allocate.L2::128B.f32 %r10, [%rd1+4]", 4, word(4, 4));
    check("ld.global.v2.b64 {_, %rd10}, [%rd1+16]", 8, word(24, 8));
    check("ld.global.v4.u8 {%r1, %r2, %r3, %r10}, [%rd1+4]", 4, word(7, 1));
    check("ld.global.v8.b32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r10}, [%rd1]", 4, word(28, 4));
    check(
        "ld.param.u32 %r10, [pa+4]; ld.param.s8 %r11, [pa+5]; shr.u32 %r10, %r10, 8; cvt.s32.s8 %r10, %r10; sub.s32 %r10, %r10, %r11",
        4,
        0,
    );
    check(
        "st.global.v2.u16 [%rd1], {%rs1, 5}; mov.u16 %rs1, 6; st.global.v2.u16 [%rd1], {%rs1, 5}; ld.global.u32 %r10, [%rd1]",
        4,
        5 << 16 | 6,
    );
    check(
        "mov.u32 %r11, 0x12345678; st.global.wb.u8 [%rd1], %r11; ld.global.u32 %r10, [%rd1]",
        4,
        word(0, 4) & !0xff | 0x78,
    );
}

#[test]
fn atomics_of_every_kind() {
    let check = |op: &str, bytes: usize, old: u64, operands: [u64; 2], want: u64| {
        let (a, b) = if bytes == 8 {
            ("%rd10", "%rd11")
        } else if bytes == 2 {
            ("%rs10", "%rs11")
        } else {
            ("%r10", "%r11")
        };
        let d = a.replace("10", "12");
        let list = if op.contains("cas") { format!("{a}, {b}") } else { a.to_owned() };
        let moves: String =
            [a, b].iter().zip(operands).map(|(r, x)| format!("mov.b{} {r}, {x};", 8 * bytes)).collect();
        for (space, at) in [("global", "%rd2"), ("shared", "%rd6")] {
            let body = format!(
                "mov.u64 %rd6, dyn; {moves} mov.b{bits} {d}, {old}; st.{space}.b{bits} [{at}], {d};
                atom.{space}.{op} {d}, [{at}], {list}; st.global.b{bits} [%rd2+8], {d};
                ld.{space}.b{bits} {d}, [{at}]; st.global.b{bits} [%rd2], {d}; st.global.b64 [%rd2+16], 0;",
                bits = 8 * bytes
            );
            let out = Run::new(&format!("st.global.v2.b64 [%rd2], {{%rd1, %rd1}}; {body}"), 1)
                .bytes(&[], 24)
                .unwrap();
            assert_eq!(out[..bytes], want.to_le_bytes()[..bytes], "{op} in {space} memory");
            assert_eq!(out[8..8 + bytes], old.to_le_bytes()[..bytes], "{op}: the old value");
        }
    };
    let minus = |x: i32| u64::from(x as u32);
    check("add.s32", 4, minus(-3), [5, 0], 2);
    check("add.u64", 8, u64::MAX, [3, 0], 2);
    check("add.f32", 4, 1.5f32.to_bits().into(), [2f32.to_bits().into(), 0], 3.5f32.to_bits().into());
    check("add.f64", 8, 1.5f64.to_bits(), [2f64.to_bits(), 0], 3.5f64.to_bits());
    let h = |x: f32| u64::from(f16::from_f32(x).to_bits());
    let b = |x: f32| u64::from(bf16::from_f32(x).to_bits());
    check("add.noftz.f16", 2, h(1.5), [h(2.0), 0], h(3.5));
    check("add.noftz.bf16x2", 4, b(1.5) << 16 | b(4.0), [b(2.0) << 16 | b(-1.0), 0], b(3.5) << 16 | b(3.0));
    check("min.s32", 4, minus(-3), [5, 0], minus(-3));
    check("min.u32", 4, minus(-3), [5, 0], 5);
    check("max.s64", 8, u64::MAX, [5, 0], 5);
    check("max.u64", 8, u64::MAX, [5, 0], u64::MAX);
    check("and.b32", 4, 12, [10, 0], 8);
    check("or.b64", 8, 12, [10, 0], 14);
    check("xor.b32", 4, 12, [10, 0], 6);
    check("exch.b64", 8, 12, [10, 0], 10);
    check("cas.b32", 4, 12, [12, 7], 7);
    check("cas.b64", 8, 12, [13, 7], 12);
    check("inc.u32", 4, 5, [5, 0], 0);
    check("inc.u32", 4, 4, [5, 0], 5);
    check("dec.u32", 4, 0, [5, 0], 5);
    check("dec.u32", 4, 9, [5, 0], 5);
    check("dec.u32", 4, 3, [5, 0], 2);
}
