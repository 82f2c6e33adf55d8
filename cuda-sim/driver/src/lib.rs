//! Stands in for libcuda: the driver's interface over simulated devices, loaded in the process of a program that does not know.
//!
//! It is a checker. Streams are queues whose work is run as late as may be, in an order that a seed changes and that only stream order, events and
//! synchronisation constrain (`schedule.rs`), so that a missing event shows in values; besides, accesses that nothing orders are found by
//! vector clocks (`race.rs`). Kernels run in the interpreter of `pcc-cuda-sim`. A fault ends a context for good, as on a GPU, and
//! [`pcc_sim_last_fault`](api::pcc_sim_last_fault) tells what it was. Communicators, on which the stand-in for NCCL builds, are here too
//! (`comm/`), since they are work of streams.
//!
//! Environment: see [`config::Config`].

pub mod abi;
pub mod api;
pub mod blas;
mod clock;
mod code;
mod comm;
pub mod config;
mod execute;
mod graph;
mod handle;
mod host;
mod memory;
pub mod mutant;
mod product;
mod race;
mod schedule;
mod staging;
mod state;
mod threads;
mod work;
