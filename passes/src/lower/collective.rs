//! Collectives as instructions, with the reason for each in plain words.

use super::func::{FuncLowering, dense_strides};
use pcc_ir::mesh::group_size;
use pcc_ir::ops::{Collective, Op};
use pcc_ir::program::{CollectiveCall, CollectiveKind, InstrKind};
use pcc_ir::{AxisRef, Diagnostic, Extent, Inst, ReduceKind, ValueId};

impl FuncLowering<'_> {
    pub fn lower_collective(&mut self, inst: &Inst, c: &Collective) -> Result<(), Diagnostic> {
        let what = Self::what(inst);
        let (arg, out) = (inst.args[0], inst.results[0]);
        let src = self.dense(arg, &what)?;
        let dst = self.destination(out);
        debug_assert_eq!(dst.strides, dense_strides(&self.func.ty(out).shape));
        let (from, to) = (self.func.ty(arg).clone(), self.func.ty(out).clone());
        let (kind, axes, reduce, split, concat) = match c {
            Collective::AllReduce { axes, kind } => (CollectiveKind::AllReduce, axes, *kind, 0, 0),
            Collective::AllGather { axes, dim, .. } => {
                (CollectiveKind::AllGather, axes, ReduceKind::Sum, 0, *dim)
            }
            Collective::ReduceScatter { axes, dim, kind, .. } => {
                (CollectiveKind::ReduceScatter, axes, *kind, *dim, 0)
            }
            Collective::AllToAll { axes, split, concat, .. } => {
                (CollectiveKind::AllToAll, axes, ReduceKind::Sum, *split, *concat)
            }
        };
        let logical = if kind == CollectiveKind::AllGather { to.bytes() } else { from.bytes() };
        let wide = |shape: &[usize]| shape.iter().map(|&n| n as u64).collect::<Vec<_>>();
        let bytes = from.dtype.bytes();
        let call = CollectiveCall {
            kind,
            axes: axes.clone(),
            reduce,
            dtype: from.dtype,
            src: Self::loc(&src, bytes),
            dst: Self::loc(&dst, bytes),
            src_shape: wide(&from.shape),
            dst_shape: wide(&to.shape),
            split_dim: split as u32,
            concat_dim: concat as u32,
            logical_bytes: logical as u64,
            there: self.moved(inst, c),
        };
        let why = self.reason(inst, kind, axes);
        self.emit(InstrKind::Collective(call), &what, why);
        Ok(())
    }

    /// How far a collective goes along each dim, on the larger of its two sides; nothing where all is moved.
    fn moved(&self, inst: &Inst, c: &Collective) -> Vec<Extent> {
        let (from, to) = (&self.func.ty(inst.args[0]).shape, &self.func.ty(inst.results[0]).shape);
        let parts = self.clips.moved(c, inst, to.len());
        if parts.iter().all(Option::is_none) {
            return Vec::new();
        }
        let whole = from.iter().zip(to).map(|(&a, &b)| a.max(b) as u64);
        whole.zip(parts).map(|(n, part)| Extent::part(n, part)).collect()
    }

    /// In plain words: what each device has and why, what the next op needs, and the two shardings.
    fn reason(&self, inst: &Inst, kind: CollectiveKind, axes: &[AxisRef]) -> String {
        let over = axes.iter().map(|&a| self.mesh.axis_text(a)).collect::<Vec<_>>().join(" x ");
        let n = group_size(axes);
        let sharding =
            |v| self.func.values[v].claim.as_ref().map(|c| c.sharding.text(self.mesh)).unwrap_or_default();
        let (before, after) = (sharding(inst.args[0]), sharding(inst.results[0]));
        let have = match kind {
            CollectiveKind::AllReduce | CollectiveKind::ReduceScatter => {
                format!(
                    "{}, so each of the {n} {over} devices holds a partial sum",
                    self.cause(inst.args[0], &over)
                )
            }
            CollectiveKind::AllToAll => {
                format!("each of the {n} {over} devices holds one piece, cut along another dim")
            }
            _ => format!("each of the {n} {over} devices holds one piece"),
        };
        let need = match kind {
            CollectiveKind::AllReduce => "needs the sum on every device",
            CollectiveKind::ReduceScatter => "needs only one piece of the sum on each device",
            CollectiveKind::AllToAll => "needs pieces cut the other way",
            _ => "needs all of it on every device",
        };
        format!("{have}; {} {need}: {before} becomes {after}", self.reader(inst))
    }

    /// Why a value is a partial: the op that sums over a split dim.
    fn cause(&self, v: ValueId, over: &str) -> String {
        let maker = self.def.get(&v).map(|&at| &self.func.insts[at]);
        match maker.map(|i| (&i.op, i)) {
            Some((Op::Gather(_), i)) => {
                format!("`{}` looks up its own rows of a table split over {over}", Self::what(i))
            }
            Some((op, i)) => {
                format!("the {} `{}` sums over a dim split over {over}", op.name(), Self::what(i))
            }
            None => format!("the caller hands it over as a partial over {over}"),
        }
    }

    /// The first op that uses the result, for the message.
    fn reader(&self, inst: &Inst) -> String {
        let out = inst.results[0];
        match self.func.insts.iter().find(|i| i.args.contains(&out)) {
            Some(user) => format!("the {} `{}`", user.op.name(), Self::what(user)),
            None => "the next layer".to_owned(),
        }
    }
}
