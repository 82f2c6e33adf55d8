//! ir::Kernel to LLVM to x86 objects, returning symbols
