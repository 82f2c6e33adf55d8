//! 8 floats in plain Rust.

use super::Simd;

#[derive(Clone, Copy)]
pub(in crate::attention) struct Portable([f32; 8]);

impl Portable {
    #[inline(always)]
    fn zip(self, y: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        let mut out = self.0;
        for (x, y) in out.iter_mut().zip(y.0) {
            *x = f(*x, y);
        }
        Self(out)
    }
}

impl Simd for Portable {
    const LANES: usize = 8;

    unsafe fn splat(x: f32) -> Self {
        Self([x; 8])
    }

    unsafe fn load(at: *const f32) -> Self {
        // SAFETY: the caller's promise, here and below.
        Self(unsafe { at.cast::<[f32; 8]>().read_unaligned() })
    }

    unsafe fn load_bf16(at: *const u16) -> Self {
        // SAFETY: as above.
        let bits = unsafe { at.cast::<[u16; 8]>().read_unaligned() };
        Self(bits.map(|b| f32::from_bits(u32::from(b) << 16)))
    }

    unsafe fn store(self, at: *mut f32) {
        // SAFETY: as above.
        unsafe { at.cast::<[f32; 8]>().write_unaligned(self.0) };
    }

    unsafe fn add(self, y: Self) -> Self {
        self.zip(y, |x, y| x + y)
    }

    unsafe fn sub(self, y: Self) -> Self {
        self.zip(y, |x, y| x - y)
    }

    unsafe fn mul(self, y: Self) -> Self {
        self.zip(y, |x, y| x * y)
    }

    unsafe fn div(self, y: Self) -> Self {
        self.zip(y, |x, y| x / y)
    }

    unsafe fn fma(self, y: Self, z: Self) -> Self {
        self.zip(y, |x, y| x * y).zip(z, |x, z| x + z)
    }

    unsafe fn max(self, y: Self) -> Self {
        self.zip(y, |x, y| if x > y { x } else { y })
    }

    unsafe fn round(self) -> Self {
        Self(self.0.map(f32::round_ties_even))
    }

    unsafe fn power_of_two(self) -> Self {
        Self(self.0.map(|n| f32::from_bits(((n as i32).wrapping_add(127) as u32) << 23)))
    }

    unsafe fn select_less(self, bound: Self, then: Self, other: Self) -> Self {
        let mut out = other.0;
        for (i, x) in out.iter_mut().enumerate() {
            if self.0[i] < bound.0[i] {
                *x = then.0[i];
            }
        }
        Self(out)
    }

    unsafe fn hide_unseen(self, k: i32, low: *const i32, high: *const i32) -> Self {
        let mut out = self.0;
        for (i, x) in out.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let (low, high) = unsafe { (*low.add(i), *high.add(i)) };
            if !(low < k && k <= high) {
                *x = f32::NEG_INFINITY;
            }
        }
        Self(out)
    }

    unsafe fn sum(self) -> f32 {
        self.0.iter().sum()
    }

    unsafe fn sums(x: &[Self]) -> Self {
        Self(std::array::from_fn(|i| x[i].0.iter().sum()))
    }

    unsafe fn largest(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    unsafe fn first(self) -> f32 {
        self.0[0]
    }

    unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, to_stride: usize) {
        for (i, j) in (0..8).flat_map(|i| (0..8).map(move |j| (i, j))) {
            // SAFETY: the caller's promise.
            unsafe { to.add(j * to_stride + i).write(from.add(i * stride + j).read()) };
        }
    }
}
