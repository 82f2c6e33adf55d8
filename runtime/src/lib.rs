//! Loads an artifact; owns devices, memory, collectives
