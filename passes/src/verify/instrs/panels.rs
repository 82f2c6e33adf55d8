//! Parameters in panels: products with them, and rows looked up in them. Instructions only know the extents of such a matrix; whether
//! the parameter's form is the one that the ops read is asked where it is bound ([`readings`]).

use super::super::cuts::Path;
use super::super::expect::live;
use super::super::footprint::Footprint;
use super::{Reach, Run};
use pcc_ir::program::{Gemm, Loc, PackedMatrix, Rows, Scalar, Storage};
use pcc_ir::{DType, Diagnostic, Extent, Func, Op, ValueId};

/// How the ops of a function that something needs read one of its arguments.
#[derive(Clone, Debug)]
pub(in super::super) struct Reading {
    /// Whether all of them read it as a matrix: products and rows looked up.
    matrix: bool,
    /// The dims that all products with it contract, in order, if there are any.
    contracted: Option<Vec<usize>>,
    looked_up: bool,
}

impl Reading {
    /// Whether that is how a parameter in this form is read: as the matrix that `storage` makes of it.
    pub(in super::super) fn is_of(&self, storage: &Storage) -> bool {
        let (Storage::Panels { k, n } | Storage::Blocks { k, n, .. }) = storage else { return true };
        self.matrix && self.contracted.as_ref().is_none_or(|c| c == k) && (!self.looked_up || *n == [0])
    }
}

/// How a function reads each of its arguments.
pub(in super::super) fn readings(func: &Func) -> Vec<Reading> {
    let unread = Reading { matrix: true, contracted: None, looked_up: false };
    let mut of = vec![unread; func.args.len()];
    let mut place = vec![None; func.values.len()];
    for (i, v) in func.args.iter().enumerate() {
        place[v.as_u32() as usize] = Some(i);
    }
    let place = |v: &ValueId| place[v.as_u32() as usize];
    func.results.iter().filter_map(place).for_each(|i| of[i].matrix = false);
    let live = live(func);
    for (_, inst) in func.insts.iter().enumerate().filter(|(at, _)| live[*at]) {
        for (side, i) in inst.args.iter().enumerate().filter_map(|(side, v)| Some((side, place(v)?))) {
            let reading = &mut of[i];
            match &inst.op {
                Op::DotGeneral(dot) => {
                    let mut dims =
                        if side == 0 { dot.lhs_contract.clone() } else { dot.rhs_contract.clone() };
                    dims.sort_unstable();
                    let alike = reading.contracted.get_or_insert_with(|| dims.clone()) == &dims;
                    reading.matrix &= inst.args[0] != inst.args[1] && dot.lhs_batch.is_empty() && alike;
                }
                Op::Gather(g) => {
                    reading.matrix &= g.batch == 0 && side == 0 && inst.args[1] != inst.args[0];
                    reading.looked_up = true;
                }
                _ => reading.matrix = false,
            }
        }
    }
    of
}

impl<'a> Run<'a> {
    /// All of an argument in panels.
    fn panels(&self, at: usize, loc: Loc, packed: &PackedMatrix, dtype: DType) -> Result<Reach, Diagnostic> {
        let buffer = self.buffer(at, loc)?;
        let bytes = self.buffers[buffer].bytes();
        match packed.bytes(dtype) == bytes {
            true => {
                Ok(Reach { buffer, at: Footprint { start: 0, end: bytes, bytes }, path: Path::default() })
            }
            false => Err(self.wrong(at, format!("reads panels of {packed:?} where there are {bytes} bytes"))),
        }
    }

    /// The right side of a product with a parameter in panels.
    pub(super) fn packed_factor(
        &self,
        at: usize,
        g: &Gemm,
        packed: &PackedMatrix,
    ) -> Result<Reach, Diagnostic> {
        let still = g.b.row == 0 && g.b.col == 0 && g.batch.iter().all(|d| d.b == 0);
        if !still || (g.k.full, g.n.full) != (packed.k, packed.n) {
            return Err(self.wrong(at, format!("does not multiply with the whole of panels of {packed:?}")));
        }
        self.panels(at, g.b.loc, packed, g.b.dtype)
    }

    pub(super) fn look_up(&mut self, at: usize, r: &Rows) -> Result<(), Diagnostic> {
        let k = i64::try_from(r.packed.k).map_err(|_| self.wrong(at, "has a dim too large"))?;
        let (count, width) = (&r.count, Extent::full(r.packed.k));
        let table = self.panels(at, r.table, &r.packed, r.dtype)?;
        let indices = self.reach(at, r.indices, DType::I32.bytes(), &[(count.clone(), 1)], &[count])?;
        let out = self.reach(at, r.out, r.dtype.bytes(), &[(count.clone(), k), (width, 1)], &[count])?;
        if indices.buffer == out.buffer && indices.at.meets(&out.at) {
            return Err(self.wrong(at, "writes rows over the indices that name them"));
        }
        match (&r.base, &r.valid) {
            (Scalar::Const(0), Scalar::Const(n)) if *n == r.packed.n as i64 => {}
            (Scalar::Base { .. }, Scalar::Valid { .. }) => {
                self.known_scalar(at, &r.base)?;
                self.known_scalar(at, &r.valid)?;
            }
            (base, valid) => {
                let what =
                    format!("looks up rows from {base:?} on, {valid:?} of them, which are not its table's");
                return Err(self.wrong(at, what));
            }
        }
        let mut made = self.read(at, &table)?;
        made.join(&self.read(at, &indices)?);
        self.write(at, &out, &made, None)
    }
}
