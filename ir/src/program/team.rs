//! Teams: which work is the same on all devices of one, and where what they share lies ([`Program::team`](super::Program::team)).

use super::{Base, CollectiveCall, CollectiveKind, FuncProgram, InstrKind, Loc, Scalar};
use crate::AxisRef;
use crate::kernel::{Kernel, KernelId};
use cranelift_entity::PrimaryMap;

impl InstrKind {
    /// Every address, and whether it is written.
    pub fn touched(&self, kernels: &PrimaryMap<KernelId, Kernel>) -> Vec<(Loc, bool)> {
        match self {
            InstrKind::Kernel(l) => {
                let accesses = kernels.get(l.kernel).map_or(&[][..], |k| &k.accesses);
                l.ptrs.iter().zip(accesses).map(|(&p, a)| (p, a.write)).collect()
            }
            InstrKind::Gemm(g) => vec![(g.a.loc, false), (g.b.loc, false), (g.c.loc, true)],
            InstrKind::Attention(a) => {
                let reads = a.reads().into_iter().map(|(_, view, _)| (view.loc, false));
                reads.chain([(a.out.loc, true)]).chain(a.scratch.map(|s| (s, true))).collect()
            }
            InstrKind::TopK(t) => t.views().map(|v| (v.strided.loc, v.write)).to_vec(),
            InstrKind::Sample(s) => s.views().map(|v| (v.strided.loc, v.write)).to_vec(),
            InstrKind::Rows(r) => vec![(r.table, false), (r.indices, false), (r.out, true)],
            InstrKind::Collective(c) => vec![(c.src, false), (c.dst, true)],
        }
    }

    /// Whether it is the same work on all devices over `axes`, on the same operands.
    pub fn is_alike(&self, axes: &[AxisRef]) -> bool {
        let free = |used: &[AxisRef]| !used.iter().any(|u| axes.iter().any(|&a| u.overlaps(a)));
        let scalar = |s: &Scalar| match s {
            Scalar::Const(_) => true,
            Scalar::Valid { axes, .. } | Scalar::Base { axes, .. } => free(axes),
            Scalar::There(clip) => free(&clip.axes),
        };
        let scalars = match self {
            InstrKind::Kernel(l) => l.scalars.iter().all(scalar),
            InstrKind::Rows(r) => scalar(&r.base) && scalar(&r.valid),
            InstrKind::Gemm(_) | InstrKind::Attention(_) | InstrKind::TopK(_) | InstrKind::Sample(_) => true,
            InstrKind::Collective(_) => false,
        };
        scalars && self.extents().iter().all(|e| e.clip.as_ref().is_none_or(|c| free(&c.axes)))
    }
}

impl CollectiveCall {
    /// Whether all members of its group get the same, in a group over `axes`.
    pub fn is_equal_over(&self, axes: &[AxisRef]) -> bool {
        let kind = matches!(self.kind, CollectiveKind::AllReduce | CollectiveKind::AllGather);
        kind && !axes.is_empty() && self.axes == axes
    }
}

impl FuncProgram {
    /// Whether an address lies in what a team shares.
    pub fn is_shared(&self, loc: &Loc) -> bool {
        match loc.base {
            Base::Frame => {
                self.shared_bytes > 0 && loc.offset >= self.frame_bytes.saturating_sub(self.shared_bytes)
            }
            Base::Slot(s) => self.shared.contains(&s),
        }
    }
}
