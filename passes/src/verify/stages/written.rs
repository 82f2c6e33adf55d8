//! Values of which something is left out: what reads them outside of functions does without it.

use super::super::cuts::Cut;
use super::super::instrs::Given;
use super::{Number, Walk};
use pcc_ir::repeat::ChainCall;
use pcc_ir::{Diagnostic, Part};
use std::rc::Rc;

impl Walk<'_> {
    /// What is left out of the arguments of a call.
    pub(super) fn given(&self, call: &ChainCall) -> Given {
        let args = self.chain.args_of(call).iter().enumerate();
        args.filter_map(|(i, v)| Some((i, self.cuts[*v as usize].clone()?))).collect()
    }

    /// Records what a call leaves out of its results.
    pub(super) fn leaves_out(&mut self, call: &ChainCall, made: &[Rc<Vec<Cut>>]) {
        for (&v, cuts) in self.chain.results_of(call).iter().zip(made).filter(|(_, cuts)| !cuts.is_empty()) {
            self.cuts[v as usize] = Some(cuts.clone());
        }
    }

    /// The host reads of an output what it stands for of the rows and positions of the run.
    pub(super) fn check_output(&self, v: Number, output: usize) -> Result<(), Diagnostic> {
        let (Some(cuts), Some(spec)) = (&self.cuts[v as usize], self.made.outputs.get(output)) else {
            return Ok(());
        };
        let ty = self.func.ty(self.chain.origins[v as usize]);
        let expected = |cut: &Cut, d: usize| {
            let inner: usize = ty.shape[d + 1..].iter().product();
            let unit = (inner * ty.dtype.bytes()) as u64;
            let part = match cut.clip.part {
                Part::Piece => true,
                Part::Rows => spec.batch_dim == Some(d),
                Part::Seq => spec.seq_dim == Some(d),
            };
            let placed = cut.count == ty.shape[d] as u64 && (cut.unit == unit || cut.count == 1);
            part && placed
                && spec.ty.shape.get(d).is_some_and(|&n| n as u64 == cut.clip.global)
                && spec.sharding.dims.get(d) == Some(&cut.clip.axes)
        };
        match cuts.iter().all(|cut| (0..ty.rank()).any(|d| expected(cut, d))) {
            true => Ok(()),
            false => Err(self.of_value(v, "is an output of which the host reads more than is written")),
        }
    }

    /// A later run may have more rows than this one: it finds them in a state only where nothing sees what was left out.
    pub(super) fn check_state(&self, v: Number, name: &dyn Fn() -> String) -> Result<(), Diagnostic> {
        let lasting = |cut: &Cut| cut.clip.part == Part::Rows && self.program.unseen;
        match self.cuts[v as usize].as_ref().is_none_or(|cuts| cuts.iter().all(lasting)) {
            true => Ok(()),
            false => Err(self.of_value(v, &format!("is state `{}`, but is written in part", name()))),
        }
    }
}
