//! The interpreter against closed forms and plain loops, and each kind of fault it finds.

mod arithmetic;
mod compiled;
mod damaged;
mod faults;
mod harness;
mod matrices;
mod memory_forms;
mod random_control;
mod rarer;
mod warpgroups;
mod warps;
