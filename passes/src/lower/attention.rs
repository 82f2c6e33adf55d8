//! Attention as one instruction of the runtime's library, which needs its operands in buffers and no copy of any.

use super::func::{FuncLowering, View};
use pcc_ir::ops::Attention;
use pcc_ir::program::{AttentionCall, InstrKind, Strided};
use pcc_ir::{DType, Diagnostic, Extent, Inst, Type, ValueId};

/// Most elements of a head: workers hold the heads of a tile of queries.
const HEAD: usize = 1 << 16;

impl FuncLowering<'_> {
    /// Shapes as [`Attention`] says.
    pub fn lower_attention(&mut self, inst: &Inst, att: &Attention) -> Result<(), Diagnostic> {
        let what = Self::what(inst);
        let out = inst.results[0];
        let [b, s, g, r, e] = &self.extents(out)[..] else {
            return Err(Diagnostic::internal("attention of another rank"));
        };
        let whole = |v: ValueId, d: usize| self.func.ty(v).shape[d] as u64;
        let t = Extent::part(whole(inst.args[1], 1), self.clips.keys(inst));
        for v in [&inst.args[..3], &[out]].concat() {
            self.refuse_attention(v, &what)?;
        }
        let strided = |view: &View, dtype: DType| Strided {
            loc: Self::loc(view, dtype.bytes()),
            dtype,
            strides: view.strides.clone(),
        };
        let read = |i: usize| {
            let v = inst.args[i];
            Ok::<_, Diagnostic>(strided(&self.view(v)?, self.func.ty(v).dtype))
        };
        let q_pos = if inst.op.reads(3) { Some(read(3)?) } else { None };
        let slopes = if inst.args.len() > 5 { Some(read(5)?) } else { None };
        let (q, k, v, k_pos) = (read(0)?, read(1)?, read(2)?, read(4)?);
        let to = self.destination(out);
        let mut call = AttentionCall {
            b: b.clone(),
            s: s.clone(),
            t: t.clone(),
            g: g.clone(),
            r: r.clone(),
            d: whole(inst.args[0], 4).into(),
            e: e.clone(),
            scale: att.scale,
            causal: att.causal,
            window: att.window.map(|w| w as u64),
            softcap: att.softcap,
            bf16_bias: att.bf16_bias,
            q,
            k,
            v,
            q_pos,
            k_pos,
            slopes,
            out: strided(&to, self.func.ty(out).dtype),
            scratch: None,
        };
        if AttentionCall::splits_keys(self.device, s.full, r.full, t.full) {
            let bytes = call.scratch_bytes().and_then(|n| usize::try_from(n).ok());
            let bytes = bytes.ok_or_else(|| Diagnostic::internal("attention over too many keys"))?;
            let buf = self.frame_buffer(&Type::f32([bytes / 4]));
            call.scratch = Some(Self::loc(&View { buf, offset: 0, strides: vec![1] }, 4));
        }
        self.emit(InstrKind::Attention(Box::new(call)), &what, String::new());
        Ok(())
    }

    /// Refuses operands that the library cannot read.
    fn refuse_attention(&self, v: ValueId, what: &str) -> Result<(), Diagnostic> {
        let ty = self.func.ty(v);
        let refused = |message: String, why: &str, help: &str| {
            Err(Diagnostic::input(message).at(what.to_owned()).why(why.to_owned()).help(help.to_owned()))
        };
        if !matches!(ty.dtype, DType::F32 | DType::BF16 | DType::F16) {
            return refused(
                format!("attention over {}", ty.dtype),
                "the CPU target attends over f32, bf16 and f16",
                "convert the operands to f32 before attention",
            );
        }
        match ty.shape.last() {
            Some(&n) if n > HEAD => refused(
                format!("attention with {n} elements a head"),
                "the CPU target takes at most 65536",
                "split the heads",
            ),
            _ => Ok(()),
        }
    }
}
