//! Graphs.

use super::{Handle, Out, call};
use crate::code::Code;
use crate::graph::Graph;
use std::ffi::{c_uint, c_ulonglong, c_void};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_*` that change nothing here: automatic free, upload, node priority.
const FLAGS: u64 = 1 | 2 | 8;

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphCreate(graph: Out<Handle>, flags: c_uint) -> Code {
    call(|turn| {
        turn.context()?;
        if flags != 0 || graph.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let handle = turn.graphs.insert(Graph { steps: Vec::new().into() });
        graph.set(handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphInstantiateWithFlags(exec: Out<Handle>, graph: Handle, flags: c_ulonglong) -> Code {
    call(|turn| {
        if flags & !FLAGS != 0 || exec.is_null() {
            return Err(
                turn.refuse(Code::INVALID_VALUE, format!("flags {flags:#x} of an instantiated graph"))
            );
        }
        let handle = turn.instantiate(graph)?;
        exec.set(handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(exec: Handle, stream: Handle) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        turn.launch_graph(exec, stream)?;
        turn.run_some();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphUpload(exec: Handle, stream: Handle) -> Code {
    call(|turn| {
        turn.current_stream(stream)?;
        turn.execs.get(exec).map(|_| ())
    })
}

/// Launches that are under way go on.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(exec: Handle) -> Code {
    call(|turn| turn.execs.remove(exec).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: Handle) -> Code {
    call(|turn| turn.graphs.remove(graph).map(|_| ()))
}

/// How many nodes there are; nodes themselves have no handles here.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphGetNodes(graph: Handle, nodes: *mut *mut c_void, count: Out<usize>) -> Code {
    call(|turn| {
        let all = turn.graphs.get(graph)?.steps.len();
        if !nodes.is_null() {
            return Err(turn.refuse(Code::NOT_SUPPORTED, "nodes of a graph"));
        }
        count.set(all)
    })
}
