//! Operands in the memory of a simulated device, which knows what was written: what lies between elements, or behind them, is not.

use crate::emit::tests::simulate::launch;
use half::{bf16, f16};
use pcc_cuda_sim::memory::Memory;
use pcc_cuda_sim::ptx::Module;
use pcc_ir::eval::round_to;
use pcc_ir::gpu::{LibraryKernel, Shape};
use pcc_ir::types::DType;

/// Numbers between -1 and 1 that look random. (SplitMix64: Steele et al., 2014.)
pub(super) fn noise(seed: u64, i: u64) -> f64 {
    let mut x = (seed << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ x >> 31) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// Half a unit in the last place of 1, of results of a type.
pub(super) fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => f64::powi(2.0, -8),
        DType::F16 => f64::powi(2.0, -11),
        _ => f64::powi(2.0, -24),
    }
}

/// The largest difference by which a result of a type may be off a number.
pub(super) fn rounded_off(dtype: DType, x: f64) -> f64 {
    let least = if dtype == DType::F16 { f64::powi(2.0, -25) } else { 1e-30 };
    (1.01 * rounding(dtype) * x.abs()).max(least)
}

fn encode(dtype: DType, x: f64) -> Vec<u8> {
    match dtype {
        DType::F64 => x.to_le_bytes().to_vec(),
        DType::F32 => (x as f32).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(x).to_le_bytes().to_vec(),
        DType::F16 => f16::from_f64(x).to_le_bytes().to_vec(),
        DType::I32 => (x as i32).to_le_bytes().to_vec(),
        other => panic!("no operand is {other}"),
    }
}

pub(super) fn decode(dtype: DType, bytes: &[u8]) -> f64 {
    match dtype {
        DType::F64 => f64::from_le_bytes(bytes.try_into().unwrap()),
        DType::F32 => f32::from_le_bytes(bytes.try_into().unwrap()).into(),
        DType::BF16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DType::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DType::I32 => i32::from_le_bytes(bytes.try_into().unwrap()).into(),
        other => panic!("no result is {other}"),
    }
}

/// Elements by index, seen through strides.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub dtype: DType,
    pub extents: Vec<u64>,
    pub strides: Vec<i64>,
}

impl View {
    /// Row-major but for the order of dims, the innermost first, and `pad` elements behind each index of the second of them.
    pub fn new(dtype: DType, extents: &[u64], order: &[usize], align: i64, pad: i64) -> Self {
        let mut strides = vec![0; extents.len()];
        let mut next = 1;
        for (i, &dim) in order.iter().enumerate() {
            if i == 1 {
                next = (next + pad + align - 1) / align * align;
            }
            strides[dim] = next;
            next *= extents[dim].max(1) as i64;
        }
        View { dtype, extents: extents.to_vec(), strides }
    }

    /// All indices, the last dim fastest.
    pub fn indices(&self) -> impl Iterator<Item = Vec<u64>> + '_ {
        (0..self.extents.iter().product()).map(|mut number| {
            let mut index = vec![0; self.extents.len()];
            for (i, &extent) in index.iter_mut().zip(&self.extents).rev() {
                (*i, number) = (number % extent, number / extent);
            }
            index
        })
    }

    pub fn offset(&self, index: &[u64]) -> u64 {
        let elements: i64 = index.iter().zip(&self.strides).map(|(&i, &stride)| i as i64 * stride).sum();
        elements as u64 * self.dtype.bytes() as u64
    }

    /// Bytes up to the end of the last element.
    pub fn bytes(&self) -> u64 {
        let last: Vec<u64> = self.extents.iter().map(|e| e.saturating_sub(1)).collect();
        self.offset(&last) + self.dtype.bytes() as u64
    }
}

/// A view's elements, in the order of its indices and rounded to its type.
pub(super) struct Data {
    pub view: View,
    pub values: Vec<f64>,
}

impl Data {
    pub fn noise(view: View, seed: u64) -> Self {
        let count: u64 = view.extents.iter().product();
        let values = (0..count).map(|i| round_to(view.dtype, noise(seed, i))).collect();
        let mut data = Data { view, values };
        data.agree();
        data
    }

    /// Elements that lie at one place, by a stride of 0, are equal.
    fn agree(&mut self) {
        let first = |index: &[u64]| -> usize {
            let pairs = index.iter().zip(&self.view.strides).zip(&self.view.extents);
            pairs.fold(0, |n, ((&i, &s), &e)| n * e as usize + if s == 0 { 0 } else { i as usize })
        };
        let firsts: Vec<usize> = self.view.indices().map(|i| first(&i)).collect();
        self.values = firsts.iter().map(|&i| self.values[i]).collect();
    }

    /// The bytes of memory that has only these elements; zeros elsewhere.
    pub fn image(&self) -> Vec<u8> {
        let mut image = vec![0; self.view.bytes() as usize];
        for (index, &x) in self.view.indices().zip(&self.values) {
            let (at, bytes) = (self.view.offset(&index) as usize, encode(self.view.dtype, x));
            image[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        image
    }

    pub fn at(&self, index: &[u64]) -> f64 {
        let number = index.iter().zip(&self.view.extents).fold(0, |n, (i, e)| n * e + i);
        self.values[number as usize]
    }
}

/// A simulated device's memory.
pub(super) struct Device {
    memory: Memory,
}

impl Device {
    pub fn new() -> Self {
        Device { memory: Memory::new() }
    }

    pub fn alloc(&self, view: &View) -> Result<u64, String> {
        self.memory.alloc(0, view.bytes()).map_err(|e| e.to_string())
    }

    /// Memory with the elements of which `keep` holds written.
    pub fn put(&self, data: &Data, keep: impl Fn(&[u64]) -> bool) -> Result<u64, String> {
        let place = self.alloc(&data.view)?;
        for (index, &x) in data.view.indices().zip(&data.values).filter(|(index, _)| keep(index)) {
            let bytes = encode(data.view.dtype, x);
            self.memory.write(place + data.view.offset(&index), &bytes).map_err(|e| e.to_string())?;
        }
        Ok(place)
    }

    /// The elements of a view.
    pub fn get(&self, place: u64, view: &View) -> Result<Data, String> {
        let bytes = view.dtype.bytes() as u64;
        let read = |index: Vec<u64>| {
            let read = self.memory.read(place + view.offset(&index), bytes).map_err(|e| e.to_string())?;
            Ok(decode(view.dtype, &read))
        };
        let values = view.indices().map(read).collect::<Result<_, String>>()?;
        Ok(Data { view: view.clone(), values })
    }

    /// Runs the kernel of a text.
    pub fn run(
        &self,
        text: &str,
        kernel: &LibraryKernel,
        shape: Shape,
        params: &[u64],
        seed: u64,
    ) -> Result<(), String> {
        let module = Module::load(text).map_err(|e| e.to_string())?;
        assert_eq!(params.len(), kernel.params());
        launch(&module, &self.memory, &kernel.symbol(), shape, params, seed)
    }

    /// Compares elements with what they ought to be, as `expected` gives it with the largest difference that there may be, and sees that
    /// nothing else was written.
    pub fn compare(
        &self,
        place: u64,
        view: &View,
        expected: impl Fn(&[u64]) -> (f64, f64),
    ) -> Result<(), String> {
        let bytes = view.dtype.bytes() as u64;
        let mut inside = vec![false; (view.bytes() / bytes) as usize];
        for index in view.indices() {
            let offset = view.offset(&index);
            inside[(offset / bytes) as usize] = true;
            let got = self.memory.read(place + offset, bytes).map_err(|e| format!("{index:?}: {e}"))?;
            let (got, (want, most)) = (decode(view.dtype, &got), expected(&index));
            if got.is_nan() || (got - want).abs() > most {
                return Err(format!("{index:?}: {got} instead of {want}, which is more than {most:e} off"));
            }
        }
        let between = inside.iter().enumerate().filter(|(_, inside)| !**inside);
        for (i, _) in between {
            if self.memory.read(place + i as u64 * bytes, 1).is_ok() {
                return Err(format!("element {i} of the memory is none of the result's, but was written"));
            }
        }
        Ok(())
    }
}
