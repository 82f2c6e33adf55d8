//! How much work an instruction is: operations, and bytes that it must move at least once.

use pcc_ir::Extent;
use pcc_ir::kernel::{Kernel, Node};
use pcc_ir::mesh::group_size;
use pcc_ir::program::{
    AttentionCall, BatchDim, CollectiveCall, CollectiveKind, Gemm, InstrKind, Launch, Loc, Matrix, Program,
    Strided, View,
};

/// The work of an instruction on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Multiplications, additions, comparisons and calls of functions, each counted as one.
    pub flops: f64,
    /// Bytes read and written, every element of an operand once however often it is used.
    pub bytes: f64,
}

impl std::ops::Add for Work {
    type Output = Work;

    fn add(self, other: Work) -> Work {
        Work { flops: self.flops + other.flops, bytes: self.bytes + other.bytes }
    }
}

/// The work of an instruction whose extents are what `extent` says, asked in any order. `panels` gives the bytes of an element, on
/// average, of the parameter in panels at an address: fewer than its type has where it is quantised.
pub(super) fn of(
    program: &Program,
    kind: &InstrKind,
    extent: impl Fn(&Extent) -> u64,
    panels: impl Fn(&Loc) -> Option<f64>,
) -> Work {
    match kind {
        InstrKind::Gemm(gemm) => {
            let b = gemm.packed.and_then(|_| panels(&gemm.b.loc));
            product(gemm, b.unwrap_or(gemm.b.dtype.bytes() as f64), extent)
        }
        InstrKind::Kernel(launch) => match program.kernels.get(launch.kernel) {
            Some(kernel) => kernel_work(kernel, launch, extent),
            None => Work::default(),
        },
        InstrKind::Attention(call) => attention(call, extent),
        InstrKind::TopK(call) => selection(&call.views(), extent),
        InstrKind::Sample(call) => selection(&call.views(), extent),
        InstrKind::Rows(rows) => {
            let count = extent(&rows.count) as f64;
            let element = rows.dtype.bytes() as f64;
            let row = rows.packed.k as f64 * (panels(&rows.table).unwrap_or(element) + element);
            Work { flops: 0.0, bytes: count * (row + 4.0) }
        }
        InstrKind::Collective(call) => collective(call, extent),
    }
}

fn product(g: &Gemm, element: f64, extent: impl Fn(&Extent) -> u64) -> Work {
    let of = |e: &Extent| extent(e) as f64;
    let (m, n, k) = (of(&g.m), of(&g.n), of(&g.k));
    let batch: f64 = g.batch.iter().map(|d| of(&d.extent)).product();
    // A loop that an operand does not move along uses the same elements again.
    let elements = |elements: f64, stride: fn(&BatchDim) -> i64| {
        let copies: f64 = g.batch.iter().filter(|d| stride(d) != 0).map(|d| of(&d.extent)).product();
        elements * copies
    };
    let bytes = |matrix: &Matrix| matrix.dtype.bytes() as f64;
    if batch == 0.0 || m == 0.0 || n == 0.0 {
        return Work::default();
    }
    Work {
        flops: 2.0 * m * n * k * batch,
        bytes: elements(m * k, |d| d.a) * bytes(&g.a)
            + elements(k * n, |d| d.b) * element
            + elements(m * n, |d| d.c) * bytes(&g.c),
    }
}

/// Pairs that a mask leaves out count: how many there are depends on the positions.
fn attention(call: &AttentionCall, extent: impl Fn(&Extent) -> u64) -> Work {
    let [b, s, t, g, r, d, e] = call.extents().map(|x| extent(x) as f64);
    let (queries, keys) = (b * s * g * r, b * t * g);
    let moved = |view: &Strided, elements: f64| elements * view.dtype.bytes() as f64;
    let operands =
        [(&call.q, queries * d), (&call.k, keys * d), (&call.v, keys * e), (&call.out, queries * e)];
    Work {
        flops: 2.0 * queries * t * (d + e),
        bytes: operands.into_iter().map(|(view, elements)| moved(view, elements)).sum(),
    }
}

/// A comparison an element of the first operand.
fn selection(views: &[View<'_>], extent: impl Fn(&Extent) -> u64) -> Work {
    let elements = |v: &View<'_>| v.extents.iter().map(|e| extent(e) as f64).product::<f64>();
    let bytes = views.iter().map(|v| elements(v) * v.dtype.bytes() as f64).sum();
    Work { flops: views.first().map_or(0.0, elements), bytes }
}

fn kernel_work(kernel: &Kernel, launch: &Launch, extent: impl Fn(&Extent) -> u64) -> Work {
    let extents: Vec<f64> = launch.extents.iter().map(|e| extent(e) as f64).collect();
    let elements: f64 = extents.iter().product();
    if elements == 0.0 {
        return Work::default();
    }
    let computes = |n: &&Node| {
        matches!(
            n,
            Node::Unary(..) | Node::Binary(..) | Node::Compare(..) | Node::Select(..) | Node::RowReduce(..)
        )
    };
    let operations = kernel.nodes.iter().filter(computes).count() as f64;
    let strides = launch.strides.chunks(extents.len().max(1));
    let touched = kernel.accesses.iter().zip(strides).map(|(access, strides)| {
        let moved = extents.iter().zip(strides).filter(|(_, stride)| **stride != 0);
        moved.map(|(n, _)| n).product::<f64>() * access.dtype.bytes() as f64
    });
    Work { flops: elements * operations, bytes: touched.sum() }
}

/// The whole group's: one of its devices does it.
fn collective(call: &CollectiveCall, extent: impl Fn(&Extent) -> u64) -> Work {
    let group = group_size(&call.axes) as f64;
    // Extents are of the larger side; of the other as much is there, in proportion.
    let part = |e: &Extent| if e.full == 0 { 1.0 } else { extent(e) as f64 / e.full as f64 };
    let there: f64 = call.there.iter().map(part).product();
    let size = |shape: &[u64]| there * shape.iter().map(|&n| n as f64).product::<f64>();
    let (src, dst) = (size(&call.src_shape), size(&call.dst_shape));
    let flops = match call.kind {
        CollectiveKind::AllReduce | CollectiveKind::ReduceScatter => src * (group - 1.0),
        _ => 0.0,
    };
    Work { flops, bytes: (src + dst) * group * call.dtype.bytes() as f64 }
}

#[cfg(test)]
mod tests;
