//! Stands in for libnccl.
