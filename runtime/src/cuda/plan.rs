//! From instructions to work: addresses, extents and parameters on one device at one run. Nothing here calls CUDA.

use super::exchange::{Exchange, scratch_bytes};
use super::peers::Circle;
use super::ranges::{self, Span, Touched};
use super::work::{Fused, Product, Work};
use super::world::World;
use super::{GpuOptions, Gpus};
use crate::extents::FuncExtents;
use crate::layout::Layout;
use crate::machine::{FuncScalars, Groups};
use pcc_ir::gpu::attention::{AttentionKernel, AttentionPath, RANGE_KEYS};
use pcc_ir::gpu::gemm::{BATCH, GemmKernel};
use pcc_ir::gpu::selection::{self, ROW_DIMS, TopKKernel};
use pcc_ir::gpu::{
    BlasEpilogue, Epilogue, LibraryKernel, Shape, blas_epilogue_of, epilogue_of, f32_param, fused,
};
use pcc_ir::program::{
    AttentionCall, Base, CollectiveCall, CollectiveKind, EntryProgram, FuncProgram, Gemm, InstrKind, Launch,
    Loc, Program, SampleCall, Scalar, Slot, Step, Strided, TopKCall,
};
use pcc_ir::{Diagnostic, Extent, Sizes};
use std::collections::{BTreeSet, HashMap, HashSet};

/// What all ranks have in common.
pub(super) struct Plan {
    pub(super) program: Program,
    pub(super) layout: Layout,
    pub(super) groups: Groups,
    scalars: Vec<FuncScalars>,
    extents: Vec<FuncExtents>,
    /// Per function and instruction: what it touches.
    touched: Vec<Vec<Vec<Touched>>>,
    /// Per function and instruction: the next one, if it may run with this product.
    epilogues: Vec<Vec<Option<Behind>>>,
    /// Bytes of each of a rank's two scratch buffers.
    pub(super) scratch: u64,
    /// Bytes of all members' contributions to a collective, at most.
    pub(super) gather: u64,
}

/// A kernel that may run with the product before it.
struct Behind {
    /// Over the product's rows and columns.
    launch: Launch,
    /// Inside our kernel for the product, ..
    ours: Option<Epilogue>,
    /// .. and as cuBLASLt does it, which leaves the product's own result away.
    blas: Option<BlasEpilogue>,
}

impl Behind {
    fn of(program: &Program, func: &FuncProgram, touched: &[Vec<Touched>], at: usize) -> Option<Self> {
        let launch = func.epilogue_launch(at, &program.kernels)?;
        let blas = blas_epilogue_of(program, func, at).map(|(blas, _)| blas);
        let blas = blas.filter(|_| ranges::is_dead_behind(touched, at));
        Some(Self { launch, ours: epilogue_of(program, func, at), blas })
    }
}

/// A call of a function on one device.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) plan: &'a Plan,
    pub(super) entry: usize,
    pub(super) device: usize,
    pub(super) sizes: Sizes,
    /// Number of the function.
    pub(super) index: usize,
    pub(super) slots: &'a [Slot],
    /// Where the device's memory begins.
    pub(super) base: u64,
    pub(super) scratch: [u64; 2],
}

impl Plan {
    /// Of a validated program.
    pub(super) fn new(program: Program, layout: Layout) -> Self {
        let scalars = program.funcs.iter().map(|f| FuncScalars::new(&program, f)).collect();
        let extents = program.funcs.iter().map(|f| FuncExtents::new(&program, f)).collect();
        let groups = Groups::new(&program);
        let touched: Vec<Vec<Vec<Touched>>> = program.funcs.iter().map(|f| ranges::of(&program, f)).collect();
        let behind = |(f, touched): (&FuncProgram, &Vec<Vec<Touched>>)| {
            (0..f.instrs.len()).map(|at| Behind::of(&program, f, touched, at)).collect()
        };
        let epilogues = program.funcs.iter().zip(&touched).map(behind).collect();
        let (mut scratch, mut gather) = (0, 0);
        for instr in program.funcs.iter().flat_map(|f| &f.instrs) {
            if let InstrKind::Collective(call) = &instr.kind {
                let members = program.mesh.group(0, &call.axes).len();
                let bytes = scratch_bytes(call, members);
                scratch = bytes.max(scratch);
                // What is reduced is put side by side whole; of the others each member takes its part.
                let copies = if call.kind == CollectiveKind::AllReduce { members as u64 } else { 1 };
                gather = bytes.saturating_mul(copies).max(gather);
            }
        }
        Self { program, layout, groups, scalars, extents, touched, epilogues, scratch, gather }
    }
}

impl Plan {
    /// Everything that ranks exchange data through, with its number of members.
    pub(super) fn circles(&self) -> HashMap<Circle, usize> {
        let devices = 0..self.program.mesh.devices();
        devices.flat_map(|d| self.circles_of(d)).map(|(circle, members, _)| (circle, members)).collect()
    }

    /// The circles of a device: number of members, and which of them it is.
    pub(super) fn circles_of(&self, device: usize) -> Vec<(Circle, usize, usize)> {
        let stage_devices = self.layout.stage_devices();
        let (stage, position) = (device / stage_devices, device % stage_devices);
        let mut found = BTreeSet::new();
        let steps = self.program.entries.iter().filter_map(|e| e.stages.get(stage)).flat_map(|s| &s.steps);
        let mut known = HashSet::new();
        for step in steps {
            let link = |from: usize, to: usize, own: usize| {
                let [from, to] = [from, to].map(|stage| stage * stage_devices + position);
                (Circle::Link { from, to }, 2, own)
            };
            match *step {
                Step::Send { to, .. } => drop(found.insert(link(stage, to as usize, 0))),
                Step::Recv { from, .. } => drop(found.insert(link(from as usize, stage, 1))),
                Step::Call { func, .. } if known.insert(func) => {
                    let func = func as usize;
                    for (at, instr) in self.program.funcs[func].instrs.iter().enumerate() {
                        if matches!(instr.kind, InstrKind::Collective(_)) {
                            let (number, members) = self.groups.find(func, at, position);
                            let own = members.iter().position(|&m| m as usize == position).unwrap_or(0);
                            found.insert((Circle::Group { stage, number }, members.len(), own));
                        }
                    }
                }
                Step::Call { .. } => {}
            }
        }
        found.into_iter().collect()
    }

    /// Processes of a launcher have a rank and a GPU each, and exchange data through NCCL.
    ///
    /// # Errors
    /// Ranks are to share GPUs as well, or to exchange data in simulation, whose NCCL is one process's.
    pub(super) fn check_world(&self, world: Option<&World>, options: &GpuOptions) -> Result<(), Diagnostic> {
        let Some(world) = world else { return Ok(()) };
        let started = format!("{} processes were started, each for one rank", world.size);
        if options.ranks_per_device > 1 {
            return Err(Diagnostic::usage("--ranks-per-device is for one process that runs all ranks")
                .why(started)
                .help("leave it out, or start one process"));
        }
        if options.gpus != Gpus::Real && self.circles().values().any(|&members| members > 1) {
            return Err(Diagnostic::usage("simulated GPUs of several processes cannot exchange data")
                .why(started)
                .help("start one process: it runs all ranks"));
        }
        Ok(())
    }

    /// A link carries messages in one order: what a stage sends to another must be what that receives from it, one after another.
    ///
    /// # Errors
    /// The artifact is damaged: a message would be taken for another, or waited for in vain.
    pub(super) fn check_messages(&self) -> Result<(), Diagnostic> {
        for entry in &self.program.entries {
            for (from, sender) in entry.stages.iter().enumerate() {
                for (to, receiver) in entry.stages.iter().enumerate() {
                    let sent = sender.steps.iter().filter_map(|s| match *s {
                        Step::Send { to: t, tag, bytes, .. } if t as usize == to => Some((tag, bytes)),
                        _ => None,
                    });
                    let received = receiver.steps.iter().filter_map(|s| match *s {
                        Step::Recv { from: f, tag, bytes, .. } if f as usize == from => Some((tag, bytes)),
                        _ => None,
                    });
                    if !sent.eq(received) {
                        return Err(Diagnostic::input("the artifact is damaged")
                            .at(format!("program.json, entry `{}`", entry.name))
                            .why(format!("stage {to} does not receive what stage {from} sends, in its order"))
                            .help("compile the model again"));
                    }
                }
            }
            check_progress(entry)?;
        }
        Ok(())
    }

    /// Bytes of the parameters that a device holds.
    pub(super) fn weight_bytes(&self, device: usize) -> u64 {
        let stage = &self.layout.stages[device / self.layout.stage_devices()];
        stage.params().iter().map(|&p| self.program.params[p as usize].local_bytes()).sum()
    }
}

/// Runs the stages' messages alone: none may wait for ever. Sends are posted, and what is received is taken in the order it was sent.
fn check_progress(entry: &EntryProgram) -> Result<(), Diagnostic> {
    let mut at = vec![0; entry.stages.len()];
    let mut posted: HashMap<(usize, usize), usize> = HashMap::new();
    loop {
        let before = at.clone();
        for (stage, program) in entry.stages.iter().enumerate() {
            while let Some(step) = program.steps.get(at[stage]) {
                match *step {
                    Step::Call { .. } => {}
                    Step::Send { to, .. } => *posted.entry((stage, to as usize)).or_default() += 1,
                    Step::Recv { from, .. } => match posted.get_mut(&(from as usize, stage)) {
                        Some(waiting) if *waiting > 0 => *waiting -= 1,
                        _ => break,
                    },
                }
                at[stage] += 1;
            }
        }
        if at == before {
            break;
        }
    }
    match (0..at.len()).find(|&s| at[s] < entry.stages[s].steps.len()) {
        None => Ok(()),
        Some(stage) => Err(Diagnostic::input("the artifact is damaged")
            .at(format!("program.json, entry `{}`", entry.name))
            .why(format!(
                "stage {stage} waits for ever in its step {}: stages wait for each other",
                at[stage]
            ))
            .help("compile the model again")),
    }
}

impl<'a> Call<'a> {
    pub(super) fn func(&self) -> &'a FuncProgram {
        &self.plan.program.funcs[self.index]
    }

    fn position(&self) -> usize {
        self.device % self.plan.layout.stage_devices()
    }

    /// A device address.
    pub(super) fn address(&self, loc: &Loc) -> u64 {
        let layout = &self.plan.layout;
        let at = match loc.base {
            Base::Frame => layout.frame(self.device),
            Base::Slot(i) => {
                layout.slot(self.entry, self.device, self.sizes.micro_batch, self.slots[i as usize])
            }
        };
        self.base + at as u64 + loc.offset
    }

    /// What an instruction touches in the device's memory.
    pub(super) fn spans(&self, instr: usize) -> Vec<Span> {
        let span = |t: &Touched| {
            let start = self.address(&Loc { base: t.base, offset: 0 });
            Span { bytes: start + t.bytes.start..start + t.bytes.end, write: t.write }
        };
        self.plan.touched[self.index][instr].iter().map(span).collect()
    }

    /// The work of an instruction.
    pub(super) fn work(&self, instr: usize) -> Work {
        let mut extent = self.plan.extents[self.index].of(self.position(), instr, &self.sizes);
        match &self.func().instrs[instr].kind {
            InstrKind::Kernel(launch) => {
                let extents: Vec<u64> = launch.extents.iter().map(&mut extent).collect();
                self.fused(instr, launch, &extents)
            }
            InstrKind::Gemm(gemm) => self.product(instr, gemm, extent),
            InstrKind::Attention(call) => self.attention(call, extent),
            InstrKind::TopK(call) => self.top_k(call, extent),
            InstrKind::Sample(call) => self.sample(call, extent),
            InstrKind::Collective(call) => self.exchange(instr, call, extent),
            // invariant: a program for GPUs has no panels, which loading it checks
            InstrKind::Rows(_) => unreachable!("rows of panels on a GPU"),
        }
    }

    fn fused(&self, instr: usize, launch: &Launch, extents: &[u64]) -> Work {
        let kernel = &self.plan.program.kernels[launch.kernel];
        let (lanes, rows) = extents.split_last().map_or((1, &[][..]), |(&l, r)| (l, r));
        if rows.contains(&0) || lanes == 0 && !fused::reduces(kernel) {
            return Work::Nothing;
        }
        let mut params: Vec<u64> = launch.ptrs.iter().map(|p| self.address(p)).collect();
        params.extend(extents);
        params.extend(launch.strides.iter().map(|&s| s as u64));
        params.extend(self.scalars(instr, launch));
        Work::Fused { kernel: launch.kernel, shape: fused::shape(kernel, extents), params }
    }

    fn scalars(&self, instr: usize, launch: &Launch) -> Vec<u64> {
        let fixed = self.plan.scalars[self.index].of(self.position(), instr, launch.scalars.len());
        let scalar = |(s, &fixed): (&Scalar, &i64)| {
            s.at(&self.plan.program.mesh, self.position(), &self.sizes).unwrap_or(fixed) as u64
        };
        launch.scalars.iter().zip(fixed).map(scalar).collect()
    }

    /// The parameters of the kernel behind product `instr` as its epilogue.
    fn epilogue(&self, instr: usize, epilogue: &Epilogue, launch: &Launch) -> Vec<u64> {
        let mut params: Vec<u64> = launch.ptrs.iter().map(|p| self.address(p)).collect();
        for &[batch, row, col] in launch.strides.as_chunks().0 {
            params.extend([row, col, batch].map(|s| s as u64).into_iter().take(epilogue.strides()));
        }
        params.extend(self.scalars(instr + 1, launch));
        params
    }

    /// The product with the kernel behind it, for cuBLASLt.
    fn with_behind(&self, epilogue: &BlasEpilogue, launch: &Launch) -> Option<Fused> {
        let strides = |access: u32| launch.strides.as_chunks().0.get(access as usize);
        let matrix = |access: u32| {
            let &[_, row, col] = strides(access)?;
            Some((self.address(launch.ptrs.get(access as usize)?), row, col))
        };
        let batch = |access: u32| strides(access).map_or(0, |s| s[0]);
        let kernel = &self.plan.program.kernels[launch.kernel];
        Some(Fused {
            activation: epilogue.activation,
            dtype: kernel.accesses.get(epilogue.out as usize)?.dtype,
            out: matrix(epilogue.out)?,
            bias: epilogue.bias.and_then(matrix).map(|bias| bias.0),
            add: epilogue.add.and_then(matrix),
            batch: [epilogue.add.unwrap_or(epilogue.out), epilogue.out].map(batch),
        })
    }

    fn product(&self, instr: usize, gemm: &Gemm, mut extent: impl FnMut(&Extent) -> u64) -> Work {
        let [m, n, k] = [&gemm.m, &gemm.n, &gemm.k].map(&mut extent);
        let batch: Vec<[i64; 4]> =
            gemm.batch.iter().map(|d| [extent(&d.extent) as i64, d.a, d.b, d.c]).collect();
        if m == 0 || n == 0 || batch.iter().any(|d| d[0] == 0) {
            return Work::Nothing;
        }
        let matrix = |m: &pcc_ir::program::Matrix| (self.address(&m.loc), m.row, m.col);
        let behind = self.plan.epilogues[self.index][instr].as_ref();
        let kernel = GemmKernel {
            epilogue: behind.and_then(|b| b.ours),
            ..GemmKernel::of(gemm, self.plan.program.target.arch())
        };
        let epilogue = behind.and_then(|b| Some(self.epilogue(instr, b.ours.as_ref()?, &b.launch)));
        let epilogue = epilogue.unwrap_or_default();
        let fused = behind.and_then(|b| self.with_behind(b.blas.as_ref()?, &b.launch));
        let (a, b, c) = (matrix(&gemm.a), matrix(&gemm.b), matrix(&gemm.c));
        let alpha = gemm.alpha as f32;
        let mut product = Product { kernel, m, n, k, alpha, a, b, c, batch, epilogue, fused };
        product.merge(behind.map_or(&[], |b| b.launch.strides.as_chunks().0));
        Work::Product(Box::new(product))
    }

    fn attention(&self, call: &AttentionCall, mut extent: impl FnMut(&Extent) -> u64) -> Work {
        let [b, s, t, g, r, _, _] = call.extents().map(&mut extent);
        let kernel = AttentionKernel::of(call);
        if [b, s, g, r].contains(&0) {
            return Work::Nothing;
        }
        let mut params = Vec::with_capacity(AttentionKernel::PARAMS);
        let optional = [call.q_pos.as_ref(), Some(&call.k_pos), call.slopes.as_ref(), Some(&call.out)];
        let views = [Some(&call.q), Some(&call.k), Some(&call.v)].into_iter().chain(optional);
        let views: Vec<Option<&Strided>> = views.collect();
        params.extend(views.iter().map(|v| v.map_or(0, |v| self.address(&v.loc))));
        params.extend([b, s, t, g, r]);
        for (view, rank) in views.iter().zip([5, 4, 4, 2, 2, 2, 5]) {
            match view {
                Some(view) => params.extend(view.strides.iter().map(|&s| s as u64)),
                None => params.extend(std::iter::repeat_n(0, rank)),
            }
        }
        params.push(f32_param(call.scale as f32));
        params.push(f32_param(call.softcap.unwrap_or(0.0) as f32));
        params.push(call.window.unwrap_or(0));
        let shape = kernel.shape(b, s, g, r);
        debug_assert!(kernel.path == AttentionPath::Simt || shape.shared > 0);
        let shape = Shape { grid: [shape.grid[0], shape.grid[1], kernel.ranges(t)], ..shape };
        let mut launches = vec![(LibraryKernel::Attention(kernel), shape, params)];
        if let (Some(join), Some(scratch)) = (kernel.join(), &call.scratch) {
            let partials = self.address(scratch);
            launches[0].2.push(partials);
            let mut params =
                vec![partials, self.address(&call.out.loc), b, s, g, r, t.div_ceil(RANGE_KEYS.into()).max(1)];
            params.extend(call.out.strides.iter().map(|&s| s as u64));
            launches.push((LibraryKernel::AttentionJoin(join), join.shape(b * s * g * r), params));
        }
        Work::Library(launches)
    }

    fn top_k(&self, call: &TopKCall, extent: impl FnMut(&Extent) -> u64) -> Work {
        let rows: Vec<u64> = call.rows.iter().map(extent).collect();
        if rows.contains(&0) {
            return Work::Nothing;
        }
        let kernel = LibraryKernel::TopK(TopKKernel { dtype: call.x.dtype, k: call.k as u32 });
        let views = [&call.x, &call.values, &call.indices];
        let (outer, inner) = rows.split_at(rows.len().saturating_sub(ROW_DIMS));
        let launch = |index: u64| {
            let (mut rest, mut params) = (index, views.map(|v| self.address(&v.loc)).to_vec());
            for (dim, &n) in outer.iter().enumerate().rev() {
                let i = (rest % n) as i64;
                rest /= n;
                for (param, view) in params.iter_mut().zip(views) {
                    *param = param.wrapping_add_signed(i * view.strides[dim] * view.dtype.bytes() as i64);
                }
            }
            params.push(call.n);
            for _ in inner.len()..ROW_DIMS {
                params.extend([1, 0, 0, 0]);
            }
            for (dim, &n) in inner.iter().enumerate() {
                params.push(n);
                params.extend(views.map(|v| v.strides[outer.len() + dim] as u64));
            }
            params.extend(views.map(|v| v.strides[rows.len()] as u64));
            (kernel, selection::shape(inner.iter().product()), params)
        };
        Work::Library((0..outer.iter().product()).map(launch).collect())
    }

    fn sample(&self, call: &SampleCall, mut extent: impl FnMut(&Extent) -> u64) -> Work {
        let rows = extent(&call.rows);
        if rows == 0 {
            return Work::Nothing;
        }
        let views = [&call.logits, &call.settings, &call.key, &call.out];
        let mut params = views.map(|v| self.address(&v.loc)).to_vec();
        params.extend([rows, call.tokens]);
        params.extend(views.iter().flat_map(|v| &v.strides).map(|&s| s as u64));
        Work::Library(vec![(LibraryKernel::Sample, selection::shape(rows), params)])
    }

    fn exchange(&self, instr: usize, call: &CollectiveCall, mut extent: impl FnMut(&Extent) -> u64) -> Work {
        let there: Vec<usize> = if call.there.is_empty() {
            call.src_shape.iter().zip(&call.dst_shape).map(|(&a, &b)| a.max(b) as usize).collect()
        } else {
            call.there.iter().map(|e| extent(e) as usize).collect()
        };
        let members = self.plan.groups.find(self.index, instr, self.position()).1;
        let own = members.iter().position(|&m| m as usize == self.position()).unwrap_or(0);
        let exchange = Exchange {
            call,
            src: self.address(&call.src),
            dst: self.address(&call.dst),
            there,
            members: members.len(),
            own,
            scratch: self.scratch,
        };
        Work::Exchange(exchange.moves())
    }
}

impl Product {
    /// Makes one product of those of a batch with one b, where their rows follow each other: also those of what stands behind them, whose
    /// strides along the batch, rows and columns are given.
    fn merge(&mut self, behind: &[[i64; 3]]) {
        let [[count, a, 0, c]] = self.batch[..] else { return };
        let follow = |batch: i64, row: i64| row.checked_mul(self.m as i64) == Some(batch);
        let all = follow(a, self.a.1) && follow(c, self.c.1);
        if all && behind.iter().all(|&[batch, row, _]| follow(batch, row)) {
            self.m *= count as u64;
            self.batch.clear();
        }
    }

    /// The launches of our own kernel: one for each index of the batch dims that it does not take.
    pub(super) fn launches(&self) -> Vec<(Shape, Vec<u64>)> {
        let outer = self.batch.len().saturating_sub(BATCH);
        let (outer, inner) = self.batch.split_at(outer);
        let count: i64 = outer.iter().map(|d| d[0]).product();
        let inner_count: u64 = inner.iter().map(|d| d[0] as u64).product();
        let sizes = [self.kernel.a, self.kernel.b, self.kernel.c].map(|d| d.bytes() as i64);
        let launch = |index: i64| {
            let (mut rest, mut offsets) = (index, [0i64; 3]);
            for dim in outer.iter().rev() {
                let i = rest % dim[0];
                rest /= dim[0];
                offsets.iter_mut().zip(&dim[1..]).for_each(|(o, s)| *o += i * s);
            }
            let bases = [self.a.0, self.b.0, self.c.0];
            let at = |i: usize| bases[i].wrapping_add_signed(offsets[i] * sizes[i]);
            let mut params = vec![at(0), at(1), at(2), self.m, self.n, self.k];
            params.extend([self.a.1, self.a.2, self.b.1, self.b.2, self.c.1, self.c.2].map(|s| s as u64));
            params.push(f32_param(self.alpha));
            for _ in inner.len()..BATCH {
                params.extend([1, 0, 0, 0]);
            }
            params.extend(inner.iter().flatten().map(|&x| x as u64));
            params.extend(&self.epilogue);
            (self.kernel.shape(self.m, self.n, inner_count), params)
        };
        (0..count).map(launch).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcc_ir::DType;
    use pcc_ir::gpu::gemm::GemmPath;

    #[test]
    fn rows_that_follow_each_other_are_one_product() {
        let kernel = GemmKernel {
            path: GemmPath::Simt,
            a: DType::F32,
            b: DType::F32,
            c: DType::F32,
            rows: 64,
            a_by_k: false,
            b_by_k: false,
            epilogue: None,
        };
        let merged = |m: u64, batch: &[[i64; 4]], behind: &[[i64; 3]]| {
            let (a, b, c, batch) = ((0, 7, 1), (0, 5, 1), (0, 6, 1), batch.to_vec());
            let (epilogue, fused) = (vec![], None);
            let mut product = Product { kernel, m, n: 5, k: 7, alpha: 1.0, a, b, c, batch, epilogue, fused };
            product.merge(behind);
            (product.m, product.batch.len())
        };
        let batch = [4, 70, 0, 60];
        assert_eq!(merged(10, &[batch], &[]), (40, 0));
        assert_eq!(merged(10, &[batch], &[[60, 6, 1], [0, 0, 1]]), (40, 0));
        // Fewer rows than there is room for, a b for each, another batch, an access that goes on elsewhere.
        assert_eq!(merged(9, &[batch], &[]), (9, 1));
        assert_eq!(merged(10, &[[4, 70, 35, 60]], &[]), (10, 1));
        assert_eq!(merged(10, &[[4, 70, 0, 61]], &[]), (10, 1));
        assert_eq!(merged(10, &[batch, batch], &[]), (10, 2));
        assert_eq!(merged(10, &[batch], &[[60, 6, 1], [1, 0, 1]]), (10, 1));
    }
}
