//! Module to Module to Program: search, partition, pipeline, fusion, buffers, cost; checks
pub mod cut_stages;
pub mod lower;
pub mod outline;
pub mod plan;
pub mod report;

pub mod assign_shardings;
pub mod cast_dtype;
pub mod cost;
pub mod driver;
pub mod partition;
pub mod rewrite;
pub mod solve;
pub mod twin;
pub mod verify;
