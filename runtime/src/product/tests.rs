//! Products against sums in f64.

use super::shape::Loop;
use super::*;
use crate::memory::Mapping;
use pcc_ir::program::{Base, BatchDim, Gemm, Loc};
use pcc_ir::{Clip, Extent, Part};

fn matrix(dtype: DType, row: i64, col: i64) -> Matrix {
    Matrix { loc: Loc { base: Base::Frame, offset: 0 }, dtype, row, col }
}

fn value(seed: u64, i: u64) -> f64 {
    // Small multiples of 1/8: exact in every type used.
    (((i + 1).wrapping_mul(seed * 2 + 0x9E37) >> 3) % 17) as f64 / 8.0 - 1.0
}

/// Runs `g`, parts in the given order, and compares with sums in f64. Returns c's bytes.
fn check(g: &Shape, backwards: bool) -> Vec<u8> {
    let elements = (g.m.max(g.k) * g.n.max(g.k) * batches(g)) as usize + 64;
    let mapping = Mapping::new(3 * elements * 8).unwrap();
    let windows: Vec<_> = (0..3).map(|i| mapping.window(i * elements * 8, elements * 8)).collect();
    for (w, (m, seed)) in windows.iter().zip([(&g.a, 1), (&g.b, 2), (&g.c, 3)]) {
        (0..elements).for_each(|i| w.store(m.dtype, i, value(seed, i as u64)).unwrap());
    }
    let operand = |i: usize| Operand { window: windows[i], offset: 0 };
    let product = Product { gemm: g, a: operand(0), b: operand(1), c: operand(2) };
    let before: Vec<_> = (0..elements).map(|i| windows[2].load(g.c.dtype, i).unwrap()).collect();
    let count = parts(g);
    (0..count).for_each(|p| product.run_part(if backwards { count - 1 - p } else { p }));
    let tolerance = match g.c.dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        _ => 1.0 / 128.0,
    };
    for batch in 0..batches(g) {
        let (mut at, mut rest) = ([0i64; 3], batch);
        for d in g.batch.iter().rev() {
            let i = (rest % d.extent) as i64;
            rest /= d.extent;
            at = [at[0] + i * d.a, at[1] + i * d.b, at[2] + i * d.c];
        }
        for (i, j) in (0..g.m as i64).flat_map(|i| (0..g.n as i64).map(move |j| (i, j))) {
            let term = |p: i64| {
                let a = value(1, (at[0] + i * g.a.row + p * g.a.col) as u64);
                a * value(2, (at[1] + p * g.b.row + j * g.b.col) as u64)
            };
            let index = (at[2] + i * g.c.row + j * g.c.col) as usize;
            let old = if g.accumulate { before[index] } else { 0.0 };
            let expected = old + g.alpha * (0..g.k as i64).map(term).sum::<f64>();
            let found = windows[2].load(g.c.dtype, index).unwrap();
            let scale = expected.abs().max(g.k as f64 / 4.0).max(1.0);
            assert!(
                (found - expected).abs() <= tolerance * scale,
                "{g:?} at {i},{j}: {found} for {expected}"
            );
        }
    }
    let mut bytes = vec![0; elements * g.c.dtype.bytes()];
    windows[2].read(0, &mut bytes);
    bytes
}

fn gemm(m: u64, n: u64, k: u64) -> Shape {
    let f = DType::F32;
    Shape {
        m,
        n,
        k,
        alpha: 1.0,
        a: matrix(f, k as i64, 1),
        b: matrix(f, n as i64, 1),
        c: matrix(f, n as i64, 1),
        batch: vec![],
        accumulate: false,
        packed: None,
        blocks: None,
    }
}

#[test]
fn all_layouts_and_sizes() {
    for (m, n, k) in
        [(1, 700, 33), (3, 65, 20), (8, 130, 17), (40, 50, 30), (300, 40, 8), (70, 1, 40), (1, 1, 5)]
    {
        for (ta, tb, tc) in (0..8).map(|i| (i & 1 == 1, i & 2 == 2, i & 4 == 4)) {
            let mut g = gemm(m, n, k);
            g.alpha = 0.5;
            g.accumulate = ta;
            if ta {
                (g.a.row, g.a.col) = (1, m as i64);
            }
            if tb {
                (g.b.row, g.b.col) = (1, k as i64);
            }
            if tc {
                (g.c.row, g.c.col) = (1, m as i64);
            }
            assert_eq!(check(&g, false), check(&g, true), "parts in another order");
        }
    }
}

#[test]
fn batches_with_shared_operands() {
    let mut g = gemm(5, 12, 7);
    // b is the same for every index of the second batch dim, as keys are for the heads of a group.
    g.batch = vec![Loop { extent: 3, a: 70, b: 84, c: 120 }, Loop { extent: 2, a: 35, b: 0, c: 60 }];
    check(&g, false);
}

#[test]
fn large_products_are_cut_by_shape_alone() {
    let g = gemm(96, 1100, 300);
    assert!(parts(&g) > 1);
    assert_eq!(check(&g, false), check(&g, true));
    let g = gemm(1, 5000, 64);
    assert!(parts(&g) > 1);
    assert_eq!(check(&g, false), check(&g, true));
}

#[test]
fn sixteen_bit_and_double_operands() {
    for dtype in [DType::BF16, DType::F16, DType::F64] {
        let mut g = gemm(4, 9, 16);
        (g.a.dtype, g.b.dtype, g.c.dtype) = (dtype, dtype, dtype);
        check(&g, false);
        g.accumulate = true;
        check(&g, false);
    }
    let mut g = gemm(4, 9, 16);
    g.b.dtype = DType::BF16;
    check(&g, false);
}

#[test]
fn loops_join_when_the_clipped_rows_are_all_there() {
    let clip = Clip { part: Part::Seq, global: 6, axes: Vec::new(), inner: 1 };
    let f = DType::F32;
    let g = Gemm {
        m: Extent { full: 6, clip: Some(Box::new(clip)) },
        n: 9.into(),
        k: 5.into(),
        alpha: 1.0,
        a: matrix(f, 5, 1),
        b: matrix(f, 9, 1),
        c: matrix(f, 9, 1),
        batch: vec![BatchDim { extent: 4.into(), a: 30, b: 0, c: 54 }],
        accumulate: false,
        packed: None,
    };
    let at = |m: u64| Shape::new(&g, |e| if e.clip.is_some() { m } else { e.full });
    assert_eq!((at(6).m, at(6).batch.len()), (24, 0));
    assert_eq!((at(2).m, at(2).batch.len()), (2, 1));
    // One row of each: the loop is the rows.
    assert_eq!((at(1).m, at(1).a.row, at(1).batch.len()), (4, 30, 0));
    assert_eq!(parts(&at(0)), 0);
    for m in [1, 2, 6] {
        check(&at(m), false);
    }
    // Keys shared by the heads of a group: heads and queries join, whichever steps further.
    let mut heads = g.clone();
    (heads.a.row, heads.c.row) = (10, 18);
    heads.batch = vec![BatchDim { extent: 2.into(), a: 5, b: 0, c: 9 }];
    assert_eq!(Shape::new(&heads, |e| e.full).m, 12);
}

/// Forms that `cut` tells apart, of one size.
fn forms(m: u64, n: u64, k: u64) -> [Shape; 3] {
    let packed = Shape { packed: Some(PackedMatrix { k, n }), ..gemm(m, n, k) };
    let format = pcc_ir::source::BlockFormat { group: 32, bits: 4, low: -8, offsets: false, half: true };
    let blocks = BlockMatrix { matrix: PackedMatrix { k, n }, format, groups: k.div_ceil(32) };
    [gemm(m, n, k), packed.clone(), Shape { blocks: Some(blocks), ..packed }]
}

#[test]
fn parts_cover_every_element_once_and_nothing_where_there_is_none() {
    let sizes = [0, 1, 8, 9, 113, 4096];
    for at in 0..sizes.len().pow(3) {
        let [m, n, k] = [at, at / 6, at / 36].map(|i| sizes[i % 6]);
        for (mut g, batch) in forms(m, n, k).into_iter().flat_map(|g| [1, 0, 3].map(|b| (g.clone(), b))) {
            if batch != 1 {
                g.batch = vec![Loop { extent: batch, a: 0, b: 0, c: (m * n) as i64 }];
            }
            let cut = cut(&g);
            let mut covered = 0;
            let mut tiles = std::collections::BTreeMap::new();
            for part in 0..parts(&g) {
                let (rows, cols, group) = tile_of(&g, cut, part);
                let batches = (group * cut.batches..((group + 1) * cut.batches).min(batch)).count() as u64;
                let (tall, wide) = (rows.end - rows.start, cols.end - cols.start);
                assert!(batches * tall * wide > 0, "{g:?}: part {part} is empty");
                covered += batches * tall * wide;
                if group == 0 {
                    tiles.insert((rows.start, cols.start), (rows.end, cols.end));
                }
            }
            assert_eq!(covered, m * n * batch, "{g:?}");
            // Tiles are apart: each starts where one to its left or above ends, and none begins inside of another.
            for (&(top, left), &(bottom, right)) in &tiles {
                let inside = |&(r, c): &(u64, u64)| (top..bottom).contains(&r) && (left..right).contains(&c);
                assert_eq!(tiles.keys().filter(|&at| inside(at)).count(), 1, "{g:?}");
            }
        }
    }
    // Sizes of which products overflow; validation has not seen that these fit no memory.
    assert!(parts(&gemm(1, 1 << 39, 1 << 39)) > 0 && parts(&gemm(1 << 39, 9, 1 << 39)) > 0);
}

#[test]
fn a_product_without_rows_leaves_everything_as_it_is() {
    for g in [gemm(0, 2048, 1024), gemm(2048, 0, 1024)] {
        check(&g, false);
    }
}
