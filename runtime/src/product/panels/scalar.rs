//! Loops over panels in plain Rust, for machines without AVX2. The compiler vectorises them by what every x86-64 has.

use super::{Block, CHUNK, Element, ROW, WIDTH};

/// Rows worked on together.
pub(super) const ROWS: usize = 1;

/// # Safety
/// As [`Block::run`].
pub(super) unsafe fn run(block: &Block) {
    for row in 0..block.rows {
        let to = block.c.wrapping_offset(row as isize * block.c_row);
        let mut sums = [0.0f32; WIDTH];
        if block.resumes {
            // SAFETY: the block's result has this row and these columns.
            sums = unsafe { to.cast::<[f32; WIDTH]>().read() };
        }
        for unit in 0..block.units {
            let (chunk, step) = (unit / CHUNK, unit % CHUNK);
            // SAFETY: the scratch has this unit of this row, and the panel 32 units of this step.
            let (a, b) = unsafe {
                let a = block.a.add((chunk * block.rows + row) * ROW + step).read();
                (a, &*block.b.add(unit * WIDTH).cast::<[u32; WIDTH]>())
            };
            match block.element {
                Element::F32 => add(&mut sums, f32::from_bits(a), b, f32::from_bits),
                Element::Bf16 => {
                    let (first, second) =
                        (|x: u32| f32::from_bits(x << 16), |x| f32::from_bits(x & 0xffff_0000));
                    add(&mut sums, first(a), b, first);
                    add(&mut sums, second(a), b, second);
                }
            }
        }
        for (column, sum) in sums.into_iter().enumerate() {
            // SAFETY: the block's result has this row and these columns.
            unsafe { to.add(column).write(sum) };
        }
    }
}

#[inline(always)]
fn add(sums: &mut [f32; WIDTH], a: f32, b: &[u32; WIDTH], widen: impl Fn(u32) -> f32) {
    for (sum, &b) in sums.iter_mut().zip(b) {
        *sum += a * widen(b);
    }
}
