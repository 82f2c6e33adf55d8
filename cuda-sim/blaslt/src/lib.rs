//! Stands in for libcublasLt: handles, descriptors, the choice of a kernel and products, as far as pcc calls them. Products are work of streams
//! of the stand-in for libcuda (`pcc-sim-cuda`), which must be loaded before.
//!
//! It is a checker: an attribute that it does not know, one of another size, a handle that is none, a kernel used for other matrices than it
//! was chosen for, addresses less aligned than was promised, results that lie over operands: all end the context, whose
//! calls then fail with the reason.

mod api;
#[path = "../../driver/src/blas.rs"]
mod blas;
mod driver;
mod objects;
mod product;
