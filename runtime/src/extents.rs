//! Extents of instructions on each device at each run.

use pcc_ir::program::{FuncProgram, InstrKind, Program};
use pcc_ir::sharding::{Span, span};
use pcc_ir::{Clip, Extent, Sizes};

/// The pieces by which the extents of a function's instructions are clipped, for each position in a stage.
pub(crate) struct FuncExtents {
    /// Per instruction: where its pieces start.
    starts: Vec<usize>,
    /// Pieces of all instructions together.
    count: usize,
    pieces: Vec<Span>,
}

/// Clips of an instruction, in the order of [`InstrKind::extents`].
fn clips(kind: &InstrKind) -> impl Iterator<Item = &Clip> {
    kind.extents().into_iter().filter_map(|e| e.clip.as_deref())
}

/// Number of clips of a function.
pub(crate) fn count(func: &FuncProgram) -> u64 {
    func.instrs.iter().map(|i| clips(&i.kind).count() as u64).sum()
}

impl FuncExtents {
    pub(crate) fn new(program: &Program, func: &FuncProgram) -> Self {
        let mut starts = Vec::with_capacity(func.instrs.len());
        let mut all = Vec::new();
        for instr in &func.instrs {
            starts.push(all.len());
            all.extend(clips(&instr.kind));
        }
        let piece = |p: usize, c: &Clip| span(&program.mesh, p, c.global as usize, &c.axes);
        let positions = 0..program.mesh.stage_devices();
        let pieces = positions.flat_map(|p| all.iter().map(move |c| piece(p, c))).collect();
        Self { starts, count: all.len(), pieces }
    }

    /// What the extents of an instruction are on the device at a position; to be asked in the order of [`InstrKind::extents`].
    pub(crate) fn of<'a>(
        &'a self,
        position: usize,
        instr: usize,
        sizes: &'a Sizes,
    ) -> impl FnMut(&Extent) -> u64 + 'a {
        let mut pieces = self.pieces[position * self.count + self.starts[instr]..].iter();
        move |e| match (&e.clip, e.clip.as_ref().and_then(|_| pieces.next())) {
            (Some(clip), Some(&piece)) => clip.valid(piece, sizes).min(e.full),
            _ => e.full,
        }
    }
}
