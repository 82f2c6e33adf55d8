//! What is asked of cuBLASLt for a product: decided without the library.
//!
//! It thinks in column-major matrices, in which our row-major `c = a b` is `c' = b' a'`: b comes first, rows and columns change roles. It makes
//! `D = f(alpha A B + beta C + bias)`, where C and D are of one type, and so is the bias, which has an element for each of D's rows
//! (cuBLAS documentation, `cublasLtMatmul`).

use crate::cuda::work::{Fused, Product};
use pcc_ir::DType;
use pcc_ir::gpu::Activation;

/// Bytes that must divide a bias's address: a row of one is read by vectors.
const BIAS_ALIGN: u64 = 16;

/// A product that it may have a kernel for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Request {
    pub(super) form: Form,
    pub(super) a: u64,
    pub(super) b: u64,
    /// C, and what it is multiplied with.
    pub(super) c: u64,
    pub(super) beta: f32,
    pub(super) d: u64,
    pub(super) bias: Option<u64>,
}

/// All of a request but its numbers and addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Of a, b and the result.
    pub(super) types: [DType; 3],
    /// m, n, k.
    pub(super) sizes: [u64; 3],
    /// Of a and b: whether the matrix is transposed, and its leading dim.
    pub(super) a: (bool, i64),
    pub(super) b: (bool, i64),
    /// Leading dims of C and D.
    pub(super) c: i64,
    pub(super) d: i64,
    pub(super) activation: Activation,
    pub(super) bias: bool,
    /// Count, and strides of a, b, C and D.
    pub(super) batch: [i64; 5],
    /// Bytes that divide every address of a, b, C and D, at most 256.
    pub(super) aligned: [u32; 4],
}

/// A matrix as the library has it: whether rows are what is adjacent, and the stride between those; `None` where neither dim has stride 1.
fn layout(rows: u64, cols: u64, row: i64, col: i64) -> Option<(bool, i64)> {
    let (rows, cols) = (rows as i64, cols as i64);
    if (col == 1 || cols == 1) && (row >= cols || rows == 1) {
        return Some((false, row.max(cols)));
    }
    ((row == 1 || rows == 1) && (col >= rows || cols == 1)).then(|| (true, col.max(rows)))
}

/// Bytes that divide an address and what lies `stride` elements from it.
fn aligned(address: u64, stride: i64, dtype: DType) -> u32 {
    let bytes = stride.unsigned_abs() * dtype.bytes() as u64;
    1 << (address | bytes | 256).trailing_zeros()
}

/// Whether the library multiplies matrices of the type.
fn is_known(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::BF16 | DType::F16)
}

/// The product alone, or with what stands behind it; `None` where strides or types are none that the library has.
pub(super) fn request(p: &Product, with: Option<&Fused>) -> Option<Request> {
    let (a, b) = (layout(p.m, p.k, p.a.1, p.a.2)?, layout(p.k, p.n, p.b.1, p.b.2)?);
    let rows = |(_, row, col): (u64, i64, i64)| match layout(p.m, p.n, row, col)? {
        (false, leading) => Some(leading),
        (true, _) => None,
    };
    let out = with.map_or(p.c, |w| w.out);
    let add = with.and_then(|w| w.add);
    let types = [p.kernel.a, p.kernel.b, with.map_or(p.kernel.c, |w| w.dtype)];
    let same = types[0] == types[1] && (types[2] == types[0] || types[2] == DType::F32);
    if !same || p.k == 0 || !is_known(types[0]) || with.is_some() && p.batch.len() > 1 {
        return None;
    }
    let (c, d) = (rows(add.unwrap_or(out))?, rows(out)?);
    let [count, of_a, of_b, of_c] = batch(&p.batch)?;
    let [of_c, of_d] = if count == 1 { [0; 2] } else { with.map_or([of_c; 2], |w| w.batch) };
    let batch = [count, of_a, of_b, of_c, of_d];
    // In place it takes one layout alone.
    if add.is_some_and(|add| add.0 == out.0 && (c, of_c) != (d, of_d)) {
        return None;
    }
    let bias = with.and_then(|w| w.bias);
    if bias.is_some_and(|at| at % BIAS_ALIGN != 0) {
        return None;
    }
    let addresses = [p.a.0, p.b.0, add.unwrap_or(out).0, out.0 | bias.unwrap_or(0)];
    let of = |i: usize| aligned(addresses[i], batch[i + 1], types[i.min(2)]);
    let form = Form {
        types,
        sizes: [p.m, p.n, p.k],
        a,
        b,
        c,
        d,
        activation: with.map_or(Activation::None, |w| w.activation),
        bias: bias.is_some(),
        batch,
        aligned: [0, 1, 2, 3].map(of),
    };
    let beta = if add.is_some() { 1.0 } else { 0.0 };
    Some(Request { form, a: p.a.0, b: p.b.0, c: addresses[2], beta, d: out.0, bias })
}

/// Batch dims as one: count, strides of a, b and c.
fn batch(dims: &[[i64; 4]]) -> Option<[i64; 4]> {
    let dims: Vec<[i64; 4]> = dims.iter().copied().filter(|d| d[0] != 1).collect();
    let batch = match dims[..] {
        [] => [1, 0, 0, 0],
        [one] => one,
        // Two dims that are one: the outer strides go on where the inner ones end.
        [outer, inner] if (1..4).all(|i| outer[i] == inner[i] * inner[0]) => {
            [outer[0] * inner[0], inner[1], inner[2], inner[3]]
        }
        _ => return None,
    };
    (batch[0] <= i64::from(i32::MAX)).then_some(batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcc_ir::gpu::gemm::{GemmKernel, GemmPath};

    fn product(a: (i64, i64), b: (i64, i64), batch: Vec<[i64; 4]>) -> Product {
        let dtype = DType::BF16;
        let kernel = GemmKernel {
            path: GemmPath::Mma,
            a: dtype,
            b: dtype,
            c: DType::F32,
            a_by_k: true,
            b_by_k: true,
            rows: 8,
            epilogue: None,
        };
        let (a, b, c) = ((0, a.0, a.1), (0, b.0, b.1), (0, 50, 1));
        Product { kernel, m: 30, n: 50, k: 70, alpha: 1.0, a, b, c, batch, epilogue: vec![], fused: None }
    }

    fn form(p: &Product) -> Option<Form> {
        request(p, None).map(|r| r.form)
    }

    #[test]
    fn strides_become_transposes_and_leading_dims() {
        let plain = form(&product((70, 1), (50, 1), vec![])).unwrap();
        assert_eq!((plain.a, plain.b, plain.c, plain.d), ((false, 70), (false, 50), 50, 50));
        let turned = form(&product((1, 32), (1, 72), vec![])).unwrap();
        assert_eq!((turned.a, turned.b), ((true, 32), (true, 72)));
        assert!(form(&product((140, 2), (50, 1), vec![])).is_none());
    }

    #[test]
    fn batch_dims_that_are_one_are_merged() {
        let of = |batch| form(&product((70, 1), (50, 1), batch)).map(|f| f.batch[..4].try_into().unwrap());
        assert_eq!(of(vec![[3, 4000, 0, 1500]]), Some([3, 4000, 0, 1500]));
        assert_eq!(of(vec![[2, 12000, 0, 4500], [3, 4000, 0, 1500]]), Some([6, 4000, 0, 1500]));
        assert_eq!(of(vec![[2, 1, 0, 4500], [3, 4000, 0, 1500]]), None);
    }

    /// Relu of a product, a bias and a matrix.
    fn fused() -> Fused {
        Fused {
            activation: Activation::Relu,
            dtype: DType::F32,
            out: (1 << 20, 52, 1),
            bias: Some(1 << 21),
            add: Some((1 << 22, 64, 1)),
            batch: [64 * 32, 52 * 32],
        }
    }

    fn with(change: impl FnOnce(&mut Product, &mut Fused)) -> Option<Request> {
        let (mut product, mut fused) = (product((70, 1), (50, 1), vec![]), fused());
        change(&mut product, &mut fused);
        request(&product, Some(&fused))
    }

    #[test]
    fn what_is_behind_a_product_gives_c_d_and_the_bias() {
        let all = with(|_, _| ()).unwrap();
        assert_eq!((all.c, all.beta, all.d, all.bias), (1 << 22, 1.0, 1 << 20, Some(1 << 21)));
        assert_eq!((all.form.c, all.form.d, all.form.types[2]), (64, 52, DType::F32));
        assert_eq!((all.form.activation, all.form.bias), (Activation::Relu, true));
        // Without a matrix C is D, times nothing.
        let alone = with(|_, f| (f.add, f.bias) = (None, None)).unwrap();
        assert_eq!((alone.c, alone.beta, alone.d, alone.form.c), (1 << 20, 0.0, 1 << 20, 52));
        // Of the result's type, whatever the product's own.
        assert_eq!(with(|_, f| f.dtype = DType::BF16).unwrap().form.types[2], DType::BF16);
        assert_eq!(with(|_, f| f.dtype = DType::F16), None);
        // Of a batch, each has a stride of its own; the bias is one for all.
        let batch = with(|p, _| p.batch = vec![[3, 4096, 0, 1500]]).unwrap().form;
        assert_eq!((batch.batch, all.form.batch), ([3, 4096, 0, 64 * 32, 52 * 32], [1, 0, 0, 0, 0]));
        // In place.
        assert!(with(|_, f| f.add = Some(f.out)).is_some_and(|r| r.c == r.d && r.beta == 1.0));
        assert_eq!(with(|_, f| f.add = Some((f.out.0, 53, 1))), None);
    }

    #[test]
    fn what_the_library_cannot_have_is_refused() {
        assert_eq!(with(|_, f| f.out = (0, 1, 30)), None, "columns that are adjacent");
        assert_eq!(with(|_, f| f.add = Some((0, 1, 30))), None);
        assert_eq!(with(|_, f| f.add = Some((0, 0, 1))), None, "a row for all rows");
        assert_eq!(with(|_, f| f.bias = Some(24)), None, "alignment");
        assert_eq!(with(|p, _| p.batch = vec![[2, 0, 0, 0], [3, 0, 0, 0]]), None);
        assert_eq!(with(|p, _| p.k = 0), None);
        // A bias counts for the result's alignment.
        assert_eq!(with(|_, f| f.bias = Some((1 << 21) + 16)).unwrap().form.aligned, [256, 256, 256, 16]);
    }
}
