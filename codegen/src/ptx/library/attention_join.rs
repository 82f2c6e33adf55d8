//! The results of warps that had the same queries and different keys, as one.

use super::attention_mma::{Block, State, row_of};
use super::tile;
use super::value::Num;
use crate::ptx::entry::Special;
use pcc_ir::gpu::WARP;
use pcc_ir::gpu::attention::FEW_ROWS;
use pcc_ir::types::DType;

impl<'e, 'c> Block<'_, 'e, 'c, '_> {
    /// Joins what the block's warps have summed, and stores it. What a warp has goes to the shared memory of its tiles, which are larger: the
    /// sums of each row's values, then the rows' maxima and sums of weights.
    pub fn join(&self, state: &State<'e, 'c>) {
        let (call, code) = (self.head.call, self.code());
        let (d, e, warps) = (call.kernel.d, call.kernel.e, call.kernel.warps());
        let line = e * 4;
        let (maxima, sums) = (FEW_ROWS * line, FEW_ROWS * line + FEW_ROWS * 4);
        let region = call.kernel.tile_keys() * (d + e) * 2;
        let place = |warp: Num<'e, 'c>| code.shared().bytes((warp * region).long());
        // The warp's own lanes may still read its tiles.
        code.warp_barrier();
        let mine = place(self.warp);
        for (i, pair) in state.out.chunks(2).enumerate() {
            let (row, col) = tile::place(self.lane, (i % 2 * 2) as u32);
            let at = row * line + (col + (i / 2 * 8) as i64) * 4u32;
            mine.bytes(at.long()).store_run(DType::F32, pair);
        }
        for half in 0..2 {
            let (row, col) = tile::place(self.lane, half * 2);
            let half = row_of(half as usize * 2);
            let sum = state.sum[half].sum_over(&[1, 2]);
            code.when(col.eq(0i64), || {
                mine.bytes((row * 4u32 + maxima).long()).store(DType::F32, state.max[half]);
                mine.bytes((row * 4u32 + sums).long()).store(DType::F32, sum);
            });
        }
        code.barrier();
        let pairs = code.i32((FEW_ROWS * e / 2) as i32);
        code.each((code.special(Special::Thread), pairs), warps * WARP, |pair| {
            let (row, col) = (pair.quotient(e / 2), pair.remainder(e / 2) * 2u32);
            let of_row = |from: u32| -> Vec<Num<'e, 'c>> {
                let at = |warp: u32| code.shared().bytes(i64::from(warp * region + from));
                (0..warps).map(|warp| at(warp).bytes((row * 4u32).long()).load(DType::F32)).collect()
            };
            let (maxima, sums) = (of_row(maxima), of_row(sums));
            let max = maxima[1..].iter().fold(maxima[0], |most, &x| most.max(x));
            let (mut sum, mut values) = (code.f32(0.0), [code.f32(0.0); 2]);
            for warp in 0..warps as usize {
                let weight = (maxima[warp] - max).exp2();
                sum = weight.fma(sums[warp], sum);
                let at = code.shared().bytes(i64::from(warp as u32 * region));
                let mine = at.bytes((row * line + col * 4u32).long()).load_run(DType::F32, 2);
                values = [0, 1].map(|i| weight.fma(mine[i], values[i]));
            }
            let row = self.first + row;
            if let Some(partials) = &call.partials {
                let head = self.head.b * call.g + self.head.g;
                code.when(row.lt(self.head.rows), || {
                    let place = partials.place(head, self.range, row.long());
                    code.when(sum.ne(0i64), || {
                        partials.values(place, col.long()).store_run(DType::F32, &values)
                    });
                    code.when(col.eq(0i64), || partials.summary(place).store_run(DType::F32, &[max, sum]));
                });
                return;
            }
            let normaliser = call.normaliser(sum);
            let [low, high] = values.map(|x| x * normaliser);
            code.when(row.lt(self.head.rows), || {
                let query = self.head.query(row);
                let to = call.out.at(&[query.b, query.s, query.g, query.r]).bytes(col.long() * 2u32);
                to.store_words(&[low.packed(call.out.dtype, high)]);
            });
        });
        // The next head's keys come into the same memory.
        code.barrier();
    }
}
