//! Modelled time of one call of a function on one device.

use crate::cost::{Cluster, Ring};
use pcc_ir::ops::Collective;
use pcc_ir::{Func, Mesh, Op, Type};

/// Seconds of one call: the roofline of every op on its local types, and its collectives as rings.
pub(super) fn call_time(func: &Func, mesh: &Mesh, cluster: &Cluster) -> f64 {
    let mut seconds = 0.0;
    for inst in &func.insts {
        let args: Vec<&Type> = inst.args.iter().map(|&v| func.ty(v)).collect();
        let results: Vec<&Type> = inst.results.iter().map(|&v| func.ty(v)).collect();
        seconds += match &inst.op {
            Op::Collective(c) => {
                let sent = args.first().map_or(0, |t| t.bytes()) as f64;
                let made = results.first().map_or(0, |t| t.bytes()) as f64;
                let (ring, axes, bytes) = match c {
                    Collective::AllReduce { axes, .. } => (Ring::AllReduce, axes, sent),
                    Collective::AllGather { axes, .. } => (Ring::AllGather, axes, made),
                    Collective::ReduceScatter { axes, .. } => (Ring::ReduceScatter, axes, sent),
                    Collective::AllToAll { axes, .. } => (Ring::AllToAll, axes, sent),
                };
                cluster.collective_time(mesh, ring, axes, bytes)
            }
            op => cluster.compute_time(op, &args, &results),
        };
    }
    seconds
}
