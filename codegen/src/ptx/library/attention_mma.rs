//! Attention on tensor cores (FlashAttention-2: Dao, 2023): a block has 64 rows, 16 a warp, and walks over tiles of 64 keys. Scores stay in
//! registers, where they become weights and the first operand of the second product.
//!
//! The rows are the queries of one kv head, position by position, so that all heads of a group read its keys and values once. Tiles that no
//! row sees are passed over; keys before or behind all that the rows see are not read.
//!
//! Of few rows, as a decode step has, all warps have the same 16 and take turns at the tiles, each in shared memory of its own; their results
//! are joined at the end ([`super::attention_join`]).

use super::attention::{Call, Query, Scoring, Sight, View};
use super::attention_keys::Keys;
use super::tile::{self, CHUNK, CHUNK_ELEMENTS, Fragments, SIDE, Share, Side, Tile};
use super::value::{Code, Num};
use crate::ptx::entry::Special;
use pcc_ir::gpu::WARP;
use pcc_ir::gpu::attention::{AttentionKernel, AttentionPath};

/// Registers of a fragment of 16 x 8 results.
const FRAGMENT: usize = 4;

/// Builds the body of the kernel.
pub(super) fn emit(call: &Call<'_, '_, '_>) {
    let code = call.code;
    let rows = (call.s * call.r).int();
    let of_block = call.kernel.rows();
    // The last rows see the most keys under a causal mask: they are begun first.
    let tile = rows.tiles(of_block) - 1i64 - code.special(Special::BlockX);
    code.when(tile.gt(-1i64), || {
        let heads = (code.special(Special::BlockY), (call.b * call.g).int());
        code.each(heads, code.special(Special::BlocksY), |y| {
            let b = y.quotient(call.g.int());
            let g = y - b * call.g.int();
            let head = Head { call, b: b.long(), g: g.long(), rows };
            call.each_range(|range, keys| Block::of(&head, tile * of_block, (range, keys)).run());
        });
    });
}

/// One kv head of one row of the batch.
pub(super) struct Head<'p, 'e, 'c, 'k> {
    pub call: &'p Call<'e, 'c, 'k>,
    pub b: Num<'e, 'c>,
    pub g: Num<'e, 'c>,
    /// Its queries; i32, as their numbers are.
    pub rows: Num<'e, 'c>,
}

impl<'e, 'c> Head<'_, 'e, 'c, '_> {
    /// The query of a row; beyond the last one, the last.
    pub fn query(&self, row: Num<'e, 'c>) -> Query<'e, 'c> {
        let (row, group) = (row.min(self.rows - 1i64), self.call.r.int());
        let s = row.quotient(group);
        Query { b: self.b, s: s.long(), g: self.g, r: (row - s * group).long() }
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
pub(super) struct Operand<'e, 'c> {
    pub share: Share<'e, 'c>,
    fragments: Fragments<'e, 'c>,
    /// Where the tile lies.
    pub tile: Num<'e, 'c>,
    /// The head's first, and bytes to the next.
    pub first: Num<'e, 'c>,
    pub stride: Num<'e, 'c>,
}

/// What a lane carries from tile to tile: of each of its rows the largest score and its sum of weights, and its sums of weighted values,
/// fragment by fragment.
pub(super) struct State<'e, 'c> {
    pub keys: Keys<'e, 'c>,
    pub max: Vec<Num<'e, 'c>>,
    pub sum: Vec<Num<'e, 'c>>,
    pub out: Vec<Num<'e, 'c>>,
}

impl<'e, 'c> State<'e, 'c> {
    fn values(self) -> Vec<Num<'e, 'c>> {
        let Keys { number, marks, k_pos } = self.keys;
        [vec![number, marks], k_pos, self.max, self.sum, self.out].concat()
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
    /// The lane's: two of each strip.
    rows: Vec<Row<'e, 'c>>,
    /// What some row sees, and what every row does.
    pub some: Sight<'e, 'c>,
    pub every: Sight<'e, 'c>,
    k: Operand<'e, 'c>,
    v: Operand<'e, 'c>,
    /// Where the lane keeps its part of the queries, and what it notes of its rows, unless in registers.
    q_shared: Num<'e, 'c>,
    notes: Option<Num<'e, 'c>>,
    /// Keys of a tile, the first tile of the block's range, and the tiles of it that the warp works on.
    pub keys: u32,
    first_tile: Num<'e, 'c>,
    pub tiles: Num<'e, 'c>,
    /// The range's number.
    pub range: Num<'e, 'c>,
}

/// Which of a strip's two rows of a lane a register of its fragments is of.
pub(super) fn row_of(register: usize) -> usize {
    register % FRAGMENT / 2
}

impl<'p, 'e, 'c, 'k> Block<'p, 'e, 'c, 'k> {
    /// From row `first` on, over a range of keys: its number, the first key and the one behind the last.
    fn of(
        head: &'p Head<'p, 'e, 'c, 'k>,
        first: Num<'e, 'c>,
        (range, (from, to)): (Num<'e, 'c>, (Num<'e, 'c>, Num<'e, 'c>)),
    ) -> Self {
        let (call, code) = (head.call, head.call.code);
        let AttentionKernel { d, e, .. } = *call.kernel;
        let (few, keys, warps) =
            (call.kernel.path == AttentionPath::Few, call.kernel.tile_keys(), call.kernel.warps());
        let (thread, lane) = (code.special(Special::Thread), code.special(Special::Lane));
        let warp = thread >> 5u32;
        let strips = call.kernel.warp_rows() / SIDE;
        let row = |number: u32| {
            let (row, _) = tile::place(lane, number % 2 * 2);
            let strip = code.i32((number / 2) as i32) + if few { code.i32(0) } else { warp * strips };
            let row = first + strip * SIDE + row;
            let query = head.query(row);
            let (sight, scoring) = (call.sight(query), call.scoring(query));
            Row { query, inside: row.lt(head.rows), sight, scoring }
        };
        let sight = |row: Num<'e, 'c>| call.sight(head.query(first + row));
        let sights: Vec<Sight> = if few {
            vec![sight(lane & (SIDE - 1))]
        } else {
            (0..call.kernel.rows() / WARP).map(|i| sight(lane + i * WARP)).collect()
        };
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
        let first_tile = from.quotient(keys).int();
        let tiles = to.tiles(keys).int() - first_tile;
        let all_tiles = if few { tiles_bytes * warps } else { tiles_bytes };
        let q_shared = shared.bytes(i64::from(all_tiles)).bytes(thread.long() * CHUNK);
        let of_queries = if call.kernel.queries_shared() { d * strips * warps * WARP } else { 0 };
        Block {
            head,
            first,
            few,
            warp,
            lane,
            rows: (0..strips * 2).map(row).collect(),
            some: Sight { low: over(|s| s.low, false), high: over(|s| s.high, true) },
            every: Sight { low: over(|s| s.low, true), high: over(|s| s.high, false) },
            k: operand(&call.k, 0, d, true),
            v: operand(&call.v, keys * d * 2, e, false),
            q_shared,
            notes: call.kernel.notes_shared().then(|| q_shared.bytes(i64::from(of_queries))),
            keys,
            first_tile,
            range,
            tiles: if few { (tiles + (warps - 1) - warp).quotient(warps) } else { tiles },
        }
    }

    /// The place among the head's tiles of a number among those that the warp works on.
    pub fn tile_place(&self, number: Num<'e, 'c>) -> Num<'e, 'c> {
        if self.few { self.first_tile + number * self.head.call.kernel.warps() + self.warp } else { number }
    }

    /// All that copied to the warp's tiles, or read them, wait for each other.
    fn synchronise(&self) {
        if self.few { self.code().warp_barrier() } else { self.code().barrier() }
    }

    pub fn code(&self) -> Code<'e, 'c> {
        self.head.call.code
    }

    /// Keys of a lane.
    pub fn lane_keys(&self) -> usize {
        (self.keys / WARP) as usize
    }

    /// The state that values of [`State::values`] are of.
    fn state(&self, values: &[Num<'e, 'c>]) -> State<'e, 'c> {
        let (keys, rest) = values.split_at(2 + self.lane_keys());
        let (max, rest) = rest.split_at(self.rows.len());
        let (sum, out) = rest.split_at(self.rows.len());
        let keys = Keys { number: keys[0], marks: keys[1], k_pos: keys[2..].to_vec() };
        State { keys, max: max.to_vec(), sum: sum.to_vec(), out: out.to_vec() }
    }

    /// Where the lane notes what it needs to know of a row now and then: what it sees, position and head; as the head -1 if there is no such
    /// row.
    fn note(&self, row: usize) -> Option<Num<'e, 'c>> {
        let threads = self.head.call.kernel.warps() * WARP;
        self.notes.map(|notes| notes.bytes(i64::from(row as u32 * threads * CHUNK)))
    }

    /// What a row of the lane sees.
    fn sight(&self, row: usize) -> Sight<'e, 'c> {
        let Some(note) = self.note(row) else { return self.rows[row].sight };
        let words = note.load_words(4);
        Sight { low: words[0], high: words[1] }
    }

    /// The query of a row of the lane, and whether there is one.
    fn query(&self, row: usize) -> (Query<'e, 'c>, Num<'e, 'c>) {
        let Row { query, inside, .. } = self.rows[row];
        let Some(note) = self.note(row) else { return (query, inside) };
        let words = note.load_words(4);
        (Query { s: words[2].long(), r: words[3].long(), ..query }, words[3].gt(-1i64))
    }

    fn run(&self) {
        let (code, kernel) = (self.code(), self.head.call.kernel);
        let queries = self.queries();
        for (number, Row { query, sight, inside, .. }) in self.rows.iter().enumerate() {
            if let Some(note) = self.note(number) {
                let head = inside.choose(query.r.int(), -1i64);
                note.store_words(&[sight.low, sight.high, query.s.int(), head]);
            }
        }
        let none = Keys { number: code.i32(-1), marks: code.i32(0), k_pos: vec![] };
        let keys = self.next(&none);
        code.when(keys.number.lt(self.tiles), || self.copy(&self.k, &keys));
        tile::commit(code);
        let all = |x: f32, count: usize| vec![code.f32(x); count];
        let rows = self.rows.len();
        let out = all(0.0, rows * kernel.e as usize / 4);
        // Finite, so that what is not seen, minus infinity, has no weight beside it.
        let first = State { keys, max: all(f32::MIN, rows), sum: all(0.0, rows), out };
        let last = code.repeat(
            &first.values(),
            |values| self.state(values).keys.number.lt(self.tiles),
            |values| self.turn(&queries, self.state(values)).values(),
        );
        let state = self.state(&last);
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

    /// The fragments of the warp's queries, depth by depth those of each strip; none if they lie in shared memory.
    fn queries(&self) -> Vec<[Num<'e, 'c>; 4]> {
        let (call, kernel) = (self.head.call, self.head.call.kernel);
        let rows: Vec<Num> =
            self.rows.iter().map(|Row { query: q, .. }| call.q.at(&[q.b, q.s, q.g, q.r])).collect();
        let strips = rows.len() / 2;
        let load = |number: usize| {
            let (depth, strip) = ((number / strips) as u32, number % strips);
            [0, 1, 2, 3].map(|i: u32| {
                let (_, col) = tile::place(self.lane, 0);
                let col = col + depth * SIDE + i / 2 * 8;
                rows[strip * 2 + (i % 2) as usize].bytes(col.long() * 2u32).load_words(1)[0]
            })
        };
        let fragments = (0..(kernel.d / SIDE) as usize * strips).map(load);
        if !kernel.queries_shared() {
            return fragments.collect();
        }
        for (number, fragment) in fragments.enumerate() {
            self.query_place(number).store_words(&fragment);
        }
        vec![]
    }

    /// Where a lane keeps a fragment that only itself reads.
    fn query_place(&self, number: usize) -> Num<'e, 'c> {
        let threads = self.head.call.kernel.warps() * WARP;
        self.q_shared.bytes(i64::from(number as u32 * threads * CHUNK))
    }

    /// The products of the warp's queries and a tile's keys: of each strip fragments from left to right.
    fn scores(&self, queries: &[[Num<'e, 'c>; 4]]) -> Vec<Num<'e, 'c>> {
        let (code, kernel) = (self.code(), self.head.call.kernel);
        let of_strip = (self.keys / 8) as usize * FRAGMENT;
        let strips = self.rows.len() / 2;
        let mut scores = vec![code.f32(0.0); strips * of_strip];
        for depth in 0..kernel.d / SIDE {
            let query = |strip: usize| {
                let number = depth as usize * strips + strip;
                queries.get(number).copied().unwrap_or_else(|| {
                    let words = self.query_place(number).load_words(4);
                    [words[0], words[1], words[2], words[3]]
                })
            };
            let q: Vec<_> = (0..strips).map(query).collect();
            for keys in 0..self.keys / SIDE {
                let k = self.k.fragments.load(self.k.tile, keys, depth);
                for (q, scores) in q.iter().zip(scores.chunks_mut(of_strip)) {
                    self.multiply(q, &k, scores, keys);
                }
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
        let every = keys.all_seen(self.together());
        let of_strip = (self.keys / 8) as usize * FRAGMENT;
        let place = |i: usize| {
            let (_, col) = tile::place(self.lane, (i % 2) as u32);
            let col = col + (i / 2 * 8) as i64;
            keys.k_pos[i / 8].of_lane(col & (WARP - 1))
        };
        // The position of each column of the lane, those of all of its rows alike.
        let positions = || -> Vec<Num> {
            let columns: Vec<Num> = (0..of_strip / 2).map(place).collect();
            (0..products.len()).map(|i| columns[i % of_strip / FRAGMENT * 2 + i % 2]).collect()
        };
        let row = |i: usize| i / of_strip * 2 + row_of(i);
        let hidden = |scores: &[Num<'e, 'c>], k_pos: &[Num<'e, 'c>]| {
            let sights: Vec<Sight> = (0..self.rows.len()).map(|row| self.sight(row)).collect();
            let one = |i: usize| sights[row(i)].sees(k_pos[i]).choose(scores[i], code.f32(f32::NEG_INFINITY));
            (0..scores.len()).map(one).collect::<Vec<_>>()
        };
        if !call.kernel.slopes {
            return code.either(every, || scaled.clone(), || hidden(&scaled, &positions()));
        }
        let k_pos = positions();
        let biased: Vec<Num> = scaled
            .iter()
            .enumerate()
            .map(|(i, &x)| call.biased(x, self.rows[row(i)].scoring, k_pos[i]))
            .collect();
        code.either(every, || biased.clone(), || hidden(&biased, &k_pos))
    }

    /// The weights of a tile's keys, and the state with the new maxima and sums of weights, by which what is summed is corrected. Each lane
    /// sums its own columns; the lanes of a row are added at the end.
    fn weigh(&self, scores: &[Num<'e, 'c>], state: State<'e, 'c>) -> (Vec<Num<'e, 'c>>, State<'e, 'c>) {
        let strips = self.rows.len() / 2;
        // The row of register i of so many.
        let row = |i: usize, all: usize| i / (all / strips) * 2 + row_of(i);
        let count = scores.len();
        let of_row = |r: usize| (0..count).filter(move |&i| row(i, count) == r);
        let rows = 0..self.rows.len();
        let most = |r: usize| {
            let most = of_row(r).map(|i| scores[i]).reduce(|a, b| a.max(b)).unwrap_or(scores[0]);
            state.max[r].max(most.max_over(&[1, 2]))
        };
        let max: Vec<Num> = rows.clone().map(most).collect();
        let corrections: Vec<Num> = rows.clone().map(|r| (state.max[r] - max[r]).exp2()).collect();
        let weights: Vec<Num> =
            scores.iter().enumerate().map(|(i, &x)| (x - max[row(i, count)]).exp2()).collect();
        let add = |r: usize| of_row(r).fold(state.sum[r] * corrections[r], |sum, i| sum + weights[i]);
        let sum = rows.map(add).collect();
        let all = state.out.len();
        let out = state.out.iter().enumerate().map(|(i, &x)| x * corrections[row(i, all)]).collect();
        (weights, State { max, sum, out, ..state })
    }

    /// Adds the weighted values. Two fragments of weights side by side are one of 16 keys of the first operand.
    fn add_values(&self, weights: &[Num<'e, 'c>], out: &mut [Num<'e, 'c>]) {
        let kernel = self.head.call.kernel;
        let strips = self.rows.len() / 2;
        for keys in 0..self.keys / SIDE {
            let fragment = |strip: usize| {
                let from = strip * (weights.len() / strips) + (keys * 2) as usize * FRAGMENT;
                [0, 2, 4, 6].map(|i| weights[from + i].packed(kernel.dtype, weights[from + i + 1]))
            };
            let p: Vec<_> = (0..strips).map(fragment).collect();
            for columns in 0..kernel.e / SIDE {
                let v = self.v.fragments.load(self.v.tile, columns, keys);
                for (p, out) in p.iter().zip(out.chunks_mut(kernel.e as usize / 2)) {
                    self.multiply(p, &v, out, columns);
                }
            }
        }
    }

    fn store(&self, state: &State<'e, 'c>) {
        let (call, code) = (self.head.call, self.code());
        for (number, sum) in state.sum.iter().enumerate() {
            let of_strip = call.kernel.e as usize / 2;
            let out = &state.out[number / 2 * of_strip..][..of_strip];
            let normaliser = call.normaliser(sum.sum_over(&[1, 2]));
            let (Query { b, s, g, r }, inside) = self.query(number);
            let (_, col) = tile::place(self.lane, 0);
            let to = call.out.at(&[b, s, g, r]).bytes(col.long() * 2u32);
            code.when(inside, || {
                for (fragment, values) in out.chunks(FRAGMENT).enumerate() {
                    let [low, high] = [0, 1].map(|i| values[number % 2 * 2 + i] * normaliser);
                    to.bytes((fragment * 16) as i64).store_words(&[low.packed(call.out.dtype, high)]);
                }
            });
        }
    }
}
