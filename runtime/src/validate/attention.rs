//! Attention calls: extents are sane, and every operand stays inside its buffer.

use super::LARGEST;
use super::instr::{buffer, overlap, span};
use super::reach::Reach;
use pcc_ir::program::{AttentionCall, FuncProgram, Loc, Strided};
use pcc_ir::strides::are_injective;
use pcc_ir::{DType, Extent};
use std::ops::Range;

/// Most elements of a head: workers hold the heads of a tile of queries.
const HEAD: u64 = 1 << 16;

pub(super) fn check(func: &FuncProgram, call: &AttentionCall) -> Result<(), String> {
    let extents = call.extents().map(|e| e.full);
    let [.., d, e] = extents;
    let pairs = extents.iter().try_fold(1u64, |n, &e| n.checked_mul(e).filter(|&n| n > 0 && n < LARGEST));
    if pairs.is_none() || d > HEAD || e > HEAD {
        return Err(format!("extents {extents:?} are zero or too large"));
    }
    let positive = |x: f64| x.is_finite() && x > 0.0;
    if !call.scale.is_finite() || call.window == Some(0) || !call.softcap.is_none_or(positive) {
        return Err("scale, window or softcap is out of range".to_owned());
    }
    if call.bf16_bias && call.slopes.is_none() {
        return Err("biases in bf16 need slopes".to_owned());
    }
    if (call.causal || call.window.is_some()) != call.q_pos.is_some() {
        return Err("positions of queries are given where none are needed, or are missing".to_owned());
    }
    let mut read = Vec::new();
    for (name, view, extents) in call.reads() {
        let of_type = match name {
            "q_pos" | "k_pos" => view.dtype == DType::I32,
            "slopes" => view.dtype == DType::F32,
            _ => matches!(view.dtype, DType::F32 | DType::BF16 | DType::F16),
        };
        if !of_type {
            return Err(format!("{name} is {}", view.dtype));
        }
        read.push((&view.loc, one(func, name, view, &extents, false)?));
    }
    if !matches!(call.out.dtype, DType::F32 | DType::BF16 | DType::F16) {
        return Err(format!("out is {}", call.out.dtype));
    }
    let mut written = vec![(&call.out.loc, one(func, "out", &call.out, &call.made(), true)?)];
    if let Some(loc) = &call.scratch {
        written.push((loc, scratch(func, call, loc)?));
    }
    distinct(func, call)?;
    for (i, &(loc, ref bytes)) in written.iter().enumerate() {
        let others = read.iter().chain(&written[..i]);
        if others.into_iter().any(|&(l, ref b)| overlap(func, (loc, bytes), (l, b))) {
            return Err("what is written overlaps what is read".to_owned());
        }
    }
    Ok(())
}

/// The bytes of an operand.
fn one(
    func: &FuncProgram,
    name: &str,
    view: &Strided,
    extents: &[&Extent],
    write: bool,
) -> Result<Range<u64>, String> {
    if view.strides.len() != extents.len() {
        return Err(format!("{name} has {} strides for {} dims", view.strides.len(), extents.len()));
    }
    let steps = extents.iter().zip(&view.strides);
    let reach = steps.fold(Reach::POINT, |r, (extent, &stride)| r.along(extent.full.into(), stride.into()));
    span(func, &view.loc, write, view.dtype, reach).map_err(|why| format!("{name}: {why}"))
}

fn scratch(func: &FuncProgram, call: &AttentionCall, loc: &Loc) -> Result<Range<u64>, String> {
    if !AttentionCall::may_split_keys(call.s.full, call.r.full, call.t.full) {
        return Err("scratch is given where none is needed".to_owned());
    }
    let bytes = call.scratch_bytes().filter(|&n| n < LARGEST);
    let bytes = bytes.ok_or_else(|| "its scratch is too large".to_owned())?;
    let reach = Reach::POINT.along((bytes / 4).into(), 1);
    span(func, loc, true, DType::F32, reach).map_err(|why| format!("scratch: {why}"))
}

/// Strides of zero make any extent fit, and a lying extent would run for years: elements of out are distinct, and keys differ in something.
fn distinct(func: &FuncProgram, call: &AttentionCall) -> Result<(), String> {
    let held = |view: &Strided| Ok::<_, String>(buffer(func, &view.loc, false)? / view.dtype.bytes() as u64);
    let made: u64 = call.made().iter().map(|e| e.full).product();
    let most = |views: [&Strided; 3]| views.into_iter().try_fold(0, |n, v| held(v).map(|h| h.max(n)));
    let (keys, heads) = (most([&call.k, &call.v, &call.k_pos])?, most([&call.q, &call.k, &call.q])?);
    if made > held(&call.out)? || call.t.full > keys || call.d.full > heads {
        return Err("extents are more than the buffers have elements".to_owned());
    }
    // Queries and heads are computed at a time.
    if !are_injective(call.made().into_iter().map(|e| e.full).zip(call.out.strides.iter().copied())) {
        return Err("strides of out may take two results to one element".to_owned());
    }
    Ok(())
}
