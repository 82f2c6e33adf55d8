//! Attention on tensor cores (FlashAttention-2: Dao, 2023): a block has 64 rows, 16 a warp, and walks over tiles of 64 keys. Scores stay in
//! registers, where they become weights and the first operand of the second product.
//!
//! The rows are the queries of one kv head, position by position, so that all heads of a group read its keys and values once. Tiles that no
//! row sees are passed over; keys before or behind all that the rows see are not read.
//!
//! Of few rows, as a decode step has, all warps have the same 16 and take turns at the tiles, each in shared memory of its own; their results
//! are joined at the end ([`super::attention_join`]).

use super::attention::{Call, Query, Scoring, Sight, View};
use super::tile::{self, CHUNK, CHUNK_ELEMENTS, Fragments, SIDE, Share, Side, Tile};
use super::value::{Code, Num};
use crate::ptx::entry::Special;
use pcc_ir::gpu::WARP;
use pcc_ir::gpu::attention::{AttentionKernel, AttentionPath, FEW_ROWS, MMA_ROWS};

/// Key tiles whose positions are looked at together.
const TOGETHER: u32 = 8;
/// Registers of a fragment of 16 x 8 results.
const FRAGMENT: usize = 4;

/// Builds the body of the kernel.
pub(super) fn emit(call: &Call<'_, '_, '_>) {
    let code = call.code;
    let special = |which| code.special(which).long();
    let rows = call.s * call.r;
    let of_block = if call.kernel.path == AttentionPath::Few { FEW_ROWS } else { MMA_ROWS };
    // The last rows see the most keys under a causal mask: they are begun first.
    let tile = rows.tiles(of_block) - 1i64 - special(Special::BlockX);
    code.when(tile.gt(-1i64), || {
        let heads = (special(Special::BlockY), call.b * call.g);
        code.each(heads, special(Special::BlocksY), |y| {
            let head = Head { call, b: y.quotient(call.g), g: y.remainder(call.g), rows };
            Block::of(&head, tile * of_block).run();
        });
    });
}

/// One kv head of one row of the batch.
pub(super) struct Head<'p, 'e, 'c, 'k> {
    pub call: &'p Call<'e, 'c, 'k>,
    b: Num<'e, 'c>,
    g: Num<'e, 'c>,
    /// Its queries.
    pub rows: Num<'e, 'c>,
}

impl<'e, 'c> Head<'_, 'e, 'c, '_> {
    /// The query of a row; beyond the last one, the last.
    pub fn query(&self, row: Num<'e, 'c>) -> Query<'e, 'c> {
        let row = row.min(self.rows - 1i64);
        Query { b: self.b, s: row.quotient(self.call.r), g: self.g, r: row.remainder(self.call.r) }
    }
}

/// A row of a lane's fragments.
struct Row<'e, 'c> {
    query: Query<'e, 'c>,
    inside: Num<'e, 'c>,
    sight: Sight<'e, 'c>,
    scoring: Scoring<'e, 'c>,
}

/// Keys or values in shared memory.
struct Operand<'e, 'c> {
    share: Share<'e, 'c>,
    fragments: Fragments<'e, 'c>,
    /// Where the tile lies.
    tile: Num<'e, 'c>,
    /// The head's first, and bytes to the next.
    first: Num<'e, 'c>,
    stride: Num<'e, 'c>,
}

/// A tile of keys that is worked on next, or is none: its number, positions of the lane's keys (every 32nd).
#[derive(Clone)]
struct Keys<'e, 'c> {
    number: Num<'e, 'c>,
    /// Which of the tiles that were looked at together have keys that are seen, and of which all rows see all.
    marks: Num<'e, 'c>,
    k_pos: Vec<Num<'e, 'c>>,
}

/// What a lane carries from tile to tile, of its two rows: the largest scores, its sums of weights, and of weighted values.
pub(super) struct State<'e, 'c> {
    keys: Keys<'e, 'c>,
    pub max: [Num<'e, 'c>; 2],
    pub sum: [Num<'e, 'c>; 2],
    pub out: Vec<Num<'e, 'c>>,
}

impl<'e, 'c> State<'e, 'c> {
    fn values(self) -> Vec<Num<'e, 'c>> {
        let Keys { number, marks, k_pos } = self.keys;
        [vec![number, marks], self.max.to_vec(), self.sum.to_vec(), k_pos, self.out].concat()
    }

    /// The inverse, of tiles of so many keys a lane.
    fn of(values: &[Num<'e, 'c>], keys: usize) -> Self {
        let (k_pos, out) = values[6..].split_at(keys);
        let keys = Keys { number: values[0], marks: values[1], k_pos: k_pos.to_vec() };
        State { keys, max: [values[2], values[3]], sum: [values[4], values[5]], out: out.to_vec() }
    }
}

/// A block's rows.
pub(super) struct Block<'p, 'e, 'c, 'k> {
    pub head: &'p Head<'p, 'e, 'c, 'k>,
    /// The first of them.
    pub first: Num<'e, 'c>,
    /// Whether the warps have the same rows and different keys.
    few: bool,
    pub warp: Num<'e, 'c>,
    pub lane: Num<'e, 'c>,
    rows: [Row<'e, 'c>; 2],
    /// What some row sees, and what every row does.
    some: Sight<'e, 'c>,
    every: Sight<'e, 'c>,
    k: Operand<'e, 'c>,
    v: Operand<'e, 'c>,
    /// Where the lane keeps its part of the queries, unless in registers.
    q_shared: Num<'e, 'c>,
    /// Keys of a tile, and the tiles that the warp works on.
    keys: u32,
    tiles: Num<'e, 'c>,
}

/// Registers of a fragment of 16 x 8 results are of this one of a lane's two rows.
pub(super) fn row_of(register: usize) -> usize {
    register % FRAGMENT / 2
}

impl<'p, 'e, 'c, 'k> Block<'p, 'e, 'c, 'k> {
    fn of(head: &'p Head<'p, 'e, 'c, 'k>, first: Num<'e, 'c>) -> Self {
        let (call, code) = (head.call, head.call.code);
        let AttentionKernel { d, e, .. } = *call.kernel;
        let (few, keys, warps) =
            (call.kernel.path == AttentionPath::Few, call.kernel.tile_keys(), call.kernel.warps());
        let (thread, lane) = (code.special(Special::Thread), code.special(Special::Lane));
        let warp = thread >> 5u32;
        let row = |half: u32| {
            let (row, _) = tile::place(lane, half * 2);
            let row = first + if few { row } else { warp * SIDE + row }.long();
            let query = head.query(row);
            let (sight, scoring) = (call.sight(query), call.scoring(query));
            Row { query, inside: row.lt(head.rows), sight, scoring }
        };
        let sight = |row: Num<'e, 'c>| call.sight(head.query(first + row.long()));
        let sights = if few { vec![sight(lane & (SIDE - 1))] } else { vec![sight(lane), sight(lane + WARP)] };
        let over = |pick: fn(&Sight<'e, 'c>) -> Num<'e, 'c>, most: bool| {
            let better = |a: Num<'e, 'c>, b| if most { a.max(b) } else { a.min(b) };
            let mine = sights.iter().map(pick).reduce(better).unwrap_or(lane);
            [16, 8, 4, 2, 1].iter().fold(mine, |x, &mask| better(x, x.of_lane_xor(mask)))
        };
        let shared = code.shared();
        let tiles_bytes = keys * (d + e) * 2;
        let mine = if few { shared.bytes((warp * tiles_bytes).long()) } else { shared };
        let sharers = if few { (lane, WARP) } else { (thread, warps * WARP) };
        let operand = |view: &View<'e, 'c>, at: u32, width: u32, by_depth: bool| {
            let tile = Tile { rows: keys, chunks: width / CHUNK_ELEMENTS };
            Operand {
                share: Share::of(tile, sharers.0, sharers.1),
                fragments: Fragments::of(code, tile, by_depth, Side::B, code.i32(0)),
                tile: mine.bytes(i64::from(at)),
                first: view.at(&[head.b, code.i64(0), head.g]),
                stride: view.stride(1) * 2u32,
            }
        };
        let tiles = call.t.tiles(keys).int();
        let all_tiles = if few { tiles_bytes * warps } else { tiles_bytes };
        Block {
            head,
            first,
            few,
            warp,
            lane,
            rows: [row(0), row(1)],
            some: Sight { low: over(|s| s.low, false), high: over(|s| s.high, true) },
            every: Sight { low: over(|s| s.low, true), high: over(|s| s.high, false) },
            k: operand(&call.k, 0, d, true),
            v: operand(&call.v, keys * d * 2, e, false),
            q_shared: shared.bytes(i64::from(all_tiles)).bytes(thread.long() * CHUNK),
            keys,
            tiles: if few { (tiles + (warps - 1) - warp).quotient(warps) } else { tiles },
        }
    }

    /// The place among the head's tiles of a number among those that the warp works on.
    fn tile_place(&self, number: Num<'e, 'c>) -> Num<'e, 'c> {
        if self.few { number * self.head.call.kernel.warps() + self.warp } else { number }
    }

    /// All that copied to the warp's tiles, or read them, wait for each other.
    fn synchronise(&self) {
        if self.few { self.code().warp_barrier() } else { self.code().barrier() }
    }

    pub fn code(&self) -> Code<'e, 'c> {
        self.head.call.code
    }

    /// Keys of a lane.
    fn lane_keys(&self) -> usize {
        (self.keys / WARP) as usize
    }

    fn run(&self) {
        let (code, kernel) = (self.code(), self.head.call.kernel);
        let queries = self.queries();
        let none = Keys { number: code.i32(-1), marks: code.i32(0), k_pos: vec![] };
        let keys = self.next(&none);
        code.when(keys.number.lt(self.tiles), || self.copy(&self.k, &keys));
        tile::commit(code);
        let zero = code.f32(0.0);
        let out = vec![zero; kernel.e as usize / 2];
        let first = State { keys, max: [code.f32(f32::NEG_INFINITY); 2], sum: [zero; 2], out };
        let last = code.repeat(
            &first.values(),
            |values| State::of(values, self.lane_keys()).keys.number.lt(self.tiles),
            |values| self.turn(&queries, State::of(values, self.lane_keys())).values(),
        );
        let state = State::of(&last, self.lane_keys());
        if self.few { self.join(&state) } else { self.store(&state) }
    }

    /// One tile of keys. While scores are computed its values are on their way, and while these are weighted the next keys.
    fn turn(&self, queries: &[[Num<'e, 'c>; 4]], state: State<'e, 'c>) -> State<'e, 'c> {
        let code = self.code();
        tile::wait(code, 0);
        // The keys are there, and no warp reads the values before any more.
        self.synchronise();
        self.copy(&self.v, &state.keys);
        tile::commit(code);
        let next = self.next(&state.keys);
        let scores = self.scores(queries);
        tile::wait(code, 0);
        // The values are there, and no warp reads the keys any more.
        self.synchronise();
        code.when(next.number.lt(self.tiles), || self.copy(&self.k, &next));
        tile::commit(code);
        let scores = self.hide(&scores, &state.keys);
        let (weights, mut state) = self.weigh(&scores, state);
        self.add_values(&weights, &mut state.out);
        State { keys: next, ..state }
    }

    /// The fragments of the warp's queries, or none if they lie in shared memory.
    fn queries(&self) -> Vec<[Num<'e, 'c>; 4]> {
        let (call, kernel) = (self.head.call, self.head.call.kernel);
        let rows: Vec<Num> =
            self.rows.iter().map(|Row { query: q, .. }| call.q.at(&[q.b, q.s, q.g, q.r])).collect();
        let load = |depth: u32| {
            [0, 1, 2, 3].map(|i: u32| {
                let (_, col) = tile::place(self.lane, 0);
                let col = col + depth * SIDE + i / 2 * 8;
                rows[(i % 2) as usize].bytes(col.long() * 2u32).load_words(1)[0]
            })
        };
        let fragments = (0..kernel.d / SIDE).map(load);
        if !kernel.queries_shared() {
            return fragments.collect();
        }
        for (depth, fragment) in fragments.enumerate() {
            self.query_place(depth as u32).store_words(&fragment);
        }
        vec![]
    }

    /// Where a lane keeps a fragment that only itself reads.
    fn query_place(&self, depth: u32) -> Num<'e, 'c> {
        self.q_shared.bytes(i64::from(depth * self.head.call.kernel.warps() * WARP * CHUNK))
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
    fn next(&self, from: &Keys<'e, 'c>) -> Keys<'e, 'c> {
        let code = self.code();
        let mark = |number: Num<'e, 'c>, marks: Num<'e, 'c>| (marks >> (number & (TOGETHER - 1))) & 1u32;
        let state = code.repeat(
            &[from.number + 1i64, from.marks, code.i32(0)],
            |state| state[2].eq(0i64),
            |state| {
                let (number, marks) = (state[0], state[1]);
                let begins = (number & (TOGETHER - 1)).eq(0i64) & number.lt(self.tiles);
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

    /// Bit i: some row sees a key of tile `number + i`; bit 8 + i: all rows see all its keys.
    fn marks(&self, number: Num<'e, 'c>) -> Num<'e, 'c> {
        let code = self.code();
        let one = |i: u32| {
            let positions = self.positions(number + i);
            let over = |sight: Sight<'e, 'c>, all: bool| {
                let sees = positions.iter().map(|&k_pos| sight.sees(k_pos));
                sees.reduce(|a, b| if all { a & b } else { a | b }).unwrap_or(code.i32(0).ne(0i64))
            };
            let some = over(self.some, false).ballot().ne(0i64).int();
            let every = over(self.every, true).ballot().eq(-1i64).int();
            some << i | every << (TOGETHER + i)
        };
        (0..TOGETHER).map(one).fold(code.i32(0), |marks, bits| marks | bits)
    }

    /// Copies the thread's chunks of a tile: zeros for keys before or behind all that the rows see.
    fn copy(&self, operand: &Operand<'e, 'c>, keys: &Keys<'e, 'c>) {
        let code = self.code();
        let seen: Vec<Num> = keys.k_pos.iter().map(|&k_pos| self.some.sees(k_pos).ballot()).collect();
        let first = operand.first.bytes(self.tile_place(keys.number).long() * self.keys * operand.stride);
        let begin = operand.share.chunk(0);
        let mut next = first.bytes(begin.row.long() * operand.stride + (begin.chunk * CHUNK).long());
        for i in 0..operand.share.count() {
            let chunk = operand.share.chunk(i);
            let (from, bits) = match operand.share.rows_apart() {
                // The number of a chunk says which lanes' keys it is of.
                Some(apart) if apart <= WARP => {
                    let from = next;
                    next = from.bytes(operand.stride * apart);
                    let word = seen[(i * apart / WARP) as usize];
                    (from, (word >> begin.row) >> (i * apart % WARP))
                }
                _ => {
                    let word = chunk.row.lt(i64::from(WARP)).choose(seen[0], seen[seen.len() - 1]);
                    let place = chunk.row.long() * operand.stride + (chunk.chunk * CHUNK).long();
                    (first.bytes(place), word >> (chunk.row & (WARP - 1)))
                }
            };
            let to = operand.tile.bytes(chunk.at.long());
            let copy = || tile::copy(code, to, from, (bits & 1u32) * CHUNK);
            match operand.share.inside(i) {
                Some(inside) => code.when(inside, copy),
                None => copy(),
            }
        }
    }

    /// The products of the warp's queries and a tile's keys: fragments from left to right.
    fn scores(&self, queries: &[[Num<'e, 'c>; 4]]) -> Vec<Num<'e, 'c>> {
        let (code, kernel) = (self.code(), self.head.call.kernel);
        let mut scores = vec![code.f32(0.0); (self.keys / 8) as usize * FRAGMENT];
        for depth in 0..kernel.d / SIDE {
            let loaded = || {
                let words = self.query_place(depth).load_words(4);
                [words[0], words[1], words[2], words[3]]
            };
            let q = queries.get(depth as usize).copied().unwrap_or_else(loaded);
            for keys in 0..self.keys / SIDE {
                let k = self.k.fragments.load(self.k.tile, keys, depth);
                self.multiply(&q, &k, &mut scores, keys);
            }
        }
        scores
    }

    /// Adds a product to the `pair`-th two fragments of sums.
    fn multiply(&self, a: &[Num<'e, 'c>; 4], b: &[Num<'e, 'c>; 4], sums: &mut [Num<'e, 'c>], pair: u32) {
        for (half, b) in b.chunks(2).enumerate() {
            let from = (pair as usize * 2 + half) * FRAGMENT;
            let sum = &mut sums[from..from + FRAGMENT];
            let product = tile::mma(self.code(), self.head.call.kernel.dtype, a, b, sum);
            sum.copy_from_slice(&product);
        }
    }

    /// Products as scores, those of keys that a row does not see minus infinity.
    fn hide(&self, products: &[Num<'e, 'c>], keys: &Keys<'e, 'c>) -> Vec<Num<'e, 'c>> {
        let (call, code) = (self.head.call, self.code());
        let scaled = products.iter().map(|&x| call.scaled(x)).collect::<Vec<_>>();
        let every = (keys.marks >> ((keys.number & (TOGETHER - 1)) + TOGETHER)) & 1u32;
        let place = |i: usize| {
            let (_, col) = tile::place(self.lane, (i % 2) as u32);
            let col = col + (i / FRAGMENT * 8) as i64;
            keys.k_pos[i / FRAGMENT / 4].of_lane(col & (WARP - 1))
        };
        // The position of each column of the lane, those of the two rows of a fragment alike.
        let positions = || -> Vec<Num> {
            let columns: Vec<Num> =
                (0..products.len() / 2).map(|i| place(i / 2 * FRAGMENT + i % 2)).collect();
            (0..products.len()).map(|i| columns[i / FRAGMENT * 2 + i % 2]).collect()
        };
        let row = |i: usize| &self.rows[row_of(i)];
        let hidden = |scores: &[Num<'e, 'c>], k_pos: &[Num<'e, 'c>]| {
            let one = |i: usize| row(i).sight.sees(k_pos[i]).choose(scores[i], code.f32(f32::NEG_INFINITY));
            (0..scores.len()).map(one).collect::<Vec<_>>()
        };
        if !call.kernel.slopes {
            return code.either(every.eq(1i64), || scaled.clone(), || hidden(&scaled, &positions()));
        }
        let k_pos = positions();
        let biased: Vec<Num> =
            scaled.iter().enumerate().map(|(i, &x)| call.biased(x, row(i).scoring, k_pos[i])).collect();
        code.either(every.eq(1i64), || biased.clone(), || hidden(&biased, &k_pos))
    }

    /// The weights of a tile's keys, and the state with the new maxima and sums of weights, by which what is summed is corrected. Each lane
    /// sums its own columns; the lanes of a row are added at the end.
    fn weigh(&self, scores: &[Num<'e, 'c>], state: State<'e, 'c>) -> (Vec<Num<'e, 'c>>, State<'e, 'c>) {
        let call = self.head.call;
        let row = row_of;
        let of_row = |r: usize| (0..scores.len()).filter(move |&i| row(i) == r);
        let max = [0, 1].map(|r| {
            let most = of_row(r).map(|i| scores[i]).reduce(|a, b| a.max(b)).unwrap_or(scores[0]);
            state.max[r].max(most.max_over(&[1, 2]))
        });
        let base = max.map(|max| call.base(max));
        let corrections = [0, 1].map(|r| (state.max[r] - base[r]).exp2());
        let weights: Vec<Num> = scores.iter().enumerate().map(|(i, &x)| (x - base[row(i)]).exp2()).collect();
        let sum = [0, 1].map(|r| of_row(r).fold(state.sum[r] * corrections[r], |sum, i| sum + weights[i]));
        let out = state.out.iter().enumerate().map(|(i, &x)| x * corrections[row(i)]).collect();
        (weights, State { max, sum, out, ..state })
    }

    /// Adds the weighted values. Two fragments of weights side by side are one of 16 keys of the first operand.
    fn add_values(&self, weights: &[Num<'e, 'c>], out: &mut [Num<'e, 'c>]) {
        let kernel = self.head.call.kernel;
        for keys in 0..self.keys / SIDE {
            let from = (keys * 2) as usize * FRAGMENT;
            let pair = |i: usize| weights[from + i].packed(kernel.dtype, weights[from + i + 1]);
            let p = [pair(0), pair(2), pair(4), pair(6)];
            for columns in 0..kernel.e / SIDE {
                let v = self.v.fragments.load(self.v.tile, columns, keys);
                self.multiply(&p, &v, out, columns);
            }
        }
    }

    fn store(&self, state: &State<'e, 'c>) {
        let (call, code) = (self.head.call, self.code());
        for (half, (row, sum)) in self.rows.iter().zip(state.sum).enumerate() {
            let normaliser = call.normaliser(sum.sum_over(&[1, 2]));
            let Query { b, s, g, r } = row.query;
            let (_, col) = tile::place(self.lane, 0);
            let to = call.out.at(&[b, s, g, r]).bytes(col.long() * 2u32);
            code.when(row.inside, || {
                for (fragment, values) in state.out.chunks(FRAGMENT).enumerate() {
                    let [low, high] = [0, 1].map(|i| values[half * 2 + i] * normaliser);
                    to.bytes((fragment * 16) as i64).store_words(&[low.packed(call.out.dtype, high)]);
                }
            });
        }
    }
}
