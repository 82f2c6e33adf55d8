//! Modelled time of a local op, for choices between local forms of one value.

use crate::cost::{Cluster, Ring};
use pcc_ir::ops::{Collective, Op};
use pcc_ir::{Mesh, Type};

/// Seconds of an op that reads and writes these local types. A collective's buffer is what one device reduces (all-reduce,
/// reduce-scatter), gathers to (all-gather) or holds before (all-to-all).
pub(crate) fn op_time(cluster: &Cluster, mesh: &Mesh, op: &Op, reads: &[&Type], write: &Type) -> f64 {
    let (held, made) = (reads.first().map_or(0, |t| t.bytes()) as f64, write.bytes() as f64);
    match op {
        Op::Collective(c) => {
            let (ring, bytes) = match c {
                Collective::AllReduce { .. } => (Ring::AllReduce, held),
                Collective::AllGather { .. } => (Ring::AllGather, made),
                Collective::ReduceScatter { .. } => (Ring::ReduceScatter, held),
                Collective::AllToAll { .. } => (Ring::AllToAll, held),
            };
            cluster.collective_time(mesh, ring, c.axes(), bytes)
        }
        // A kernel of its own, unlike elementwise ops, which are fused.
        Op::ShardSlice(_) => cluster.kernel_launch + 2.0 * made / cluster.memory_bandwidth,
        _ => cluster.compute_time(op, reads, &[write]),
    }
}
