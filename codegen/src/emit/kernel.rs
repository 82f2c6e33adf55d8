//! The function of a kernel: reads its arguments once, then walks the rows `begin..end`.
//!
//! The last row dim is an inner loop in which addresses advance by their strides; the dims outside it are counted up with
//! carry, and the addresses worked out anew, once per turn of the inner loop. Only the first row is found by division.

use super::ir::{IP, Ir, Op, V, Width};
use super::row::Row;
use inkwell::attributes::AttributeLoc;
use inkwell::values::{FunctionValue, IntValue, PointerValue};
use pcc_ir::kernel::{Kernel, Lane, Node};
use pcc_ir::kernel_check::KernelInfo;

/// What a turn of a loop gives: the next values, and whether to go on.
type Turn<'c> = (Vec<V<'c>>, V<'c>);

pub(super) struct Emitter<'a, 'c> {
    pub ir: &'a Ir<'c>,
    pub kernel: &'a Kernel,
    pub info: &'a KernelInfo,
    pub function: FunctionValue<'c>,
    /// Lanes of a vector.
    pub w: Width,
    pub ptrs: Vec<PointerValue<'c>>,
    pub extents: Vec<IntValue<'c>>,
    /// By access and dim, in elements.
    pub strides: Vec<Vec<IntValue<'c>>>,
    pub scalars: Vec<IntValue<'c>>,
    /// Eight zero bytes, read where an index is out of range; null in kernels without indices.
    pub nothing: PointerValue<'c>,
    /// Eight bytes, written where an index is out of range; null likewise.
    pub sink: PointerValue<'c>,
}

/// Adds the function `symbol` to the module.
pub(super) fn emit<'c>(ir: &Ir<'c>, kernel: &Kernel, info: &KernelInfo, symbol: &str, w: Width) {
    let long = ir.context.i64_type();
    let signature = ir.context.void_type().fn_type(&[ir.ptr(0).into(), long.into(), long.into()], false);
    let function = ir.module.add_function(symbol, signature, None);
    // Without it every function would get an unwind table entry.
    let nounwind = inkwell::attributes::Attribute::get_named_enum_kind_id("nounwind");
    function.add_attribute(AttributeLoc::Function, ir.context.create_enum_attribute(nounwind, 0));
    let entry = ir.block(function, "entry");
    let (exit, rows) = (ir.block(function, "exit"), ir.block(function, "rows"));
    ir.at(entry);
    let param = |i| function.get_nth_param(i).unwrap_or_else(|| ir.long(0).into());
    let (begin, end) = (ir.as_int(param(1)), ir.as_int(param(2)));
    let emitter = Emitter::load_args(ir, kernel, info, function, w, ir.as_ptr(param(0)));
    ir.br_if(ir.less(begin, end), rows, exit);
    ir.at(rows);
    emitter.walk_rows(begin, end);
    ir.br(exit);
    ir.at(exit);
    ir.ret();
}

impl<'a, 'c> Emitter<'a, 'c> {
    fn load_args(
        ir: &'a Ir<'c>,
        kernel: &'a Kernel,
        info: &'a KernelInfo,
        function: FunctionValue<'c>,
        w: Width,
        args: PointerValue<'c>,
    ) -> Self {
        let (long, ptr) = (ir.int(64, 0), ir.ptr(0));
        let table = |field: i64| ir.as_ptr(ir.load(ptr, ir.offset(ptr, args, ir.long(field)), 8));
        let (ptrs, extents, strides, scalars) = (table(0), table(1), table(2), table(3));
        let number = |table, i: u64| ir.as_int(ir.load(long, ir.offset(long, table, ir.long(i as i64)), 8));
        let rank = u64::from(kernel.rank);
        let accesses = 0..kernel.accesses.len() as u64;
        let indexed = kernel.nodes.iter().any(|n| matches!(n, Node::LoadAt { .. }))
            || kernel.stores.iter().any(|s| s.at.is_some());
        let slot = || {
            if !indexed {
                return ir.null();
            }
            let slot = ir.alloca(long);
            ir.store(ir.long(0).into(), slot, 8);
            slot
        };
        // The stride along the lane dim is known but for `Strided` accesses.
        let stride = |a: u64, d: u64| match kernel.accesses[a as usize].lane {
            Lane::Unit if d + 1 == rank => ir.long(1),
            Lane::Broadcast if d + 1 == rank => ir.long(0),
            _ => number(strides, a * rank + d),
        };
        Emitter {
            ir,
            kernel,
            info,
            function,
            w,
            ptrs: accesses
                .clone()
                .map(|a| ir.as_ptr(ir.load(ptr, ir.offset(ptr, ptrs, ir.long(a as i64)), 8)))
                .collect(),
            extents: (0..rank).map(|d| number(extents, d)).collect(),
            strides: accesses.map(|a| (0..rank).map(|d| stride(a, d)).collect()).collect(),
            scalars: (0..u64::from(kernel.scalars)).map(|s| number(scalars, s)).collect(),
            nothing: slot(),
            sink: slot(),
        }
    }

    /// Runs `body` while it says so, once at least unless the guard is there and false. It gets the loop's values and gives the next
    /// ones and whether to go on. The values after.
    fn repeat(
        &self,
        guard: Option<V<'c>>,
        first: &[V<'c>],
        body: &mut dyn FnMut(&[V<'c>]) -> Turn<'c>,
    ) -> Vec<V<'c>> {
        let ir = self.ir;
        let (head, done) = (ir.block(self.function, "loop"), ir.block(self.function, "done"));
        let Some(before) = ir.here() else { return first.to_vec() };
        match guard {
            None => ir.br(head),
            Some(guard) => ir.br_if(guard, head, done),
        }
        ir.at(head);
        let phis: Vec<_> = first.iter().map(|&v| ir.phi(v, before)).collect();
        let (next, again) = body(&phis.iter().map(|p| p.value).collect::<Vec<_>>());
        let Some(last) = ir.here() else { return first.to_vec() };
        phis.iter().zip(&next).for_each(|(phi, &v)| phi.incoming(v, last));
        ir.br_if(again, head, done);
        ir.at(done);
        if guard.is_none() {
            return next;
        }
        let merge = |(&v, &after): (&V<'c>, &V<'c>)| {
            let phi = ir.phi(v, before);
            phi.incoming(after, last);
            phi.value
        };
        first.iter().zip(&next).map(merge).collect()
    }

    /// Runs `body` for `from, from + step, ..` below `to`, perhaps never. The values after.
    pub(super) fn count(
        &self,
        from: IntValue<'c>,
        to: IntValue<'c>,
        step: i64,
        first: &[V<'c>],
        body: &mut dyn FnMut(IntValue<'c>, &[V<'c>]) -> Vec<V<'c>>,
    ) -> Vec<V<'c>> {
        let ir = self.ir;
        let start: Vec<V> = first.iter().copied().chain([from.into()]).collect();
        let mut after = self.repeat(Some(ir.less(from, to)), &start, &mut |values| {
            let at = ir.as_int(values[first.len()]);
            let mut next = body(at, &values[..first.len()]);
            let stepped = ir.add(at, ir.long(step));
            next.push(stepped.into());
            (next, ir.less(stepped, to))
        });
        after.pop();
        after
    }

    /// Index of row `begin` along each row dim.
    fn first_index(&self, begin: IntValue<'c>) -> Vec<V<'c>> {
        let ir = self.ir;
        let mut rest: V = begin.into();
        let mut index = vec![];
        for dim in (1..self.kernel.rank as usize - 1).rev() {
            let extent = self.extents[dim].into();
            index.push(ir.bin(Op::URem, rest, extent));
            rest = ir.bin(Op::UDiv, rest, extent);
        }
        index.push(rest);
        index.reverse();
        index
    }

    fn walk_rows(&self, begin: IntValue<'c>, end: IntValue<'c>) {
        let ir = self.ir;
        let row_dims = self.kernel.rank as usize - 1;
        if row_dims <= 1 {
            // One run of rows; a kernel of rank 1 has a single row.
            let index = if row_dims == 0 { vec![] } else { vec![begin] };
            return self.walk_inner(&index, ir.sub(end, begin));
        }
        let mut first: Vec<V> = vec![begin.into()];
        first.extend(self.first_index(begin));
        self.repeat(None, &first, &mut |state| {
            let row = ir.as_int(state[0]);
            let index: Vec<_> = state[1..].iter().map(|&v| ir.as_int(v)).collect();
            let left = ir.sub(end, row);
            let inner = ir.sub(self.extents[row_dims - 1], index[row_dims - 1]);
            let run = ir.as_int(ir.select(ir.less(inner, left), inner.into(), left.into()));
            self.walk_inner(&index, run);
            let row = ir.add(row, run);
            let mut next = vec![row.into()];
            next.extend(self.carry(&index));
            (next, ir.less(row, end))
        });
    }

    /// The index after the end of the innermost row dim: that one is 0, the others are counted up.
    fn carry(&self, index: &[IntValue<'c>]) -> Vec<V<'c>> {
        let ir = self.ir;
        let mut next: Vec<V> = index.iter().map(|&i| i.into()).collect();
        let Some(inner) = next.last_mut() else { return next };
        *inner = ir.long(0).into();
        let mut carry = ir.cb(0, true);
        for dim in (0..index.len() - 1).rev() {
            let up = ir.add(index[dim], ir.long(1));
            let full = ir.icmp(IP::EQ, up.into(), self.extents[dim].into());
            let wrapped = ir.select(full, ir.long(0).into(), up.into());
            next[dim] = ir.select(carry, wrapped, index[dim].into());
            carry = ir.bin(Op::And, carry, full);
        }
        next
    }

    /// `run` rows from `index` on, along the innermost row dim.
    fn walk_inner(&self, index: &[IntValue<'c>], run: IntValue<'c>) {
        let ir = self.ir;
        let byte = ir.int(8, 0);
        let bytes = |a: usize| ir.long(self.kernel.accesses[a].dtype.bytes() as i64);
        let mut first: Vec<V> = vec![];
        let mut steps = vec![];
        for (a, &ptr) in self.ptrs.iter().enumerate() {
            let offset = index.iter().zip(&self.strides[a]).fold(None, |sum, (&i, &stride)| {
                let part = ir.mul(i, stride);
                Some(sum.map_or(part, |s| ir.add(s, part)))
            });
            first.push(offset.map_or(ptr, |o| ir.offset(byte, ptr, ir.mul(o, bytes(a)))).into());
            steps.push(match index.len() {
                0 => ir.long(0),
                d => ir.mul(self.strides[a][d - 1], bytes(a)),
            });
        }
        self.count(ir.long(0), run, 1, &first, &mut |t, ptrs| {
            let mut at = index.to_vec();
            if let Some(inner) = at.last_mut() {
                *inner = ir.add(*inner, t);
            }
            let here: Vec<_> = ptrs.iter().map(|&p| ir.as_ptr(p)).collect();
            self.row(&mut Row::new(self.kernel, here.clone(), at));
            here.iter().zip(&steps).map(|(&p, &step)| ir.offset(byte, p, step).into()).collect()
        });
    }

    /// How an access moves along the lane dim.
    pub(super) fn lane(&self, access: u32) -> Lane {
        self.kernel.accesses[access as usize].lane
    }
}
