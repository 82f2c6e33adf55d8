//! Arithmetic that compiled kernels use seldom.

use super::arithmetic::{Operands, bits, check, d, doubles, f, floats, halves, integers, results};
use half::{bf16, f16};

#[test]
fn integers_of_all_widths() {
    let x = integers();
    check("sub.sat.s32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| {
        u64::from((a as i32).saturating_sub(b as i32) as u32)
    });
    check("mul.wide.u16 %r20, %rs10, %rs11;", 4, &x, |[a, b, _]| (a & 0xffff) * (b & 0xffff));
    check("mul.hi.s16 %rs20, %rs10, %rs11;", 2, &x, |[a, b, _]| {
        u64::from(((i32::from(a as i16) * i32::from(b as i16)) >> 16) as u16)
    });
    check("mad.lo.s64 %rd20, %rd10, %rd11, %rd12;", 8, &x, |[a, b, c]| a.wrapping_mul(b).wrapping_add(c));
    check("mad.wide.s16 %r20, %rs10, %rs11, %r12;", 4, &x, |[a, b, c]| {
        u64::from((i32::from(a as i16) * i32::from(b as i16)).wrapping_add(c as i32) as u32)
    });
    check("bfind.s32 %r20, %r10;", 4, &x, |[a, ..]| {
        // The highest bit that is not a copy of the sign.
        let sign = a >> 31 & 1;
        (0..32).rev().find(|n| a >> n & 1 != sign).map_or(0xffff_ffff, |n| n)
    });
    check("bfind.u64 %r20, %rd10;", 4, &x, |[a, ..]| {
        (0..64).rev().find(|n| a >> n & 1 == 1).map_or(0xffff_ffff, |n| n)
    });
    check("cnot.b32 %r20, %r10;", 4, &x, |[a, ..]| u64::from(a as u32 == 0));
    check("not.b64 %rd20, %rd10;", 8, &x, |[a, ..]| !a);
    check("popc.b32 %r20, %r10;", 4, &x, |[a, ..]| (0..32).map(|n| a >> n & 1).sum());
    check("clz.b64 %r20, %rd10;", 4, &x, |[a, ..]| {
        (0..64).rev().take_while(|n| a >> n & 1 == 0).count() as u64
    });
    check("shf.r.wrap.b32 %r20, %r10, %r11, %r12;", 4, &x, |[a, b, c]| {
        (0..32).fold(0, |out, i| {
            let n = i + (c & 31);
            out | (if n < 32 { a >> n } else { b >> (n - 32) } & 1) << i
        })
    });
    check("shf.l.clamp.b32 %r20, %r10, %r11, %r12;", 4, &x, |[a, b, c]| {
        let by = (c & 0xffff_ffff).min(32);
        (0..32).fold(0, |out, i| out | (if i >= by { b >> (i - by) } else { a >> (32 + i - by) } & 1) << i)
    });
    check("set.le.f32.u32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| {
        bits(if a as u32 <= b as u32 { 1.0 } else { 0.0 })
    });
    check("set.eq.s32.b64 %r20, %rd10, %rd11;", 4, &x, |[a, b, _]| if a == b { 0xffff_ffff } else { 0 });
    check("bfi.b64 %rd20, %rd10, %rd11, 60, 9;", 8, &x, |[a, b, _]| b & !(15 << 60) | a << 60);
    check("min.u16x2 %r20, %r10, %r11;", 4, &x, |[a, b, _]| {
        (a & 0xffff).min(b & 0xffff) | (a & 0xffff_0000).min(b & 0xffff_0000)
    });
}

#[test]
fn floats_of_all_kinds() {
    let x = floats();
    let test = |name: &str, of: fn(f32) -> bool| {
        check(&format!("testp.{name}.f32 %p1, %r10;"), 0, &x, |[a, ..]| u64::from(of(f(a))));
    };
    test("finite", |x| x.abs() <= f32::MAX);
    test("infinite", |x| x.abs() == f32::INFINITY);
    test("number", |x| x == x.max(x) && !x.is_nan());
    test("notanumber", f32::is_nan);
    test("normal", |x| x.abs() >= f32::MIN_POSITIVE && x.abs() <= f32::MAX);
    test("subnormal", |x| x != 0.0 && x.abs() < f32::MIN_POSITIVE);
    check("mad.rn.f32 %r20, %r10, %r11, %r12;", 4, &x, |[a, b, c]| bits(f(a).mul_add(f(b), f(c))));
    check("fma.rn.sat.f32 %r20, %r10, %r11, %r12;", 4, &x, |[a, b, c]| {
        let y = f(a).mul_add(f(b), f(c));
        bits(if y > 0.0 { y.min(1.0) } else { 0.0 })
    });
    let greater = |a: f32, b: f32| if a.is_nan() || !b.is_nan() && b > a { b } else { a };
    check("max.f32 %r20, %r10, %r11, %r12; abs.f32 %r20, %r20;", 4, &x, |[a, b, c]| {
        bits(greater(greater(f(a), f(b)), f(c)).abs())
    });
    check("div.full.f32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| bits(f(a) / f(b)));
    let zero = |x: f32| if x.is_subnormal() { 0f32.copysign(x) } else { x };
    check("div.rn.ftz.f32 %r20, %r10, %r11;", 4, &x, |[a, b, _]| bits(zero(zero(f(a)) / zero(f(b)))));
    check("rcp.approx.ftz.f32 %r20, %r10;", 4, &x, |[a, ..]| bits(zero(1.0 / zero(f(a)))));
    check("setp.eq.ftz.f32 %p1, %r10, 0f00000000;", 0, &x, |[a, ..]| {
        u64::from(f(a).abs() < f32::MIN_POSITIVE)
    });
    check("cvt.rzi.ftz.s32.f32 %r20, %r10;", 4, &x, |[a, ..]| u64::from(f(a) as i32 as u32));
    check(
        "cvt.ftz.f64.f32 %rd20, %r10; mov.b64 {_, %r21}, %rd20; and.b32 %r20, %r21, 0x7ff00000;",
        4,
        &x,
        |[a, ..]| {
            // The exponent says whether it is zero.
            (f64::from(zero(f(a))).to_bits() >> 32) & 0x7ff0_0000
        },
    );
    check("add.rn.f32x2 %rd20, %rd10, %rd11;", 8, &pairs(), |[a, b, _]| {
        bits(f(a) + f(b)) | bits(f(a >> 32) + f(b >> 32)) << 32
    });
    check("fma.rn.f32x2 %rd20, %rd10, %rd11, %rd12;", 8, &pairs(), |[a, b, c]| {
        let one = |n: u32| bits(f(a >> n).mul_add(f(b >> n), f(c >> n)));
        one(0) | one(32) << 32
    });
    // Reciprocals of large divisors are zero to it.
    let large = [[bits(3.0), bits(2f32.powi(127)), 0], [bits(f32::INFINITY), bits(2f32.powi(127)), 0]];
    let got = results("div.approx.f32 %r20, %r10, %r11;", 4, &large);
    assert_eq!(got[0], 0);
    assert!(f(got[1]).is_nan());
}

/// Two f32 in each operand.
fn pairs() -> Vec<Operands> {
    let x = floats();
    x.iter().zip(x.iter().rev()).map(|(a, b)| [0, 1, 2].map(|n| a[n] & 0xffff_ffff | b[n] << 32)).collect()
}

#[test]
fn doubles_too() {
    let x: Vec<Operands> = doubles().into_iter().filter(|x| !x.iter().any(|&x| d(x).is_nan())).collect();
    check("min.f64 %rd20, %rd10, %rd11;", 8, &x, |[a, b, _]| {
        let less = d(a) < d(b) || d(a) == d(b) && d(a).is_sign_negative();
        if less { a } else { b }
    });
    check("abs.f64 %rd20, %rd10;", 8, &x, |[a, ..]| d(a).abs().to_bits());
    check("neg.f64 %rd20, %rd10;", 8, &x, |[a, ..]| (-d(a)).to_bits());
    check("setp.ltu.f64 %p1, %rd10, %rd11;", 0, &x, |[a, b, _]| u64::from(d(a) < d(b)));
    check("copysign.f64 %rd20, %rd10, %rd11;", 8, &x, |[a, b, _]| d(b).copysign(d(a)).to_bits());
    let positive: Vec<Operands> = x.iter().map(|x| x.map(|x| x & !(1 << 63))).collect();
    check("sqrt.rn.f64 %rd20, %rd10;", 8, &positive, |[a, ..]| d(a).sqrt().to_bits());
    check("rcp.rn.f64 %rd20, %rd10;", 8, &positive, |[a, ..]| (1.0 / d(a)).to_bits());
    check("cvt.rmi.f64.f64 %rd20, %rd10;", 8, &x, |[a, ..]| d(a).floor().to_bits());
    check("cvt.rni.s64.f64 %rd20, %rd10;", 8, &x, |[a, ..]| d(a).round_ties_even() as i64 as u64);
    check("cvt.rpi.u16.f64 %rs20, %rd10;", 2, &x, |[a, ..]| d(a).ceil() as u16 as u64);
}

#[test]
fn functions_of_halves() {
    let x = halves();
    let near = |instruction: &str, of: fn(f64) -> f64, bf: bool| {
        let wide =
            |x: u64| if bf { bf16::from_bits(x as u16).to_f64() } else { f16::from_bits(x as u16).to_f64() };
        for (got, x) in results(instruction, 2, &x).into_iter().zip(&x) {
            let (got, want) = (wide(got), of(wide(x[0] & 0xffff)));
            let (step, top, least) =
                if bf { (2f64.powi(-8), 3.4e38, 0.0) } else { (2f64.powi(-11), 65504.0, 2f64.powi(-25)) };
            let close = (got - want).abs() <= want.abs() * step + least || got == want;
            let over = got.is_infinite() && want.abs() >= top * (1.0 - step);
            // bf16 and f32 share the range: what is subnormal there, this flushes.
            let flushed = bf && got == 0.0 && want.abs() < f64::from(f32::MIN_POSITIVE);
            assert!(
                close || over || flushed || got.is_nan() && want.is_nan(),
                "{instruction} {x:x?}: {got} {want}"
            );
        }
    };
    near("ex2.approx.f16 %rs20, %rs10;", f64::exp2, false);
    near("ex2.approx.ftz.bf16 %rs20, %rs10;", f64::exp2, true);
    near("tanh.approx.f16 %rs20, %rs10;", f64::tanh, false);
    near("tanh.approx.bf16 %rs20, %rs10;", f64::tanh, true);
    let h = |x: u64| f16::from_bits(x as u16);
    check("min.NaN.f16 %rs20, %rs10, %rs11;", 2, &x, |[a, b, _]| match (h(a), h(b)) {
        (x, y) if x.is_nan() || y.is_nan() => 0x7fff,
        (x, y) => u64::from(if x < y || x == y && x.is_sign_negative() { x } else { y }.to_bits()),
    });
    let flush =
        |x: f16| if x.to_f32().abs() < 2f32.powi(-14) { f16::from_f32(0f32.copysign(x.to_f32())) } else { x };
    check("mul.rn.ftz.f16 %rs20, %rs10, %rs11;", 2, &x, |[a, b, _]| {
        let y = flush(f16::from_f32(flush(h(a)).to_f32() * flush(h(b)).to_f32()));
        if y.is_nan() { 0x7fff } else { y.to_bits().into() }
    });
    let b = |x: u64| bf16::from_bits(x as u16).to_f32();
    check("add.rn.f32.f16 %r20, %rs10, %r11;", 4, &x, |[a, b, _]| bits(h(a).to_f32() + f(b)));
    check("sub.rn.f32.bf16 %r20, %rs10, %r11;", 4, &x, |[a, c, _]| bits(b(a) - f(c)));
    check("fma.rn.f32.bf16 %r20, %rs10, %rs11, %r12;", 4, &x, |[a, c, e]| bits(b(a).mul_add(b(c), f(e))));
    check("cvt.rn.f16x2.f32 %r20, %r10, %r11;", 4, &floats(), |[a, b, _]| {
        let one = |x: u64| if f(x).is_nan() { 0x7fff } else { u64::from(f16::from_f32(f(x)).to_bits()) };
        one(a) << 16 | one(b)
    });
    check(
        "cvt.f64.f16 %rd20, %rs10; setp.nan.f64 %p1, %rd20, %rd20; selp.b64 %rd20, 1, %rd20, %p1;",
        8,
        &x,
        |[a, ..]| {
            if h(a).is_nan() { 1 } else { h(a).to_f64().to_bits() }
        },
    );
    check("cvt.rzi.s16.f16 %rs20, %rs10;", 2, &x, |[a, ..]| h(a).to_f32() as i16 as u16 as u64);
    check("cvt.rni.f16.f16 %rs20, %rs10;", 2, &x, |[a, ..]| match h(a).to_f32().round_ties_even() {
        x if x.is_nan() => 0x7fff,
        x => f16::from_f32(x).to_bits().into(),
    });
    check("cvt.rn.bf16.s32 %rs20, %r10;", 2, &x, |[a, ..]| {
        // The nearest of 8 bits, by hand.
        let (sign, x) = (u64::from((a as i32) < 0), u64::from((a as i32).unsigned_abs()));
        let shift = (64 - x.leading_zeros()).saturating_sub(8);
        let (kept, rest) = (x >> shift, x & ((1 << shift) - 1));
        let half = if shift == 0 { 1 } else { 1 << (shift - 1) };
        let up = rest > half || shift > 0 && rest == half && kept & 1 == 1;
        let value = ((kept + u64::from(up)) << shift) as f32;
        sign << 15 | u64::from(value.to_bits() >> 16)
    });
}
