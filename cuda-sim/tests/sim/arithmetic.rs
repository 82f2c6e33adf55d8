//! Values of every arithmetic instruction.

use super::harness::{Random, Run};
use half::{bf16, f16};

/// Inputs of one instruction: three operands of 8 bytes a thread.
pub type Operands = [u64; 3];

/// Runs `instruction` over operands `%rd10..%rd12`, `%r10..%r12`, `%rs10..%rs12` (the same, low bits); the result is `%rd20`, `%r20`,
/// `%rs20` or `%p1` by `width` 8, 4, 2 or 0.
pub fn results(instruction: &str, width: u32, operands: &[Operands]) -> Vec<u64> {
    let result = match width {
        8 => "mov.b64 %rd21, %rd20;",
        4 => "cvt.u64.u32 %rd21, %r20;",
        2 => "cvt.u64.u16 %rd21, %rs20;",
        _ => "selp.b64 %rd21, 1, 0, %p1;",
    };
    let body = format!(
        "mul.wide.u32 %rd6, %r1, 24; add.s64 %rd6, %rd1, %rd6;
        ld.global.b64 %rd10, [%rd6]; ld.global.b64 %rd11, [%rd6+8]; ld.global.b64 %rd12, [%rd6+16];
        cvt.u32.u64 %r10, %rd10; cvt.u32.u64 %r11, %rd11; cvt.u32.u64 %r12, %rd12;
        cvt.u16.u64 %rs10, %rd10; cvt.u16.u64 %rs11, %rd11; cvt.u16.u64 %rs12, %rd12;
        setp.ne.u64 %p10, %rd10, 0; setp.ne.u64 %p11, %rd11, 0; setp.ne.u64 %p12, %rd12, 0;
        {instruction}
        {result}
        mul.wide.u32 %rd7, %r1, 8; add.s64 %rd7, %rd2, %rd7;
        st.global.b64 [%rd7], %rd21;"
    );
    let mut all = Vec::new();
    for part in operands.chunks(1024) {
        let input: Vec<u8> = part.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
        let run = Run::new(&body, part.len() as u32);
        let out = run.bytes(&input, 8 * part.len() as u64).unwrap_or_else(|e| panic!("{instruction}: {e}"));
        all.extend(out.chunks(8).map(|x| u64::from_le_bytes(x.try_into().unwrap())));
    }
    all
}

#[track_caller]
pub fn check(instruction: &str, width: u32, operands: &[Operands], expected: impl Fn(Operands) -> u64) {
    for (got, &x) in results(instruction, width, operands).into_iter().zip(operands) {
        let want = expected(x);
        assert_eq!(got, want, "{instruction} of {x:x?}: {got:#x} instead of {want:#x}");
    }
}

/// Integers with their edges.
pub fn integers() -> Vec<Operands> {
    let edges = [
        0,
        1,
        2,
        7,
        31,
        32,
        33,
        63,
        64,
        127,
        128,
        255,
        0x7fff,
        0x8000,
        0xffff,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x7fff_ffff_ffff_ffff,
        0x8000_0000_0000_0000,
        u64::MAX,
    ];
    let mut all: Vec<Operands> =
        edges.iter().flat_map(|&a| edges.iter().map(move |&b| [a, b, a ^ b])).collect();
    let mut random = Random(5);
    all.extend((0..400).map(|_| [random.next(), random.next(), random.next()]));
    all.extend((0..100).map(|_| [random.next(), random.next() % 70, random.next() % 70]));
    all
}

/// f32 with their edges, in the low half.
pub fn floats() -> Vec<Operands> {
    let edges = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        f32::MIN_POSITIVE,
        1e-40,
        -1e-45,
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        2147483648.0,
        -2147483648.0,
        4294967296.0,
        1e20,
        -1e20,
        255.5,
        65504.0,
        65520.0,
        3.3e38,
        2f32.powi(127),
    ];
    let bits = |x: f32| u64::from(x.to_bits());
    let mut all: Vec<Operands> =
        edges.iter().flat_map(|&a| edges.iter().map(move |&b| [bits(a), bits(b), bits(a - b)])).collect();
    let mut random = Random(9);
    all.extend((0..300).map(|_| [0; 3].map(|_: u64| random.next() & 0xffff_ffff)));
    all.extend((0..300).map(|_| [0; 3].map(|_: u64| bits((random.next() % 20000) as f32 / 64.0 - 150.0))));
    all
}

pub fn doubles() -> Vec<Operands> {
    let wide = |x: u64| f64::from(f32::from_bits(x as u32)).to_bits();
    let mut all: Vec<Operands> = floats().into_iter().map(|x| x.map(wide)).collect();
    let mut random = Random(11);
    all.extend((0..300).map(|_| [random.next(), random.next(), random.next()]));
    all
}

/// Pairs of 16-bit floats from random bits.
pub fn halves() -> Vec<Operands> {
    let mut random = Random(3);
    let mut all: Vec<Operands> = (0..1500).map(|_| [random.next(), random.next(), random.next()]).collect();
    let edges = [0u64, 0x8000, 0x3c00, 0x7c00, 0xfc00, 0x7bff, 1, 0x3f80, 0x7f80, 0x7f7f, 0x8001, 0x7fff];
    all.extend(
        edges.iter().flat_map(|&a| edges.iter().map(move |&b| [a << 16 | b, b << 16 | a, b << 16 | b])),
    );
    all
}

pub fn f(x: u64) -> f32 {
    f32::from_bits(x as u32)
}

/// NaN has one form.
pub fn bits(x: f32) -> u64 {
    if x.is_nan() { 0x7fff_ffff } else { x.to_bits().into() }
}

pub fn d(x: u64) -> f64 {
    f64::from_bits(x)
}

#[test]
fn integer_sums_and_products() {
    let x = integers();
    check("add.s32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| (a as u32).wrapping_add(b as u32).into());
    check("add.s64 %rd20, %rd10, %rd11;", 8, &x, |[a, b, _]| a.wrapping_add(b));
    check("add.u16 %rs20, %rs10, %rs11;", 2, &x, |[a, b, _]| (a as u16).wrapping_add(b as u16).into());
    check("add.sat.s32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| {
        (a as i32).saturating_add(b as i32) as u32 as u64
    });
    check("sub.s32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| (a as u32).wrapping_sub(b as u32).into());
    check("sub.s64 %rd20, %rd10, %rd11;", 8, &x, |[a, b, _]| a.wrapping_sub(b));
    check("mul.lo.s32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| (a as u32).wrapping_mul(b as u32).into());
    check("mul.lo.s64 %rd20, %rd10, %rd11;", 8, &x, |[a, b, _]| a.wrapping_mul(b));
    check("mul.hi.u32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| ((a & 0xffff_ffff) * (b & 0xffff_ffff)) >> 32);
    check("mul.hi.s32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| {
        ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32 as u64
    });
    check("mul.hi.u64 %rd20, %rd10, %rd11;", 8, &x, |[a, b, _]| {
        ((u128::from(a) * u128::from(b)) >> 64) as u64
    });
    check("mul.hi.s64 %rd20, %rd10, %rd11;", 8, &x, |[a, b, _]| {
        ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64
    });
    check("mul.wide.u32 %rd20, %r10, %r11;", 8, &x, |[a, b, _]| (a & 0xffff_ffff) * (b & 0xffff_ffff));
    check("mul.wide.s32 %rd20, %r10, %r11;", 8, &x, |[a, b, _]| {
        (i64::from(a as i32) * i64::from(b as i32)) as u64
    });
    check("mul.wide.s16 %r20, %rs10, %rs11;", 4, &x, |[a, b, _]| {
        (i32::from(a as i16) * i32::from(b as i16)) as u32 as u64
    });
    check("mad.lo.s32 %r20, %r10, %r11, %r12;", 4, &x, |[a, b, c]| {
        (a as u32).wrapping_mul(b as u32).wrapping_add(c as u32).into()
    });
    check("mad.wide.u32 %rd20, %r10, %r11, %rd12;", 8, &x, |[a, b, c]| {
        ((a & 0xffff_ffff) * (b & 0xffff_ffff)).wrapping_add(c)
    });
    check("mad.hi.s32 %r20, %r10, %r11, %r12;", 4, &x, |[a, b, c]| {
        (((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32).wrapping_add(c as u32).into()
    });
    check("neg.s32 %r20, %r10;", 4, &x, |[a, ..]| (a as u32).wrapping_neg().into());
    check("abs.s64 %rd20, %rd10;", 8, &x, |[a, ..]| (a as i64).wrapping_abs() as u64);
    check("add.s16x2 %r20, %r10, %r11;", 4, &x, |[a, b, _]| {
        ((a & 0xffff) + (b & 0xffff)) & 0xffff | ((a & 0xffff_0000) + (b & 0xffff_0000)) & 0xffff_0000
    });
    check("max.s16x2 %r20, %r10, %r11;", 4, &x, |[a, b, _]| {
        let max = |n: u32| u64::from(((a >> n) as i16).max((b >> n) as i16) as u16);
        max(16) << 16 | max(0)
    });
    check("min.s32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| (a as i32).min(b as i32) as u32 as u64);
    check("max.u64 %rd20, %rd10, %rd11;", 8, &x, |[a, b, _]| a.max(b));
    check("max.s16 %rs20, %rs10, %rs11;", 2, &x, |[a, b, _]| (a as i16).max(b as i16) as u16 as u64);
}

#[test]
fn quotients_and_remainders() {
    let x: Vec<Operands> = integers().into_iter().filter(|x| x[1] as u16 != 0).collect();
    check("div.s32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| (a as i32).wrapping_div(b as i32) as u32 as u64);
    check("div.u32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| (a as u32 / b as u32).into());
    check("rem.s64 %rd20, %rd10, %rd11;", 8, &x, |[a, b, _]| (a as i64).wrapping_rem(b as i64) as u64);
    check("rem.u64 %rd20, %rd10, %rd11;", 8, &x, |[a, b, _]| a % b);
    check("div.s64 %rd20, %rd10, %rd11;", 8, &x, |[a, b, _]| (a as i64).wrapping_div(b as i64) as u64);
    check("rem.u16 %rs20, %rs10, %rs11;", 2, &x, |[a, b, _]| (a as u16 % b as u16).into());
}

#[test]
fn logic_and_shifts() {
    let x = integers();
    check("and.b32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| (a & b) & 0xffff_ffff);
    check("or.b64 %rd20, %rd10, %rd11;", 8, &x, |[a, b, _]| a | b);
    check("xor.b16 %rs20, %rs10, %rs11;", 2, &x, |[a, b, _]| (a ^ b) & 0xffff);
    check("not.b32 %r20, %r10;", 4, &x, |[a, ..]| !a & 0xffff_ffff);
    check("and.pred %p1, %p10, %p11;", 0, &x, |[a, b, _]| u64::from(a != 0 && b != 0));
    check("or.pred %p1, %p10, %p11;", 0, &x, |[a, b, _]| u64::from(a != 0 || b != 0));
    check("xor.pred %p1, %p10, %p11;", 0, &x, |[a, b, _]| u64::from((a != 0) != (b != 0)));
    check("not.pred %p1, %p10;", 0, &x, |[a, ..]| u64::from(a == 0));
    check("shl.b32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| {
        if b as u32 > 31 { 0 } else { u64::from((a as u32) << b as u32) }
    });
    check("shl.b64 %rd20, %rd10, %r11;", 8, &x, |[a, b, _]| if b as u32 > 63 { 0 } else { a << b as u32 });
    check("shr.u32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| {
        if b as u32 > 31 { 0 } else { u64::from(a as u32 >> b as u32) }
    });
    check("shr.s32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| (a as i32 >> (b as u32).min(31)) as u32 as u64);
    check("shr.s64 %rd20, %rd10, %r11;", 8, &x, |[a, b, _]| (a as i64 >> (b as u32).min(63)) as u64);
    check("shr.u16 %rs20, %rs10, %r11;", 2, &x, |[a, b, _]| {
        if b as u32 > 15 { 0 } else { u64::from(a as u16 >> b as u32) }
    });
    check("shf.l.wrap.b32 %r20, %r10, %r11, %r12;", 4, &x, |[a, b, c]| {
        let all = b << 32 | a & 0xffff_ffff;
        all << (c & 31) >> 32
    });
    check("shf.r.clamp.b32 %r20, %r10, %r11, %r12;", 4, &x, |[a, b, c]| {
        let all = b << 32 | a & 0xffff_ffff;
        all >> (c as u32).min(32) & 0xffff_ffff
    });
    check("popc.b64 %r20, %rd10;", 4, &x, |[a, ..]| a.count_ones().into());
    check("clz.b32 %r20, %r10;", 4, &x, |[a, ..]| (a as u32).leading_zeros().into());
    check("brev.b32 %r20, %r10;", 4, &x, |[a, ..]| (a as u32).reverse_bits().into());
    check("bfind.u32 %r20, %r10;", 4, &x, |[a, ..]| {
        (0..32).rev().find(|n| a >> n & 1 == 1).map_or(0xffff_ffff, |n| n)
    });
    check("lop3.b32 %r20, %r10, %r11, %r12, 0xca;", 4, &x, |[a, b, c]| (a & b | !a & c) & 0xffff_ffff);
    check("lop3.b32 %r20, %r10, %r11, %r12, 0x96;", 4, &x, |[a, b, c]| (a ^ b ^ c) & 0xffff_ffff);
}

/// The PTX ISA's pseudo-code of `bfe`, bit by bit.
fn extract(a: u64, b: u64, c: u64, width: u32, signed: bool) -> u64 {
    let (position, length) = ((b & 0xff) as u32, (c & 0xff) as u32);
    let bit = |n: u32| a >> n & 1;
    let sign = if !signed || length == 0 { 0 } else { bit((position + length - 1).min(width - 1)) };
    (0..width).fold(0, |out, i| {
        let value = if i < length && position + i < width { bit(position + i) } else { sign };
        out | value << i
    })
}

#[test]
fn bit_fields_and_permutations() {
    let x = integers();
    check("bfe.u32 %r20, %r10, %r11, %r12;", 4, &x, |[a, b, c]| extract(a, b, c, 32, false));
    check("bfe.s32 %r20, %r10, %r11, %r12;", 4, &x, |[a, b, c]| extract(a, b, c, 32, true));
    check("bfe.u64 %rd20, %rd10, %r11, %r12;", 8, &x, |[a, b, c]| extract(a, b, c, 64, false));
    check("bfe.s64 %rd20, %rd10, %r11, %r12;", 8, &x, |[a, b, c]| extract(a, b, c, 64, true));
    check("bfi.b32 %r20, %r10, %r11, %r12, 5;", 4, &x, |[a, b, c]| {
        let position = (c & 0xff) as u32;
        (0..32).fold(0, |out, i| {
            let inserted = i >= position && i - position < 5;
            out | (if inserted { a >> (i - position) } else { b >> i } & 1) << i
        })
    });
    check("prmt.b32 %r20, %r10, %r11, %r12;", 4, &x, |[a, b, c]| {
        let bytes: Vec<u8> = (a as u32).to_le_bytes().into_iter().chain((b as u32).to_le_bytes()).collect();
        (0..4).fold(0, |out, n| {
            let s = (c >> (4 * n) & 15) as usize;
            let byte = bytes[s & 7];
            out | u64::from(if s & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 }) << (8 * n)
        })
    });
}

#[test]
fn comparisons_and_selection() {
    let x = integers();
    check("setp.lt.s32 %p1, %r10, %r11;", 0, &x, |[a, b, _]| u64::from((a as i32) < b as i32));
    check("setp.ge.u64 %p1, %rd10, %rd11;", 0, &x, |[a, b, _]| u64::from(a >= b));
    check("setp.hi.u32 %p1, %r10, %r11;", 0, &x, |[a, b, _]| u64::from(a as u32 > b as u32));
    check("setp.ne.b16 %p1, %rs10, %rs11;", 0, &x, |[a, b, _]| u64::from(a as u16 != b as u16));
    check("setp.eq.and.s64 %p1|%p2, %rd10, %rd11, !%p12;", 0, &x, |[a, b, c]| u64::from(a == b && c == 0));
    check("setp.eq.or.s64 %p2|%p1, %rd10, %rd11, %p12;", 0, &x, |[a, b, c]| u64::from(a != b || c != 0));
    check("selp.b32 %r20, %r10, %r11, %p12;", 4, &x, |[a, b, c]| (if c != 0 { a } else { b }) & 0xffff_ffff);
    check(
        "set.gt.u32.s32 %r20, %r10, %r11;",
        4,
        &x,
        |[a, b, _]| if a as i32 > b as i32 { 0xffff_ffff } else { 0 },
    );
    let x = floats();
    let ordered = |name: &str, f32_of: fn(f32, f32) -> bool, nan: bool| {
        check(&format!("setp.{name}.f32 %p1, %r10, %r11;"), 0, &x, |[a, b, _]| {
            let (a, b) = (f(a), f(b));
            u64::from(if a.is_nan() || b.is_nan() { nan } else { f32_of(a, b) })
        });
    };
    for (name, of) in [
        ("eq", (|a, b| a == b) as fn(f32, f32) -> bool),
        ("ne", |a, b| a != b),
        ("lt", |a, b| a < b),
        ("le", |a, b| a <= b),
        ("gt", |a, b| a > b),
        ("ge", |a, b| a >= b),
    ] {
        ordered(name, of, false);
        ordered(&format!("{name}u"), of, true);
    }
    ordered("num", |_, _| true, false);
    ordered("nan", |_, _| false, true);
}

#[test]
fn sums_of_f32_and_f64() {
    let x = floats();
    check("add.rn.f32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| bits(f(a) + f(b)));
    check("add.f32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| bits(f(a) + f(b)));
    check("sub.f32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| bits(f(a) - f(b)));
    check("mul.rn.f32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| bits(f(a) * f(b)));
    check("fma.rn.f32 %r20, %r10, %r11, %r12;", 4, &x, |[a, b, c]| bits(f(a).mul_add(f(b), f(c))));
    check("div.rn.f32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| bits(f(a) / f(b)));
    check("rcp.rn.f32 %r20, %r10;", 4, &x, |[a, ..]| bits(1.0 / f(a)));
    check("sqrt.rn.f32 %r20, %r10;", 4, &x, |[a, ..]| bits(f(a).sqrt()));
    check("abs.f32 %r20, %r10;", 4, &x, |[a, ..]| a & 0x7fff_ffff);
    check("neg.f32 %r20, %r10;", 4, &x, |[a, ..]| a & 0xffff_ffff ^ 0x8000_0000);
    check("copysign.f32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| f(b).copysign(f(a)).to_bits().into());
    check("mul.sat.f32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| {
        let p = f(a) * f(b);
        bits(if p > 0.0 { p.min(1.0) } else { 0.0 })
    });
    let zero = |x: f32| if x.is_subnormal() { 0f32.copysign(x) } else { x };
    check("add.rn.ftz.f32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| bits(zero(zero(f(a)) + zero(f(b)))));
    check("mul.ftz.f32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| bits(zero(zero(f(a)) * zero(f(b)))));
    let max = |a: f32, b: f32| match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == 0.0 && b == 0.0 => {
            if a.is_sign_negative() {
                b
            } else {
                a
            }
        }
        _ => {
            if a > b {
                a
            } else {
                b
            }
        }
    };
    check("max.f32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| bits(max(f(a), f(b))));
    check("min.f32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| bits(-max(-f(a), -f(b))));
    check("max.NaN.f32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| {
        bits(if f(a).is_nan() || f(b).is_nan() { f32::NAN } else { max(f(a), f(b)) })
    });
    let x: Vec<Operands> = doubles().into_iter().filter(|x| !x.iter().any(|&x| d(x).is_nan())).collect();
    let same = |x: f64| if x.is_nan() { 1 } else { x.to_bits() };
    let number = "setp.nan.f64 %p1, %rd20, %rd20; selp.b64 %rd20, 1, %rd20, %p1;";
    check(&format!("add.rn.f64 %rd20, %rd10, %rd11; {number}"), 8, &x, |[a, b, _]| same(d(a) + d(b)));
    check(&format!("fma.rn.f64 %rd20, %rd10, %rd11, %rd12; {number}"), 8, &x, |[a, b, c]| {
        same(d(a).mul_add(d(b), d(c)))
    });
    check(&format!("div.rn.f64 %rd20, %rd10, %rd11; {number}"), 8, &x, |[a, b, _]| same(d(a) / d(b)));
}

#[test]
fn approximations_keep_their_bounds() {
    let x: Vec<Operands> = (0..900).map(|n| [bits((n as f32 - 450.0) / 37.0), 0, 0]).collect();
    let within = |name: &str, exact: fn(f64) -> f64, relative: f64, absolute: f64| {
        for (got, x) in results(&format!("{name} %r20, %r10;"), 4, &x).into_iter().zip(&x) {
            let (got, want) = (f64::from(f(got)), exact(f64::from(f(x[0]))));
            let close = (got - want).abs() <= absolute + relative * want.abs();
            assert!(
                close || got == want || got.is_nan() && want.is_nan(),
                "{name} {}: {got} {want}",
                f(x[0])
            );
        }
    };
    let ulp = 2f64.powi(-22);
    within("ex2.approx.f32", |x| 2f64.powf(x), ulp, 0.0);
    within("lg2.approx.f32", |x| x.ln() / 2f64.ln(), ulp, ulp);
    within("rcp.approx.f32", |x| 1.0 / x, ulp, 0.0);
    within("rsqrt.approx.f32", |x| 1.0 / x.sqrt(), ulp, 0.0);
    within("sqrt.approx.f32", f64::sqrt, ulp, 0.0);
    within("sin.approx.f32", f64::sin, 0.0, ulp);
    within("cos.approx.f32", f64::cos, 0.0, ulp);
    within("tanh.approx.f32", f64::tanh, 2f64.powi(-10), 0.0);
    let edge =
        |name: &str, x: f32| f(results(&format!("{name}.approx.f32 %r20, %r10;"), 4, &[[bits(x), 0, 0]])[0]);
    assert_eq!(edge("ex2", f32::NEG_INFINITY), 0.0);
    assert_eq!(edge("lg2", 0.0), f32::NEG_INFINITY);
    assert!(
        edge("lg2", -1.0).is_nan() && edge("rsqrt", -1.0).is_nan() && edge("sin", f32::INFINITY).is_nan()
    );
    assert_eq!(edge("rsqrt", 0.0), f32::INFINITY);
    let flushed = results("ex2.approx.ftz.f32 %r20, %r10;", 4, &[[bits(-130.0), 0, 0]]);
    assert_eq!(flushed, [0]);
}

/// A pair of operations on halves, by a wide function.
fn check_halves(instruction: &str, bf: bool, of: fn(f64, f64, f64) -> f64) {
    let wide = |x: u64| {
        if bf { f64::from(bf16::from_bits(x as u16).to_f32()) } else { f16::from_bits(x as u16).to_f64() }
    };
    let x = halves();
    for (got, x) in results(instruction, 4, &x).into_iter().zip(x) {
        for shift in [0, 16] {
            let [a, b, c] = x.map(|x| wide(x >> shift & 0xffff));
            let (got, want) = (wide(got >> shift & 0xffff), of(a, b, c));
            if want.is_nan() {
                assert!(got.is_nan(), "{instruction} {a} {b} {c}: {got}");
                continue;
            }
            // The nearest: no neighbour is nearer, ties go to even mantissas.
            let bits = if bf { bf16::from_f64(got).to_bits() } else { f16::from_f64(got).to_bits() };
            if got.is_infinite() {
                let least = if bf { f64::from(f32::MAX) } else { 65519.99 };
                assert!(want.abs() >= least * 0.998, "{instruction} {a} {b} {c}: {got} {want}");
                continue;
            }
            let near = |by: i32| wide(u64::from((bits as i32 + by) as u16));
            for neighbour in [near(1), near(-1)].into_iter().filter(|n| n.is_finite() && bits & 0x7fff != 0) {
                let (mine, other) = ((got - want).abs(), (neighbour - want).abs());
                // A fused sum that f64 rounds to a tie need not be one.
                let tie = bits & 1 == 0 || instruction.starts_with("fma");
                assert!(mine < other || mine == other && tie, "{instruction} {a} {b} {c}: {got} {want}");
            }
        }
    }
}

#[test]
fn halves_round_to_nearest() {
    for (name, bf) in [("f16x2", false), ("bf16x2", true)] {
        check_halves(&format!("add.rn.{name} %r20, %r10, %r11;"), bf, |a, b, _| a + b);
        check_halves(&format!("sub.rn.{name} %r20, %r10, %r11;"), bf, |a, b, _| a - b);
        check_halves(&format!("mul.rn.{name} %r20, %r10, %r11;"), bf, |a, b, _| a * b);
        check_halves(&format!("fma.rn.{name} %r20, %r10, %r11, %r12;"), bf, |a, b, c| a.mul_add(b, c));
        check_halves(&format!("max.{name} %r20, %r10, %r11;"), bf, |a, b, _| a.max(b));
        check_halves(&format!("neg.{name} %r20, %r10;"), bf, |a, _, _| -a);
    }
    let x = halves();
    let h = |x: u64| f16::from_bits(x as u16);
    check("add.rn.f16 %rs20, %rs10, %rs11;", 2, &x, |[a, b, _]| {
        let sum = h(a) + h(b);
        if sum.is_nan() { 0x7fff } else { sum.to_bits().into() }
    });
    check("setp.lt.f16 %p1, %rs10, %rs11;", 0, &x, |[a, b, _]| u64::from(h(a) < h(b)));
    check("setp.gt.bf16x2 %p1|%p2, %r10, %r11;", 0, &x, |[a, b, _]| {
        u64::from(bf16::from_bits(a as u16) > bf16::from_bits(b as u16))
    });
    check("setp.geu.f16x2 %p2|%p1, %r10, %r11;", 0, &x, |[a, b, _]| {
        let (a, b) = (h(a >> 16), h(b >> 16));
        u64::from(a.is_nan() || b.is_nan() || a >= b)
    });
    check("abs.bf16 %rs20, %rs10;", 2, &x, |[a, ..]| a & 0x7fff);
    check("fma.rn.relu.f16 %rs20, %rs10, %rs11, %rs12;", 2, &[[0x3c00, 0xbc00, 0x3800]], |_| 0);
}

#[test]
fn conversions_of_integers() {
    let x = integers();
    check("cvt.s32.s8 %r20, %r10;", 4, &x, |[a, ..]| a as i8 as u32 as u64);
    check("cvt.u32.u8 %r20, %r10;", 4, &x, |[a, ..]| a & 0xff);
    check("cvt.s64.s32 %rd20, %r10;", 8, &x, |[a, ..]| a as i32 as u64);
    check("cvt.u64.u32 %rd20, %r10;", 8, &x, |[a, ..]| a & 0xffff_ffff);
    check("cvt.u16.u32 %rs20, %r10;", 2, &x, |[a, ..]| a & 0xffff);
    check("cvt.s16.s8 %rs20, %rs10;", 2, &x, |[a, ..]| a as i8 as u16 as u64);
    check("cvt.s8.s32 %r20, %r10;", 4, &x, |[a, ..]| a as i8 as u32 as u64);
    check("cvt.sat.u8.s32 %r20, %r10;", 4, &x, |[a, ..]| (a as i32).clamp(0, 255) as u64);
    check("cvt.sat.s16.s64 %rs20, %rd10;", 2, &x, |[a, ..]| (a as i64).clamp(-32768, 32767) as u16 as u64);
    check("cvt.sat.s32.u32 %r20, %r10;", 4, &x, |[a, ..]| (a & 0xffff_ffff).min(0x7fff_ffff));
    check("cvt.sat.s64.u64 %rd20, %rd10;", 8, &x, |[a, ..]| a.min(i64::MAX as u64));
    check("cvt.rn.f32.s32 %r20, %r10;", 4, &x, |[a, ..]| bits(a as i32 as f32));
    check("cvt.rn.f32.u64 %r20, %rd10;", 4, &x, |[a, ..]| bits(a as f32));
    check("cvt.rn.f32.s64 %r20, %rd10;", 4, &x, |[a, ..]| bits(a as i64 as f32));
    check("cvt.rn.f64.s64 %rd20, %rd10;", 8, &x, |[a, ..]| (a as i64 as f64).to_bits());
    check("cvt.rn.f64.u32 %rd20, %r10;", 8, &x, |[a, ..]| (a as u32 as f64).to_bits());
    check("cvt.rn.f32.s16 %r20, %rs10;", 4, &x, |[a, ..]| bits(a as i16 as f32));
    check("cvt.rn.f16.s32 %rs20, %r10;", 2, &x, |[a, ..]| {
        // f32 keeps every integer up to where f16 ends.
        f16::from_f32(a as i32 as f32).to_bits().into()
    });
}

#[test]
fn conversions_of_floats() {
    let x = floats();
    let int = |name: &str, round: fn(f64) -> f64| {
        check(&format!("cvt.{name}.s32.f32 %r20, %r10;"), 4, &x, |[a, ..]| {
            let r = round(f64::from(f(a)));
            if r.is_nan() { 0 } else { r.clamp(-2147483648.0, 2147483647.0) as i64 as u32 as u64 }
        });
        check(&format!("cvt.{name}.f32.f32 %r20, %r10;"), 4, &x, |[a, ..]| {
            bits(round(f64::from(f(a))) as f32)
        });
    };
    int("rni", |x| if (x - x.trunc()).abs() == 0.5 { 2.0 * (x / 2.0).round() } else { x.round() });
    int("rzi", f64::trunc);
    int("rmi", f64::floor);
    int("rpi", f64::ceil);
    check("cvt.rzi.u8.f32 %r20, %r10;", 4, &x, |[a, ..]| f(a).clamp(0.0, 255.0) as u64);
    check("cvt.rzi.s64.f32 %rd20, %r10;", 8, &x, |[a, ..]| f(a) as i64 as u64);
    check("cvt.rzi.u64.f32 %rd20, %r10;", 8, &x, |[a, ..]| f(a) as u64);
    check("cvt.rn.f16.f32 %rs20, %r10;", 2, &x, |[a, ..]| {
        if f(a).is_nan() { 0x7fff } else { f16::from_f32(f(a)).to_bits().into() }
    });
    check("cvt.rn.bf16.f32 %rs20, %r10;", 2, &x, |[a, ..]| {
        if f(a).is_nan() { 0x7fff } else { bf16::from_f32(f(a)).to_bits().into() }
    });
    check(
        "cvt.rz.bf16.f32 %rs20, %r10;",
        2,
        &x,
        |[a, ..]| if f(a).is_nan() { 0x7fff } else { a >> 16 & 0xffff },
    );
    check("cvt.rn.relu.bf16.f32 %rs20, %r10;", 2, &x, |[a, ..]| match f(a) {
        x if x.is_nan() => 0x7fff,
        x if x < 0.0 => 0,
        x => bf16::from_f32(x).to_bits().into(),
    });
    check("cvt.rn.bf16x2.f32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| {
        let one = |x: u64| if f(x).is_nan() { 0x7fff } else { u64::from(bf16::from_f32(f(x)).to_bits()) };
        one(a) << 16 | one(b)
    });
    check("cvt.f32.bf16 %r20, %rs10;", 4, &x, |[a, ..]| bits(bf16::from_bits(a as u16).to_f32()));
    check("cvt.f32.f16 %r20, %rs10;", 4, &x, |[a, ..]| bits(f16::from_bits(a as u16).to_f32()));
    check("cvt.sat.f32.f32 %r20, %r10;", 4, &x, |[a, ..]| bits(if f(a) > 0.0 { f(a).min(1.0) } else { 0.0 }));
    check("cvt.f64.f32 %rd20, %r10;", 8, &x, |[a, ..]| f64::from(f(a)).to_bits());
    check("cvt.rn.f32.f64 %r20, %rd10;", 4, &doubles(), |[a, ..]| bits(d(a) as f32));
    check("cvt.rzi.u32.f64 %r20, %rd10;", 4, &doubles(), |[a, ..]| (d(a) as u32).into());
}

#[test]
fn moves_pack_and_unpack() {
    let x = integers();
    check("mov.b32 {%rs20, %rs21}, %r10; mov.b32 %r20, {%rs21, %rs20};", 4, &x, |[a, ..]| {
        u64::from((a as u32).rotate_left(16))
    });
    check("mov.b64 {%r20, _}, %rd10;", 4, &x, |[a, ..]| a & 0xffff_ffff);
    check("mov.b64 %rd20, {%r10, %r11};", 8, &x, |[a, b, _]| b << 32 | a & 0xffff_ffff);
    check("mov.b64 %rd20, {%rs10, %rs11, %rs12, %rs10};", 8, &x, |[a, b, c]| {
        a & 0xffff | (b & 0xffff) << 16 | (c & 0xffff) << 32 | a << 48
    });
    check("mov.f32 %r20, 0f40490FDB;", 4, &x, |_| std::f32::consts::PI.to_bits().into());
    check("mov.b32 %r20, -2;", 4, &x, |_| 0xffff_fffe);
}
