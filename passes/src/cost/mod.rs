//! The cost model: modelled seconds of compute and of collectives on a cluster.
//!
//! Costs come from a fixed preset, never from the machine at hand, so that a plan depends on nothing but the model and
//! the flags. Compute is a roofline on the largest local piece; collectives are rings (see [`ring`]).

mod reshard;
mod ring;

pub use reshard::{Step, reshard_steps, reshard_time, reshard_time_as};
pub use ring::{
    all_gather, all_reduce, all_to_all, double_tree_all_reduce, hierarchical_all_reduce, reduce_scatter,
};

use pcc_ir::mesh::group_size;
use pcc_ir::{AxisRef, DType, Mesh, Op, Type};

/// A link between devices: seconds of latency of one message, and seconds per byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    pub alpha: f64,
    pub beta: f64,
}

/// A cluster of equal nodes of equal devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    pub name: &'static str,
    /// Neighbouring device numbers share a node in groups of this many.
    pub devices_per_node: usize,
    /// Floating-point operations per second at 32 bits (tensor cores, reduced mantissa) and at 16 bits.
    pub flops_32: f64,
    pub flops_16: f64,
    /// Bytes per second of device memory.
    pub memory_bandwidth: f64,
    /// Seconds to start a kernel of its own (a slice, a copy).
    pub kernel_launch: f64,
    /// Seconds to start a collective, besides what its messages cost.
    pub collective_launch: f64,
    pub intra: Link,
    pub inter: Link,
}

impl Cluster {
    /// The default: nodes of 8 A100-80GB (156 TF32 and 312 bf16 Tflop/s, 2.0 TB/s; NVSwitch at 300 GB/s a
    /// direction, of which rings reach about 240) with one 200 Gbit/s link per device between nodes.
    pub fn a100() -> Self {
        Self {
            name: "a100",
            devices_per_node: 8,
            flops_32: 156e12,
            flops_16: 312e12,
            memory_bandwidth: 2.0e12,
            kernel_launch: 2e-6,
            collective_launch: 5e-6,
            intra: Link { alpha: 1e-6, beta: 1.0 / 240e9 },
            inter: Link { alpha: 5e-6, beta: 1.0 / 25e9 },
        }
    }

    /// Floating-point operations per second on elements of `dtype`.
    pub fn flops(&self, dtype: DType) -> f64 {
        match dtype {
            DType::F16 | DType::BF16 => self.flops_16,
            DType::F64 => self.flops_32 / 8.0,
            _ => self.flops_32,
        }
    }

    /// Seconds of an op on local types: the roofline `max(flops / rate, bytes / bandwidth)`.
    pub fn compute_time(&self, op: &Op, args: &[&Type], results: &[&Type]) -> f64 {
        let dtype = results.first().or(args.first()).map_or(DType::F32, |t| t.dtype);
        let flops = op.flops(args, results) / self.flops(dtype);
        flops.max(op.bytes(args, results) / self.memory_bandwidth)
    }

    /// The slowest link inside a group over `axes`: a group whose devices lie within one node uses the node's links.
    pub fn link(&self, mesh: &Mesh, axes: &[AxisRef]) -> Link {
        let one_node = axes.iter().all(|&a| stride(mesh, a) * a.size as usize <= self.devices_per_node);
        if one_node { self.intra } else { self.inter }
    }

    /// Seconds of a collective over `axes` of `bytes` of full buffer, start-up included; nothing for a group of one.
    pub fn collective_time(&self, mesh: &Mesh, kind: Ring, axes: &[AxisRef], bytes: f64) -> f64 {
        let n = group_size(axes);
        if n <= 1 {
            return 0.0;
        }
        let link = self.link(mesh, axes);
        let time = match kind {
            Ring::AllReduce => all_reduce(n, bytes, link),
            Ring::AllGather => all_gather(n, bytes, link),
            Ring::ReduceScatter => reduce_scatter(n, bytes, link),
            Ring::AllToAll => all_to_all(n, bytes, link),
        };
        self.collective_launch + time
    }
}

/// The collectives that are costed as rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
}

/// Distance in device numbers between neighbours along an axis reference (the last axis counts fastest).
fn stride(mesh: &Mesh, a: AxisRef) -> usize {
    let inner: usize =
        pcc_ir::Axis::ALL.iter().filter(|&&other| other > a.axis).map(|&o| mesh.size(o) as usize).product();
    inner * (mesh.size(a.axis) / (a.pre * a.size)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcc_ir::Axis;

    #[test]
    fn groups_inside_a_node_use_its_links() {
        let c = Cluster::a100();
        let mesh = Mesh { tp: 8, dp: 2, ..Mesh::default() };
        assert_eq!(c.link(&mesh, &[mesh.whole(Axis::Tp)]), c.intra);
        assert_eq!(c.link(&mesh, &[mesh.whole(Axis::Dp)]), c.inter);
        let wide = Mesh { tp: 16, ..Mesh::default() };
        assert_eq!(c.link(&wide, &[wide.whole(Axis::Tp)]), c.inter);
        // tp:(2)8 of 16: neighbours are 1 apart, 8 of them fill a node; tp:(1)2 joins devices 8 apart.
        assert_eq!(c.link(&wide, &[wide.part(Axis::Tp, 2, 8).unwrap()]), c.intra);
        assert_eq!(c.link(&wide, &[wide.part(Axis::Tp, 1, 2).unwrap()]), c.inter);
    }

    #[test]
    fn a_group_of_one_is_free() {
        let mesh = Mesh::default();
        assert_eq!(
            Cluster::a100().collective_time(&mesh, Ring::AllReduce, &[mesh.whole(Axis::Tp)], 1e9),
            0.0
        );
    }
}
