//! Types, mesh, shardings, ops, graphs, text form, verifier, reference evaluator; the lowered Program and Kernel types
