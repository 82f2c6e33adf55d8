//! The bytes of one allocation, each with a bit that says whether it was ever written.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

/// Bytes that several host threads may use at once: kernels of several streams, and copies. Words are atomic so that this is sound; order between
/// threads comes from whoever starts the work.
pub(crate) struct Storage {
    words: Box<[AtomicU32]>,
    /// One of these a word: bit i is set if byte i was written with a value.
    written: Box<[AtomicU8]>,
}

impl Storage {
    /// Nothing written yet.
    pub(crate) fn new(bytes: u64) -> Self {
        let words = bytes.div_ceil(4);
        Self {
            words: (0..words).map(|_| AtomicU32::new(0)).collect(),
            written: (0..words).map(|_| AtomicU8::new(0)).collect(),
        }
    }

    /// A value of 1, 2, 4 or 8 bytes at a multiple of its size, and which of its bytes are poison.
    #[inline]
    pub(crate) fn load(&self, offset: usize, size: usize) -> (u64, u8) {
        let word = offset / 4;
        let value = self.words[word].load(Relaxed);
        let written = self.written[word].load(Relaxed);
        match size {
            4 => (value.into(), !written & 0xf),
            8 => {
                let high = self.words[word + 1].load(Relaxed);
                let more = self.written[word + 1].load(Relaxed);
                (u64::from(value) | u64::from(high) << 32, !(written | more << 4))
            }
            _ => {
                let byte = offset % 4;
                let mask = (1u32 << (8 * size)) - 1;
                ((value >> (8 * byte) & mask).into(), !(written >> byte) & ((1 << size) - 1))
            }
        }
    }

    /// Stores a value of 1, 2, 4 or 8 bytes at a multiple of its size; bytes in `poison` become poison.
    #[inline]
    pub(crate) fn store(&self, offset: usize, size: usize, value: u64, poison: u8) {
        let word = offset / 4;
        match size {
            4 => self.store_word(word, value as u32, poison),
            8 => {
                self.store_word(word, value as u32, poison);
                self.store_word(word + 1, (value >> 32) as u32, poison >> 4);
            }
            _ => {
                let byte = offset % 4;
                let mask = ((1u32 << (8 * size)) - 1) << (8 * byte);
                let bits = (value as u32) << (8 * byte) & mask;
                let changed = |old: u32| Some(old & !mask | bits);
                // The function always answers, so this does not fail.
                let _ = self.words[word].fetch_update(Relaxed, Relaxed, changed);
                let all = ((1u8 << size) - 1) << byte;
                let bad = poison << byte & all;
                let changed = |old: u8| Some(old & !all | (all & !bad));
                let _ = self.written[word].fetch_update(Relaxed, Relaxed, changed);
            }
        }
    }

    #[inline]
    fn store_word(&self, word: usize, value: u32, poison: u8) {
        self.words[word].store(value, Relaxed);
        self.written[word].store(!poison & 0xf, Relaxed);
    }

    /// The largest step that can be made at this offset with so much left.
    pub(crate) fn step(offset: usize, left: usize) -> usize {
        if offset.is_multiple_of(4) && left >= 4 { 4 } else { 1 }
    }

    /// Bytes from `offset` on. The error is the offset of the first that was never written.
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), usize> {
        let mut done = 0;
        while done < out.len() {
            let size = Self::step(offset + done, out.len() - done);
            let (value, poison) = self.load(offset + done, size);
            if poison != 0 {
                return Err(offset + done + poison.trailing_zeros() as usize);
            }
            out[done..done + size].copy_from_slice(&value.to_le_bytes()[..size]);
            done += size;
        }
        Ok(())
    }

    /// Writes bytes from `offset` on.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let size = Self::step(offset + done, bytes.len() - done);
            let mut value = [0; 8];
            value[..size].copy_from_slice(&bytes[done..done + size]);
            self.store(offset + done, size, u64::from_le_bytes(value), 0);
            done += size;
        }
    }

    /// One value for `len` bytes; `poison`: they count as never written.
    pub(crate) fn fill(&self, offset: usize, len: usize, byte: u8, poison: bool) {
        let value = u64::from_le_bytes([byte; 8]);
        let mut done = 0;
        while done < len {
            let size = Self::step(offset + done, len - done);
            self.store(offset + done, size, value, if poison { 0xff } else { 0 });
            done += size;
        }
    }

    /// Copies bytes, poison too. Within one storage the ranges may not overlap.
    pub(crate) fn copy_from(&self, offset: usize, from: &Storage, source: usize, len: usize) {
        let mut done = 0;
        while done < len {
            let left = len - done;
            let size = Self::step(offset + done, left).min(Self::step(source + done, left));
            let (value, poison) = from.load(source + done, size);
            self.store(offset + done, size, value, poison);
            done += size;
        }
    }

    /// Replaces a value of 2, 4 or 8 bytes by a function of it; poison in it or in `poison` stays. Answers the old value and its poison.
    pub(crate) fn update(&self, offset: usize, size: usize, poison: u8, f: impl Fn(u64) -> u64) -> (u64, u8) {
        let (old, bad) = self.load(offset, size);
        let all = if bad | poison == 0 { 0 } else { 0xff };
        self.store(offset, size, f(old), all);
        (old, bad)
    }
}
