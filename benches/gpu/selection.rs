//! Top-k and sampling of the library against the reference evaluator.

use super::{Line, Noise, Place, ptx};
use pcc_ir::eval::{At, Tensor};
use pcc_ir::gpu::LibraryKernel;
use pcc_ir::gpu::selection::{ROW_DIMS, TopKKernel, shape};
use pcc_ir::ops::sample::Draw;
use pcc_ir::ops::{Op, Sample, TopK};
use pcc_ir::types::Type;
use pcc_ir::{DType, Diagnostic};
use pcc_runtime::Probe;

const ROWS: usize = 3;
/// Elements of a row: more than a pass of a block.
const ELEMENTS: usize = 5003;
const KEPT: usize = 50;
/// Draws of each row.
const DRAWS: usize = 12;

/// The code of both.
pub fn prepare(place: &Place) -> Result<String, Diagnostic> {
    ptx(place, "selections", &[top_k(), LibraryKernel::Sample])
}

fn top_k() -> LibraryKernel {
    LibraryKernel::TopK(TopKKernel { dtype: DType::F32, k: KEPT as u32 })
}

/// Checks both.
pub fn check(place: &Place, show: &mut dyn FnMut(Line)) -> Result<(), Diagnostic> {
    let mut probe = Probe::open(&place.gpus, place.arch, &prepare(place)?)?;
    let mut noise = Noise::new(11);
    // Coarse: many are equal.
    let logits: Vec<f32> =
        noise.bf16(ROWS * ELEMENTS).iter().map(|x| (x.to_f32() * 16.0).round() / 4.0).collect();
    let wrong = check_top_k(&mut probe, &logits)?;
    let limit = "as the reference".to_owned();
    let what = format!("top {KEPT} of {ROWS} x {ELEMENTS}, f32");
    show(Line::new(what, format!("{wrong} of {} differ", 2 * ROWS * KEPT), limit.clone(), wrong == 0));
    let wrong = check_sample(&mut probe, &logits)?;
    let what = format!("tokens drawn from {ROWS} x {ELEMENTS} logits");
    show(Line::new(what, format!("{wrong} of {} differ", ROWS * DRAWS), limit, wrong == 0));
    Ok(())
}

/// How many values and indices are not the reference's.
fn check_top_k(probe: &mut Probe, x: &[f32]) -> Result<usize, Diagnostic> {
    let op = Op::TopK(TopK { k: KEPT });
    let ty = Type::f32([ROWS, ELEMENTS]);
    let want = reference(&op, &[tensor(ty, x.iter().map(|&x| x.into()))?])?;
    let (from, poison) = (upload(probe, x.iter().map(|x| x.to_le_bytes()))?, [[0xFF; 4]; ROWS * KEPT]);
    let outs = [upload(probe, poison)?, upload(probe, poison)?];
    let mut params = vec![from, outs[0], outs[1], ELEMENTS as u64];
    for _ in 1..ROW_DIMS {
        params.extend([1, 0, 0, 0]);
    }
    params.extend([ROWS, ELEMENTS, KEPT, KEPT].map(|n| n as u64));
    params.extend([1, 1, 1]);
    probe.time(&top_k(), &shape(ROWS as u64), &params, 1)?;
    let values = words(probe, outs[0], ROWS * KEPT)?.into_iter().map(|b| f64::from(f32::from_le_bytes(b)));
    let indices = words(probe, outs[1], ROWS * KEPT)?.into_iter().map(|b| f64::from(i32::from_le_bytes(b)));
    let got = values.chain(indices);
    Ok(got.zip(want.iter().flat_map(|t| &t.data)).filter(|(g, w)| g != *w).count())
}

/// How many tokens are not the reference's.
fn check_sample(probe: &mut Probe, logits: &[f32]) -> Result<usize, Diagnostic> {
    let logits_type = Type::f32([ROWS, ELEMENTS]);
    let from = upload(probe, logits.iter().map(|x| x.to_le_bytes()))?;
    let mut wrong = 0;
    for draw in 0..DRAWS as u32 {
        let (temperature, top_p) = ([0.0, 0.7, 1.0][draw as usize % 3], [1.0, 0.9][draw as usize % 2]);
        let draw = Draw { temperature, top_p, top_k: [0, 40][draw as usize / 2 % 2], seed: 1 << 40, draw };
        let (settings, key) = (draw.settings().repeat(ROWS), draw.key().repeat(ROWS));
        let args = [
            tensor(logits_type.clone(), logits.iter().map(|&x| x.into()))?,
            tensor(Type::f32([ROWS, 2]), settings.iter().map(|&x| x.into()))?,
            tensor(Type::i32([ROWS, 4]), key.iter().map(|&x| x.into()))?,
        ];
        let want = reference(&Op::Sample(Sample {}), &args)?;
        let settings = upload(probe, settings.iter().map(|x| x.to_le_bytes()))?;
        let key = upload(probe, key.iter().map(|x| x.to_le_bytes()))?;
        let out = upload(probe, [[0xFF; 4]; ROWS])?;
        let sizes = [ROWS, ELEMENTS, ELEMENTS, 1, 2, 1, 4, 1, 1].map(|n| n as u64);
        let params = [&[from, settings, key, out], &sizes[..]].concat();
        probe.time(&LibraryKernel::Sample, &shape(ROWS as u64), &params, 1)?;
        let got = words(probe, out, ROWS)?.into_iter().map(|b| f64::from(i32::from_le_bytes(b)));
        wrong += got.zip(&want[0].data).filter(|(g, w)| g != *w).count();
    }
    Ok(wrong)
}

fn tensor(ty: Type, data: impl Iterator<Item = f64>) -> Result<Tensor, Diagnostic> {
    Tensor::new(ty, data.collect()).map_err(broken)
}

fn reference(op: &Op, args: &[Tensor]) -> Result<Vec<Tensor>, Diagnostic> {
    let args: Vec<&Tensor> = args.iter().collect();
    let types = op.infer(&args.iter().map(|t| &t.ty).collect::<Vec<_>>()).map_err(broken)?;
    op.eval(&args, &types.iter().collect::<Vec<_>>(), At::default()).map_err(broken)
}

fn broken(why: String) -> Diagnostic {
    Diagnostic::internal("the reference cannot run").why(why)
}

fn upload(probe: &mut Probe, words: impl IntoIterator<Item = [u8; 4]>) -> Result<u64, Diagnostic> {
    probe.upload(&words.into_iter().flatten().collect::<Vec<u8>>())
}

fn words(probe: &Probe, address: u64, count: usize) -> Result<Vec<[u8; 4]>, Diagnostic> {
    let mut raw = vec![0; count * 4];
    probe.download(address, &mut raw)?;
    Ok(raw.as_chunks().0.to_vec())
}
