//! Stands in for libcuda.
