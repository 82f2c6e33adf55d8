//! Which products there are kernels for, and whether a product is one that its kernel was chosen for.

use crate::blas::{Matrix, Product, REAL_BF16, REAL_F16, REAL_F32, bytes};
use crate::objects::{Choice, Desc, Layout, Misuse};
use std::ops::Range;

/// Types of A, B, C and D, and of a bias as D, that are multiplied in f32. (cuBLAS documentation, `cublasLtMatmul`.)
const TYPES: [[u32; 4]; 5] = [
    [REAL_F32; 4],
    [REAL_BF16; 4],
    [REAL_F16; 4],
    [REAL_BF16, REAL_BF16, REAL_F32, REAL_F32],
    [REAL_F16, REAL_F16, REAL_F32, REAL_F32],
];

/// Bytes that divide a bias's address.
const BIAS_ALIGN: u64 = 16;

/// Whether there is a kernel.
///
/// # Errors
/// The matrices are none that can be multiplied.
pub fn is_supported(desc: &Desc, layouts: &[Layout; 4]) -> Result<bool, Misuse> {
    let [a, b, c, d] = layouts;
    let turned = |m: &Layout, turned: bool| if turned { (m.cols, m.rows) } else { (m.rows, m.cols) };
    let ((m, k), (depth, n)) = (turned(a, desc.transposed[0]), turned(b, desc.transposed[1]));
    let sizes = k == depth && (c.rows, c.cols) == (m, n) && (d.rows, d.cols) == (m, n);
    if !sizes || layouts.iter().any(|l| l.count != d.count) {
        return Err(format!("sizes do not fit: {desc:?} {layouts:?}"));
    }
    if desc.has_bias() && desc.bias == 0 {
        return Err("a bias without an address".to_owned());
    }
    Ok(TYPES.contains(&layouts.map(|l| l.dtype)))
}

/// Addresses and numbers of a call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Of A, B, C and D.
    pub at: [u64; 4],
    pub alpha: f32,
    pub beta: f32,
    pub workspace: u64,
    pub stream: u64,
}

/// The work of a call.
///
/// # Errors
/// It is not what the kernel was chosen for.
pub fn product(choice: &Choice, desc: Desc, layouts: [Layout; 4], call: &Call) -> Result<Product, Misuse> {
    let chosen = Desc { bias: desc.bias, ..choice.desc };
    if (chosen, choice.layouts) != (desc, layouts) {
        return Err(format!("a kernel chosen for {choice:?}, called with {desc:?} {layouts:?}"));
    }
    if call.workspace < choice.preference.workspace {
        return Err(format!("{} bytes of workspace, less than was said", call.workspace));
    }
    let matrix = |i: usize| {
        let Layout { dtype, rows, cols, leading, stride, .. } = layouts[i];
        Matrix { at: call.at[i], dtype, rows, cols, leading, stride }
    };
    let [a, b, c, d] = [0, 1, 2, 3].map(matrix);
    let count = layouts[3].count;
    for (i, (name, m)) in [("A", a), ("B", b), ("C", c), ("D", d)].into_iter().enumerate() {
        let stride = if count > 1 { m.stride.unsigned_abs() * size(&m) } else { 0 };
        let aligned = u64::from(choice.preference.aligned[i]);
        if m.at == 0 || !(m.at | stride).is_multiple_of(aligned) {
            return Err(format!("{name} at {:#x}, of which was said that {aligned} divides it", m.at));
        }
    }
    if desc.has_bias() {
        let aligned = BIAS_ALIGN.min(choice.preference.aligned[3].into());
        if !desc.bias.is_multiple_of(aligned) {
            return Err(format!("a bias at {:#x}", desc.bias));
        }
    }
    // C may be D, as the same matrix; nothing else may lie over D.
    if c.at == d.at && c != d {
        return Err(format!("C in place of D with another layout: {c:?} {d:?}"));
    }
    let bias = Matrix { at: desc.bias, cols: 1, stride: 0, ..d };
    let others = [Some(a), Some(b), Some(c).filter(|c| c.at != d.at), Some(bias).filter(|_| desc.has_bias())];
    for other in others.into_iter().flatten() {
        let (x, y) = (span(&other, count), span(&d, count));
        if x.start < y.end && y.start < x.end {
            return Err(format!("{other:?} and D, {d:?}, lie over each other"));
        }
    }
    let Desc { transposed: [transposed_a, transposed_b], epilogue, bias } = desc;
    let Call { alpha, beta, stream, .. } = *call;
    Ok(Product { a, b, c, d, transposed_a, transposed_b, count, alpha, beta, epilogue, bias, stream })
}

fn size(m: &Matrix) -> u64 {
    bytes(m.dtype).unwrap_or(4)
}

/// All bytes from a matrix's first element to its last.
fn span(m: &Matrix, count: u32) -> Range<u64> {
    let one = ((m.cols - 1) * m.leading + m.rows) * size(m);
    let last = m.stride.wrapping_mul(i64::from(count) - 1).wrapping_mul(size(m) as i64);
    let (low, high) = (last.min(0), last.max(0));
    m.at.wrapping_add_signed(low)..m.at.wrapping_add_signed(high) + one
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blas::EPILOGUE_BIAS;
    use crate::objects::Preference;

    /// 8 x 4 times 4 x 6.
    fn layouts() -> [Layout; 4] {
        let of = |rows, cols| Layout::new(REAL_F32, rows, cols, rows as i64).unwrap();
        [of(8, 4), of(4, 6), of(8, 6), of(8, 6)]
    }

    fn call() -> Call {
        Call { at: [0x1000, 0x2000, 0x3000, 0x4000], alpha: 1.0, beta: 0.0, workspace: 64, stream: 0 }
    }

    fn made(
        change: impl FnOnce(&mut Choice, &mut Desc, &mut [Layout; 4], &mut Call),
    ) -> Result<Product, Misuse> {
        let preference = Preference { workspace: 64, aligned: [16; 4] };
        let (mut desc, mut layouts, mut call) = (Desc::PLAIN, layouts(), call());
        (desc.epilogue, desc.bias) = (EPILOGUE_BIAS, 0x5000);
        let mut choice = Choice { desc, layouts, preference };
        change(&mut choice, &mut desc, &mut layouts, &mut call);
        product(&choice, desc, layouts, &call)
    }

    #[test]
    fn kernels_are_for_what_they_were_chosen_for() {
        assert!(made(|_, _, _, _| ()).is_ok());
        assert!(made(|_, d, _, _| d.bias = 0x6000).is_ok(), "the bias may be another");
        assert!(made(|_, _, _, c| c.at[2] = c.at[3]).is_ok(), "in place");
        assert!(made(|_, d, _, _| d.transposed[0] = true).is_err());
        assert!(made(|_, _, l, _| l[3].leading = 9).is_err());
        assert!(made(|_, _, _, c| c.at[0] += 8).is_err(), "alignment");
        assert!(made(|_, d, _, _| d.bias += 4).is_err());
        assert!(made(|_, _, _, c| c.workspace = 32).is_err());
        // The last column of C lies over D.
        assert!(made(|_, _, _, c| c.at[2] = 0x4000 - 8 * 5 * 4).is_err());
        assert!(made(|_, _, _, c| c.at[2] = 0x4000 - 8 * 6 * 4).is_ok());
        assert!(made(|_, d, _, _| d.bias = 0x4000 + 8 * 6 * 4 - 16).is_err());
        let moved = |choice: &mut Choice, layouts: &mut [Layout; 4]| {
            (layouts[2].leading, choice.layouts[2].leading) = (9, 9);
        };
        assert!(made(|choice, _, l, _| moved(choice, l)).is_ok());
        assert!(
            made(|choice, _, l, c| {
                moved(choice, l);
                c.at[2] = c.at[3]
            })
            .is_err()
        );
    }

    #[test]
    fn kernels_are_there_for_the_documented_types() {
        let with = |dtypes: [u32; 4]| {
            let mut layouts = layouts();
            layouts.iter_mut().zip(dtypes).for_each(|(l, dtype)| l.dtype = dtype);
            is_supported(&Desc::PLAIN, &layouts)
        };
        assert_eq!(with([REAL_BF16, REAL_BF16, REAL_F32, REAL_F32]), Ok(true));
        assert_eq!(with([REAL_BF16, REAL_BF16, REAL_F32, REAL_BF16]), Ok(false));
        assert_eq!(with([REAL_BF16, REAL_F16, REAL_F32, REAL_F32]), Ok(false));
        let turned = Desc { transposed: [true, false], ..Desc::PLAIN };
        assert!(is_supported(&turned, &layouts()).is_err());
        assert!(is_supported(&Desc { epilogue: EPILOGUE_BIAS, ..Desc::PLAIN }, &layouts()).is_err());
    }
}
