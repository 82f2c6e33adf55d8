//! Reductions of equal buffers, element by element, in the order of the list.

use super::Window;
use half::{bf16, f16};
use pcc_ir::{DType, ReduceKind};

/// Elements reduced at a time: the accumulator stays in the first-level cache.
const BLOCK: usize = 2048;

/// A run of elements in a window: byte offset and window.
#[derive(Clone, Copy)]
pub(crate) struct Region<'m> {
    pub(crate) window: Window<'m>,
    pub(crate) offset: usize,
}

/// `to[i] = from[0] op from[1] op ...` over `count` elements, for every region of `to`. Sources are read before targets are
/// written, block by block, so that a target may be one of the sources. 16-bit floats are summed in f32 and rounded once.
pub(crate) fn reduce_block(
    kind: ReduceKind,
    dtype: DType,
    count: usize,
    from: &[Region<'_>],
    to: &[Region<'_>],
) {
    match dtype {
        DType::F32 => run::<f32, f32>(kind, count, from, to),
        DType::F64 => run::<f64, f64>(kind, count, from, to),
        DType::BF16 => run::<bf16, f32>(kind, count, from, to),
        DType::F16 => run::<f16, f32>(kind, count, from, to),
        DType::I32 => run::<i32, i32>(kind, count, from, to),
        DType::I64 => run::<i64, i64>(kind, count, from, to),
        DType::Bool => run::<u8, u8>(kind, count, from, to),
    }
}

/// What elements are combined in.
trait Accumulator: Copy + Default {
    fn combine(kind: ReduceKind, acc: &mut [Self], from: impl Iterator<Item = Self>);
}

macro_rules! accumulator {
    ($t:ty, $sum:expr, $max:expr, $min:expr) => {
        impl Accumulator for $t {
            fn combine(kind: ReduceKind, acc: &mut [Self], from: impl Iterator<Item = Self>) {
                let (sum, max, min): (fn($t, $t) -> $t, fn($t, $t) -> $t, fn($t, $t) -> $t) =
                    ($sum, $max, $min);
                // One loop a kind, so that each is vectorised.
                match kind {
                    ReduceKind::Sum => acc.iter_mut().zip(from).for_each(|(a, b)| *a = sum(*a, b)),
                    ReduceKind::Max => acc.iter_mut().zip(from).for_each(|(a, b)| *a = max(*a, b)),
                    ReduceKind::Min => acc.iter_mut().zip(from).for_each(|(a, b)| *a = min(*a, b)),
                }
            }
        }
    };
}
accumulator!(f32, |a, b| a + b, f32::max, f32::min);
accumulator!(f64, |a, b| a + b, f64::max, f64::min);
accumulator!(i32, i32::wrapping_add, |a, b| a.max(b), |a, b| a.min(b));
accumulator!(i64, i64::wrapping_add, |a, b| a.max(b), |a, b| a.min(b));
accumulator!(u8, |a, b| a | b, |a, b| a.max(b), |a, b| a.min(b));

/// A stored element and how it becomes an accumulator.
trait Element<A>: Copy {
    fn widen(self) -> A;
    fn narrow(acc: A) -> Self;
}

macro_rules! element {
    ($t:ty, $a:ty, $widen:expr, $narrow:expr) => {
        impl Element<$a> for $t {
            fn widen(self) -> $a {
                ($widen)(self)
            }
            fn narrow(acc: $a) -> Self {
                ($narrow)(acc)
            }
        }
    };
}
element!(f32, f32, |x| x, |x| x);
element!(f64, f64, |x| x, |x| x);
element!(i32, i32, |x| x, |x| x);
element!(i64, i64, |x| x, |x| x);
element!(u8, u8, |x| x, |x| x);
element!(bf16, f32, bf16::to_f32, bf16::from_f32);
element!(f16, f32, f16::to_f32, f16::from_f32);

fn run<T: Element<A>, A: Accumulator>(
    kind: ReduceKind,
    count: usize,
    from: &[Region<'_>],
    to: &[Region<'_>],
) {
    let mut acc = [A::default(); BLOCK];
    let mut done = 0;
    while done < count {
        let n = BLOCK.min(count - done);
        let acc = &mut acc[..n];
        for (i, region) in from.iter().enumerate() {
            let source = elements::<T>(region, done, n);
            // SAFETY: `elements` checked range and alignment of n elements; every source is initialised memory.
            let values = (0..n).map(|j| unsafe { source.add(j).read() }.widen());
            if i == 0 {
                acc.iter_mut().zip(values).for_each(|(a, v)| *a = v);
            } else {
                A::combine(kind, acc, values);
            }
        }
        for region in to {
            let target = elements::<T>(region, done, n);
            for (j, &a) in acc.iter().enumerate() {
                // SAFETY: `elements` checked range and alignment of n elements; the executor lets no one else at the target.
                unsafe { target.add(j).write(T::narrow(a)) };
            }
        }
        done += n;
    }
}

/// Address of elements `skip..skip + count` of a region, checked.
fn elements<T>(region: &Region<'_>, skip: usize, count: usize) -> *mut T {
    let size = size_of::<T>();
    let part = region.window.part(region.offset + skip * size, count * size);
    let start = part.as_ptr();
    assert!((start as usize).is_multiple_of(align_of::<T>()), "element at an odd address");
    start.cast()
}

#[cfg(test)]
mod tests {
    use super::super::Mapping;
    use super::*;

    /// Four buffers of `count` elements; the first three are reduced into the fourth and, in place, into the first.
    fn reduced(
        kind: ReduceKind,
        dtype: DType,
        count: usize,
        value: impl Fn(usize, usize) -> f64,
    ) -> Vec<f64> {
        let mapping = Mapping::new(4 * count * 8).unwrap();
        let windows: Vec<_> = (0..4).map(|i| mapping.window(i * count * 8, count * 8)).collect();
        for (i, w) in windows.iter().enumerate().take(3) {
            (0..count).for_each(|j| w.store(dtype, j, value(i, j)).unwrap());
        }
        let regions: Vec<_> = windows.iter().map(|&window| Region { window, offset: 0 }).collect();
        reduce_block(kind, dtype, count, &regions[..3], &[regions[3], regions[0]]);
        let out: Vec<_> = (0..count).map(|j| windows[3].load(dtype, j).unwrap()).collect();
        assert_eq!(out, (0..count).map(|j| windows[0].load(dtype, j).unwrap()).collect::<Vec<_>>());
        out
    }

    #[test]
    fn every_kind_and_type_has_its_closed_form() {
        let count = BLOCK + 5;
        let value = |i: usize, j: usize| ((i * 7 + j) % 11) as f64 - 5.0;
        for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16, DType::I64, DType::I32] {
            for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min] {
                let out = reduced(kind, dtype, count, value);
                for (j, &v) in out.iter().enumerate() {
                    let expected = (1..3).fold(value(0, j), |a, i| kind.apply(a, value(i, j)));
                    assert_eq!(v, expected, "{kind:?} {dtype} {j}");
                }
            }
        }
        let any = reduced(ReduceKind::Max, DType::Bool, 9, |i, j| f64::from(u8::from(i == j)));
        assert_eq!(any, [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn half_floats_are_summed_in_f32() {
        // 256 + 1 + 1: in bf16 (8 bits of mantissa) 256 + 1 rounds back to 256, the f32 sum 258 does not.
        let out = reduced(ReduceKind::Sum, DType::BF16, 4, |i, _| if i == 0 { 256.0 } else { 1.0 });
        assert_eq!(out, [258.0; 4]);
    }
}
