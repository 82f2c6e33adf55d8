//! Top-k and sampling: the same selection as the local function's, among the same values.

use super::super::fault;
use super::super::memory::Roots;
use super::{Reach, Run};
use pcc_ir::program::View;
use pcc_ir::strides::are_injective;
use pcc_ir::{Diagnostic, Extent, Op};

impl Run<'_> {
    /// `made` is the op that the instruction stands for, `views` its operands, then its results.
    pub(super) fn select(&mut self, at: usize, made: &Op, views: &[View<'_>]) -> Result<(), Diagnostic> {
        let Some(wanted) = self.expected.selections.get(self.selections).cloned() else {
            return Err(self.wrong(at, "is a selection that the function does not have"));
        };
        self.selections += 1;
        let value = fault::value(self.func, wanted.value);
        let another = |why: String| {
            Err(self.wrong(at, format!("should make {value}, but is another selection")).why(why))
        };
        if made != wanted.op {
            return another(format!("{made:?} instead of {:?}", wanted.op));
        }
        let types =
            wanted.operands.iter().map(|(_, ty)| *ty).chain(wanted.results.iter().map(|(_, ty, _)| *ty));
        for (view, ty) in views.iter().zip(types) {
            let whole = || view.extents.iter().map(|e| e.full as usize);
            if view.strided.dtype != ty.dtype
                || view.dtype != ty.dtype
                || !whole().eq(ty.shape.iter().copied())
            {
                let shape: Vec<_> = whole().collect();
                return another(format!("{} is {}{shape:?}", view.name, view.strided.dtype));
            }
        }
        let reaches = views.iter().map(|v| self.view(at, v)).collect::<Result<Vec<Reach>, _>>()?;
        let (read, written) = reaches.split_at(wanted.operands.len().min(reaches.len()));
        for (i, to) in written.iter().enumerate() {
            let clash = |x: &Reach| x.buffer == to.buffer && x.at.meets(&to.at);
            if read.iter().chain(&written[..i]).any(clash) {
                return Err(self.wrong(at, "writes its result over what it is made of"));
            }
        }
        for ((reach, (needs, _)), view) in read.iter().zip(&wanted.operands).zip(views) {
            let held = self.read(at, reach)?;
            if !needs.met_by(&held) {
                let why = self.difference(view.name, &held, needs);
                let message = format!("should make {value}, but selects among other values");
                return Err(self.wrong(at, message).why(why));
            }
        }
        for (reach, &(root, _, used)) in written.iter().zip(&wanted.results) {
            self.write(at, reach, &Roots::one(root), None)?;
            // What nothing needs may be overwritten.
            if !used {
                self.read(at, reach)?;
            }
        }
        Ok(())
    }

    fn view(&self, at: usize, view: &View<'_>) -> Result<Reach, Diagnostic> {
        if view.strided.strides.len() != view.extents.len() {
            return Err(self.wrong(at, "has an operand of another rank"));
        }
        let steps: Vec<(Extent, i64)> =
            view.extents.iter().cloned().zip(view.strided.strides.iter().copied()).collect();
        // Bytes of one row do not tell that it is read for all.
        if !are_injective(steps.iter().map(|(e, stride)| (e.full, *stride))) {
            let why = format!("{} has strides {:?}", view.name, view.strided.strides);
            return Err(self.wrong(at, "takes one element for several").why(why));
        }
        let all: Vec<&Extent> = view.extents.iter().collect();
        self.reach(at, view.strided.loc, view.strided.dtype.bytes(), &steps, &all)
    }
}
