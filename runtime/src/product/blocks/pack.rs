//! Lays groups of columns into panels.

use crate::product::panels::WIDTH;
use half::f16;
use pcc_ir::source::{BlockFormat, BlockRows};

/// Writes columns of a panel, `(column, index)`: the groups of `rows` number `index` become the panel's column. Columns that are
/// not named stay as they are.
pub(crate) fn pack(
    format: &BlockFormat,
    groups: usize,
    columns: impl Iterator<Item = (usize, usize)> + Clone,
    rows: &BlockRows<'_>,
    panel: &mut [u8],
) {
    let group = format.group as usize;
    for (g, bytes) in panel.chunks_exact_mut(format.group_bytes()).take(groups).enumerate() {
        let (head, codes) = bytes.split_at_mut(format.head_bytes());
        let (scales, offsets) = head.split_at_mut(WIDTH * format.scale_bytes());
        for (column, index) in columns.clone() {
            let at = index * groups + g;
            put(format, scales, column, rows.scales[at]);
            if format.offsets {
                put(format, offsets, column, rows.offsets[at]);
            }
            let from = rows.codes[at * group..][..group].iter();
            if format.bits == 4 {
                for (eight, from) in from.as_slice().chunks_exact(8).enumerate() {
                    let nibble = |q: &i8| u32::from(q.wrapping_sub(format.low) as u8 & 0xF);
                    let word = from.iter().rev().fold(0, |w, q| w << 4 | nibble(q));
                    codes[4 * (eight * WIDTH + column)..][..4].copy_from_slice(&word.to_le_bytes());
                }
            } else {
                from.enumerate().for_each(|(row, &q)| codes[row * WIDTH + column] = q as u8);
            }
        }
    }
}

fn put(format: &BlockFormat, line: &mut [u8], column: usize, value: f32) {
    if format.half {
        line[2 * column..][..2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
    } else {
        line[4 * column..][..4].copy_from_slice(&value.to_le_bytes());
    }
}
