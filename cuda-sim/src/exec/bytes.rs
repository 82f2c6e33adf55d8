//! Bytes of shared or local memory, each with its poison.

use crate::ptx::code::low;

/// Bytes behind the last, so that eight can always be taken.
const PAD: usize = 8;

pub(super) struct Bytes {
    bytes: Vec<u8>,
    /// 1 where nothing was written.
    poison: Vec<u8>,
}

impl Bytes {
    pub(super) fn new(size: usize) -> Self {
        Self { bytes: vec![0; size + PAD], poison: vec![1; size + PAD] }
    }

    /// Nothing is written any more.
    pub(super) fn reset(&mut self) {
        self.poison.fill(1);
    }

    /// Up to 8 bytes, and which of them are poison.
    #[inline]
    pub(super) fn peek(&self, at: usize, size: usize) -> (u64, u8) {
        let eight = |from: &[u8]| from[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let poison = low(eight(&self.poison), size as u8);
        // The product gathers bit 0 of each byte in the top byte, lowest first.
        let gathered = if poison == 0 { 0 } else { (poison.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8 };
        (low(eight(&self.bytes), size as u8), gathered)
    }

    /// Writes 1, 2, 4 or 8 bytes.
    #[inline]
    pub(super) fn poke(&mut self, at: usize, size: usize, value: u64, poison: u8) {
        // Bit i to byte i.
        let spread = if poison == 0 {
            0
        } else {
            (0..8).fold(0, |all, n| all | u64::from(poison >> n & 1) << (8 * n))
        };
        match size {
            8 => self.put(at, value.to_le_bytes(), spread.to_le_bytes()),
            4 => self.put(at, (value as u32).to_le_bytes(), (spread as u32).to_le_bytes()),
            2 => self.put(at, (value as u16).to_le_bytes(), (spread as u16).to_le_bytes()),
            _ => self.put(at, [value as u8], [spread as u8]),
        }
    }

    #[inline]
    fn put<const N: usize>(&mut self, at: usize, value: [u8; N], poison: [u8; N]) {
        self.bytes[at..at + N].copy_from_slice(&value);
        self.poison[at..at + N].copy_from_slice(&poison);
    }
}

#[cfg(test)]
mod tests {
    use super::Bytes;

    #[test]
    fn poison_is_of_single_bytes() {
        let mut bytes = Bytes::new(16);
        bytes.poke(0, 8, 0x8877_6655_4433_2211, 0b1010_0001);
        assert_eq!(bytes.peek(0, 8), (0x8877_6655_4433_2211, 0b1010_0001));
        assert_eq!(bytes.peek(4, 2), (0x6655, 0b10));
        bytes.poke(5, 1, 0xab, 0);
        assert_eq!(bytes.peek(4, 4), (0x8877_ab55, 0b1000));
        assert_eq!(bytes.peek(8, 8).1, 0xff);
        bytes.reset();
        assert_eq!(bytes.peek(5, 1), (0xab, 1));
    }
}
