//! Parameters put into panels as they are read.

use super::panels::{Element, Place, Rounded, WIDTH, pack};
use crate::memory::Window;
use pcc_ir::DType;
use pcc_ir::program::PackedMatrix;

/// Packs a piece of a parameter, f32 values as they were read, into the panels of `matrix` in `window`, rounded to `dtype`. Other
/// threads may write other elements meanwhile.
pub(crate) fn pack_piece(
    values: &[f32],
    rows: &[Place],
    columns: &[Place],
    matrix: PackedMatrix,
    dtype: DType,
    window: &Window<'_>,
) {
    let last = |places: &[Place]| places.iter().map(|p| p.from).max().unwrap_or(0);
    let all_inside =
        |places: &[Place], extent: u64| places.iter().all(|p| p.from >= 0 && (p.to as u64) < extent);
    assert!(all_inside(rows, matrix.k) && all_inside(columns, matrix.n), "a piece beside its matrix");
    assert!((last(rows) + last(columns)) < values.len() as isize, "a piece has fewer values");
    assert!(matrix.bytes(dtype) <= window.len() as u64, "panels in {} bytes", window.len());
    let element = if dtype == DType::BF16 { Element::Bf16 } else { Element::F32 };
    let panel = (matrix.k as usize).div_ceil(element.per_unit()) * WIDTH;
    let (from, to) = (values.as_ptr(), window.as_ptr().cast::<u32>());
    // SAFETY: the places are inside the values and the matrix, and the window has room for its panels, all checked above. While
    // parameters are loaded an element has one writer and no reader.
    unsafe {
        match element {
            Element::F32 => pack(from, rows, columns, to, panel),
            Element::Bf16 => pack(from.cast::<Rounded>(), rows, columns, to, panel),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Mapping;

    #[test]
    fn a_piece_goes_where_the_matrix_has_it() {
        // A piece of 3 by 40 of a matrix of 9 by 70, stored with k innermost.
        let values: Vec<f32> = (0..120).map(|i| i as f32).collect();
        let rows: Vec<Place> = (0..3).map(|i| Place { from: i, to: i as usize * 2 + 1 }).collect();
        let columns: Vec<Place> = (0..40).map(|j| Place { from: 3 * j, to: j as usize + 20 }).collect();
        let matrix = PackedMatrix { k: 9, n: 70 };
        for dtype in [DType::F32, DType::BF16] {
            let mapping = Mapping::new(matrix.bytes(dtype) as usize).unwrap();
            let window = mapping.window(0, matrix.bytes(dtype) as usize);
            pack_piece(&values, &rows, &columns, matrix, dtype, &window);
            for (k, n) in (0..9).flat_map(|k| (0..70).map(move |n| (k, n))) {
                let (pair, deep) = if dtype == DType::BF16 { (2, 10) } else { (1, 9) };
                let at = n / 32 * 32 * deep + k / pair * 32 * pair + n % 32 * pair + k % pair;
                let inside = k % 2 == 1 && k < 6 && (20..60).contains(&n);
                let expected = if inside { (3 * (n - 20) + k / 2) as f64 } else { 0.0 };
                assert_eq!(window.load(dtype, at), Some(expected), "{dtype} {k} {n}");
            }
        }
    }
}
