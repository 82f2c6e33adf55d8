//! Every path against sums in f64, over shapes that nothing divides.

use super::task::multiply_on;
use super::*;
use half::bf16;
use pcc_ir::DType;

/// Numbers whose sums depend on the order of their terms.
fn value(seed: usize, i: usize) -> f32 {
    ((((i + 1) * (seed * 2 + 0x9E37)) >> 3) % 1009) as f32 / 499.0 - 1.0
}

/// A matrix in memory as bytes of its type, `rows * cols` elements with the given strides.
struct Stored {
    bytes: Vec<u64>,
    term: Term,
}

fn stored(dtype: DType, seed: usize, rows: usize, cols: usize, strides: (usize, usize)) -> Stored {
    let count = rows.max(1) * strides.0 + cols.max(1) * strides.1;
    let mut bytes = vec![0u64; count];
    let start = bytes.as_mut_ptr().cast::<u8>();
    for i in 0..count {
        // SAFETY: the buffer has 8 bytes for each element.
        unsafe {
            match dtype {
                DType::F32 => start.cast::<f32>().add(i).write(value(seed, i)),
                _ => start.cast::<bf16>().add(i).write(bf16::from_f32(value(seed, i))),
            }
        }
    }
    Stored { bytes, term: Term { start, dtype, row: strides.0 as isize, col: strides.1 as isize } }
}

impl Stored {
    fn at(&self, i: usize, j: usize) -> f64 {
        let at = i * self.term.row as usize + j * self.term.col as usize;
        let start = self.bytes.as_ptr();
        // SAFETY: the element is inside the buffer.
        unsafe {
            match self.term.dtype {
                DType::F32 => start.cast::<f32>().add(at).read().into(),
                _ => start.cast::<bf16>().add(at).read().to_f32().into(),
            }
        }
    }
}

fn packed(element: Element, b: &Stored, k: usize, n: usize) -> (Vec<u32>, usize) {
    let mut panels = vec![0u32; units(element, k, n).unwrap()];
    let panel = k.div_ceil(element.per_unit()) * WIDTH;
    let (rows, columns) = (Place::strided(k, b.term.row), Place::strided(n, b.term.col));
    // SAFETY: the matrix has k rows and n columns, the panels were made for them.
    unsafe {
        match element {
            Element::F32 => pack(b.term.start.cast::<f32>(), &rows, &columns, panels.as_mut_ptr(), panel),
            Element::Bf16 => pack(b.term.start.cast::<bf16>(), &rows, &columns, panels.as_mut_ptr(), panel),
        }
    }
    (panels, panel)
}

struct Case {
    m: usize,
    n: usize,
    k: usize,
    element: Element,
    result: DType,
    /// Whether a, b and c lie column by column.
    flipped: [bool; 3],
    alpha: f32,
    accumulate: bool,
}

/// Runs a case by a path, compares with f64, returns the bits of the result.
fn check(path: Path, case: &Case) -> Vec<u64> {
    let Case { m, n, k, element, result, flipped, alpha, accumulate } = *case;
    let dtype = if element == Element::F32 { DType::F32 } else { DType::BF16 };
    // Rows and columns further apart than need be.
    let strides = |flip: bool, rows: usize, cols: usize| if flip { (1, rows + 3) } else { (cols + 5, 1) };
    let a = stored(dtype, 1, m, k, strides(flipped[0], m, k));
    let b = stored(dtype, 2, k, n, strides(flipped[1], k, n));
    let c = stored(result, 3, m, n, strides(flipped[2], m, n));
    let before: Vec<f64> =
        (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| c.at(i, j)).collect();
    let (panels, panel) = packed(element, &b, k, n);
    let task = Task { m, n, k, element, a: a.term, b: panels.as_ptr(), panel, c: c.term, alpha, accumulate };
    // SAFETY: the matrices have these extents, the panels are b's, and the path is there.
    unsafe { multiply_on(path, &task) };
    let mut bits = Vec::new();
    for (at, (i, j)) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).enumerate() {
        let sum: f64 = (0..k).map(|p| a.at(i, p) * b.at(p, j)).sum();
        let expected = sum * f64::from(alpha) + if accumulate { before[at] } else { 0.0 };
        let found = c.at(i, j);
        let tolerance = if result == DType::F32 { 1e-6 } else { 1.0 / 128.0 };
        let scale = expected.abs().max(1.0) + k as f64 / 8.0;
        assert!(
            (found - expected).abs() <= tolerance * scale,
            "{path:?} {element:?} {m}x{n}x{k} at {i},{j}: {found} for {expected}"
        );
        bits.push(found.to_bits());
    }
    bits
}

fn paths(element: Element) -> impl Iterator<Item = Path> {
    Path::ALL.into_iter().filter(move |p| p.is_there(element))
}

#[test]
fn every_path_every_number_of_rows() {
    for element in [Element::F32, Element::Bf16] {
        for path in paths(element) {
            for m in 1..=40 {
                // Less than a panel, several and a part; odd depths below and above a chunk.
                for (n, k) in [(1, 1), (31, 17), (165, 7), (33, 263 + m % 2), (33, 1)] {
                    let case = Case {
                        m,
                        n,
                        k,
                        element,
                        result: DType::F32,
                        flipped: [false; 3],
                        alpha: 1.0,
                        accumulate: false,
                    };
                    check(path, &case);
                }
            }
        }
    }
}

#[test]
fn strides_scales_and_results_of_every_kind() {
    for element in [Element::F32, Element::Bf16] {
        for path in paths(element) {
            for number in 0..32 {
                let bit = |b: u32| number >> b & 1 == 1;
                let result = if element == Element::Bf16 && bit(4) { DType::BF16 } else { DType::F32 };
                let case = Case {
                    m: 17,
                    n: 70,
                    k: 45,
                    element,
                    result,
                    flipped: [bit(0), bit(1), bit(2)],
                    alpha: if bit(3) { 0.25 } else { 1.0 },
                    accumulate: bit(0) != bit(3),
                };
                check(path, &case);
            }
        }
    }
}

#[test]
fn a_row_is_the_same_whatever_rows_stand_beside_it() {
    for element in [Element::F32, Element::Bf16] {
        for path in paths(element) {
            let of = |m: usize| {
                let case = Case {
                    m,
                    n: 100,
                    k: 333,
                    element,
                    result: DType::F32,
                    flipped: [false; 3],
                    alpha: 1.0,
                    accumulate: false,
                };
                check(path, &case)[..100].to_vec()
            };
            let alone = of(1);
            (2..30).for_each(|m| assert_eq!(of(m), alone, "{path:?} {element:?} {m}"));
        }
    }
}

#[test]
fn long_sums_rest_in_the_result_on_the_way() {
    for element in [Element::F32, Element::Bf16] {
        for path in paths(element) {
            // Three rows fit the scratch with all of k; with a hundred the sums rest, also those of a part of a panel.
            let of = |m, flipped| {
                let (n, k, result) = (70, 1811 * element.per_unit(), DType::F32);
                let flipped = [false, false, flipped];
                check(path, &Case { m, n, k, element, result, flipped, alpha: 1.0, accumulate: false })
            };
            let (few, many) = (of(3, false), of(100, false));
            assert_eq!(few, many[..few.len()], "{path:?} {element:?}");
            // Columns apart: nothing to rest in.
            of(100, true);
        }
    }
}

#[test]
fn an_empty_sum_is_zero() {
    for element in [Element::F32, Element::Bf16] {
        for path in paths(element) {
            let case = Case {
                m: 3,
                n: 40,
                k: 0,
                element,
                result: DType::F32,
                flipped: [false; 3],
                alpha: 1.0,
                accumulate: false,
            };
            check(path, &case);
        }
    }
}
