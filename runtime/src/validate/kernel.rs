//! Kernels: every index inside its table, every node after the nodes it uses.

use super::DIMS;
use crate::kernels::MAX_ACCESSES;
use pcc_ir::kernel::{Kernel, Node, NodeId};

pub(super) fn check(kernel: &Kernel) -> Result<(), String> {
    let symbol = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if kernel.name.is_empty() || !kernel.name.chars().all(symbol) {
        return Err(format!("`{}` is no symbol", kernel.name.escape_debug()));
    }
    if kernel.rank == 0 || kernel.rank as usize > DIMS {
        return Err(format!("rank {} is not from 1 to {DIMS}", kernel.rank));
    }
    if kernel.accesses.len() > MAX_ACCESSES || kernel.scalars > 1 << 12 {
        return Err(format!("{} accesses, {} scalars", kernel.accesses.len(), kernel.scalars));
    }
    for (i, node) in kernel.nodes.iter().enumerate() {
        if let Some(used) = operands(node).into_iter().flatten().find(|&n| n as usize >= i) {
            return Err(format!("node {i} uses node {used}"));
        }
        let known = match *node {
            Node::Load(access) => has_access(kernel, access, false),
            Node::LoadAt { access, stride, limit, .. } => {
                has_access(kernel, access, false) && stride < kernel.scalars && limit < kernel.scalars
            }
            Node::Scalar(scalar) => scalar < kernel.scalars,
            Node::Index(dim) => dim < kernel.rank,
            _ => true,
        };
        if !known {
            return Err(format!("node {i} names an access, scalar or dim that is not there"));
        }
    }
    for (i, store) in kernel.stores.iter().enumerate() {
        let nodes = kernel.nodes.len() as u64;
        let at = store.at.is_none_or(|at| {
            u64::from(at.index) < nodes && at.stride < kernel.scalars && at.limit < kernel.scalars
        });
        if !at || u64::from(store.node) >= nodes || !has_access(kernel, store.access, true) {
            return Err(format!("store {i} names a node, access or scalar that is not there"));
        }
    }
    Ok(())
}

/// Whether the access is there, and writable if it has to be. A written access may be read too.
fn has_access(kernel: &Kernel, access: u32, write: bool) -> bool {
    kernel.accesses.get(access as usize).is_some_and(|a| a.write || !write)
}

fn operands(node: &Node) -> [Option<NodeId>; 3] {
    match *node {
        Node::Load(_) | Node::Const { .. } | Node::Scalar(_) | Node::Index(_) => [None; 3],
        Node::LoadAt { index, .. } => [Some(index), None, None],
        Node::Unary(_, a) | Node::Convert(_, a) | Node::RowReduce(_, a) => [Some(a), None, None],
        Node::Binary(_, a, b) | Node::Compare(_, a, b) => [Some(a), Some(b), None],
        Node::Select(a, b, c) => [Some(a), Some(b), Some(c)],
    }
}
