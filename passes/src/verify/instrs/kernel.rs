//! Kernels: what each access touches, what every node depends on, and what the device-dependent scalars are.

use super::super::cuts::{Cut, Path};
use super::super::fault;
use super::super::memory::Roots;
use super::{Reach, Run};
use pcc_ir::kernel::{Kernel, Lane, Node};
use pcc_ir::program::{Launch, Program, Scalar};
use pcc_ir::sharding::local_extent;
use pcc_ir::{Diagnostic, Extent, Part};

impl<'a> Run<'a> {
    pub(super) fn kernel(&mut self, at: usize, launch: &Launch) -> Result<(), Diagnostic> {
        let program: &'a Program = self.program;
        let Some(kernel) = program.kernels.get(launch.kernel) else {
            return Err(self.wrong(at, format!("runs kernel {}, which does not exist", launch.kernel)));
        };
        let rank = kernel.rank as usize;
        let fits = launch.ptrs.len() == kernel.accesses.len()
            && launch.extents.len() == rank
            && launch.strides.len() == rank * kernel.accesses.len()
            && launch.scalars.len() == kernel.scalars as usize;
        if !fits {
            return Err(self.wrong(at, format!("does not give kernel `{}` what it takes", kernel.name)));
        }
        self.scalars(at, launch)?;
        let plain = (0..kernel.accesses.len())
            .map(|a| self.access(at, kernel, launch, a, None))
            .collect::<Result<Vec<_>, _>>()?;
        let roots = self.node_roots(at, kernel, launch, &plain)?;
        self.check_aliases(at, kernel, launch, &plain)?;
        let reduces = kernel.nodes.iter().any(|n| matches!(n, Node::RowReduce(..)));
        let rows = if reduces { Some(self.row_kernel(at, kernel, launch, &roots)?) } else { None };
        for store in &kernel.stores {
            let mut made = rows.clone().unwrap_or_else(|| roots[store.node as usize].clone());
            match &store.at {
                None => self.write(at, &plain[store.access as usize], &made, None)?,
                Some(index) => {
                    made.join(&roots[index.index as usize]);
                    let reach = self.access(
                        at,
                        kernel,
                        launch,
                        store.access as usize,
                        Some((index.stride, index.limit)),
                    )?;
                    let access = store.access as usize;
                    let left_out =
                        self.left_out(at, launch, (access, kernel.accesses[access].dtype.bytes()), &reach)?;
                    self.write(at, &reach, &made, Some(left_out))?;
                }
            }
        }
        Ok(())
    }

    /// A kernel that reduces rows is the next one of the function, and reads what that depends on. Gives what it makes.
    fn row_kernel(
        &mut self,
        at: usize,
        kernel: &Kernel,
        launch: &Launch,
        roots: &[Roots],
    ) -> Result<Roots, Diagnostic> {
        let Some(wanted) = self.expected.rows.get(self.rows).cloned() else {
            return Err(self.wrong(at, "reduces rows where the function has nothing left to reduce"));
        };
        self.rows += 1;
        let mut source = Roots::default();
        kernel.stores.iter().for_each(|s| source.join(&roots[s.node as usize]));
        if !wanted.source.met_by(&source) {
            let why = self.difference("operand", &source, &wanted.source);
            let value = fault::value(self.func, wanted.value);
            return Err(self.wrong(at, format!("should make {value}, but reduces other values")).why(why));
        }
        if launch.extents.last().is_some_and(|e| e.clip.is_some()) {
            let value = fault::value(self.func, wanted.value);
            return Err(self.wrong(at, format!("should make {value}, but leaves out a part of its rows")));
        }
        Ok(Roots::one(wanted.result))
    }

    /// Whether positions that a run does not have are never seen by those it has, which the graph has been asked.
    pub(super) fn is_masked(&self) -> bool {
        self.program.unseen
    }

    /// What an update at run-time rows leaves out, of those that it should write. In-place state keeps zeros in its padding; rows for
    /// positions that the run does not have are not missed where nothing sees them.
    fn left_out(
        &self,
        at: usize,
        launch: &Launch,
        (access, size): (usize, usize),
        reach: &Reach,
    ) -> Result<Vec<Cut>, Diagnostic> {
        let rank = launch.extents.len();
        let in_place = self.in_place[reach.buffer];
        let mut steps = Vec::new();
        for (e, &stride) in launch.extents.iter().zip(&launch.strides[access * rank..]) {
            let mut e = e.clone();
            let there = match e.clip.as_deref() {
                Some(c) if stride == 0 && c.part == Part::Seq => self.is_masked(),
                Some(c) => c.part == Part::Piece && in_place,
                None => true,
            };
            if there {
                e.clip = None;
            }
            steps.push((e, stride));
        }
        let all: Vec<&Extent> = steps.iter().map(|s| &s.0).collect();
        let path = Path::new(launch.ptrs[access].offset, size as u64, &steps, &all);
        path.cuts().map_err(|why| self.wrong(at, why))
    }

    /// Scalars that differ from device to device are those that some op of the function needs.
    fn scalars(&mut self, at: usize, launch: &Launch) -> Result<(), Diagnostic> {
        let mut scalars = launch.scalars.iter().filter(|s| !matches!(s, Scalar::Const(_)));
        scalars.try_for_each(|scalar| self.known_scalar(at, scalar))
    }

    /// A scalar that differs from device to device is one that some op of the function needs.
    pub(super) fn known_scalar(&mut self, at: usize, scalar: &Scalar) -> Result<(), Diagnostic> {
        let mut wanted = false;
        // Positions that the run does not have are no row of a table either.
        let piece = match scalar {
            Scalar::There(c) if self.is_masked() && c.part == Part::Seq && c.inner == 1 => {
                wanted = c.axes.is_empty();
                Scalar::Valid { global: c.global, axes: c.axes.clone() }
            }
            scalar => scalar.clone(),
        };
        if let Some(known) = self.known.get_mut(&piece) {
            (*known, wanted) = (true, true);
        }
        match wanted {
            true => Ok(()),
            false => {
                Err(self.wrong(at, format!("works on a piece of its device that no op has: {scalar:?}")))
            }
        }
    }

    /// The box of an access, with one more step where it is indexed at run time.
    fn access(
        &self,
        at: usize,
        kernel: &Kernel,
        launch: &Launch,
        access: usize,
        indexed: Option<(u32, u32)>,
    ) -> Result<Reach, Diagnostic> {
        let a = &kernel.accesses[access];
        let rank = kernel.rank as usize;
        let strides = &launch.strides[access * rank..(access + 1) * rank];
        let extent = |d: usize| i64::try_from(launch.extents[d].full).unwrap_or(i64::MAX);
        let lane = (extent(rank - 1), strides[rank - 1]);
        let moves_right = match a.lane {
            Lane::Unit => lane.1 == 1,
            Lane::Broadcast => lane.1 == 0,
            Lane::Strided => true,
        };
        if !moves_right && lane.0 != 1 {
            return Err(self.wrong(
                at,
                format!("steps access {access} by {} where its code expects {:?}", lane.1, a.lane),
            ));
        }
        let mut steps: Vec<(Extent, i64)> =
            launch.extents.iter().cloned().zip(strides.iter().copied()).collect();
        if let Some((stride, limit)) = indexed {
            let Scalar::Const(stride) = launch.scalars[stride as usize] else {
                return Err(self.wrong(at, "indexes by a stride that differs from device to device"));
            };
            let limit = match &launch.scalars[limit as usize] {
                Scalar::Const(n) => Extent::full(*n.max(&1) as u64),
                Scalar::Valid { global, axes } => Extent::full(local_extent(*global as usize, axes) as u64),
                Scalar::There(clip) => Extent::part(clip.whole(), Some((**clip).clone())),
                Scalar::Base { .. } => return Err(self.wrong(at, "indexes without a limit")),
            };
            steps.push((limit, stride));
        }
        let all: Vec<&Extent> = steps.iter().map(|s| &s.0).collect();
        self.reach(at, launch.ptrs[access], a.dtype.bytes(), &steps, &all)
    }

    /// What each node depends on.
    fn node_roots(
        &self,
        at: usize,
        kernel: &Kernel,
        launch: &Launch,
        plain: &[Reach],
    ) -> Result<Vec<Roots>, Diagnostic> {
        let mut roots: Vec<Roots> = Vec::with_capacity(kernel.nodes.len());
        for node in &kernel.nodes {
            let mut made = Roots::default();
            node.operands().iter().for_each(|&n| made.join(&roots[n as usize]));
            match node {
                Node::Load(a) => made.join(&self.read(at, &plain[*a as usize])?),
                Node::LoadAt { access, stride, limit, .. } => {
                    let reach = self.access(at, kernel, launch, *access as usize, Some((*stride, *limit)))?;
                    made.join(&self.read(at, &reach)?);
                }
                _ => {}
            }
            roots.push(made);
        }
        Ok(roots)
    }

    /// Rows run in any order and on several workers: what a kernel writes it may read only at the very same places.
    fn check_aliases(
        &self,
        at: usize,
        kernel: &Kernel,
        launch: &Launch,
        plain: &[Reach],
    ) -> Result<(), Diagnostic> {
        let rank = kernel.rank as usize;
        let strides = |a: usize| &launch.strides[a * rank..(a + 1) * rank];
        let indexed = |a: usize| {
            kernel.nodes.iter().any(|n| matches!(n, Node::LoadAt { access, .. } if *access as usize == a))
                || kernel.stores.iter().any(|s| s.access as usize == a && s.at.is_some())
        };
        for w in (0..plain.len()).filter(|&a| kernel.accesses[a].write) {
            for r in (0..plain.len()).filter(|&a| a != w) {
                let (x, y) = (&plain[w], &plain[r]);
                if x.buffer != y.buffer || !x.at.meets(&y.at) {
                    continue;
                }
                let same = launch.ptrs[w] == launch.ptrs[r]
                    && strides(w) == strides(r)
                    && kernel.accesses[w].dtype.bytes() == kernel.accesses[r].dtype.bytes()
                    && !indexed(w)
                    && !indexed(r);
                let apart = kernel.accesses[r].write && !x.at.is_dense() && !y.at.is_dense();
                if !(same && !kernel.accesses[r].write || apart) {
                    let name = self.buffer_name(x.buffer);
                    return Err(self.wrong(at, format!("writes over what it still reads in {name}")));
                }
            }
        }
        Ok(())
    }
}
