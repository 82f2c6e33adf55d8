//! Reductions over buffers, as collectives need them.

use super::Memory;
use crate::Fault;
use half::{bf16, f16};

/// Types of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    BF16,
    F32,
    F64,
}

impl Element {
    pub fn bytes(self) -> u64 {
        match self {
            Element::I8 | Element::U8 => 1,
            Element::F16 | Element::BF16 => 2,
            Element::I32 | Element::U32 | Element::F32 => 4,
            Element::I64 | Element::U64 | Element::F64 => 8,
        }
    }
}

/// What a reduction makes of two elements; the average is their sum, divided in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    Sum,
    Product,
    Min,
    Max,
    Average,
}

impl Memory {
    /// `dst[i] = sources[0][i] op sources[1][i] op ..`, in that order, each step rounded to the type. Poison in an element of any source makes
    /// the result's poison. `dst` may be one of the sources.
    ///
    /// # Errors
    /// There are no sources, a range does not lie in one allocation, or an address is not aligned to elements.
    pub fn reduce(
        &self,
        dst: u64,
        sources: &[u64],
        count: u64,
        element: Element,
        reduction: Reduction,
    ) -> Result<(), Fault> {
        let size = element.bytes();
        let len =
            count.checked_mul(size).ok_or_else(|| Fault::new(format!("reduction of {count} elements")))?;
        if len == 0 {
            return Ok(());
        }
        if sources.is_empty() {
            return Err(Fault::new("reduction of nothing"));
        }
        let aligned = |addr: u64| {
            if addr.is_multiple_of(size) {
                Ok(())
            } else {
                Err(Fault::new(format!("reduction at {addr:#x}, misaligned")))
            }
        };
        aligned(dst)?;
        let to = self.place("reduction to", dst, len)?;
        let mut from = Vec::with_capacity(sources.len());
        for &source in sources {
            aligned(source)?;
            from.push(self.place("reduction of", source, len)?);
        }
        let size = size as usize;
        for offset in (0..len as usize).step_by(size) {
            let (mut value, mut poison) = (0, 0);
            for (n, place) in from.iter().enumerate() {
                let (next, bad) = place.allocation.storage.load(place.offset + offset, size);
                value = if n == 0 { next } else { join(element, reduction, value, next) };
                poison |= bad;
            }
            if reduction == Reduction::Average {
                value = divide(element, value, sources.len() as u64);
            }
            let poison = if poison == 0 { 0 } else { 0xff };
            to.allocation.storage.store(to.offset + offset, size, value, poison);
        }
        Ok(())
    }
}

fn join(element: Element, reduction: Reduction, a: u64, b: u64) -> u64 {
    let float = |a: f64, b: f64| match reduction {
        Reduction::Sum | Reduction::Average => a + b,
        Reduction::Product => a * b,
        Reduction::Min => a.min(b),
        Reduction::Max => a.max(b),
    };
    macro_rules! int {
        ($t:ty) => {{
            let (a, b) = (a as $t, b as $t);
            let joined = match reduction {
                Reduction::Sum | Reduction::Average => a.wrapping_add(b),
                Reduction::Product => a.wrapping_mul(b),
                Reduction::Min => a.min(b),
                Reduction::Max => a.max(b),
            };
            joined as u64
        }};
    }
    match element {
        Element::I8 => int!(i8),
        Element::U8 => int!(u8),
        Element::I32 => int!(i32),
        Element::U32 => int!(u32),
        Element::I64 => int!(i64),
        Element::U64 => int!(u64),
        // Sums and products of two of these are exact in f64 or rounded once more without a change (53 >= 2 * 24 + 2 bits).
        Element::F16 => {
            let wide = |x: u64| f16::from_bits(x as u16).to_f64();
            f16::from_f32(float(wide(a), wide(b)) as f32).to_bits().into()
        }
        Element::BF16 => {
            let wide = |x: u64| bf16::from_bits(x as u16).to_f64();
            bf16::from_f32(float(wide(a), wide(b)) as f32).to_bits().into()
        }
        Element::F32 => {
            let wide = |x: u64| f64::from(f32::from_bits(x as u32));
            (float(wide(a), wide(b)) as f32).to_bits().into()
        }
        Element::F64 => float(f64::from_bits(a), f64::from_bits(b)).to_bits(),
    }
}

fn divide(element: Element, a: u64, n: u64) -> u64 {
    match element {
        Element::I8 => (i64::from(a as i8) / n as i64) as u64,
        Element::U8 => u64::from(a as u8) / n,
        Element::I32 => (i64::from(a as i32) / n as i64) as u64,
        Element::U32 => u64::from(a as u32) / n,
        Element::I64 => (a as i64 / n as i64) as u64,
        Element::U64 => a / n,
        Element::F16 => f16::from_f32(f16::from_bits(a as u16).to_f32() / n as f32).to_bits().into(),
        Element::BF16 => bf16::from_f32(bf16::from_bits(a as u16).to_f32() / n as f32).to_bits().into(),
        Element::F32 => (f32::from_bits(a as u32) / n as f32).to_bits().into(),
        Element::F64 => (f64::from_bits(a) / n as f64).to_bits(),
    }
}
