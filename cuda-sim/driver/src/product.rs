//! Matrix products of the stand-in for cuBLASLt, as work of a stream.

use crate::blas::{EPILOGUE_BIAS, EPILOGUE_GELU, EPILOGUE_RELU, Matrix, Product, REAL_BF16, REAL_F16, bytes};
use crate::state::{Space, Turn};
use half::{bf16, f16};
use pcc_cuda_sim::Fault;
use pcc_cuda_sim::memory::Memory;
use std::ops::Range;

impl Matrix {
    fn bytes(&self) -> u64 {
        bytes(self.dtype).unwrap_or(4)
    }

    /// The bytes of matrix `n` of a batch: those of its columns, adjacent ones as one.
    fn ranges(&self, n: u32) -> Vec<Range<u64>> {
        let offset = self.stride.wrapping_mul(i64::from(n)).wrapping_mul(self.bytes() as i64);
        let at = self.at.wrapping_add_signed(offset);
        let column = self.rows * self.bytes();
        let (columns, length) =
            if self.leading == self.rows { (1, column * self.cols) } else { (self.cols, column) };
        let starts = (0..columns).map(|col| at + col * self.leading * self.bytes());
        starts.map(|start| start..start + length).collect()
    }

    /// The numbers of matrix `n`, column by column.
    fn read(&self, memory: &Memory, n: u32) -> Result<Vec<f32>, Fault> {
        let mut all = vec![];
        for range in self.ranges(n) {
            let bytes = memory.read(range.start, range.end - range.start)?;
            all.extend(bytes.chunks_exact(self.bytes() as usize).map(|element| number(self.dtype, element)));
        }
        Ok(all)
    }

    fn write(&self, memory: &Memory, n: u32, numbers: &[f32]) -> Result<(), Fault> {
        let mut bytes = numbers.iter().flat_map(|&x| element(self.dtype, x));
        self.ranges(n).into_iter().try_for_each(|range| {
            let part: Vec<u8> = bytes.by_ref().take((range.end - range.start) as usize).collect();
            memory.write(range.start, &part)
        })
    }
}

fn number(dtype: u32, element: &[u8]) -> f32 {
    match (dtype, element) {
        (REAL_BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
        (REAL_F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        _ => f32::NAN,
    }
}

fn element(dtype: u32, x: f32) -> Vec<u8> {
    match dtype {
        REAL_BF16 => bf16::from_f32(x).to_le_bytes().to_vec(),
        REAL_F16 => f16::from_f32(x).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    }
}

/// The activation of an epilogue; gelu with tanh.
fn activated(epilogue: u32, x: f32) -> f32 {
    if epilogue & EPILOGUE_RELU != 0 {
        return x.max(0.0);
    }
    if epilogue & EPILOGUE_GELU == 0 {
        return x;
    }
    let wide = f64::from(x);
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044715 * wide.powi(3));
    (0.5 * wide * (1.0 + inner.tanh())) as f32
}

impl Product {
    fn bias(&self) -> Option<Matrix> {
        let vector = Matrix { at: self.bias, cols: 1, leading: self.d.rows, stride: 0, ..self.d };
        (self.epilogue & EPILOGUE_BIAS != 0).then_some(vector)
    }

    /// What it reads of matrices; C where it counts.
    fn operands(&self) -> Vec<Matrix> {
        let c = (self.beta != 0.0).then_some(self.c);
        [self.a, self.b].into_iter().chain(c).chain(self.bias()).collect()
    }

    /// Memory that it uses: bytes, and whether it writes them.
    fn touched(&self) -> Vec<(Range<u64>, bool)> {
        let batch = || 0..self.count;
        let reads = self.operands();
        let reads = reads.iter().flat_map(|m| batch().flat_map(|n| m.ranges(n))).map(|range| (range, false));
        let writes = batch().flat_map(|n| self.d.ranges(n)).map(|range| (range, true));
        reads.chain(writes).collect()
    }

    fn run(&self, memory: &Memory) -> Result<(), Fault> {
        let (m, n) = (self.d.rows as usize, self.d.cols as usize);
        let k = if self.transposed_a { self.a.rows } else { self.a.cols } as usize;
        for number in 0..self.count {
            let (a, b) = (self.a.read(memory, number)?, self.b.read(memory, number)?);
            let c = if self.beta == 0.0 { vec![] } else { self.c.read(memory, number)? };
            let bias = self.bias().map_or(Ok(vec![]), |bias| bias.read(memory, 0))?;
            let (a_rows, b_rows) = (self.a.rows as usize, self.b.rows as usize);
            let of_a =
                |i: usize, l: usize| a[if self.transposed_a { i * a_rows + l } else { l * a_rows + i }];
            let of_b =
                |l: usize, j: usize| b[if self.transposed_b { l * b_rows + j } else { j * b_rows + l }];
            let mut d = Vec::with_capacity(m * n);
            for j in 0..n {
                for i in 0..m {
                    let sum: f32 = (0..k).map(|l| of_a(i, l) * of_b(l, j)).sum();
                    let added = self.beta * c.get(j * m + i).copied().unwrap_or(0.0);
                    let sum = self.alpha * sum + added + bias.get(i).copied().unwrap_or(0.0);
                    d.push(activated(self.epilogue, sum));
                }
            }
            self.d.write(memory, number, &d)?;
        }
        Ok(())
    }
}

impl Turn {
    /// Runs a product that may start.
    pub fn run_product(&mut self, id: u64, product: &Product) -> Result<(), String> {
        for (range, writes) in product.touched() {
            self.note(id, Space::Devices, range, writes)?;
        }
        let (memory, product) = (self.memory.clone(), *product);
        // Others wait for this work: it has to end, whatever happens.
        let run = || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| product.run(&memory)));
        match self.alone(run) {
            Ok(result) => result.map_err(|fault| fault.to_string()),
            Err(_) => Err("the simulator itself failed on this product".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blas::{EPILOGUE_DEFAULT, REAL_F32};

    fn matrix(memory: &Memory, dtype: u32, (rows, cols, leading): (u64, u64, u64), x: &[f32]) -> Matrix {
        let at = memory.alloc(0, leading * cols * bytes(dtype).unwrap()).unwrap();
        let matrix = Matrix { at, dtype, rows, cols, leading, stride: 0 };
        if !x.is_empty() {
            matrix.write(memory, 0, x).unwrap();
        }
        matrix
    }

    /// 2 x 3 times 3 x 2, with space between columns that was never written.
    #[test]
    fn operands_are_turned_added_and_activated() {
        let memory = Memory::new();
        let a = matrix(&memory, REAL_BF16, (2, 3, 5), &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let b = matrix(&memory, REAL_F32, (3, 2, 3), &[1.0, 0.0, -1.0, 2.0, 1.0, 0.5]);
        let c = matrix(&memory, REAL_F32, (2, 2, 4), &[10.0, 20.0, -30.0, 0.25]);
        let d = matrix(&memory, REAL_F32, (2, 2, 3), &[]);
        let bias = matrix(&memory, REAL_F32, (2, 1, 2), &[0.5, -100.0]);
        let mut product = Product {
            a,
            b,
            c,
            d,
            transposed_a: false,
            transposed_b: false,
            count: 1,
            alpha: 2.0,
            beta: 0.0,
            epilogue: EPILOGUE_DEFAULT,
            bias: bias.at,
            stream: 0,
        };
        let made = |product: Product| {
            product.run(&memory).unwrap();
            d.read(&memory, 0).unwrap()
        };
        // Rows (1 3 5) and (2 4 6) times columns (1 0 -1) and (2 1 0.5), twice.
        assert_eq!(made(product), [-8.0, -8.0, 15.0, 22.0]);
        product.beta = 1.0;
        assert_eq!(made(product), [2.0, 12.0, -15.0, 22.25]);
        product.epilogue = EPILOGUE_BIAS;
        assert_eq!(made(product), [2.5, -88.0, -14.5, -77.75]);
        product.epilogue |= EPILOGUE_RELU;
        assert_eq!(made(product), [2.5, 0.0, 0.0, 0.0]);
        // The same matrices, said to be transposed.
        let a = matrix(&memory, REAL_F16, (3, 2, 3), &[1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
        let b = matrix(&memory, REAL_F32, (2, 3, 2), &[1.0, 2.0, 0.0, 1.0, -1.0, 0.5]);
        product = Product { a, b, transposed_a: true, transposed_b: true, beta: 0.0, ..product };
        product.epilogue = EPILOGUE_DEFAULT;
        assert_eq!(made(product), [-8.0, -8.0, 15.0, 22.0]);
        assert!((activated(EPILOGUE_GELU, 1.0) - 0.841_192).abs() < 1e-6);
    }
}
