//! Which nodes of a kernel are worked out, and in which order.

use pcc_ir::kernel::{Kernel, Node, NodeId};
use pcc_ir::kernel_check::KernelInfo;
use pcc_ir::types::ReduceKind;

/// Nodes that some store depends on.
pub(crate) fn live(kernel: &Kernel) -> Vec<bool> {
    let mut live = vec![false; kernel.nodes.len()];
    for store in &kernel.stores {
        live[store.node as usize] = true;
        if let Some(at) = &store.at {
            live[at.index as usize] = true;
        }
    }
    for i in (0..live.len()).rev() {
        if live[i] {
            kernel.nodes[i].operands().iter().for_each(|&o| live[o as usize] = true);
        }
    }
    live
}

/// Live reductions that pass `phase` (from 1) works out: node, kind and operand.
pub(crate) fn reductions(
    kernel: &Kernel,
    info: &KernelInfo,
    live: &[bool],
    phase: u32,
) -> Vec<(usize, ReduceKind, NodeId)> {
    let of_phase = |(i, node): (usize, &Node)| match *node {
        Node::RowReduce(kind, of) if live[i] && info.phase[i] == phase => Some((i, kind, of)),
        _ => None,
    };
    kernel.nodes.iter().enumerate().filter_map(of_phase).collect()
}

/// What a pass over elements works out, in order.
pub(crate) struct Needed {
    pub per_element: Vec<NodeId>,
    /// Those that the others or the roots take their values from.
    pub per_row: Vec<NodeId>,
}

/// The nodes that `roots` need.
pub(crate) fn needed(kernel: &Kernel, info: &KernelInfo, roots: &[NodeId]) -> Needed {
    let mut needed = vec![false; kernel.nodes.len()];
    roots.iter().for_each(|&r| needed[r as usize] = true);
    for i in (0..needed.len()).rev() {
        if needed[i] && info.varies[i] {
            kernel.nodes[i].operands().iter().for_each(|&o| needed[o as usize] = true);
        }
    }
    let nodes = (0..needed.len()).filter(|&i| needed[i]);
    let (per_element, per_row): (Vec<usize>, _) = nodes.partition(|&i| info.varies[i]);
    let ids = |nodes: Vec<usize>| nodes.into_iter().map(|i| i as NodeId).collect();
    Needed { per_element: ids(per_element), per_row: ids(per_row) }
}

/// The nodes without a value that `node` needs, itself among them, operands first.
pub(crate) fn pending<T>(kernel: &Kernel, values: &[Option<T>], node: NodeId) -> Vec<NodeId> {
    let mut needed = vec![false; node as usize + 1];
    needed[node as usize] = values[node as usize].is_none();
    for i in (0..needed.len()).rev() {
        if needed[i] {
            for &o in &kernel.nodes[i].operands() {
                needed[o as usize] |= values[o as usize].is_none();
            }
        }
    }
    (0..=node).filter(|&i| needed[i as usize]).collect()
}
