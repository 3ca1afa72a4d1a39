//! How the kernel's threads share a step.

use super::Layout;

/// Threads per block; the kernel is bounded to it.
pub(crate) const THREADS: u32 = 512;
/// Blocks per multiprocessor: 1,024 threads with 32 to 64 bytes each under way fill the memory's latency, and fewer
/// blocks have fewer counts to add up in the end.
const BLOCKS_PER_SM: u32 = 2;
/// Shared memory that every device gives without being asked.
const SHARED_BYTES: usize = 48 * 1024;

/// Grid and parameters of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Blocks along the positions.
    pub(crate) blocks_x: u32,
    /// Groups of layers.
    pub(crate) blocks_y: u32,
    /// Layers in a group, a power of two: as many as make a warp read whole lines of 128 bytes.
    pub(crate) group: u32,
    /// Dynamic shared memory, bytes.
    pub(crate) shared_bytes: u32,
    /// Whether a block counts in shared memory first; models with more experts than fit count in device memory.
    pub(crate) in_shared: bool,
}

impl Geometry {
    /// For a step of `tokens` (at least 1) on a device of `multiprocessors`.
    pub(crate) fn of(layout: &Layout, tokens: usize, counts: bool, multiprocessors: u32) -> Self {
        let experts = layout.num_experts() as usize;
        let wanted = 32usize.div_ceil(layout.shape().top_k()).next_power_of_two();
        let mut group = wanted;
        while group > 1 && group * experts * 4 > SHARED_BYTES {
            group /= 2;
        }
        let in_shared = group * experts * 4 <= SHARED_BYTES;
        if !in_shared {
            group = wanted;
        }
        let blocks_y = layout.shape().layers().div_ceil(group) as u32;
        let rows_per_block = THREADS as usize / group;
        let share = (multiprocessors.max(1) * BLOCKS_PER_SM).div_ceil(blocks_y) as usize;
        Self {
            blocks_x: tokens.div_ceil(rows_per_block).clamp(1, share.max(1)) as u32,
            blocks_y,
            group: group as u32,
            shared_bytes: if counts && in_shared { (group * experts * 4) as u32 } else { 0 },
            in_shared,
        }
    }
}

/// How many ids the kernel may read at once from this address.
pub(crate) fn vector(address: u64) -> i32 {
    match address % 16 {
        0 => 4,
        8 => 2,
        _ => 1,
    }
}
