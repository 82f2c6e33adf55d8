//! The elementwise kernel that follows a product, run on elements of its result while those are in registers.

use super::gemm::{Place, Product};
use super::value::{Code, Num};
use crate::emit::order::live;
use inkwell::values::IntValue;
use pcc_ir::gpu::gemm::GemmKernel;
use pcc_ir::kernel::{AccessId, Kernel, Lane, Node};
use pcc_ir::kernel_check::KernelInfo;

/// A valid kernel as an epilogue.
#[derive(Clone, Copy)]
pub(crate) struct Follows<'k> {
    pub kernel: &'k Kernel,
    pub info: &'k KernelInfo,
    /// Bit per access: whether it is the product's result.
    pub reads: u32,
    /// Whether the product has a batch, of which accesses have a stride.
    pub batch: bool,
}

impl Follows<'_> {
    /// Strides of an access: along rows, columns, the batch.
    fn strides(&self) -> usize {
        2 + usize::from(self.batch)
    }
}

/// An element of the product's result, in the block's tile.
#[derive(Clone, Copy)]
pub(super) struct Element<'e, 'c> {
    pub row: Num<'e, 'c>,
    pub col: Num<'e, 'c>,
    /// Whether it is in c.
    pub inside: Num<'e, 'c>,
    /// The sum of products.
    pub sum: Num<'e, 'c>,
}

/// Values of all nodes that are known for an element.
type Values<'e, 'c> = Vec<Option<Num<'e, 'c>>>;

impl<'e, 'c> Product<'e, 'c, '_> {
    /// How many elements to [`Product::put`] at a time: a power of two, at most 8, so that there are registers for what is loaded for them.
    pub fn together(&self) -> u32 {
        let accesses = self.follows.map_or(0, |f| f.kernel.accesses.len());
        if accesses <= 4 {
            8
        } else if accesses <= 8 {
            4
        } else {
            1
        }
    }

    /// Stores elements of c and runs the epilogue on them. Its loads for all of them are under way together, which is as if one came after the
    /// other: what an element's turn writes no other element reads.
    pub fn put(&self, place: &Place<'e, 'c>, elements: &[Element<'e, 'c>]) {
        let (code, c) = (self.code, place.c);
        let value = |e: &Element<'e, 'c>| e.sum * self.alpha;
        let Some(follows) = self.follows else {
            for e in elements {
                code.when(e.inside, || c.at(e.row, e.col).store(c.dtype, value(e)));
            }
            return;
        };
        let run = Run { code, place, follows };
        let made = elements.iter().map(|e| {
            let c = value(e).rounded(c.dtype);
            (c, run.values(e, c))
        });
        let made: Vec<_> = made.collect();
        for (e, (value, values)) in elements.iter().zip(&made) {
            code.when(e.inside, || {
                c.at(e.row, e.col).store(c.dtype, *value);
                run.store(e, values);
            });
        }
    }
}

struct Run<'p, 'e, 'c, 'k> {
    code: Code<'e, 'c>,
    place: &'p Place<'e, 'c>,
    follows: Follows<'k>,
}

impl<'e, 'c> Run<'_, 'e, 'c, '_> {
    fn access(&self, access: AccessId) -> &pcc_ir::kernel::Access {
        &self.follows.kernel.accesses[access as usize]
    }

    /// The address of an access for an element.
    fn address(&self, access: AccessId, e: &Element<'e, 'c>) -> Num<'e, 'c> {
        let (code, at) = (self.code, access as usize);
        let strides = GemmKernel::PARAMS + self.follows.kernel.accesses.len() + self.follows.strides() * at;
        let (row, col) = (self.place.row + e.row.long(), self.place.col + e.col.long());
        let mut along = row * code.param(strides);
        if self.follows.batch {
            along = along + self.place.member * code.param(strides + 2);
        }
        let offset = match self.access(access).lane {
            Lane::Unit => along + col,
            Lane::Broadcast => along,
            Lane::Strided => along + col * code.param(strides + 1),
        };
        code.param_global(GemmKernel::PARAMS + at).elements(self.access(access).dtype, offset)
    }

    /// What is loaded for an element; where it is not in c, zeros.
    fn load(&self, accesses: &[AccessId], e: &Element<'e, 'c>) -> Vec<Num<'e, 'c>> {
        if accesses.is_empty() {
            return vec![];
        }
        let load = |&access: &AccessId| self.address(access, e).load(self.access(access).dtype);
        let zero = |&access: &AccessId| self.code.zero(self.access(access).dtype);
        let (all, none) = (|| accesses.iter().map(load).collect(), || accesses.iter().map(zero).collect());
        self.code.either(e.inside, all, none)
    }

    /// The values of all nodes, `c` being the product's result.
    fn values(&self, e: &Element<'e, 'c>, c: Num<'e, 'c>) -> Values<'e, 'c> {
        let Follows { kernel, info, reads, .. } = self.follows;
        let (code, ir) = (self.code, self.code.entry.ir);
        let live = live(kernel);
        let nodes = || (0..kernel.nodes.len()).filter(|&n| live[n]);
        let is_c = |access: AccessId| reads >> access & 1 == 1;
        let mut loads: Vec<AccessId> = nodes()
            .filter_map(|n| match kernel.nodes[n] {
                Node::Load(access) if !is_c(access) => Some(access),
                _ => None,
            })
            .collect();
        loads.sort_unstable();
        loads.dedup();
        let loaded = self.load(&loads, e);
        let scalars = GemmKernel::PARAMS + (1 + self.follows.strides()) * kernel.accesses.len();
        let scalars: Vec<IntValue> =
            (0..kernel.scalars as usize).map(|s| code.entry.param(scalars + s)).collect();
        let mut values = vec![None; kernel.nodes.len()];
        for n in nodes() {
            let value = match kernel.nodes[n] {
                Node::Load(access) if is_c(access) => Some(c.v),
                Node::Load(access) => loads.iter().position(|&a| a == access).map(|i| loaded[i].v),
                _ => Some(ir.formula((kernel, info), &scalars, n as u32, 0, &values)),
            };
            values[n] = value;
        }
        values.into_iter().map(|v| v.map(|v| code.of(v))).collect()
    }

    fn store(&self, e: &Element<'e, 'c>, values: &Values<'e, 'c>) {
        for store in &self.follows.kernel.stores {
            if let Some(value) = values[store.node as usize] {
                self.address(store.access, e).store(self.access(store.access).dtype, value);
            }
        }
    }
}
