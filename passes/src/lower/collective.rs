//! Collectives as instructions, with the reason for each in plain words.

use super::func::{FuncLowering, dense_strides};
use pcc_ir::mesh::group_size;
use pcc_ir::ops::Collective;
use pcc_ir::program::{CollectiveCall, CollectiveKind, InstrKind};
use pcc_ir::{AxisRef, Diagnostic, Inst, ReduceKind, Sharding};

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
        };
        let why = self.reason(inst, kind, axes);
        self.emit(InstrKind::Collective(call), &what, why);
        Ok(())
    }

    /// In plain words: what each device has, what the next op needs.
    fn reason(&self, inst: &Inst, kind: CollectiveKind, axes: &[AxisRef]) -> String {
        let name = axes.iter().map(|a| a.axis.name()).collect::<Vec<_>>().join(" x ");
        let n = group_size(axes);
        let sharding = |v| self.func.values[v].claim.as_ref().map(|c| describe(&c.sharding));
        let before = sharding(inst.args[0]).unwrap_or_default();
        let after = sharding(inst.results[0]).unwrap_or_default();
        let reader = self.reader(inst);
        let have = match kind {
            CollectiveKind::AllReduce | CollectiveKind::ReduceScatter => {
                format!("each of the {n} {name} devices holds a partial sum ({before})")
            }
            _ => format!("each of the {n} {name} devices holds one piece ({before})"),
        };
        format!("{have}; {reader} needs it {after}")
    }

    /// The first op that uses the result, for the message.
    fn reader(&self, inst: &Inst) -> String {
        let out = inst.results[0];
        match self.func.insts.iter().find(|i| i.args.contains(&out)) {
            Some(user) => format!("`{}`", Self::what(user)),
            None => "the caller".to_owned(),
        }
    }
}

fn describe(s: &Sharding) -> String {
    let axes = |axes: &[AxisRef]| axes.iter().map(axis).collect::<Vec<_>>().join(" x ");
    let mut parts: Vec<String> = s
        .dims
        .iter()
        .enumerate()
        .filter(|(_, a)| !a.is_empty())
        .map(|(d, a)| format!("dim {d} split by {}", axes(a)))
        .collect();
    if !s.partial.is_empty() {
        let over: Vec<AxisRef> = s.partial.iter().map(|p| p.0).collect();
        parts.push(format!("partial over {}", axes(&over)));
    }
    if parts.is_empty() { "whole on every device".to_owned() } else { parts.join(", ") }
}

fn axis(a: &AxisRef) -> String {
    if a.pre == 1 { format!("{} ({})", a.axis, a.size) } else { format!("{}:({}){}", a.axis, a.pre, a.size) }
}
