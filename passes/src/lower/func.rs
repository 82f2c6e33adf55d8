//! Lowers one local function to an instruction list.
//!
//! Every value is either *materialised* (it owns a buffer) or *inlined* (its expression is emitted into the kernels that
//! use it). Shape ops over materialised values are strided views and cost nothing. `materialise.rs` decides, `express.rs` turns
//! inlined values into kernel nodes, `gemm.rs` maps contractions to matrix products, this file walks the instructions.

use super::buffers::{self, BufId, Buffer, Place};
use super::clips::FuncClips;
use super::express::{Dim, Map};
use super::kernel_build::{Built, KernelBuilder, KernelTable};
use super::{materialise, once};
use pcc_ir::ops::{Literal, Op};
use pcc_ir::program::{
    ConstantData, DeviceKind, FuncProgram, Instr, InstrKind, Launch, Loc, Note, PackedMatrix, Storage,
};
use pcc_ir::{AxisRef, DType, Diagnostic, Extent, Func, Inst, InstId, Mesh, Type, ValueId};
use std::collections::{HashMap, HashSet};

/// A strided view of a buffer, in elements.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct View {
    pub buf: BufId,
    pub offset: i64,
    pub strides: Vec<i64>,
}

/// Row-major strides of a shape.
pub(super) fn dense_strides(shape: &[usize]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d] as i64;
    }
    strides
}

/// Whether a view of `shape` is row-major and dense (dims of extent 1 have no stride to speak of).
pub(super) fn is_dense(shape: &[usize], strides: &[i64]) -> bool {
    shape.iter().zip(strides).zip(dense_strides(shape)).all(|((&n, &s), d)| n == 1 || s == d)
}

pub(super) struct FuncLowering<'a> {
    pub func: &'a Func,
    pub mesh: &'a Mesh,
    pub device: DeviceKind,
    /// Which part of each value is written.
    pub clips: &'a FuncClips,
    pub kernels: &'a mut KernelTable,
    /// Defining instruction of each value that has one.
    pub def: HashMap<ValueId, InstId>,
    /// Values that own a buffer.
    pub owned: HashSet<ValueId>,
    /// Views of values that are materialised, or are shape ops over such values.
    pub views: HashMap<ValueId, View>,
    /// Strides chosen for a value other than row-major ones (a dot written in its transpose's order).
    pub layout: HashMap<ValueId, Vec<i64>>,
    /// Arguments that are parameters in panels.
    pub packed: HashMap<ValueId, PackedMatrix>,
    buffers: Vec<Buffer>,
    instrs: Vec<(InstrKind, u32)>,
    notes: Vec<Note>,
    noted: HashMap<Note, u32>,
    constants: Vec<ConstantData>,
    in_place: Vec<(u32, u32)>,
    team: &'a [AxisRef],
    /// Results that a team can share.
    shareable: &'a HashSet<usize>,
    /// Results that are in-place successors, and of which arguments.
    successors: HashMap<ValueId, ValueId>,
}

/// Lowers `func`. `in_place` lists `(argument, result)` pairs that every call binds to one buffer, `storages` has the form of each
/// argument (dense beyond its end). Also returns the constants that a
/// call must bind after the results.
pub(super) fn lower_func(
    func: &Func,
    (mesh, device): (&Mesh, DeviceKind),
    (clips, in_place, storages): (&FuncClips, &[(usize, usize)], &[Storage]),
    (team, shareable): (&[AxisRef], &HashSet<usize>),
    kernels: &mut KernelTable,
) -> Result<(FuncProgram, Vec<ConstantData>), Diagnostic> {
    let packed: HashMap<ValueId, PackedMatrix> = func
        .args
        .iter()
        .zip(storages)
        .filter_map(|(&v, storage)| Some((v, storage.matrix(&func.ty(v).shape)?)))
        .collect();
    let plan = materialise::plan(func, &packed.keys().copied().collect());
    refuse_wide(func, &plan.dead)?;
    let pair = |&(a, r): &(usize, usize)| Some((*func.results.get(r)?, *func.args.get(a)?));
    let mut l = FuncLowering {
        func,
        mesh,
        device,
        clips,
        kernels,
        def: plan.def,
        owned: plan.owned,
        layout: plan.layout,
        packed,
        views: HashMap::new(),
        buffers: Vec::new(),
        instrs: Vec::new(),
        notes: Vec::new(),
        noted: HashMap::new(),
        constants: Vec::new(),
        in_place: in_place.iter().map(|&(a, r)| (a as u32, r as u32)).collect(),
        team,
        shareable,
        // Of several the first counts.
        successors: in_place.iter().rev().filter_map(pair).collect(),
    };
    l.bind_slots();
    for (at, inst) in func.insts.iter().enumerate() {
        if !plan.dead.contains(&at) {
            l.lower_inst(inst)?;
        }
    }
    l.copy_results()?;
    Ok(l.finish())
}

/// Kernels compute floats in f32 and integers in i32: wider results would be wrong without a word.
fn refuse_wide(func: &Func, dead: &HashSet<InstId>) -> Result<(), Diagnostic> {
    for (_, inst) in func.insts.iter().enumerate().filter(|(at, _)| !dead.contains(at)) {
        let wide =
            inst.results.iter().map(|&v| func.ty(v).dtype).find(|d| matches!(d, DType::F64 | DType::I64));
        if let Some(dtype) = wide {
            return Err(Diagnostic::input(format!("{dtype} arithmetic in `{}`", inst.op.name()))
                .at(FuncLowering::what(inst))
                .why("the CPU target computes floats in f32 and integers in i32")
                .help("use f32 or i32 in the model"));
        }
    }
    Ok(())
}

impl FuncLowering<'_> {
    fn add_buffer(&mut self, bytes: u64, place: Place) -> BufId {
        self.buffers.push(Buffer { bytes, place });
        BufId((self.buffers.len() - 1) as u32)
    }

    pub fn frame_buffer(&mut self, ty: &Type) -> BufId {
        self.add_buffer(ty.bytes() as u64, Place::Frame)
    }

    /// Arguments and results get their slots; a result that is an argument, a view or a repeat is copied at the end.
    fn bind_slots(&mut self) {
        let func = self.func;
        for (i, &v) in func.args.iter().enumerate() {
            let buf = self.add_buffer(self.arg_bytes(v), Place::Slot(i as u32));
            let strides = dense_strides(&func.ty(v).shape);
            self.views.insert(v, View { buf, offset: 0, strides });
        }
        for (i, &v) in func.results.iter().enumerate() {
            let place = Place::Slot((func.args.len() + i) as u32);
            let fresh =
                self.owned.contains(&v) && !self.views.contains_key(&v) && !self.layout.contains_key(&v);
            if fresh {
                let buf = self.add_buffer(func.ty(v).bytes() as u64, place);
                let strides = dense_strides(&func.ty(v).shape);
                self.views.insert(v, View { buf, offset: 0, strides });
            }
        }
    }

    fn arg_bytes(&self, v: ValueId) -> u64 {
        let ty = self.func.ty(v);
        self.packed.get(&v).map_or(ty.bytes() as u64, |m| m.bytes(ty.dtype))
    }

    /// The buffer that an owned value is written to.
    pub fn destination(&mut self, v: ValueId) -> View {
        if let Some(view) = self.views.get(&v) {
            return view.clone();
        }
        let ty = self.func.ty(v).clone();
        let buf = self.frame_buffer(&ty);
        let strides = self.layout.get(&v).cloned().unwrap_or_else(|| dense_strides(&ty.shape));
        let view = View { buf, offset: 0, strides };
        self.views.insert(v, view.clone());
        view
    }

    fn note(&mut self, what: &str, why: String) -> u32 {
        let note = Note { what: what.to_owned(), why };
        let notes = &mut self.notes;
        *self.noted.entry(note).or_insert_with_key(|note| {
            notes.push(note.clone());
            (notes.len() - 1) as u32
        })
    }

    pub fn emit(&mut self, kind: InstrKind, what: &str, why: String) {
        let note = self.note(what, why);
        self.instrs.push((kind, note));
    }

    /// Name for people of what an instruction computes.
    pub fn what(inst: &Inst) -> String {
        if inst.loc.is_empty() { inst.op.name().to_owned() } else { inst.loc.clone() }
    }

    /// Loops over the dims of a value, as far as it is there.
    pub fn extents(&self, v: ValueId) -> Vec<Extent> {
        let shape = &self.func.ty(v).shape;
        let clips = self.clips.of(v, shape.len());
        shape.iter().zip(clips).map(|(&n, clip)| Extent::part(n as u64, clip)).collect()
    }

    pub fn launch(&mut self, built: Built, what: &str) {
        let kernel = self.kernels.intern(built.kernel);
        let accesses = &self.kernels.kernels[kernel].accesses;
        let ptrs = built
            .ptrs
            .iter()
            .zip(accesses)
            .map(|(&(buf, offset), a)| buffers::pending(buf, offset as u64 * a.dtype.bytes() as u64))
            .collect();
        let launch =
            Launch { kernel, ptrs, extents: built.extents, strides: built.strides, scalars: built.scalars };
        self.emit(InstrKind::Kernel(launch), what, String::new());
    }

    pub fn loc(view: &View, dtype_bytes: usize) -> Loc {
        buffers::pending(view.buf, view.offset as u64 * dtype_bytes as u64)
    }

    fn lower_inst(&mut self, inst: &Inst) -> Result<(), Diagnostic> {
        let Some(&out) = inst.results.first() else {
            return Err(Diagnostic::internal(format!("`{}` inside a layer function", inst.op.name())));
        };
        if let Op::Constant(c) = &inst.op
            && let Literal::Dense(data) = &c.value
        {
            let slot = (self.func.args.len() + self.func.results.len() + self.constants.len()) as u32;
            self.constants.push(ConstantData { ty: c.ty.clone(), data: data.clone() });
            let buf = self.add_buffer(c.ty.bytes() as u64, Place::Slot(slot));
            self.views.insert(out, View { buf, offset: 0, strides: dense_strides(&c.ty.shape) });
            return Ok(());
        }
        if !self.owned.contains(&out) {
            if let Some(view) = self.view_of(inst) {
                self.views.insert(out, view);
            }
            return Ok(());
        }
        match &inst.op {
            Op::DotGeneral(dot) => self.lower_dot(inst, dot),
            Op::Gather(g) if self.packed.contains_key(&inst.args[0]) => self.lower_look_up(inst, g),
            Op::Attention(a) => self.lower_attention(inst, a),
            Op::TopK(op) => self.lower_top_k(inst, op),
            Op::Sample(_) => self.lower_sample(inst),
            Op::Collective(c) => self.lower_collective(inst, c),
            Op::Rope(r) => self.lower_rope(inst, r, out),
            Op::Convert(_) if let Some((rotated, r)) = self.rotation(inst.args[0]) => {
                self.lower_rope(rotated, r, out)
            }
            Op::Reduce(r) => self.lower_reduce(inst, r),
            Op::Concat(dim) => self.lower_concat(inst, *dim),
            Op::Pad(p) => self.lower_pad(inst, p),
            Op::Update(u) => self.lower_update(inst, u),
            Op::Softmax(s) => self.lower_rows(inst, s.dim),
            Op::RmsNorm(_) | Op::LayerNorm(_) => {
                let last = self.func.ty(out).rank().saturating_sub(1);
                self.lower_rows(inst, last)
            }
            Op::Call(_) | Op::Reshard(_) | Op::Send { .. } | Op::Recv { .. } => {
                Err(Diagnostic::internal(format!("`{}` inside a layer function", inst.op.name())))
            }
            _ => self.lower_elementwise(inst),
        }
    }

    /// A shape op over something with a view is a view itself, when strides can say so.
    pub fn view_of(&self, inst: &Inst) -> Option<View> {
        let from = self.views.get(inst.args.first()?)?;
        let in_shape = &self.func.ty(inst.args[0]).shape;
        let strides = match &inst.op {
            Op::Transpose(perm) => perm.iter().map(|&p| from.strides[p]).collect(),
            Op::Broadcast(b) => {
                let mut strides = vec![0; b.shape.len()];
                for (i, &d) in b.dims.iter().enumerate() {
                    strides[d] = from.strides[i];
                }
                strides
            }
            Op::Slice(s) => {
                let skip: i64 = s.start.iter().zip(&from.strides).map(|(&a, &st)| a as i64 * st).sum();
                return Some(View {
                    buf: from.buf,
                    offset: from.offset + skip,
                    strides: from.strides.clone(),
                });
            }
            Op::Reshape(shape) if is_dense(in_shape, &from.strides) => dense_strides(shape),
            Op::Reshape(shape) => unit_reshape(in_shape, shape)?
                .iter()
                .map(|from_dim| from_dim.map_or(0, |d| from.strides[d]))
                .collect(),
            _ => return None,
        };
        Some(View { buf: from.buf, offset: from.offset, strides })
    }

    /// Row kernels: softmax and norms over `dim`, which becomes the lane.
    fn lower_rows(&mut self, inst: &Inst, dim: usize) -> Result<(), Diagnostic> {
        let out = inst.results[0];
        let rank = self.func.ty(out).rank();
        let order: Vec<usize> = (0..rank).filter(|&d| d != dim).chain([dim]).collect();
        self.kernel_into(out, &order, inst)
    }

    pub fn lower_elementwise(&mut self, inst: &Inst) -> Result<(), Diagnostic> {
        let out = inst.results[0];
        let order: Vec<usize> = (0..self.func.ty(out).rank()).collect();
        self.kernel_into(out, &order, inst)
    }

    /// One kernel computing `out` from its definition, its dims iterated in `order`.
    fn kernel_into(&mut self, out: ValueId, order: &[usize], inst: &Inst) -> Result<(), Diagnostic> {
        let ty = self.func.ty(out).clone();
        let extents = self.extents(out);
        let mut k = KernelBuilder::new(order.iter().map(|&d| extents[d].clone()).collect());
        let map = Map::permuted(order, &ty.shape);
        let node = self.express_inst(&mut k, inst, &map)?;
        let to = self.destination(out);
        self.store(&mut k, &to, &map, &ty, node);
        self.launch(k.finish(inst.op.name()), &Self::what(inst));
        Ok(())
    }

    /// Stores a node to a view whose dims follow `map`.
    pub fn store(&self, k: &mut KernelBuilder, to: &View, map: &Map, ty: &Type, node: u32) {
        let (offset, strides) = map.address(to, k.rank());
        let access = k.access(to.buf, offset, strides, ty.dtype, true);
        k.store(access, node, None);
    }

    /// Copies a value into a fresh dense buffer (or a given view of the same shape).
    pub fn copy_to(&mut self, v: ValueId, to: &View, what: &str) -> Result<(), Diagnostic> {
        let extents = self.extents(v);
        self.copy_part(v, extents, to, what)
    }

    /// Copies as much of a value as `extents` say.
    pub fn copy_part(
        &mut self,
        v: ValueId,
        extents: Vec<Extent>,
        to: &View,
        what: &str,
    ) -> Result<(), Diagnostic> {
        let ty = self.func.ty(v).clone();
        let mut k = KernelBuilder::new(extents);
        let map = Map::identity(&ty.shape);
        let node = self.express(&mut k, v, &map)?;
        self.store(&mut k, to, &map, &ty, node);
        self.launch(k.finish("copy"), what);
        Ok(())
    }

    /// A dense row-major view of a value, copying when it has none.
    pub fn dense(&mut self, v: ValueId, what: &str) -> Result<View, Diagnostic> {
        let ty = self.func.ty(v).clone();
        if let Some(view) = self.views.get(&v)
            && is_dense(&ty.shape, &view.strides)
        {
            return Ok(View { strides: dense_strides(&ty.shape), ..view.clone() });
        }
        let buf = self.frame_buffer(&ty);
        let view = View { buf, offset: 0, strides: dense_strides(&ty.shape) };
        self.copy_to(v, &view, what)?;
        Ok(view)
    }

    /// Results that were not written straight to their slots.
    fn copy_results(&mut self) -> Result<(), Diagnostic> {
        let func = self.func;
        let in_place: HashSet<usize> = self.in_place.iter().map(|&(_, r)| r as usize).collect();
        for (i, &v) in func.results.iter().enumerate() {
            let slot = (func.args.len() + i) as u32;
            if in_place.contains(&i) {
                continue;
            }
            let placed = self
                .views
                .get(&v)
                .is_some_and(|view| self.buffers[view.buf.0 as usize].place == Place::Slot(slot));
            if !placed {
                let ty = func.ty(v);
                let buf = self.add_buffer(ty.bytes() as u64, Place::Slot(slot));
                let view = View { buf, offset: 0, strides: dense_strides(&ty.shape) };
                self.copy_to(v, &view, "result")?;
            }
        }
        Ok(())
    }

    /// The argument's buffer when `v` is the in-place successor of an argument.
    pub fn in_place_of(&self, v: ValueId) -> Option<View> {
        self.views.get(self.successors.get(&v)?).cloned()
    }

    fn finish(mut self) -> (FuncProgram, Vec<ConstantData>) {
        let (mut kinds, notes): (Vec<_>, Vec<_>) = std::mem::take(&mut self.instrs).into_iter().unzip();
        let in_place: Vec<_> = self.in_place.iter().map(|&(a, r)| (a as usize, r as usize)).collect();
        let known = ((self.func, &in_place[..]), (self.team, self.shareable));
        let sharing = once::decide(known.0, known.1, &self.buffers, &kinds, self.kernels);
        let (frame_bytes, shared_bytes) = buffers::place(&self.buffers, &sharing.buffers, &mut kinds);
        let of_slot = |(b, &shared): (&Buffer, &bool)| match b.place {
            Place::Slot(s) if shared => Some(s),
            _ => None,
        };
        let shared = self.buffers.iter().zip(&sharing.buffers).filter_map(of_slot).collect();
        let types = self.func.results.iter().map(|&v| self.func.ty(v));
        let others = types.chain(self.constants.iter().map(|c| &c.ty)).map(|t| t.bytes() as u64);
        let slot_bytes = self.func.args.iter().map(|&v| self.arg_bytes(v)).chain(others).collect();
        let args = self.func.args.len() as u32;
        let program = FuncProgram {
            name: self.func.name.clone(),
            slot_bytes,
            args,
            results: self.func.results.len() as u32,
            in_place: self.in_place.iter().map(|&(a, r)| (a, args + r)).collect(),
            frame_bytes,
            shared_bytes,
            shared,
            instrs: kinds
                .into_iter()
                .zip(notes)
                .zip(sharing.once)
                .map(|((kind, note), once)| Instr { kind, note, once })
                .collect(),
            notes: self.notes,
        };
        (program, self.constants)
    }
}

/// For a reshape that only adds or drops dims of extent 1: the operand dim that each result dim is.
pub(super) fn unit_reshape(from: &[usize], to: &[usize]) -> Option<Vec<Option<usize>>> {
    let mut left = (0..from.len()).filter(|&d| from[d] != 1);
    let map: Vec<Option<usize>> = to
        .iter()
        .map(|&n| if n == 1 { Some(None) } else { left.next().filter(|&d| from[d] == n).map(Some) })
        .collect::<Option<_>>()?;
    left.next().is_none().then_some(map)
}

impl Map {
    /// Dim d of the value is iteration dim d.
    pub fn identity(shape: &[usize]) -> Self {
        Self(shape.iter().enumerate().map(|(d, _)| Dim::iter(d)).collect())
    }

    /// Iteration dim i is dim `order[i]` of the value.
    pub fn permuted(order: &[usize], shape: &[usize]) -> Self {
        let mut map = Self::identity(shape);
        for (i, &d) in order.iter().enumerate() {
            map.0[d] = Dim::iter(i);
        }
        map
    }
}
