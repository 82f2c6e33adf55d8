//! Kernels of the library against products and softmaxes in f64.

use super::{Line, Noise, Place, bytes, ptx};
use half::bf16;
use pcc_ir::gpu::attention::AttentionKernel;
use pcc_ir::gpu::gemm::{GemmKernel, GemmPath};
use pcc_ir::gpu::{Arch, LibraryKernel, f32_param};
use pcc_ir::program::{AttentionCall, Base, Loc, Strided};
use pcc_ir::{DType, Diagnostic, Extent};
use pcc_runtime::{DenseProduct, Probe};

/// What a result may be off, relative to the largest: rounding of bf16 once.
const BF16: f64 = 1.0 / 256.0;

/// The code of all that is checked.
pub fn prepare(place: &Place) -> Result<String, Diagnostic> {
    let mut library: Vec<LibraryKernel> =
        products(place.arch).iter().map(|p| LibraryKernel::Gemm(p.0)).collect();
    for kernel in attentions().iter().map(AttentionKernel::of) {
        library.push(LibraryKernel::Attention(kernel));
        library.extend(kernel.join().map(LibraryKernel::AttentionJoin));
    }
    library.sort_unstable();
    library.dedup();
    ptx(place, "checked", &library)
}

/// Checks every path.
pub fn check(place: &Place, show: &mut dyn FnMut(Line)) -> Result<(), Diagnostic> {
    let (products, attentions) = (products(place.arch), attentions());
    let mut probe = Probe::open(&place.gpus, place.arch, &prepare(place)?)?;
    for (kernel, [m, n, k]) in products {
        let off = product_off(&mut probe, kernel, [m, n, k])?;
        let what = format!("product {:?}, {m} x {n} x {k}, bf16", kernel.path);
        show(Line::new(what, format!("off {off:.1e} of the largest"), format!("{BF16:.1e}"), off <= BF16));
        probe.clear();
    }
    for call in attentions {
        let kernel = AttentionKernel::of(&call);
        let off = attention_off(&mut probe, &call)?;
        let [b, s, t, g, r, d, _] = call.extents().map(|e| e.full);
        let split = if kernel.split { ", split" } else { "" };
        let what =
            format!("attention {:?}{split}, b {b} s {s} t {t} heads {g} x {r} d {d}, bf16", kernel.path);
        show(Line::new(
            what,
            format!("off {off:.1e} of the largest"),
            format!("{:.1e}", 2.0 * BF16),
            off <= 2.0 * BF16,
        ));
        probe.clear();
    }
    Ok(())
}

/// As weights are stored, [n, k].
pub fn product_kernel(m: u64, path: GemmPath) -> GemmKernel {
    let dtype = DType::BF16;
    let rows = match path {
        GemmPath::Simt => 64,
        GemmPath::Mma => {
            if m <= 64 {
                64
            } else {
                128
            }
        }
        GemmPath::Wgmma => 128,
        GemmPath::Few => m.next_power_of_two() as u32,
    };
    let by_k = path != GemmPath::Simt;
    GemmKernel { path, a: dtype, b: dtype, c: dtype, rows, a_by_k: by_k, b_by_k: by_k, epilogue: None }
}

/// The path of large products of 16-bit matrices.
pub fn large(arch: Arch) -> GemmPath {
    if arch == Arch::Sm90a { GemmPath::Wgmma } else { GemmPath::Mma }
}

fn products(arch: Arch) -> Vec<(GemmKernel, [u64; 3])> {
    let sizes = [
        (GemmPath::Simt, [33, 70, 40]),
        (GemmPath::Mma, [33, 70, 40]),
        (GemmPath::Mma, [130, 200, 264]),
        // More turns than stages, more tiles than one.
        (large(arch), [260, 600, 1032]),
        (GemmPath::Few, [1, 200, 520]),
        (GemmPath::Few, [5, 70, 264]),
    ];
    sizes.map(|(path, size)| (product_kernel(size[0], path), size)).to_vec()
}

fn product_off(probe: &mut Probe, kernel: GemmKernel, [m, n, k]: [u64; 3]) -> Result<f64, Diagnostic> {
    let mut noise = Noise::new(7);
    let (a, b) = (noise.bf16((m * k) as usize), noise.bf16((n * k) as usize));
    let poison = vec![0xFFu8; (m * n * 2) as usize];
    let product = DenseProduct {
        kernel,
        m,
        n,
        k,
        a: probe.upload(&bytes(&a))?,
        b: probe.upload(&bytes(&b))?,
        c: probe.upload(&poison)?,
    };
    probe.time_product(&product, 1)?;
    let got = read(probe, product.c, (m * n) as usize)?;
    let row = |x: &[bf16], i: usize| x[i * k as usize..(i + 1) * k as usize].to_vec();
    let dot = |i: usize, j: usize| -> f64 {
        row(&a, i).iter().zip(&row(&b, j)).map(|(x, y)| x.to_f64() * y.to_f64()).sum()
    };
    let want: Vec<f64> = (0..(m * n) as usize).map(|i| dot(i / n as usize, i % n as usize)).collect();
    Ok(off(&got, &want))
}

fn read(probe: &Probe, address: u64, count: usize) -> Result<Vec<f64>, Diagnostic> {
    let mut raw = vec![0; count * 2];
    probe.download(address, &mut raw)?;
    Ok(raw.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f64()).collect())
}

/// The largest difference, relative to the largest value.
fn off(got: &[f64], want: &[f64]) -> f64 {
    let largest = want.iter().fold(f64::MIN_POSITIVE, |m, x| m.max(x.abs()));
    let far = |(a, b): (&f64, &f64)| (a - b).abs() / largest;
    got.iter().zip(want).map(far).fold(0.0, |m, x| if x > m || x.is_nan() { x } else { m })
}

/// Causal attention over dense tensors, q [b,s,g,r,d], k and v [b,t,g,d].
pub fn attention_call([b, s, t, g, r, d]: [u64; 6]) -> AttentionCall {
    let loc = Loc { base: Base::Frame, offset: 0 };
    let dense = |shape: &[u64], dtype| {
        let mut strides = vec![1i64; shape.len()];
        for i in (0..shape.len() - 1).rev() {
            strides[i] = strides[i + 1] * shape[i + 1] as i64;
        }
        Strided { loc, dtype, strides }
    };
    let extent = Extent::full;
    AttentionCall {
        b: extent(b),
        s: extent(s),
        t: extent(t),
        g: extent(g),
        r: extent(r),
        d: extent(d),
        e: extent(d),
        scale: 1.0 / (d as f64).sqrt(),
        causal: true,
        window: None,
        softcap: None,
        bf16_bias: false,
        q: dense(&[b, s, g, r, d], DType::BF16),
        k: dense(&[b, t, g, d], DType::BF16),
        v: dense(&[b, t, g, d], DType::BF16),
        q_pos: Some(dense(&[b, s], DType::I32)),
        k_pos: dense(&[b, t], DType::I32),
        slopes: None,
        out: dense(&[b, s, g, r, d], DType::BF16),
        scratch: None,
    }
}

fn attentions() -> Vec<AttentionCall> {
    let sizes = [[2, 37, 37, 2, 3, 64], [1, 1, 150, 2, 4, 128], [2, 5, 9, 1, 2, 24]];
    let mut calls = sizes.map(attention_call).to_vec();
    // Keys shared out among blocks, and joined.
    let mut split = attention_call([2, 1, 1300, 2, 4, 64]);
    split.scratch = Some(split.out.loc);
    calls.push(split);
    calls
}

/// Operands of a call, uploaded.
pub struct Operands {
    q: Vec<bf16>,
    k: Vec<bf16>,
    v: Vec<bf16>,
    pub out: u64,
    pub params: Vec<u64>,
}

/// Random queries, keys and values; the queries are the last positions.
pub fn attention_operands(probe: &mut Probe, call: &AttentionCall) -> Result<Operands, Diagnostic> {
    let [b, s, t, g, r, d, _] = call.extents().map(|e| e.full as usize);
    let mut noise = Noise::new(3);
    let (q, k, v) = (noise.bf16(b * s * g * r * d), noise.bf16(b * t * g * d), noise.bf16(b * t * g * d));
    let positions = |first: usize, count: usize| -> Vec<u8> {
        (0..b).flat_map(|_| first..first + count).flat_map(|p| (p as i32).to_le_bytes()).collect()
    };
    let addresses = [
        probe.upload(&bytes(&q))?,
        probe.upload(&bytes(&k))?,
        probe.upload(&bytes(&v))?,
        probe.upload(&positions(t - s, s))?,
        probe.upload(&positions(0, t))?,
    ];
    let out = probe.upload(&vec![0xFF; b * s * g * r * d * 2])?;
    let mut params = addresses.to_vec();
    params.extend([0, out]);
    params.extend([b, s, t, g, r].map(|n| n as u64));
    let views = [Some(&call.q), Some(&call.k), Some(&call.v), call.q_pos.as_ref(), Some(&call.k_pos)];
    params.extend(views.into_iter().flatten().flat_map(|v| &v.strides).map(|&s| s as u64));
    params.extend([0, 0]);
    params.extend(call.out.strides.iter().map(|&s| s as u64));
    params.extend([f32_param(call.scale as f32), f32_param(0.0), 0]);
    Ok(Operands { q, k, v, out, params })
}

fn attention_off(probe: &mut Probe, call: &AttentionCall) -> Result<f64, Diagnostic> {
    let [b, s, t, g, r, d, _] = call.extents().map(|e| e.full as usize);
    let operands = attention_operands(probe, call)?;
    let kernel = AttentionKernel::of(call);
    let [nb, ns, ng, nr] = [b, s, g, r].map(|n| n as u64);
    let mut shape = kernel.shape(nb, ns, ng, nr);
    shape.grid[2] = kernel.ranges(t as u64);
    let mut params = operands.params.clone();
    let partials = call.scratch_bytes().filter(|_| kernel.split);
    let partials = partials.map(|n| probe.upload(&vec![0xFF; n as usize])).transpose()?;
    params.extend(partials);
    probe.time(&LibraryKernel::Attention(kernel), &shape, &params, 1)?;
    if let (Some(join), Some(partials)) = (kernel.join(), partials) {
        let mut params = vec![partials, operands.out, nb, ns, ng, nr, u64::from(kernel.ranges(t as u64))];
        params.extend(call.out.strides.iter().map(|&s| s as u64));
        probe.time(&LibraryKernel::AttentionJoin(join), &join.shape(nb * ns * ng * nr), &params, 1)?;
    }
    let got = read(probe, operands.out, b * s * g * r * d)?;
    let line =
        |x: &[bf16], i: usize| -> Vec<f64> { x[i * d..(i + 1) * d].iter().map(|v| v.to_f64()).collect() };
    let mut want = Vec::with_capacity(got.len());
    for row in 0..b * s * g * r {
        let (head, query, batch) = (row / r % g, row / (r * g) % s, row / (r * g * s));
        let q = line(&operands.q, row);
        let seen = t - s + query + 1;
        let key = |j: usize| (batch * t + j) * g + head;
        let score = |j: usize| -> f64 {
            q.iter().zip(line(&operands.k, key(j))).map(|(x, y)| x * y).sum::<f64>() * call.scale
        };
        let scores: Vec<f64> = (0..seen).map(score).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|x| (x - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut sum = vec![0.0; d];
        for (j, weight) in weights.iter().enumerate() {
            let v = line(&operands.v, key(j));
            sum.iter_mut().zip(v).for_each(|(s, v)| *s += weight / total * v);
        }
        want.extend(sum);
    }
    Ok(off(&got, &want))
}
