//! Functions against f64 closed forms, over dense ranges and all over f32.

use super::gpu::{keep, ptx};
use super::harness::*;
use super::simulate::PLAIN;
use pcc_cuda_sim::ptx::Module;
use pcc_ir::gpu::Arch;
use pcc_ir::kernel::{Lane, Node};
use pcc_ir::ops::{BinaryKind, UnaryKind};
use pcc_ir::types::DType;

/// Distance from an f64 to an f32 in units of the last place of the f64's nearest f32.
fn ulps(got: f32, want: f64) -> f64 {
    let nearest = want as f32;
    if got == nearest || (got.is_nan() && want.is_nan()) {
        return 0.0;
    }
    if !nearest.is_finite() || !got.is_finite() {
        // Within half a unit of the largest float either is right.
        let limit = f64::from(f32::MAX);
        return if want.abs() > limit * (1.0 - 1e-6) && got.abs() >= f32::MAX { 0.0 } else { f64::INFINITY };
    }
    (f64::from(got) - want).abs() / unit(nearest)
}

fn unit(x: f32) -> f64 {
    let exponent = ((x.abs().to_bits() >> 23) as i32).max(1);
    2f64.powi(exponent - 150)
}

/// A kernel that works out the last node for every element of its operands.
fn case(nodes: &[Node], inputs: &[&[f32]]) -> Case {
    let mut accesses = vec![read(DType::F32, Lane::Unit); inputs.len()];
    accesses.push(write(DType::F32, Lane::Unit));
    let k = kernel(1, 0, &accesses, nodes, &[store(inputs.len() as u32, nodes.len() as u32 - 1)]);
    let columns: Vec<Vec<f64>> = inputs.iter().map(|c| c.iter().map(|&x| f64::from(x)).collect()).collect();
    flat(k, inputs[0].len(), &columns)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Results by the code of each CPU; both must agree to the bit.
fn map(nodes: &[Node], inputs: &[&[f32]]) -> Vec<f32> {
    let case = case(nodes, inputs);
    let code = |cpu| compile(std::slice::from_ref(&case.kernel), cpu);
    let floats = cpus().map(|cpu| floats(&case.run(&code(cpu), 0, &[0, 1]).pop().unwrap()));
    for (i, (a, b)) in floats[0].iter().zip(&floats[1]).enumerate() {
        assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "element {i}: {a:e} and {b:e}");
    }
    floats.into_iter().next().unwrap()
}

/// Results of the same as PTX, for [`SIMULATED`] of the elements.
fn map_ptx(nodes: &[Node], inputs: &[&[f32]]) -> Vec<f32> {
    let case = case(nodes, inputs);
    let kernels = std::slice::from_ref(&case.kernel);
    keep(kernels, &[]);
    let module = Module::load(&ptx(kernels, &[], Arch::Sm90)).unwrap();
    floats(&case.simulate(&module, PLAIN, false).unwrap().pop().unwrap())
}

/// Most elements that are simulated: it takes some thousand times longer.
const SIMULATED: usize = 3000;
/// What the GPU's approximations may add to an error in ulps. The simulator rounds them rightly, hardware need not: PTX gives 2^-22 of the value
/// for `ex2.approx`, 2^-22.9 for `rsqrt.approx` and 1 ulp for `rcp.approx`.
fn approximation(kind: UnaryKind) -> f64 {
    use UnaryKind::*;
    match kind {
        Exp | Tanh | Erf | Sigmoid | Silu | Gelu | GeluTanh | Rsqrt => 1.5,
        _ => 0.0,
    }
}

/// Every so many elements, the last few with them.
fn some(inputs: &[f32]) -> Vec<f32> {
    let (most, last) = inputs.split_at(inputs.len().saturating_sub(SPECIALS));
    most.iter().step_by(most.len() / SIMULATED + 1).chain(last).copied().collect()
}

fn unary(kind: UnaryKind, inputs: &[f32]) -> Vec<f32> {
    map(&[Node::Load(0), Node::Unary(kind, 0)], &[inputs])
}

fn even(from: f32, to: f32, n: usize) -> Vec<f32> {
    (0..=n).map(|i| from + (to - from) * (i as f32 / n as f32)).collect()
}

/// Special values at the end of [`everywhere`].
const SPECIALS: usize = 9;

/// Every 4,099th float: all exponents, both signs, subnormals, infinities and NaN.
fn everywhere() -> Vec<f32> {
    let specials: [f32; SPECIALS] =
        [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1.0];
    (0..=u32::MAX).step_by(4099).map(f32::from_bits).chain(specials).collect()
}

/// The largest error in ulps, or in units of the last place of the argument where that is larger and `beside` says so. The error of
/// the GPU counts as far as it is larger by more than its approximations may make it.
fn worst(kind: UnaryKind, inputs: &[f32], beside: bool) -> (f64, f32) {
    let some = some(inputs);
    let (gpu, at) = worst_of(kind, &some, &map_ptx(&[Node::Load(0), Node::Unary(kind, 0)], &[&some]), beside);
    let (cpu, cpu_at) = worst_of(kind, inputs, &unary(kind, inputs), beside);
    let gpu = gpu - approximation(kind);
    if gpu > cpu { (gpu, at) } else { (cpu, cpu_at) }
}

fn worst_of(kind: UnaryKind, inputs: &[f32], results: &[f32], beside: bool) -> (f64, f32) {
    let error = |(&x, &got): (&f32, &f32)| {
        let want = kind.apply(f64::from(x));
        let ulps = ulps(got, want);
        let scale = if beside && ulps.is_finite() { (unit(want as f32) / unit(x)).min(1.0) } else { 1.0 };
        (ulps * scale, x)
    };
    inputs.iter().zip(results).map(error).fold((0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a })
}

#[track_caller]
fn within(kind: UnaryKind, inputs: &[f32], bound: f64) {
    let (error, at) = worst(kind, inputs, false);
    assert!(error <= bound, "{kind:?}({at:e}) is off by {error} ulp");
}

#[test]
fn exact_functions_are_exact() {
    for kind in [UnaryKind::Neg, UnaryKind::Abs, UnaryKind::Sqrt, UnaryKind::Recip] {
        within(kind, &everywhere(), 0.5);
    }
    within(UnaryKind::Rsqrt, &everywhere(), 1.5);
}

#[test]
fn exp_and_log() {
    within(UnaryKind::Exp, &even(-104.5, 89.5, 400_000), 1.1);
    within(UnaryKind::Exp, &everywhere(), 1.1);
    within(UnaryKind::Log, &even(0.3, 3.0, 400_000), 1.2);
    within(UnaryKind::Log, &everywhere(), 1.2);
}

#[test]
fn tanh_and_erf_are_relative_near_zero() {
    within(UnaryKind::Tanh, &even(-10.0, 10.0, 400_000), 1.7);
    within(UnaryKind::Tanh, &everywhere(), 1.7);
    within(UnaryKind::Erf, &even(-4.5, 4.5, 400_000), 1.6);
    within(UnaryKind::Erf, &everywhere(), 1.6);
}

#[test]
fn sine_and_cosine_reduce_large_arguments() {
    for kind in [UnaryKind::Sin, UnaryKind::Cos] {
        within(kind, &even(-10.0, 10.0, 200_000), 1.6);
        within(kind, &even(-1e5, 1e5, 400_000), 1.6);
        within(kind, &even(1e7, 1e9, 100_000), 1.6);
        // Floats next to multiples of pi/2, where the result is smallest.
        let near: Vec<f32> =
            (1..60_000).map(|j| (f64::from(j) * std::f64::consts::FRAC_PI_2) as f32).collect();
        within(kind, &near, 1.6);
        let results = unary(kind, &[f32::NAN, f32::INFINITY, 3e14, 1e38]);
        assert!(results.iter().all(|x| x.is_nan()), "{results:?}");
    }
}

#[test]
fn sigmoids() {
    within(UnaryKind::Sigmoid, &even(-87.0, 120.0, 400_000), 2.6);
    within(UnaryKind::Silu, &even(-85.0, 120.0, 400_000), 2.6);
    // Below, exp(-x) overflows and the result is zero for what would be subnormal.
    for kind in [UnaryKind::Sigmoid, UnaryKind::Silu] {
        let (error, at) = worst(kind, &everywhere(), true);
        assert!(error <= 2.6, "{kind:?}({at:e}) is off by {error} ulp of its argument");
    }
}

#[test]
fn gelus_are_good_to_the_last_places_of_their_argument() {
    for kind in [UnaryKind::Gelu, UnaryKind::GeluTanh] {
        let (error, at) = worst(kind, &even(-12.0, 12.0, 400_000), true);
        assert!(error <= 1.5, "{kind:?}({at:e}) is off by {error} ulp of its argument");
        let small: Vec<f32> = everywhere().into_iter().filter(|x| x.abs() < 0.5).collect();
        within(kind, &small, 3.0);
    }
}

#[test]
fn powers() {
    let mut rng = Rng(5);
    let bases: Vec<f32> =
        (0..200_000).map(|_| (rng.next() as f64 / 1.8e19 * 40.0 - 20.0).exp() as f32).collect();
    let powers: Vec<f32> = bases.iter().map(|_| (rng.next() as f64 / 1.8e19 * 20.0 - 10.0) as f32).collect();
    let specials = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -2.0,
        3.0,
        -3.0,
        0.5,
        -0.5,
        2.5,
        1e30,
        -1e30,
        16_777_216.0,
        -8_388_609.0,
        1e-40,
    ];
    let specials = || specials.into_iter().chain([f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
    let pairs: Vec<(f32, f32)> = bases
        .into_iter()
        .zip(powers)
        .chain(specials().flat_map(|x| specials().map(move |y| (x, y))))
        .collect();
    let (xs, ys): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
    let nodes = [Node::Load(0), Node::Load(1), Node::Binary(BinaryKind::Pow, 0, 1)];
    let few = |v: &[f32]| -> Vec<f32> { v.iter().rev().take(SIMULATED).copied().collect() };
    let (few_xs, few_ys) = (few(&xs), few(&ys));
    let simulated = map_ptx(&nodes, &[&few_xs, &few_ys]).into_iter();
    let simulated = pairs.iter().rev().zip(simulated);
    for ((x, y), got) in pairs.iter().zip(map(&nodes, &[&xs, &ys])).chain(simulated) {
        let want = f64::from(*x).powf(f64::from(*y));
        let error = ulps(got, want);
        assert!(error <= 0.52, "{x:e} ^ {y:e} = {got:e}, not {want:e}");
        assert!(
            want.is_nan() || got.is_sign_negative() == want.is_sign_negative(),
            "{x:e} ^ {y:e} = {got:e}, not {want:e}"
        );
    }
}
