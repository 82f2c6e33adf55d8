//! Loops that the compiler makes vectors of, for machines without AVX-512.

use super::Work;
use crate::product::panels::WIDTH;
use pcc_ir::source::BlockFormat;

/// Most rows worked on together.
pub(super) const ROWS: usize = 2;

/// One number a column.
type Line = [f32; WIDTH];

/// f16 to f32, exact, without a branch or a call.
#[inline(always)]
fn widen(bits: u16) -> f32 {
    let (sign, rest) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7FFF) << 13);
    // The exponent's bias differs by 112; this also brings subnormals to their value. Infinities and NaN keep theirs.
    let finite = f32::from_bits(rest) * f32::from_bits((127 + 112) << 23);
    let special = f32::from_bits(rest | 0x7F80_0000);
    let size = if bits & 0x7C00 == 0x7C00 { special } else { finite };
    f32::from_bits(sign | size.to_bits())
}

/// Scales or offsets of a group.
///
/// # Safety
/// There are 32 from `at` on, aligned.
#[inline(always)]
unsafe fn line(at: *const u8, half: bool) -> Line {
    let mut out = [0.0; WIDTH];
    if half {
        // SAFETY: the caller's promise.
        let bits = unsafe { &*at.cast::<[u16; WIDTH]>() };
        for j in 0..WIDTH {
            out[j] = widen(bits[j]);
        }
    } else {
        // SAFETY: the caller's promise.
        out = unsafe { *at.cast::<Line>() };
    }
    out
}

/// Codes of row `row` of a group.
///
/// # Safety
/// `codes` are a group's, and it has the row.
#[inline(always)]
unsafe fn row_of_codes<const BITS: u32>(codes: *const u8, row: usize, low: i32) -> Line {
    let mut out = [0.0; WIDTH];
    if BITS == 4 {
        let shift = 4 * (row % 8) as u32;
        // SAFETY: the caller's promise; words lie at multiples of 4 bytes.
        let words = unsafe { &*codes.add(row / 8 * 4 * WIDTH).cast::<[u32; WIDTH]>() };
        for j in 0..WIDTH {
            out[j] = ((words[j] >> shift & 0xF) as i32 + low) as f32;
        }
    } else {
        // SAFETY: the caller's promise.
        let bytes = unsafe { &*codes.add(row * WIDTH).cast::<[i8; WIDTH]>() };
        for j in 0..WIDTH {
            out[j] = f32::from(bytes[j]);
        }
    }
    out
}

/// M rows times a panel.
///
/// # Safety
/// As [`Work::run`], for M rows; the machine has fused multiply-add where FUSED says so.
#[inline(always)]
unsafe fn rows<const FUSED: bool, const BITS: u32, const M: usize>(work: &Work) {
    let format = &work.format;
    let (group, low) = (format.group as usize, i32::from(format.low));
    let fma = |a: f32, b: f32, c: f32| if FUSED { a.mul_add(b, c) } else { a * b + c };
    let mut y = [[0.0f32; WIDTH]; M];
    for g in 0..work.groups {
        let at = work.panel.wrapping_add(g * format.group_bytes());
        let mut sums = [[0.0f32; WIDTH]; M];
        for row in 0..group {
            // SAFETY: the caller's promise: the group has the row.
            let codes = unsafe { row_of_codes::<BITS>(at.wrapping_add(format.head_bytes()), row, low) };
            for (m, sums) in sums.iter_mut().enumerate() {
                // SAFETY: the scratch has the row's element of a, in each of M rows.
                let x = unsafe { *work.x.wrapping_add((m * work.groups + g) * group + row) };
                for j in 0..WIDTH {
                    sums[j] = fma(x, codes[j], sums[j]);
                }
            }
        }
        // SAFETY: the group begins with 32 scales.
        let scales = unsafe { line(at, format.half) };
        for (y, sums) in y.iter_mut().zip(&sums) {
            for j in 0..WIDTH {
                y[j] = fma(scales[j], sums[j], y[j]);
            }
        }
        if format.offsets {
            // SAFETY: 32 offsets follow the scales.
            let offsets = unsafe { line(at.wrapping_add(WIDTH * format.scale_bytes()), format.half) };
            for (m, y) in y.iter_mut().enumerate() {
                // SAFETY: the scratch has a sum of this row and group.
                let x = unsafe { *work.sums.wrapping_add(m * work.groups + g) };
                for j in 0..WIDTH {
                    y[j] = fma(offsets[j], x, y[j]);
                }
            }
        }
    }
    for (m, y) in y.iter().enumerate() {
        // SAFETY: the result has M rows of 32 columns.
        unsafe { *work.y.wrapping_add(m * WIDTH).cast::<Line>() = *y };
    }
}

macro_rules! choose {
    ($work:ident, $fused:literal) => {
        // SAFETY: the caller's promise; the loop is the one for these rows.
        unsafe {
            match ($work.format.bits, $work.rows) {
                (4, 1) => rows::<$fused, 4, 1>($work),
                (4, 2) => rows::<$fused, 4, 2>($work),
                (_, 1) => rows::<$fused, 8, 1>($work),
                (_, 2) => rows::<$fused, 8, 2>($work),
                // invariant: callers keep to `ROWS`
                (_, rows) => unreachable!("no loop for {rows} rows"),
            }
        }
    };
}

/// # Safety
/// As [`Work::run`], for at most [`ROWS`] rows; the machine has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run_avx2(work: &Work) {
    choose!(work, true);
}

/// # Safety
/// As [`Work::run`], for at most [`ROWS`] rows.
pub(super) unsafe fn run_scalar(work: &Work) {
    choose!(work, false);
}

/// Values of one column of a group, from row `first` on.
///
/// # Safety
/// `at` is a group of a panel, and has these rows and the column.
pub(super) unsafe fn column(
    format: &BlockFormat,
    at: *const u8,
    column: usize,
    first: usize,
    to: &mut [f32],
) {
    let scale = |at: *const u8| {
        // SAFETY: one of 32 scales or offsets, in the format's type.
        unsafe {
            if format.half {
                widen(at.cast::<u16>().add(column).read())
            } else {
                at.cast::<f32>().add(column).read()
            }
        }
    };
    let offset = if format.offsets { scale(at.wrapping_add(WIDTH * format.scale_bytes())) } else { 0.0 };
    let (scale, codes) = (scale(at), at.wrapping_add(format.head_bytes()));
    for (i, value) in to.iter_mut().enumerate() {
        let row = first + i;
        // SAFETY: the group has the row and 32 columns; words lie at multiples of 4 bytes.
        let code = unsafe {
            if format.bits == 4 {
                let word = codes.cast::<u32>().add(row / 8 * WIDTH + column).read();
                (word >> (4 * (row % 8)) & 0xF) as i32 + i32::from(format.low)
            } else {
                i32::from(codes.cast::<i8>().add(row * WIDTH + column).read())
            }
        };
        *value = scale * code as f32 + offset;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_f16_widens_to_its_value() {
        for bits in 0..=u16::MAX {
            let (got, want) = (super::widen(bits), half::f16::from_bits(bits).to_f32());
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{bits:#x}");
        }
    }
}
