//! Which tiles of keys a block of attention works on, and how they come into shared memory.

use super::attention::Sight;
use super::attention_mma::{Block, Operand};
use super::tile::{self, CHUNK, Chunk};
use super::value::Num;
use pcc_ir::gpu::WARP;
use pcc_ir::gpu::attention::RANGE_KEYS;

/// A tile of keys that is worked on next, or is none: its number, positions of the lane's keys (every 32nd).
#[derive(Clone)]
pub(super) struct Keys<'e, 'c> {
    pub number: Num<'e, 'c>,
    /// Which of the tiles that were looked at together have keys that are seen, and of which all rows see all.
    pub marks: Num<'e, 'c>,
    pub k_pos: Vec<Num<'e, 'c>>,
}

impl<'e, 'c> Keys<'e, 'c> {
    /// Whether every row sees all of them, where so many tiles are looked at together.
    pub fn all_seen(&self, together: u32) -> Num<'e, 'c> {
        ((self.marks >> ((self.number & (together - 1)) + together)) & 1u32).eq(1i64)
    }
}

impl<'e, 'c> Block<'_, 'e, 'c, '_> {
    /// Key tiles whose positions are looked at together: a power of two, at most 16.
    pub fn together(&self) -> u32 {
        let kernel = self.head.call.kernel;
        // All that a warp has.
        if kernel.split { RANGE_KEYS / (self.keys * kernel.warps()) } else { 8 }
    }

    /// The positions of the lane's keys of a tile; -1 where there are none.
    fn positions(&self, number: Num<'e, 'c>) -> Vec<Num<'e, 'c>> {
        let (call, code) = (self.head.call, self.code());
        let position = |i: u32| {
            let key = self.tile_place(number).long() * self.keys + (self.lane + i * WARP).long();
            let at = call.k_pos.at(&[self.head.b, key.min(call.t - 1i64)]);
            key.lt(call.t).choose(at.load_words(1)[0], code.i32(-1))
        };
        (0..self.keys / WARP).map(position).collect()
    }

    /// The next tile of which some row sees something.
    pub fn next(&self, from: &Keys<'e, 'c>) -> Keys<'e, 'c> {
        let code = self.code();
        let together = self.together();
        let mark = |number: Num<'e, 'c>, marks: Num<'e, 'c>| (marks >> (number & (together - 1))) & 1u32;
        let state = code.repeat(
            &[from.number + 1i64, from.marks, code.i32(0)],
            |state| state[2].eq(0i64),
            |state| {
                let (number, marks) = (state[0], state[1]);
                let begins = (number & (together - 1)).eq(0i64) & number.lt(self.tiles);
                let marks = code.either(begins, || vec![self.marks(number)], || vec![marks])[0];
                let found = self.tiles.le(number) | mark(number, marks).eq(1i64);
                vec![found.choose(number, number + 1i64), marks, found.int()]
            },
        );
        let (number, marks) = (state[0], state[1]);
        let none = || vec![code.i32(-1); self.lane_keys()];
        let k_pos = code.either(number.lt(self.tiles), || self.positions(number), none);
        Keys { number, marks, k_pos }
    }

    /// Bit i: some row sees a key of tile `number + i`; as many bits further: all rows see all its keys.
    fn marks(&self, number: Num<'e, 'c>) -> Num<'e, 'c> {
        let (code, together) = (self.code(), self.together());
        let one = |i: u32| {
            let positions = self.positions(number + i);
            let over = |sight: Sight<'e, 'c>, all: bool| {
                let sees = positions.iter().map(|&k_pos| sight.sees(k_pos));
                sees.reduce(|a, b| if all { a & b } else { a | b }).unwrap_or(code.i32(0).ne(0i64))
            };
            let some = over(self.some, false).ballot().ne(0i64).int();
            let every = over(self.every, true).ballot().eq(-1i64).int();
            some << i | every << (together + i)
        };
        (0..together).map(one).fold(code.i32(0), |marks, bits| marks | bits)
    }

    /// Copies the thread's chunks of a tile: zeros for keys before or behind all that the rows see.
    pub fn copy(&self, operand: &Operand<'e, 'c>, keys: &Keys<'e, 'c>) {
        let code = self.code();
        let seen: Vec<Num> = keys.k_pos.iter().map(|&k_pos| self.some.sees(k_pos).ballot()).collect();
        let first = operand.first.bytes(self.tile_place(keys.number).long() * self.keys * operand.stride);
        let place = |chunk: &Chunk<'e, 'c>| {
            first.bytes(chunk.row.long() * operand.stride + (chunk.chunk * CHUNK).long())
        };
        let copy = |chunk: Chunk<'e, 'c>, from: Num<'e, 'c>, seen: Num<'e, 'c>| {
            tile::copy(code, operand.tile.bytes(chunk.at.long()), from, (seen & 1u32) * CHUNK);
        };
        match operand.share.rows_apart() {
            // The number of a chunk says which lanes' keys it is of.
            Some(apart) if apart <= WARP => {
                let mut chunks = operand.share.column(apart).peekable();
                let Some(begin) = chunks.peek().map(|c| (c.row, place(c))) else { return };
                let mut next = begin.1;
                for (i, chunk) in (0..).zip(chunks) {
                    let word = seen[(i * apart / WARP) as usize];
                    copy(chunk, next, (word >> begin.0) >> (i * apart % WARP));
                    next = next.bytes(operand.stride * apart);
                }
            }
            _ => operand.share.each(code, |chunk| {
                let word = chunk.row.lt(i64::from(WARP)).choose(seen[0], seen[seen.len() - 1]);
                let from = place(&chunk);
                let seen = word >> (chunk.row & (WARP - 1));
                copy(chunk, from, seen);
            }),
        }
    }
}
