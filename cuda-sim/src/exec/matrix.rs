//! Matrix products of a warp, and the loads that feed them. (PTX ISA 8.7, matrix fragments for mma.m16n8k16 and ldmatrix.)

use super::Trap;
use super::block::Shares;
use super::race::Access;
use super::warp::Warp;
use crate::ptx::code::{Half, LANES, Op};
use half::{bf16, f16};

impl Warp {
    /// Lanes `8 i .. 8 i + 8` give the addresses of the rows of matrix i; each lane gets two elements of each matrix.
    pub(super) fn load_matrix(&mut self, shares: &mut Shares, op: &Op) -> Result<(), Trap> {
        let Op::LoadMatrix { d, at, transposed } = op else { return Ok(()) };
        let mut results = [[(0u64, 0u8); LANES]; 4];
        for (matrix, result) in results.iter_mut().enumerate().take(d.len()) {
            let mut rows = [0; 8];
            for (n, row) in rows.iter_mut().enumerate() {
                let lane = 8 * matrix + n;
                let from = self.address(*at, lane, 16)? & u64::from(u32::MAX);
                let thread = self.thread(lane);
                let found = shares.shared.access(thread, from, 16, Access::Read);
                *row = found.map_err(|what| Trap { lane, what })?;
            }
            for (lane, result) in result.iter_mut().enumerate() {
                let (n, pair) = (lane / 4, 2 * (lane % 4));
                let element = |k: usize| {
                    let (row, column) = if *transposed { (pair + k, n) } else { (n, pair + k) };
                    shares.shared.peek(rows[row] + 2 * column, 2)
                };
                let ((low, p), (high, q)) = (element(0), element(1));
                *result = (high << 16 | low, q << 2 | p);
            }
        }
        for (&slot, result) in d.iter().zip(&results) {
            for (lane, &(value, poison)) in result.iter().enumerate() {
                self.registers.set(slot, lane, value, poison);
            }
        }
        Ok(())
    }

    /// `d = a b + c`: a is 16 x k, b k x 8. Products are exact; sums are f32, in order of k.
    pub(super) fn product(&mut self, op: &Op) {
        let Op::Mma { d, a, b, c, half } = op else { return };
        let wide = |bits: u64| match half {
            Half::F16 => f16::from_bits(bits as u16).to_f32(),
            Half::BF16 => bf16::from_bits(bits as u16).to_f32(),
        };
        let (mut left, mut right) = ([[0f32; 16]; 16], [[0f32; 8]; 16]);
        // Poison of a row of a, of a column of b.
        let (mut rows, mut columns) = ([false; 16], [false; 8]);
        for lane in 0..LANES {
            let (group, pair) = (lane / 4, 2 * (lane % 4));
            for (n, &slot) in a.iter().enumerate() {
                let (value, poison) = self.registers.get(slot, lane);
                let (row, k) = (group + 8 * (n % 2), pair + 8 * (n / 2));
                left[row][k] = wide(value & 0xffff);
                left[row][k + 1] = wide(value >> 16);
                rows[row] |= poison != 0;
            }
            for (n, &slot) in b.iter().enumerate() {
                let (value, poison) = self.registers.get(slot, lane);
                let k = pair + 8 * n;
                right[k][group] = wide(value & 0xffff);
                right[k + 1][group] = wide(value >> 16);
                columns[group] |= poison != 0;
            }
        }
        let mut sums = [[0f32; 8]; 16];
        let mut unknown = [[false; 8]; 16];
        let place = |lane: usize, n: usize| (lane / 4 + 8 * (n / 2), 2 * (lane % 4) + n % 2);
        for lane in 0..LANES {
            for (n, &slot) in c.iter().enumerate() {
                let (value, poison) = self.registers.get(slot, lane);
                let (row, column) = place(lane, n);
                sums[row][column] = f32::from_bits(value as u32);
                unknown[row][column] = poison != 0 || rows[row] || columns[column];
            }
        }
        for (sums, left) in sums.iter_mut().zip(&left) {
            for (&x, right) in left.iter().zip(&right).take(4 * a.len()) {
                for (sum, &y) in sums.iter_mut().zip(right) {
                    *sum += x * y;
                }
            }
        }
        for lane in 0..LANES {
            for (n, &slot) in d.iter().enumerate() {
                let (row, column) = place(lane, n);
                let poison = if unknown[row][column] { 0xf } else { 0 };
                self.registers.set(slot, lane, sums[row][column].to_bits().into(), poison);
            }
        }
    }
}
