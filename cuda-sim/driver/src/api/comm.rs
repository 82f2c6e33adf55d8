//! What the stand-in for NCCL calls (`abi.rs`). Answers are `ncclResult_t`; what went wrong in words is in `pcc_sim_last_fault`.

use super::{Out, array};
use crate::abi;
use crate::code::Code;
use crate::comm::Refusal;
use crate::state::Turn;
use crate::threads;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn call(f: impl FnOnce(&mut Turn) -> Result<(), Refusal>) -> Refusal {
    if threads::in_host_call() {
        return abi::INVALID_USAGE;
    }
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut turn = Turn::take();
        turn.threads.here();
        f(&mut turn)
    }));
    result.unwrap_or(Err(abi::INTERNAL_ERROR)).err().unwrap_or(abi::OK)
}

fn argument(code: Result<(), Code>) -> Result<(), Refusal> {
    code.map_err(|_| abi::INVALID_ARGUMENT)
}

#[unsafe(no_mangle)]
pub extern "C" fn pcc_sim_comm_id(id: Out<[u8; abi::ID_BYTES]>) -> Refusal {
    call(|turn| argument(id.set(turn.comms.new_id())))
}

#[unsafe(no_mangle)]
pub extern "C" fn pcc_sim_comm_join(
    id: *const [u8; abi::ID_BYTES],
    size: i32,
    rank: i32,
    nonblocking: i32,
    comm: Out<u64>,
) -> Refusal {
    call(|turn| {
        let id = array(id, 1).ok().and_then(|ids| ids.first().copied()).ok_or(abi::INVALID_ARGUMENT)?;
        if comm.is_null() {
            return Err(abi::INVALID_ARGUMENT);
        }
        let seat = turn.comm_join(id, size, rank, nonblocking != 0)?;
        argument(comm.set(seat))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pcc_sim_comm_wait(comm: u64) -> Refusal {
    call(|turn| turn.comm_wait(comm))
}

#[unsafe(no_mangle)]
pub extern "C" fn pcc_sim_comm_submit(ops: *const abi::Op, count: usize) -> Refusal {
    call(|turn| {
        let ops = array(ops, count).map_err(|_| abi::INVALID_ARGUMENT)?;
        turn.comm_submit(&ops)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pcc_sim_comm_leave(comm: u64, how: u32) -> Refusal {
    call(|turn| turn.comm_leave(comm, how))
}

#[unsafe(no_mangle)]
pub extern "C" fn pcc_sim_comm_info(comm: u64, info: Out<abi::Info>) -> Refusal {
    call(|turn| {
        let found = turn.comm_info(comm)?;
        argument(info.set(found))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pcc_sim_comm_error(comm: u64, error: Out<Refusal>) -> Refusal {
    call(|turn| {
        let found = turn.comm_error(comm)?;
        argument(error.set(found))
    })
}
