//! The kernel's work on host memory.

use gatescope_routing::IdWidth;

use super::Layout;
use super::layout::FAULTS;

/// Ids looked at in one go: what they need stays in the first cache.
const CHUNK_IDS: usize = 1024;

/// What is counted while rows are packed.
#[derive(Debug)]
pub(crate) struct Tallies<'a> {
    /// Three counters per layer, added to.
    pub(crate) faults: &'a mut [u32],
    /// `[layers, experts]`: ids in range of layers with a gate, added to.
    pub(crate) counts: Option<&'a mut [u32]>,
}

/// Does what the kernel does to `ids` (`[tokens, layers, top_k]`), at the speed of vector instructions where all is well.
/// `rows` has room for the packed rows exactly.
pub(crate) fn pack(layout: &Layout, ids: &[i32], rows: &mut [u8], to: Tallies<'_>) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        #[allow(unsafe_code)]
        // SAFETY: the processor has AVX2, which is all that the function asks for.
        unsafe {
            pack_avx2(layout, ids, rows, to);
        }
        return;
    }
    pack_by_top_k(layout, ids, rows, to);
}

/// The same code, compiled for wider vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn pack_avx2(layout: &Layout, ids: &[i32], rows: &mut [u8], to: Tallies<'_>) {
    pack_by_top_k(layout, ids, rows, to);
}

/// Gives the compiler the slots of common models as constants.
#[inline(always)]
fn pack_by_top_k(layout: &Layout, ids: &[i32], rows: &mut [u8], to: Tallies<'_>) {
    match layout.shape().top_k() {
        1 => pack_chunks::<1>(layout, ids, rows, to),
        2 => pack_chunks::<2>(layout, ids, rows, to),
        4 => pack_chunks::<4>(layout, ids, rows, to),
        6 => pack_chunks::<6>(layout, ids, rows, to),
        8 => pack_chunks::<8>(layout, ids, rows, to),
        10 => pack_chunks::<10>(layout, ids, rows, to),
        16 => pack_chunks::<16>(layout, ids, rows, to),
        _ => reference(layout, ids, rows, to),
    }
}

/// Whole layers in chunks: each is narrowed and asked for ids out of range in one pass that vectorises; a chunk that has
/// one goes to the reference, so that the passes after it need not think of it.
#[inline(always)]
fn pack_chunks<const K: usize>(layout: &Layout, ids: &[i32], rows: &mut [u8], mut to: Tallies<'_>) {
    let width = layout.width().bytes();
    let experts = layout.num_experts();
    let layers = layout.shape().layers();
    let chunk_ids = (CHUNK_IDS / K).max(1) * K;
    let mut layer = 0;
    for (ids, rows) in ids.chunks(chunk_ids).zip(rows.chunks_mut(chunk_ids * width)) {
        let in_range = match layout.width() {
            IdWidth::U8 => narrow_u8(ids, rows, experts),
            IdWidth::U16 => narrow_u16(ids, rows, experts),
        };
        if in_range {
            for row in ids.as_chunks::<K>().0 {
                if layout.gates()[layer] {
                    look::<K>(row, layer, experts, &mut to);
                }
                layer = if layer + 1 == layers { 0 } else { layer + 1 };
            }
        } else {
            for row in ids.chunks_exact(K) {
                if layout.gates()[layer] {
                    look_anywhere(row, layer, experts, &mut to);
                }
                layer = if layer + 1 == layers { 0 } else { layer + 1 };
            }
        }
    }
}

#[inline(always)]
fn narrow_u8(ids: &[i32], rows: &mut [u8], experts: u32) -> bool {
    let mut highest = 0;
    for (id, byte) in ids.iter().zip(rows) {
        highest = highest.max(*id as u32);
        *byte = *id as u8;
    }
    highest < experts
}

#[inline(always)]
fn narrow_u16(ids: &[i32], rows: &mut [u8], experts: u32) -> bool {
    let mut highest = 0;
    for (id, bytes) in ids.iter().zip(rows.as_chunks_mut::<2>().0) {
        highest = highest.max(*id as u32);
        *bytes = (*id as u16).to_le_bytes();
    }
    highest < experts
}

/// A layer's ids, all in range.
#[inline(always)]
fn look<const K: usize>(row: &[i32; K], layer: usize, experts: u32, to: &mut Tallies<'_>) {
    if let Some(counts) = &mut to.counts {
        let chosen = &mut counts[layer * experts as usize..][..experts as usize];
        for id in row {
            chosen[*id as usize] += 1;
        }
    }
    if K > 1 {
        let mut twice = false;
        for distance in 1..=K / 2 {
            for slot in 0..K {
                twice |= row[slot] == row[(slot + distance) % K];
            }
        }
        if twice {
            let all_zero = row.iter().all(|id| *id == 0);
            to.faults[layer * FAULTS + if all_zero { 2 } else { 1 }] += 1;
        }
    }
}

/// A layer's ids, whatever they are.
fn look_anywhere(row: &[i32], layer: usize, experts: u32, to: &mut Tallies<'_>) {
    let in_range = |id: i32| (id as u32) < experts;
    let faults = &mut to.faults[layer * FAULTS..][..FAULTS];
    faults[0] += row.iter().filter(|id| !in_range(**id)).count() as u32;
    if row.len() > 1 {
        if row.iter().all(|id| *id == 0) {
            faults[2] += 1;
        } else if row.iter().enumerate().any(|(slot, id)| in_range(*id) && row[..slot].contains(id)) {
            faults[1] += 1;
        }
    }
    if let Some(counts) = &mut to.counts {
        for id in row.iter().filter(|id| in_range(**id)) {
            counts[layer * experts as usize + *id as usize] += 1;
        }
    }
}

/// Id by id, as the rule reads: what [`pack`] and the kernel are held to.
pub(crate) fn reference(layout: &Layout, ids: &[i32], rows: &mut [u8], mut to: Tallies<'_>) {
    let shape = layout.shape();
    let width = layout.width().bytes();
    for (id, bytes) in ids.iter().zip(rows.chunks_exact_mut(width)) {
        bytes.copy_from_slice(&id.to_le_bytes()[..width]);
    }
    for (row, ids) in ids.chunks_exact(shape.top_k()).enumerate() {
        let layer = row % shape.layers();
        if layout.gates()[layer] {
            look_anywhere(ids, layer, layout.num_experts(), &mut to);
        }
    }
}
