//! Tiles of a product's operands in shared memory, which a block copies some stages ahead of their use.

use super::gemm::{Place, Product};
use super::tile::{self, CHUNK, CHUNK_ELEMENTS, Share, Tile};
use super::value::{Code, Num};
use crate::ptx::entry::Special;

/// An operand's tile of a stage. By k its lines are rows (for b columns) and run along k; else they are of one depth and run along rows (columns), those
/// that begin a line's length further on behind the last depth.
pub(super) struct Operand<'e, 'c> {
    code: Code<'e, 'c>,
    pub by_k: bool,
    tile: Tile,
    /// Of k that a stage has.
    depth: u32,
    share: Share<'e, 'c>,
}

/// Where a thread copies an operand's chunks from.
pub(super) struct Source<'e, 'c> {
    /// The thread's first chunk, at depth 0.
    first: Num<'e, 'c>,
    /// Bytes between its chunks, unless lines further on begin.
    apart: Num<'e, 'c>,
    /// Bytes from a stage to the next.
    advance: Num<'e, 'c>,
    /// Rows, or for b columns, that are there.
    outer: Num<'e, 'c>,
}

/// Bytes of a chunk that are there, of elements that begin at it.
fn there<'e, 'c>(elements: Num<'e, 'c>) -> Num<'e, 'c> {
    (elements * 2u32).max(0i64).min(i64::from(CHUNK))
}

impl<'e, 'c> Operand<'e, 'c> {
    /// A tile that `threads` threads copy.
    pub fn of(code: Code<'e, 'c>, by_k: bool, tile: Tile, depth: u32, threads: u32) -> Self {
        let share = Share::of(tile, code.special(Special::Thread), threads);
        Operand { code, by_k, tile, depth, share }
    }

    fn apart(&self) -> u32 {
        // invariant: tiles of products have powers of two of chunks, which powers of two of threads copy evenly.
        self.share.rows_apart().expect("chunks of a tile of a product stand in columns")
    }

    /// `strides` along the outer dim and along k, one of which is 1.
    fn source(
        &self,
        first: Num<'e, 'c>,
        outer_stride: Num<'e, 'c>,
        depth_stride: Num<'e, 'c>,
        outer: Num<'e, 'c>,
    ) -> Source<'e, 'c> {
        let stride = if self.by_k { outer_stride } else { depth_stride } * 2u32;
        let begin = self.share.column(self.apart()).next();
        let begin = begin.map(|c| c.row.long() * stride + c.chunk.long() * CHUNK);
        Source {
            first: begin.map_or(first, |begin| first.bytes(begin)),
            apart: stride * self.apart(),
            advance: if self.by_k { self.code.i64(i64::from(self.depth * 2)) } else { stride * self.depth },
            outer,
        }
    }

    /// Copies the thread's chunks of one stage to `to`, from `at` on, where `left` of k are there.
    fn copy(&self, source: &Source<'e, 'c>, to: Num<'e, 'c>, at: Num<'e, 'c>, left: Num<'e, 'c>) {
        let none = self.code.i32(0);
        let line = self.tile.chunks * CHUNK_ELEMENTS;
        // Chunks of one depth after another, then those of lines further on.
        let deep = if self.by_k { u32::MAX } else { self.depth / self.apart() };
        let mut from = at;
        for (i, chunk) in (0..).zip(self.share.column(self.apart())) {
            let begin = chunk.chunk * CHUNK_ELEMENTS;
            let beyond = i / deep;
            if beyond > 0 && i.is_multiple_of(deep) {
                from = at.bytes(i64::from(beyond * line * 2));
            }
            let bytes = match beyond {
                _ if self.by_k => chunk.row.lt(source.outer).choose(there(left - begin), none),
                0 => chunk.row.lt(left).choose(there(source.outer - begin), none),
                _ => {
                    let row = chunk.row - beyond * self.depth;
                    row.lt(left).choose(there(source.outer - begin - beyond * line), none)
                }
            };
            tile::copy(self.code, to.bytes(chunk.at.long()), from, bytes);
            from = from.bytes(source.apart);
        }
    }
}

/// Where the thread's chunks of a stage lie in a and in b.
pub(super) type At<'e, 'c> = [Num<'e, 'c>; 2];

/// The stages of one tile of c over k.
pub(super) struct Stages<'p, 'e, 'c, 'k> {
    product: &'p Product<'e, 'c, 'k>,
    operands: &'p [Operand<'e, 'c>; 2],
    sources: [Source<'e, 'c>; 2],
    /// How many there are in shared memory.
    count: u32,
    shared: Num<'e, 'c>,
}

impl<'p, 'e, 'c, 'k> Stages<'p, 'e, 'c, 'k> {
    pub fn of(
        product: &'p Product<'e, 'c, 'k>,
        operands: &'p [Operand<'e, 'c>; 2],
        place: &Place<'e, 'c>,
        (count, shared): (u32, Num<'e, 'c>),
    ) -> Self {
        let [a, b] = operands;
        let sources = [
            a.source(place.a.first, place.a.row, place.a.col, place.rows),
            b.source(place.b.first, place.b.col, place.b.row, place.cols),
        ];
        Stages { product, operands, sources, count, shared }
    }

    fn depth(&self) -> u32 {
        self.operands[0].depth
    }

    /// How many k takes.
    pub fn turns(&self) -> Num<'e, 'c> {
        self.product.k.tiles(self.depth()).int()
    }

    /// Where a stage's tile of a, and that of b, begin.
    pub fn tiles(&self, number: Num<'e, 'c>) -> [Num<'e, 'c>; 2] {
        let [a, b] = self.operands.each_ref().map(|operand| operand.tile.bytes());
        let place = number.remainder(self.count) * (a + b);
        let first = self.shared.bytes(place.long());
        [first, first.bytes(i64::from(a))]
    }

    /// Begins the copies of the first `ahead` stages; where those of the next lie.
    pub fn begin(&self, ahead: u32, turns: Num<'e, 'c>) -> At<'e, 'c> {
        let code = self.product.code;
        let mut at = self.sources.each_ref().map(|source| source.first);
        for stage in 0..ahead {
            at = self.copy(code.i32(stage as i32), turns, at);
        }
        at
    }

    /// Begins the copies of a stage, which lie at `at`, if there is one with the number; where those of the next lie.
    pub fn copy(&self, number: Num<'e, 'c>, turns: Num<'e, 'c>, at: At<'e, 'c>) -> At<'e, 'c> {
        let code = self.product.code;
        code.when(number.lt(turns), || {
            let depth = i64::from(self.depth());
            let left = (self.product.k - number.long() * depth).min(depth).int();
            let tiles = self.tiles(number);
            for i in 0..2 {
                self.operands[i].copy(&self.sources[i], tiles[i], at[i], left);
            }
        });
        tile::commit(code);
        [0, 1].map(|i| at[i].bytes(self.sources[i].advance))
    }
}
