//! The instruction list of one function against its local form.
//!
//! Products, attention and collectives are matched one to one and in order; kernels are followed by what they read and write. So every product,
//! collective and result is known to depend on just the values it should, through whatever buffers, and a buffer that is overwritten
//! too early, read too early or mixed up shows as a dependence that is missing or too many.

mod attention;
mod exchange;
mod kernel;
mod once;
mod panels;
mod selection;

pub(super) use panels::{Reading, readings};

use super::cuts::{Cut, Path};
use super::expect::{Attends, Exchange, Expected, Product, RowKernel, Selects, expected};
use super::fault;
use super::footprint::Footprint;
use super::memory::{Buffer, Roots};
use super::needs::Needs;
use pcc_ir::mesh::Mesh;
use pcc_ir::ops::{Sample, TopK};
use pcc_ir::program::{
    Base, ConstantData, FuncProgram, Gemm, Instr, InstrKind, Loc, Matrix, PackedMatrix, Program, Scalar,
};
use pcc_ir::{DType, Diagnostic, Extent, Func, Op, Type, ValueId};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// Arguments, by number, of which something is left out.
pub(super) type Given = Vec<(usize, Rc<Vec<Cut>>)>;

/// What holds of an instruction list.
#[derive(Clone, Debug)]
pub(super) struct Proof {
    /// The constants that calls must bind, in order.
    pub constants: Vec<ConstantData>,
    /// What each result leaves out.
    pub results: Vec<Rc<Vec<Cut>>>,
}

/// Checks that `code` does what `func`, the local form of `global`, says when of some arguments, named by `args`, something is left out.
pub(super) fn check(
    program: &Program,
    global: Option<&Func>,
    func: &Func,
    code: &FuncProgram,
    args: &Given,
) -> Result<Proof, Diagnostic> {
    let expected = expected(func, global);
    let packed = code.packed().map_err(|(at, why)| of_instr(func, code, at, format!("cannot run: {why}")))?;
    check_slots(func, code, &expected, &packed)?;
    let mut run = Run::new(program, func, code, expected, args);
    for at in 0..code.instrs.len() {
        run.instr(at)?;
    }
    run.finish()
}

/// Slots are the arguments, results and listed constants of the function, with their sizes.
fn check_slots(
    func: &Func,
    code: &FuncProgram,
    expected: &Expected<'_>,
    packed: &BTreeMap<u32, (PackedMatrix, DType)>,
) -> Result<(), Diagnostic> {
    let wrong = |what: &str| fault::of_func(func, &format!("has a program that {what}"));
    if (code.args as usize, code.results as usize) != (func.args.len(), func.results.len()) {
        return Err(wrong("takes or gives another number of values"));
    }
    let values = func.args.iter().chain(&func.results).map(|&v| func.ty(v));
    let types: Vec<&Type> = values.chain(expected.constants.iter().map(|c| &c.ty)).collect();
    if code.slot_bytes.len() != types.len() {
        return Err(wrong(&format!("has {} slots, not {}", code.slot_bytes.len(), types.len())));
    }
    for (i, (&bytes, ty)) in code.slot_bytes.iter().zip(&types).enumerate() {
        let form = packed.get(&(i as u32));
        let size = form.map_or(ty.bytes() as u64, |(matrix, dtype)| matrix.bytes(*dtype));
        let fits = form.is_none_or(|(matrix, dtype)| {
            let elements = matrix.k.checked_mul(matrix.n);
            elements == Some(ty.elements() as u64) && *dtype == ty.dtype
        });
        if bytes != size || !fits {
            let v = func.args.iter().chain(&func.results).nth(i);
            let what = format!("has a slot of {bytes} bytes, not {size}");
            return Err(v.map_or_else(|| wrong(&what), |&v| fault::of_value(func, v, &what)));
        }
    }
    check_shared(func, code)?;
    for &(a, r) in &code.in_place {
        let pair = func
            .args
            .get(a as usize)
            .zip((r as usize).checked_sub(func.args.len()).and_then(|r| func.results.get(r)));
        match pair {
            Some((&a, &r)) if func.ty(a) == func.ty(r) => {}
            _ => return Err(wrong("updates something in place that is no argument and result of one type")),
        }
    }
    Ok(())
}

/// A team shares some of the frame, and results that each call makes anew.
fn check_shared(func: &Func, code: &FuncProgram) -> Result<(), Diagnostic> {
    if code.shared_bytes > code.frame_bytes {
        let what =
            format!("has a frame of {} bytes, of which {} are shared", code.frame_bytes, code.shared_bytes);
        return Err(of_instr(func, code, 0, what));
    }
    for &slot in &code.shared {
        let result = (slot as usize).checked_sub(func.args.len()).and_then(|r| func.results.get(r));
        let updated = code.in_place.iter().any(|p| p.1 == slot);
        match result {
            Some(_) if !updated => {}
            Some(&v) => {
                return Err(fault::of_value(func, v, "is updated in place, which a team cannot share"));
            }
            None => return Err(of_instr(func, code, 0, format!("shares slot {slot}, which is no result"))),
        }
    }
    Ok(())
}

/// A fault of instruction `at`.
fn of_instr(func: &Func, code: &FuncProgram, at: usize, what: impl AsRef<str>) -> Diagnostic {
    let note = code.instrs.get(at).and_then(|i| code.notes.get(i.note as usize));
    let (place, name) = (note.map_or("", |n| n.what.as_str()), &func.name);
    Diagnostic::check(format!("instruction {at} of function `{name}` (`{place}`) {}", what.as_ref()))
        .at(format!("`{place}` in function `{name}`"))
}

struct Run<'a> {
    program: &'a Program,
    func: &'a Func,
    code: &'a FuncProgram,
    expected: Expected<'a>,
    /// The frame, then the slots.
    buffers: Vec<Buffer>,
    /// The buffer of each slot: of a result that is updated in place, its argument's.
    slots: Vec<usize>,
    /// Whether something is updated in place in each buffer.
    in_place: Vec<bool>,
    products: usize,
    attentions: usize,
    selections: usize,
    exchanges: usize,
    rows: usize,
    /// The scalars that the function needs, and whether some kernel has each.
    known: HashMap<Scalar, bool>,
}

/// What a box of a buffer is needed for.
struct Reach {
    buffer: usize,
    at: Footprint,
    path: Path,
}

impl<'a> Run<'a> {
    fn new(
        program: &'a Program,
        func: &'a Func,
        code: &'a FuncProgram,
        expected: Expected<'a>,
        cuts: &Given,
    ) -> Self {
        let args = func.args.len();
        let mut buffers = vec![Buffer::empty(code.frame_bytes)];
        let mut slots: Vec<usize> = (1..=code.slot_bytes.len()).collect();
        let mut in_place = vec![false; code.slot_bytes.len() + 1];
        // Of several the first counts.
        for &(a, r) in code.in_place.iter().rev() {
            if let Some(slot) = slots.get_mut(r as usize) {
                *slot = a as usize + 1;
            }
            if let Some(place) = in_place.get_mut(a as usize + 1) {
                *place = true;
            }
        }
        let mut left_out = vec![&[][..]; args];
        for (i, cuts) in cuts {
            if let Some(place) = left_out.get_mut(*i) {
                *place = &cuts[..];
            }
        }
        for (i, &bytes) in code.slot_bytes.iter().enumerate() {
            let root = match i {
                i if i < args => Some(i),
                i if i < args + func.results.len() => None,
                i => Some(i - func.results.len()),
            };
            let cuts = left_out.get(i).copied().unwrap_or_default();
            buffers.push(
                root.map_or_else(|| Buffer::empty(bytes), |r| Buffer::full(bytes, Roots::one(r), cuts)),
            );
        }
        let known = expected.scalars.iter().map(|(scalar, _)| (scalar.clone(), false)).collect();
        Self {
            program,
            func,
            code,
            expected,
            buffers,
            slots,
            in_place,
            products: 0,
            attentions: 0,
            selections: 0,
            exchanges: 0,
            rows: 0,
            known,
        }
    }

    fn mesh(&self) -> &Mesh {
        &self.program.mesh
    }

    /// A fault of instruction `at`.
    fn wrong(&self, at: usize, what: impl AsRef<str>) -> Diagnostic {
        of_instr(self.func, self.code, at, what)
    }

    /// What messages call a buffer.
    fn buffer_name(&self, buffer: usize) -> String {
        let slots = self.func.args.iter().chain(&self.func.results);
        match buffer.checked_sub(1) {
            None => "the frame".to_owned(),
            Some(slot) => match slots.clone().nth(slot) {
                Some(&v) => format!("slot {slot}, {}", fault::value(self.func, v)),
                None => format!("slot {slot}, a constant"),
            },
        }
    }

    fn buffer(&self, at: usize, loc: Loc) -> Result<usize, Diagnostic> {
        let slot = match loc.base {
            Base::Frame => return Ok(0),
            Base::Slot(slot) => slot,
        };
        match self.slots.get(slot as usize) {
            Some(&buffer) if buffer < self.buffers.len() => Ok(buffer),
            _ => Err(self.wrong(at, format!("names slot {slot}, which does not exist"))),
        }
    }

    /// What an access through these loops, each an extent and a stride in elements, touches; `all` are the extents of the instruction.
    fn reach(
        &self,
        at: usize,
        loc: Loc,
        size: usize,
        steps: &[(Extent, i64)],
        all: &[&Extent],
    ) -> Result<Reach, Diagnostic> {
        let buffer = self.buffer(at, loc)?;
        let whole = |(e, stride): &(Extent, i64)| (i64::try_from(e.full).unwrap_or(i64::MAX), *stride);
        let steps_in_full: Vec<(i64, i64)> = steps.iter().map(whole).collect();
        let footprint = Footprint::of(loc.offset, size as u64, &steps_in_full)
            .map_err(|why| self.wrong(at, format!("cannot run: {why}")))?;
        if footprint.end > self.buffers[buffer].bytes() {
            let (f, b) = (footprint, &self.buffers[buffer]);
            let name = self.buffer_name(buffer);
            return Err(self.wrong(
                at,
                format!("touches bytes {}..{} of {name}, which has {}", f.start, f.end, b.bytes()),
            ));
        }
        let private = self.code.frame_bytes.saturating_sub(self.code.shared_bytes);
        if buffer == 0 && footprint.start < private && private < footprint.end {
            return Err(
                self.wrong(at, "runs over the border between what a device has and what its team shares")
            );
        }
        let path = Path::new(loc.offset, size as u64, steps, all);
        Ok(Reach { buffer, at: footprint, path })
    }

    fn read(&self, at: usize, r: &Reach) -> Result<Roots, Diagnostic> {
        self.buffers[r.buffer].read(&r.at, &r.path).map_err(|why| {
            let name = self.buffer_name(r.buffer);
            self.wrong(at, format!("reads {name} wrongly: {why}"))
        })
    }

    /// Writes a box, or only some of it, known at run time, but for what is left out. Writes to slots of arguments and constants are
    /// refused unless the argument is updated in place.
    fn write(
        &mut self,
        at: usize,
        r: &Reach,
        roots: &Roots,
        some: Option<Vec<Cut>>,
    ) -> Result<(), Diagnostic> {
        let (args, results) = (self.func.args.len(), self.func.results.len());
        if let Some(slot) = r.buffer.checked_sub(1)
            && (slot < args && !self.in_place[r.buffer] || slot >= args + results)
        {
            let name = self.buffer_name(r.buffer);
            return Err(self.wrong(at, format!("writes {name}, which is only read")));
        }
        let done = match some {
            Some(left_out) => self.buffers[r.buffer].write_some(&r.at, roots, left_out),
            None => self.buffers[r.buffer].write(&r.at, &r.path, roots, at),
        };
        done.map_err(|why| self.wrong(at, why))?;
        match self.buffers[r.buffer].lost() {
            None => Ok(()),
            Some(lost) => {
                let by = self.code.instrs.get(at).and_then(|i| self.code.notes.get(i.note as usize));
                let by = by.map_or("", |n| n.what.as_str());
                Err(self.wrong(
                    lost,
                    format!("makes something that `{by}` (instruction {at}) overwrites before it is read"),
                ))
            }
        }
    }

    fn instr(&mut self, at: usize) -> Result<(), Diagnostic> {
        let code: &'a FuncProgram = self.code;
        let Instr { kind, .. } = &code.instrs[at];
        self.team(at, &code.instrs[at])?;
        match kind {
            InstrKind::Kernel(launch) => self.kernel(at, launch),
            InstrKind::Gemm(gemm) => self.gemm(at, gemm),
            InstrKind::Attention(call) => self.attention(at, call),
            InstrKind::TopK(call) => self.select(at, &Op::TopK(TopK { k: call.k as usize }), &call.views()),
            InstrKind::Sample(call) => self.select(at, &Op::Sample(Sample {}), &call.views()),
            InstrKind::Rows(rows) => self.look_up(at, rows),
            InstrKind::Collective(call) => self.collective(at, call),
        }
    }

    fn matrix(
        &self,
        at: usize,
        m: &Matrix,
        (rows, cols): (&Extent, &Extent),
        batch: Vec<(Extent, i64)>,
        all: &[&Extent],
    ) -> Result<Reach, Diagnostic> {
        let mut steps = vec![(rows.clone(), m.row), (cols.clone(), m.col)];
        steps.extend(batch);
        self.reach(at, m.loc, m.dtype.bytes(), &steps, all)
    }

    fn gemm(&mut self, at: usize, g: &Gemm) -> Result<(), Diagnostic> {
        let batch = |stride: fn(&pcc_ir::program::BatchDim) -> i64| -> Vec<(Extent, i64)> {
            g.batch.iter().map(|b| (b.extent.clone(), stride(b))).collect()
        };
        let outer = g.batch.iter().map(|b| &b.extent);
        // An empty sum is zero: that nothing of k is there does not keep c from being written.
        let free: Vec<&Extent> = [&g.m, &g.n].into_iter().chain(outer).collect();
        let all: Vec<&Extent> = free.iter().copied().chain([&g.k]).collect();
        let a = self.matrix(at, &g.a, (&g.m, &g.k), batch(|b| b.a), &all)?;
        let b = match &g.packed {
            Some(packed) => self.packed_factor(at, g, packed)?,
            None => self.matrix(at, &g.b, (&g.k, &g.n), batch(|b| b.b), &all)?,
        };
        let c = self.matrix(at, &g.c, (&g.m, &g.n), batch(|b| b.c), &free)?;
        let clash = |x: &Reach| x.buffer == c.buffer && x.at.meets(&c.at);
        if clash(&a) || clash(&b) {
            return Err(self.wrong(at, "writes its product over its operands"));
        }
        let (lhs, rhs) = (self.read(at, &a)?, self.read(at, &b)?);
        let Some(wanted) = self.expected.products.get(self.products).cloned() else {
            return Err(self.wrong(at, "is a product that the function does not have"));
        };
        self.products += 1;
        let value = fault::value(self.func, wanted.value);
        let in_order = wanted.lhs.met_by(&lhs) && wanted.rhs.met_by(&rhs);
        let swapped = wanted.rhs.met_by(&lhs) && wanted.lhs.met_by(&rhs);
        if !in_order && !swapped {
            let why = format!(
                "{}; {}",
                self.difference("left", &lhs, &wanted.lhs),
                self.difference("right", &rhs, &wanted.rhs)
            );
            return Err(self.wrong(at, format!("should make {value}, but multiplies other values")).why(why));
        }
        let batches = g.batch.iter().map(|b| u128::from(b.extent.full)).product::<u128>();
        let work =
            [&g.m, &g.n, &g.k].iter().map(|n| u128::from(n.full)).product::<u128>().saturating_mul(batches);
        if work != wanted.work || g.alpha != wanted.alpha {
            let why = format!(
                "{work} multiplications scaled by {}, instead of {} scaled by {}",
                g.alpha, wanted.work, wanted.alpha
            );
            return Err(self.wrong(at, format!("should make {value}, but is another product")).why(why));
        }
        if let Some(clip) = g.k.clip.as_deref()
            && !wanted.depths.contains(clip)
        {
            return Err(self.wrong(at, format!("should make {value}, but leaves out terms of its sums")));
        }
        let mut made = Roots::one(wanted.result);
        if g.accumulate {
            made.join(&self.read(at, &c)?);
        }
        self.write(at, &c, &made, None)
    }

    /// What an operand lacks and has too much.
    fn difference(&self, which: &str, have: &Roots, want: &Needs) -> String {
        let names = |roots: Vec<usize>| {
            let name = |r: &usize| {
                self.expected.roots.get(*r).map_or("?".to_owned(), |&v| fault::value(self.func, v))
            };
            roots.iter().map(name).collect::<Vec<_>>().join(", ")
        };
        let (missing, extra) = (want.missing(have), want.extra(have));
        match (missing.is_empty(), extra.is_empty()) {
            (true, true) => format!("the {which} is right"),
            (false, true) => format!("the {which} does not hold {}", names(missing)),
            (true, false) => format!("the {which} also holds {}", names(extra)),
            (false, false) => format!("the {which} holds {} instead of {}", names(extra), names(missing)),
        }
    }

    fn finish(self) -> Result<Proof, Diagnostic> {
        let missing = |v: ValueId, what: &str| Err(fault::of_value(self.func, v, what));
        if let Some(Product { value, .. }) = self.expected.products.get(self.products) {
            return missing(*value, "is never multiplied out: no instruction makes it");
        }
        if let Some(Attends { value, .. }) = self.expected.attentions.get(self.attentions) {
            return missing(*value, "is never attended to: no instruction makes it");
        }
        if let Some(Selects { value, .. }) = self.expected.selections.get(self.selections) {
            return missing(*value, "is never selected: no instruction makes it");
        }
        if let Some(Exchange { value, .. }) = self.expected.exchanges.get(self.exchanges) {
            return missing(*value, "is never exchanged: no collective instruction makes it");
        }
        if let Some(RowKernel { value, .. }) = self.expected.rows.get(self.rows) {
            return missing(*value, "is never reduced: no kernel makes it");
        }
        let unknown = |(scalar, _): &&(Scalar, ValueId)| self.known.get(scalar) != Some(&true);
        if let Some((scalar, v)) = self.expected.scalars.iter().find(unknown) {
            return missing(*v, &format!("depends on the device, but no kernel knows {scalar:?}"));
        }
        let mut results = Vec::new();
        for (i, (&v, wanted)) in self.func.results.iter().zip(&self.expected.results).enumerate() {
            let slot = Loc { base: Base::Slot((self.func.args.len() + i) as u32), offset: 0 };
            let buffer = self.buffer(0, slot)?;
            let bytes = self.buffers[buffer].bytes();
            let whole = Footprint { start: 0, end: bytes, bytes };
            let held = self.buffers[buffer]
                .held(&whole)
                .map_err(|_| fault::of_value(self.func, v, "is not written in full"))?;
            if !wanted.met_by(&held) {
                let why = self.difference("slot", &held, wanted);
                return Err(fault::of_value(self.func, v, "is not what its slot holds at the end").why(why));
            }
            let cuts = self.buffers[buffer].cuts();
            let cuts = cuts.map_err(|why| fault::of_value(self.func, v, "is written in part").why(why))?;
            results.push(Rc::new(cuts));
        }
        Ok(Proof { constants: self.expected.constants, results })
    }
}
