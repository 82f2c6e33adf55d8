//! Stands in for libnccl: names and arguments of NCCL's functions, and group calls. Communicators themselves are in the stand-in for libcuda
//! (`pcc-sim-cuda`), which must be loaded before: they are work of its streams.

#[path = "../../driver/src/abi.rs"]
mod abi;
mod api;
mod driver;
mod group;
