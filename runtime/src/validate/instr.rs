//! Instructions: shapes agree, and every address stays inside the buffer it starts in.

use super::reach::Reach;
use super::{DIMS, LARGEST, check_axes};
use pcc_ir::kernel::{Kernel, Lane, Node};
use pcc_ir::mesh::group_size;
use pcc_ir::program::{
    Base, CollectiveCall, CollectiveKind, FuncProgram, Gemm, InstrKind, Launch, Loc, Matrix, PackedMatrix,
    Program, Rows, Scalar,
};
use pcc_ir::sharding::local_extent;
use pcc_ir::strides::are_injective;
use pcc_ir::{Clip, DType, Mesh, Part};
use std::ops::Range;

pub(super) fn check(program: &Program, func: &FuncProgram, kind: &InstrKind) -> Result<(), String> {
    for clip in kind.extents().into_iter().filter_map(|e| e.clip.as_deref()) {
        check_clip(program, clip)?;
    }
    match kind {
        InstrKind::Kernel(launch) => check_launch(program, func, launch),
        InstrKind::Gemm(gemm) => check_gemm(func, gemm),
        InstrKind::Attention(call) => super::attention::check(func, call),
        InstrKind::TopK(call) => super::selection::check_top_k(func, call),
        InstrKind::Sample(call) => super::selection::check_sample(func, call),
        InstrKind::Rows(rows) => check_rows(program, func, rows),
        InstrKind::Collective(call) => check_collective(&program.mesh, func, call),
    }
}

/// Bytes of the buffer that a location starts in; refuses to write arguments and constants.
pub(super) fn buffer(func: &FuncProgram, loc: &Loc, write: bool) -> Result<u64, String> {
    let Base::Slot(slot) = loc.base else {
        // Up to where what the team shares begins, or from there on.
        let private = func.frame_bytes.saturating_sub(func.shared_bytes);
        return Ok(if loc.offset < private { private } else { func.frame_bytes });
    };
    let Some(&bytes) = func.slot_bytes.get(slot as usize) else {
        return Err(format!("there is no slot {slot}"));
    };
    let result = slot >= func.args && u64::from(slot) < u64::from(func.args) + u64::from(func.results);
    if write && !result && !func.in_place.iter().any(|&(arg, _)| arg == slot) {
        return Err(format!("slot {slot} is written, but is no result"));
    }
    Ok(bytes)
}

pub(super) fn span(
    func: &FuncProgram,
    loc: &Loc,
    write: bool,
    dtype: DType,
    reach: Reach,
) -> Result<Range<u64>, String> {
    let bytes = buffer(func, loc, write)?;
    let private = func.frame_bytes.saturating_sub(func.shared_bytes);
    let border = |r: &Range<u64>| loc.base == Base::Frame && r.start < private && loc.offset >= private;
    reach.bytes_in(loc.offset, dtype.bytes(), bytes).filter(|r| !border(r)).ok_or_else(|| {
        format!("elements {} to {} from byte {} leave a buffer of {bytes}", reach.low, reach.high, loc.offset)
    })
}

/// Whether two spans share bytes of one buffer.
pub(super) fn overlap(func: &FuncProgram, a: (&Loc, &Range<u64>), b: (&Loc, &Range<u64>)) -> bool {
    let same = |x: Base, y: Base| match (x, y) {
        (Base::Slot(x), Base::Slot(y)) => {
            x == y || func.in_place.contains(&(x, y)) || func.in_place.contains(&(y, x))
        }
        _ => x == y,
    };
    same(a.0.base, b.0.base) && a.1.start < b.1.end && b.1.start < a.1.end
}

fn check_launch(program: &Program, func: &FuncProgram, launch: &Launch) -> Result<(), String> {
    let Some(kernel) = program.kernels.get(launch.kernel) else {
        return Err(format!("there is no kernel {}", super::index(launch.kernel)));
    };
    let (rank, accesses) = (kernel.rank as usize, kernel.accesses.len());
    let counts = [launch.ptrs.len(), launch.extents.len(), launch.strides.len(), launch.scalars.len()];
    if counts != [accesses, rank, accesses * rank, kernel.scalars as usize] {
        return Err(format!(
            "{counts:?} pointers, extents, strides and scalars do not fit kernel {}",
            kernel.name
        ));
    }
    let product = launch
        .extents
        .iter()
        .try_fold(1i64, |n, e| i64::try_from(e.full).ok().and_then(|e| n.checked_mul(e)));
    if product.is_none_or(|n| n as u64 >= LARGEST) {
        return Err(format!("extents {:?} are negative or too large", launch.extents));
    }
    for scalar in &launch.scalars {
        check_scalar(program, scalar)?;
    }
    if product == Some(0) {
        return Ok(());
    }
    let bounds: Vec<Range<i128>> = launch.scalars.iter().map(scalar_bounds).collect();
    let (mut largest, mut written, mut spans) = (1, 1, Vec::new());
    for (i, (access, loc)) in kernel.accesses.iter().zip(&launch.ptrs).enumerate() {
        let reach = access_reach(kernel, launch, i, &bounds)?;
        let bytes = span(func, loc, access.write, access.dtype, reach);
        spans.push(bytes.map_err(|why| format!("access {i}: {why}"))?);
        let elements = u128::from(buffer(func, loc, access.write)?) / access.dtype.bytes() as u128;
        largest = largest.max(elements);
        if access.write {
            written = written.max(elements);
        }
    }
    // Strides of zero make any extent fit: without this bound a lying extent would run for years.
    if product.is_some_and(|n| n as u128 > largest * written) {
        return Err(format!("extents {:?} are more than the buffers have elements", launch.extents));
    }
    super::launch::check_writes(func, kernel, launch, &spans)
}

/// Elements that an access reaches, with the extra offsets of the nodes and stores that use it.
fn access_reach(
    kernel: &Kernel,
    launch: &Launch,
    index: usize,
    bounds: &[Range<i128>],
) -> Result<Reach, String> {
    let rank = launch.extents.len();
    let access = &kernel.accesses[index];
    let mut plain = Reach::POINT;
    for (dim, (extent, &stride)) in launch.extents.iter().zip(&launch.strides[index * rank..]).enumerate() {
        let extent = extent.full;
        let fixed = match access.lane {
            Lane::Unit => 1,
            Lane::Broadcast => 0,
            Lane::Strided => stride,
        };
        if dim + 1 == rank && extent > 1 && stride != fixed {
            return Err(format!("access {index} has stride {stride} along the lanes, its kernel {fixed}"));
        }
        plain = plain.along(extent.into(), stride.into());
    }
    let loads = kernel.nodes.iter().filter_map(|n| match *n {
        Node::LoadAt { access, stride, limit, .. } if access as usize == index => Some((stride, limit)),
        _ => None,
    });
    let stores = kernel.stores.iter().filter(|s| s.access as usize == index);
    let offsets = loads.chain(stores.filter_map(|s| s.at.map(|at| (at.stride, at.limit))));
    let mut reach = plain;
    for (stride, limit) in offsets {
        let (stride, last) = (&bounds[stride as usize], bounds[limit as usize].end - 2);
        // Bounds are half open: `end - 1` is the largest limit, and the largest index is one less.
        for s in [stride.start, stride.end - 1] {
            reach = reach.or(plain.shifted(0, s.saturating_mul(last.max(0))));
        }
    }
    Ok(reach)
}

fn check_scalar(program: &Program, scalar: &Scalar) -> Result<(), String> {
    match scalar {
        Scalar::Const(_) => Ok(()),
        Scalar::Valid { global, axes } | Scalar::Base { global, axes } => {
            if *global >= LARGEST {
                return Err(format!("extent {global} is too large"));
            }
            check_axes(&program.mesh, axes)
        }
        Scalar::There(clip) => check_clip(program, clip),
    }
}

/// A clip can be worked out on every device at every run; what it allows is never more than the whole extent.
fn check_clip(program: &Program, clip: &Clip) -> Result<(), String> {
    if clip.global == 0 || clip.global >= LARGEST || clip.inner >= LARGEST {
        return Err(format!(
            "a dim of {} clipped in steps of {} is too large or empty",
            clip.global, clip.inner
        ));
    }
    let rows = program.batch.replicas.checked_mul(program.batch.rows());
    if clip.part == Part::Rows && rows.map(|n| n as u64) != Some(clip.global) {
        return Err(format!("a dim of {} clipped to the rows of a batch of {rows:?}", clip.global));
    }
    check_axes(&program.mesh, &clip.axes)
}

/// What a scalar lies in on every device, at least.
fn scalar_bounds(scalar: &Scalar) -> Range<i128> {
    match scalar {
        Scalar::Const(c) => i128::from(*c)..i128::from(*c) + 1,
        Scalar::Valid { global, axes } => 0..local_extent(*global as usize, axes) as i128 + 1,
        Scalar::Base { global, .. } => 0..i128::from(*global) + 1,
        Scalar::There(clip) => 0..i128::from(clip.whole()) + 1,
    }
}

fn check_gemm(func: &FuncProgram, g: &Gemm) -> Result<(), String> {
    let small = |n: u64| n < 1 << 40;
    let batches =
        g.batch.iter().try_fold(1u64, |n, d| n.checked_mul(d.extent.full).filter(|&n| n > 0 && small(n)));
    let (m, n, k) = (g.m.full, g.n.full, g.k.full);
    if ![m, n, k].into_iter().all(small) || batches.is_none() || g.batch.len() > DIMS {
        return Err(format!("extents {m} {n} {k} or its batch are too large or zero"));
    }
    let types = [g.a.dtype, g.b.dtype, g.c.dtype];
    let half_or_single = |d: &DType| matches!(d, DType::F32 | DType::BF16 | DType::F16);
    if types != [DType::F64; 3] && !types.iter().all(half_or_single) {
        return Err(format!("there is no product of {} and {} into {}", types[0], types[1], types[2]));
    }
    if let Some(packed) = &g.packed {
        check_packed_factor(func, g, packed)?;
    }
    if m == 0 || n == 0 {
        return Ok(());
    }
    let reach = |m: &Matrix, rows: u64, cols: u64, batch: fn(&pcc_ir::program::BatchDim) -> i64| {
        let plain = Reach::POINT.along(rows.into(), m.row.into()).along(cols.into(), m.col.into());
        g.batch.iter().fold(plain, |r, d| r.along(d.extent.full.into(), batch(d).into()))
    };
    let one = |name: &str, m: &Matrix, write: bool, r: Reach| {
        span(func, &m.loc, write, m.dtype, r).map_err(|why| format!("matrix {name}: {why}"))
    };
    let c = one("c", &g.c, true, reach(&g.c, m, n, |d| d.c))?;
    // Strides of zero make any extent fit: elements of c are distinct, and so are rows of b.
    let held =
        |m: &Matrix| Ok::<_, String>(u128::from(buffer(func, &m.loc, false)?) / m.dtype.bytes() as u128);
    let made = u128::from(m) * u128::from(n) * u128::from(batches.unwrap_or(1));
    if made > held(&g.c)? || u128::from(k) > held(&g.b)? {
        return Err(format!("extents {m} {n} {k} are more than the buffers have elements"));
    }
    // Parts of the product are computed at a time.
    let outer = g.batch.iter().map(|d| (d.extent.full, d.c));
    if !are_injective(outer.chain([(m, g.c.row), (n, g.c.col)])) {
        return Err("strides of matrix c may take two results to one element".to_owned());
    }
    if k > 0 {
        let a = one("a", &g.a, false, reach(&g.a, m, k, |d| d.a))?;
        let b = one("b", &g.b, false, reach(&g.b, k, n, |d| d.b))?;
        if overlap(func, (&g.c.loc, &c), (&g.a.loc, &a)) || overlap(func, (&g.c.loc, &c), (&g.b.loc, &b)) {
            return Err("matrix c overlaps one it is made of".to_owned());
        }
    }
    Ok(())
}

/// The b of a product, in panels.
fn check_packed_factor(func: &FuncProgram, g: &Gemm, packed: &PackedMatrix) -> Result<(), String> {
    let types = [g.a.dtype, g.b.dtype, g.c.dtype];
    let known = matches!(
        types,
        [DType::F32, DType::F32, DType::F32] | [DType::BF16, DType::BF16, DType::F32 | DType::BF16]
    );
    if !known {
        return Err(format!(
            "there is no product of {} and {} in panels into {}",
            types[0], types[1], types[2]
        ));
    }
    let still = g.b.row == 0 && g.b.col == 0 && g.batch.iter().all(|d| d.b == 0);
    if !still || (g.k.full, g.n.full) != (packed.k, packed.n) {
        return Err(format!("extents {} {} or strides do not fit panels of {packed:?}", g.k.full, g.n.full));
    }
    check_panels(func, &g.b.loc, g.b.dtype, packed)
}

/// A whole argument in panels.
fn check_panels(func: &FuncProgram, loc: &Loc, dtype: DType, packed: &PackedMatrix) -> Result<(), String> {
    let (bytes, held) = (packed.bytes(dtype), buffer(func, loc, false)?);
    match bytes == held && packed.k < LARGEST && packed.n < LARGEST {
        true => Ok(()),
        false => Err(format!("panels of {packed:?} take {bytes} bytes, the buffer has {held}")),
    }
}

fn check_rows(program: &Program, func: &FuncProgram, r: &Rows) -> Result<(), String> {
    if !matches!(r.dtype, DType::F32 | DType::BF16) {
        return Err(format!("there are no rows of {} in panels", r.dtype));
    }
    check_panels(func, &r.table, r.dtype, &r.packed)?;
    for scalar in [&r.base, &r.valid] {
        check_scalar(program, scalar)?;
        if matches!(*scalar, Scalar::Const(c) if !(0..LARGEST as i64).contains(&c)) {
            return Err(format!("a table that begins or ends at {scalar:?}"));
        }
    }
    let count = r.count.full;
    let elements = count.checked_mul(r.packed.k).filter(|&n| n > 0 && n < LARGEST);
    let Some(elements) = elements else {
        return Err(format!("{count} rows of {} elements", r.packed.k));
    };
    let dense = |n: u64| Reach::POINT.along(n.into(), 1);
    let indices =
        span(func, &r.indices, false, DType::I32, dense(count)).map_err(|w| format!("indices: {w}"))?;
    let out = span(func, &r.out, true, r.dtype, dense(elements)).map_err(|w| format!("result: {w}"))?;
    match overlap(func, (&r.indices, &indices), (&r.out, &out)) {
        true => Err("indices and result overlap".to_owned()),
        false => Ok(()),
    }
}

fn check_collective(mesh: &Mesh, func: &FuncProgram, call: &CollectiveCall) -> Result<(), String> {
    check_axes(mesh, &call.axes)?;
    let size = |shape: &[u64]| {
        shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d).filter(|&n| n > 0 && n < LARGEST))
    };
    let (Some(src_size), Some(dst_size)) = (size(&call.src_shape), size(&call.dst_shape)) else {
        return Err("a shape has a zero dim or too many elements".to_owned());
    };
    if call.src_shape.len() > DIMS {
        return Err(format!("{} dims", call.src_shape.len()));
    }
    check_shapes(call, group_size(&call.axes) as u64)?;
    let whole = call.src_shape.iter().zip(&call.dst_shape).map(|(&a, &b)| a.max(b));
    if !call.there.is_empty() && !whole.eq(call.there.iter().map(|e| e.full)) {
        return Err("it does not go along its own dims".to_owned());
    }
    let dense = |n: u64| Reach::POINT.along(n.into(), 1);
    let src =
        span(func, &call.src, false, call.dtype, dense(src_size)).map_err(|w| format!("source: {w}"))?;
    let dst = span(func, &call.dst, true, call.dtype, dense(dst_size)).map_err(|w| format!("target: {w}"))?;
    let in_place = matches!(call.kind, CollectiveKind::AllReduce | CollectiveKind::Broadcast);
    if overlap(func, (&call.src, &src), (&call.dst, &dst)) && !(in_place && call.src == call.dst) {
        return Err("source and target overlap".to_owned());
    }
    Ok(())
}

/// How the local shapes before and after go together, for a group of `n`.
fn check_shapes(call: &CollectiveCall, n: u64) -> Result<(), String> {
    let (src, dst) = (&call.src_shape, &call.dst_shape);
    let wrong = || Err(format!("shapes {src:?} and {dst:?} are no {} of {n}", call.kind.name()));
    let (split, concat) = (call.split_dim as usize, call.concat_dim as usize);
    let equal_but = |dims: &[usize]| {
        src.len() == dst.len() && (0..src.len()).all(|d| dims.contains(&d) || src[d] == dst[d])
    };
    let pieces = |whole: &[u64], piece: &[u64], dim: usize| match (whole.get(dim), piece.get(dim)) {
        (Some(&whole), Some(&piece)) => piece == local_extent(whole as usize, &call.axes) as u64,
        _ => false,
    };
    let fits = match call.kind {
        CollectiveKind::AllReduce | CollectiveKind::Broadcast => src == dst,
        CollectiveKind::AllGather => equal_but(&[concat]) && pieces(dst, src, concat),
        CollectiveKind::ReduceScatter => equal_but(&[split]) && pieces(src, dst, split),
        CollectiveKind::AllToAll => {
            split != concat
                && equal_but(&[split, concat])
                && pieces(src, dst, split)
                && pieces(dst, src, concat)
        }
        CollectiveKind::Permute => return Err("permute is not supported by this runtime".to_owned()),
    };
    if fits { Ok(()) } else { wrong() }
}
