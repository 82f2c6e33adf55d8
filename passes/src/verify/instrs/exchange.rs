//! Collective instructions: the same exchange as the local function's, of the same values.

use super::super::expect::Exchange;
use super::super::fault;
use super::super::memory::Roots;
use super::super::structure::check_axes;
use super::Run;
use pcc_ir::ops::Collective;
use pcc_ir::program::{CollectiveCall, CollectiveKind};
use pcc_ir::{Diagnostic, Extent, ReduceKind};

impl Run<'_> {
    pub(super) fn collective(&mut self, at: usize, c: &CollectiveCall) -> Result<(), Diagnostic> {
        check_axes(self.mesh(), &c.axes).map_err(|why| self.wrong(at, why))?;
        let Some(wanted) = self.expected.exchanges.get(self.exchanges).cloned() else {
            return Err(self.wrong(at, format!("is an {} that the function does not have", c.kind.name())));
        };
        self.exchanges += 1;
        let value = fault::value(self.func, wanted.value);
        if let Err(why) = self.same_collective(c, &wanted) {
            return Err(self.wrong(at, format!("should make {value}, but is another collective")).why(why));
        }
        let (from, to) = (side(c, true), side(c, false));
        let all = |steps: &[(Extent, i64)]| steps.iter().map(|s| s.0.clone()).collect::<Vec<_>>();
        let (from_all, to_all) = (all(&from), all(&to));
        let src = self.reach(at, c.src, c.dtype.bytes(), &from, &from_all.iter().collect::<Vec<_>>())?;
        let dst = self.reach(at, c.dst, c.dtype.bytes(), &to, &to_all.iter().collect::<Vec<_>>())?;
        let in_place = c.kind == CollectiveKind::AllReduce && c.src == c.dst;
        if src.buffer == dst.buffer && src.at.meets(&dst.at) && !in_place {
            return Err(self.wrong(at, format!("writes {value} over its own operand")));
        }
        let source = self.read(at, &src)?;
        if !wanted.source.met_by(&source) {
            let why = self.difference("operand", &source, &wanted.source);
            return Err(self.wrong(at, format!("should make {value}, but exchanges other values")).why(why));
        }
        self.write(at, &dst, &Roots::one(wanted.result), None)
    }

    fn same_collective(&self, c: &CollectiveCall, wanted: &Exchange<'_>) -> Result<(), String> {
        let (from, to) = (self.func.ty(wanted.operand), self.func.ty(wanted.value));
        let wide = |shape: &[usize]| shape.iter().map(|&n| n as u64).collect::<Vec<_>>();
        if (c.dtype, &c.src_shape, &c.dst_shape) != (from.dtype, &wide(&from.shape), &wide(&to.shape)) {
            return Err(format!(
                "it turns {:?} into {:?} of {}, not {from} into {to}",
                c.src_shape, c.dst_shape, c.dtype
            ));
        }
        let axes_text = |axes: &[pcc_ir::AxisRef]| {
            axes.iter().map(|&a| self.mesh().axis_text(a)).collect::<Vec<_>>().join(",")
        };
        let (kind, axes) = (kind_of(wanted.op), wanted.op.axes());
        if c.kind != kind || c.axes != axes {
            let (have, want) = (c.kind.name(), kind.name());
            return Err(format!(
                "it is {have} over {{{}}}, not {want} over {{{}}}",
                axes_text(&c.axes),
                axes_text(axes)
            ));
        }
        let (reduce, split, concat) = match wanted.op {
            Collective::AllReduce { kind, .. } => (Some(*kind), None, None),
            Collective::AllGather { dim, global, .. } => (None, None, Some((*dim, *global))),
            Collective::ReduceScatter { kind, dim, global, .. } => (Some(*kind), Some((*dim, *global)), None),
            Collective::AllToAll { split, split_global, concat, concat_global, .. } => {
                (None, Some((*split, *split_global)), Some((*concat, *concat_global)))
            }
        };
        let dim = |have: u32, want: Option<(usize, usize)>, what: &str| match want {
            Some((dim, _)) if dim != have as usize => Err(format!("it {what} dim {have}, not {dim}")),
            _ => Ok(()),
        };
        dim(c.split_dim, split, "splits")?;
        dim(c.concat_dim, concat, "joins")?;
        match reduce {
            Some(kind) if kind != c.reduce => {
                Err(format!("it reduces by {}, not {}", c.reduce.name(), ReduceKind::name(kind)))
            }
            _ => Ok(()),
        }
    }
}

/// The loops over one side of a collective. What is there of the whole, a member has of its piece: the axes that cut the piece off are
/// the minor ones of its dim.
fn side(c: &CollectiveCall, is_src: bool) -> Vec<(Extent, i64)> {
    let shape = if is_src { &c.src_shape } else { &c.dst_shape };
    let mut stride = 1i64;
    let mut steps: Vec<(Extent, i64)> = Vec::new();
    for (d, &n) in shape.iter().enumerate().rev() {
        let clip = c.there.get(d).and_then(|e| e.clip.as_deref()).cloned().map(|mut clip| {
            if is_piece(c, d, is_src) {
                clip.axes.extend(&c.axes);
            }
            clip
        });
        steps.push((Extent::part(n, clip), stride));
        stride = stride.saturating_mul(i64::try_from(n).unwrap_or(i64::MAX));
    }
    steps.reverse();
    steps
}

/// Whether this side has a piece of the dim that the other side has whole.
fn is_piece(c: &CollectiveCall, d: usize, is_src: bool) -> bool {
    match c.kind {
        CollectiveKind::AllGather => is_src && d == c.concat_dim as usize,
        CollectiveKind::ReduceScatter => !is_src && d == c.split_dim as usize,
        CollectiveKind::AllToAll => {
            is_src && d == c.concat_dim as usize || !is_src && d == c.split_dim as usize
        }
        _ => false,
    }
}

fn kind_of(op: &Collective) -> CollectiveKind {
    match op {
        Collective::AllReduce { .. } => CollectiveKind::AllReduce,
        Collective::AllGather { .. } => CollectiveKind::AllGather,
        Collective::ReduceScatter { .. } => CollectiveKind::ReduceScatter,
        Collective::AllToAll { .. } => CollectiveKind::AllToAll,
    }
}
