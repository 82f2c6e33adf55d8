//! How many warps of a kernel fit on a multiprocessor, of those that it can hold.
//!
//! Limits by compute capability: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". All architectures here
//! have 64 warps, 32 blocks and 65,536 registers a multiprocessor, allocated by warps, 256 registers at a time, over four
//! partitions; and one KiB of shared memory of every block is the system's.

const WARPS: u32 = 64;
const BLOCKS: u32 = 32;
const REGISTERS: u32 = 65_536;
const REGISTER_UNIT: u32 = 256;
const PARTITIONS: u32 = 4;
const SYSTEM_SHARED: u32 = 1024;
const SHARED_UNIT: u32 = 128;

/// Shared memory of a multiprocessor in bytes.
fn shared_bytes(arch: &str) -> u32 {
    if arch.starts_with("sm_8") { 164 << 10 } else { 228 << 10 }
}

/// Percent of the warps that a multiprocessor can hold, by a kernel's registers a thread, threads and shared bytes a block.
pub(super) fn percent(arch: &str, registers: u32, threads: u32, shared: u32) -> u32 {
    let warps = threads.div_ceil(32).max(1);
    let a_warp = (registers.max(1) * 32).next_multiple_of(REGISTER_UNIT);
    let by_registers = REGISTERS / PARTITIONS / a_warp * PARTITIONS / warps;
    let a_block = (shared + SYSTEM_SHARED).next_multiple_of(SHARED_UNIT);
    let blocks = BLOCKS.min(WARPS / warps).min(by_registers).min(shared_bytes(arch) / a_block);
    100 * blocks * warps / WARPS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the tables of NVIDIA's occupancy calculator for compute capability 8.0 and 9.0.
    #[test]
    fn known_cases() {
        // Nothing limits: 8 blocks of 8 warps.
        assert_eq!(percent("sm_80", 32, 256, 0), 100);
        // 255 registers: 8 warps, so one block of 256 threads.
        assert_eq!(percent("sm_80", 255, 256, 0), 12);
        // 40 registers: 1280 a warp, 12 warps a partition, 48 in all: 6 blocks of 8.
        assert_eq!(percent("sm_90", 40, 256, 0), 75);
        // 32 KiB and one more a block: 4 blocks of 164 KiB, 6 of 228.
        assert_eq!(percent("sm_80", 32, 256, 32 << 10), 50);
        assert_eq!(percent("sm_90", 32, 256, 32 << 10), 75);
        // Small blocks: 32 of one warp.
        assert_eq!(percent("sm_90", 32, 32, 0), 50);
        // A block that does not fit at all.
        assert_eq!(percent("sm_80", 32, 256, 200 << 10), 0);
    }
}
