//! Top-k and sampling: extents are sane, and every operand stays inside its buffer.

use super::instr::{overlap, span};
use super::reach::Reach;
use super::{DIMS, LARGEST};
use pcc_ir::ops::{sample, top_k};
use pcc_ir::program::{FuncProgram, SampleCall, TopKCall, View};
use pcc_ir::strides::are_injective;
use pcc_ir::{DType, Extent};

pub(super) fn check_top_k(func: &FuncProgram, call: &TopKCall) -> Result<(), String> {
    if call.rows.len() > DIMS || call.k == 0 || call.k > call.n || call.n > top_k::MOST as u64 {
        return Err(format!("{} of {} elements in {} dims", call.k, call.n, call.rows.len()));
    }
    if !matches!(call.x.dtype, DType::F32 | DType::BF16 | DType::F16) {
        return Err(format!("there is no top-k of {}", call.x.dtype));
    }
    check(func, &call.views())
}

pub(super) fn check_sample(func: &FuncProgram, call: &SampleCall) -> Result<(), String> {
    if call.tokens == 0 || call.tokens > sample::MOST as u64 {
        return Err(format!("{} tokens to choose from", call.tokens));
    }
    check(func, &call.views())
}

fn check(func: &FuncProgram, views: &[View<'_>]) -> Result<(), String> {
    let mut seen = Vec::new();
    for view in views {
        let (name, strided) = (view.name, view.strided);
        let size = |n: u64, e: &Extent| n.checked_mul(e.full).filter(|&n| n > 0 && n < LARGEST);
        let elements = view.extents.iter().try_fold(1, size);
        if elements.is_none() || strided.strides.len() != view.extents.len() {
            let whole: Vec<u64> = view.extents.iter().map(|e| e.full).collect();
            return Err(format!("{name} has extents {whole:?} and strides {:?}", strided.strides));
        }
        if strided.dtype != view.dtype {
            return Err(format!("{name} is {}, not {}", strided.dtype, view.dtype));
        }
        let steps = || view.extents.iter().map(|e| e.full).zip(strided.strides.iter().copied());
        let reach = steps().fold(Reach::POINT, |r, (n, stride)| r.along(n.into(), stride.into()));
        let bytes = span(func, &strided.loc, view.write, view.dtype, reach);
        let bytes = bytes.map_err(|why| format!("{name}: {why}"))?;
        // Rows are selected from at a time; and elements that are distinct bound the extents by the size of a buffer.
        if !are_injective(steps()) {
            return Err(format!("strides of {name} may take two elements to one"));
        }
        for &(loc, ref other, written) in &seen {
            if (view.write || written) && overlap(func, (&strided.loc, &bytes), (loc, other)) {
                return Err("what is written overlaps what is read".to_owned());
            }
        }
        seen.push((&strided.loc, bytes, view.write));
    }
    Ok(())
}
