//! [`pcc_ir::program::SampleCall`]: a block a row. Nothing is sorted: thresholds of the keys bound what top-k and top-p keep.

use super::selection::{Block, Element, INFINITY, MINUS_INFINITY, NAN, NONE, Row, value_of};
use super::value::{Code, Num};
use pcc_ir::ops::sample::WEIGHT_BITS;
use pcc_ir::types::DType;
use std::f64::consts::{LN_2, LOG2_E};

/// Terms of the exponential series: on half a unit of log2 its rest is below 2^-52.
const TERMS: i32 = 14;

/// Builds the body of the kernel.
pub(super) fn emit(code: Code<'_, '_>) {
    let block = Block::of(code);
    let [logits, settings, key, out] = [0, 1, 2, 3].map(|i| code.param_global(i));
    let [rows, tokens] = [4, 5].map(|i| code.param(i));
    let strides: Vec<Num> = (6..13).map(|i| code.param(i)).collect();
    block.each_row(rows, |number| {
        let first = logits.elements(DType::F32, number * strides[0]);
        let row = Row::of(code, DType::F32, first, strides[1], tokens.int());
        let setting = |i: i64| {
            let at = number * strides[2] + strides[3] * i;
            settings.elements(DType::F32, at).load(DType::F32)
        };
        let word = |i: i64| {
            let at = number * strides[4] + strides[5] * i;
            key.elements(DType::I32, at).load_words(1)[0]
        };
        let draw = Draw {
            block: &block,
            row: &row,
            temperature: setting(0),
            top_p: setting(1),
            top_k: word(0),
            seed: word(1).joined(word(2)),
            number: word(3).joined(code.i32(0)),
        };
        let token = draw.token();
        code.when(block.thread.eq(0i64), || {
            out.elements(DType::I32, number * strides[6]).store_words(&[token]);
        });
    });
}

/// The operands of a row.
struct Draw<'p, 'e, 'c> {
    block: &'p Block<'e, 'c>,
    row: &'p Row<'e, 'c>,
    temperature: Num<'e, 'c>,
    top_p: Num<'e, 'c>,
    top_k: Num<'e, 'c>,
    seed: Num<'e, 'c>,
    number: Num<'e, 'c>,
}

/// The elements that are kept: of larger keys, and those of the key before an index.
#[derive(Clone, Copy)]
struct Kept<'e, 'c> {
    key: Num<'e, 'c>,
    before: Num<'e, 'c>,
}

impl<'e, 'c> Kept<'e, 'c> {
    fn has(self, element: &Element<'e, 'c>) -> Num<'e, 'c> {
        element.key.gt(self.key) | self.has_equal(element)
    }

    /// Whether it is one of those of the key.
    fn has_equal(self, element: &Element<'e, 'c>) -> Num<'e, 'c> {
        element.key.eq(self.key) & element.index.lt(self.before)
    }
}

/// The weights of logits, in units of 2^-[`WEIGHT_BITS`].
#[derive(Clone, Copy)]
struct Weights<'e, 'c> {
    code: Code<'e, 'c>,
    /// f64, as what scores are multiplied by, in units of log2.
    largest: Num<'e, 'c>,
    factor: Num<'e, 'c>,
}

impl<'e, 'c> Weights<'e, 'c> {
    fn of(self, value: Num<'e, 'c>) -> Num<'e, 'c> {
        let code = self.code;
        // What lies lower has no weight either.
        let x = ((value.double() - self.largest) * self.factor).max(code.f64(-64.0));
        // Added to 1.5 * 2^52 a number is rounded to a whole one.
        let round = code.f64(6_755_399_441_055_744.0);
        let rounded = x + round;
        let part = x - (rounded - round);
        let term = |i: i32| LN_2.powi(i) / (1..=i).map(f64::from).product::<f64>();
        let series =
            (0..TERMS - 1).rev().fold(code.f64(term(TERMS - 1)), |sum, i| sum.fma(part, code.f64(term(i))));
        // The low bits of the sum are the whole number, and become the exponent of a power of two.
        let exponent = rounded.long_bits() + i64::from(1023 + WEIGHT_BITS);
        (series * (exponent << 52u32).as_double()).whole()
    }
}

impl<'e, 'c> Draw<'_, 'e, 'c> {
    fn token(&self) -> Num<'e, 'c> {
        let code = self.block.code;
        let (key, index) = self.block.largest(self.row);
        let finite = key.gt(i64::from(MINUS_INFINITY)) & key.lt(i64::from(INFINITY));
        let drawn = finite & self.temperature.gt(0i64);
        let greedy = || vec![key.eq(i64::from(NAN)).choose(code.i32(-1), index)];
        code.either(drawn, || vec![self.draw(key)], greedy)[0]
    }

    /// A token drawn, given the largest key.
    fn draw(&self, largest: Num<'e, 'c>) -> Num<'e, 'c> {
        let (code, block, row) = (self.block.code, self.block, self.row);
        let factor = code.f64(LOG2_E).over(self.temperature.double());
        let weights = Weights { code, largest: value_of(largest).double(), factor };
        let weigh = |kept: Kept<'e, 'c>| {
            move |element: &Element<'e, 'c>| {
                let weight = || vec![weights.of(element.value)];
                code.either(kept.has(element), weight, || vec![code.i64(0)])[0]
            }
        };
        let all = || vec![code.i32(NONE), code.i32(0)];
        let limited = self.top_k.gt(0i64) & self.top_k.lt(row.n);
        let kept = code.either(limited, || self.first(), all);
        let kept = Kept { key: kept[0], before: kept[1] };
        let sum = block.sum(row, weigh(kept));
        let most = || self.likeliest(kept, sum, weights);
        let last = code.either(
            self.top_p.ge(code.f32(1.0)),
            || vec![kept.key, kept.before, sum],
            || most().to_vec(),
        );
        let kept = Kept { key: last[0], before: last[1] };
        block.place(row, self.target(last[2]), weigh(kept))
    }

    /// What top-k keeps: key and index.
    fn first(&self) -> Vec<Num<'e, 'c>> {
        let code = self.block.code;
        let always = |_: &Element<'e, 'c>| code.i32(0).eq(0i64);
        let (key, before) = self.block.first(self.row, self.top_k.long(), always);
        vec![key, before]
    }

    /// What top-p keeps of the elements kept so far, which have this sum of weights: key, index and the sum of their weights.
    fn likeliest(&self, kept: Kept<'e, 'c>, sum: Num<'e, 'c>, weights: Weights<'e, 'c>) -> [Num<'e, 'c>; 3] {
        let (code, block, row) = (self.block.code, self.block, self.row);
        let part = self.top_p.gt(0i64).choose(self.top_p, code.f32(0.0)).double();
        let need = (part * sum.double_of_long()).whole().max(1i64) - 1i64;
        let found = block.threshold(row, need, |x| kept.has(x), |x| weights.of(x.value));
        let each = weights.of(value_of(found.key));
        let count = found.rest.quotient(each) + 1i64;
        let equal =
            Kept { key: found.key, before: found.key.eq(kept.key).choose(kept.before, code.i32(i32::MAX)) };
        let before = code.either(
            (count * each).ne(found.sum),
            || vec![block.place(row, count - 1i64, |x| equal.has_equal(x).int().long()) + 1i64],
            || vec![equal.before],
        )[0];
        [found.key, before, need - found.rest + count * each]
    }

    /// The number below a total that the draw's random bits stand for.
    fn target(&self, total: Num<'e, 'c>) -> Num<'e, 'c> {
        let code = self.block.code;
        let constant = |x: u64| code.i64(x as i64);
        let z = self.seed + (self.number + 1i64) * constant(0x9E37_79B9_7F4A_7C15);
        let z = (z ^ (z >> 30u32)) * constant(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27u32)) * constant(0x94D0_49BB_1331_11EB);
        let bits = z ^ (z >> 31u32);
        // The high half of a product of 64 bits, of products of 32.
        let halves = |x: Num<'e, 'c>| (x >> 32u32, x & 0xffff_ffffi64);
        let ((a, b), (c, d)) = (halves(total), halves(bits));
        let ((e, f), (g, h)) = (halves(a * d), halves(b * c));
        a * c + e + g + ((f + h + ((b * d) >> 32u32)) >> 32u32)
    }
}
