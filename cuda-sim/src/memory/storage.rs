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

    /// Bytes from `offset` on. The error is the offset of the first that was never written.
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), usize> {
        let mut done = 0;
        while done < out.len() {
            let at = offset + done;
            let whole = Self::words_at(at, out.len() - done);
            let words = self.words[at / 4..].iter().zip(&self.written[at / 4..]);
            for ((word, written), out) in words.zip(out[done..done + 4 * whole].chunks_exact_mut(4)) {
                if written.load(Relaxed) != 0xf {
                    break;
                }
                out.copy_from_slice(&word.load(Relaxed).to_le_bytes());
                done += 4;
            }
            if done == out.len() {
                break;
            }
            // A byte before or behind the whole words, or the place where something is missing.
            let (value, poison) = self.load(offset + done, 1);
            if poison != 0 {
                return Err(offset + done);
            }
            out[done] = value as u8;
            done += 1;
        }
        Ok(())
    }

    /// How many whole words start here.
    fn words_at(offset: usize, left: usize) -> usize {
        if offset.is_multiple_of(4) { left / 4 } else { 0 }
    }

    /// Writes bytes from `offset` on.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done;
            let whole = Self::words_at(at, bytes.len() - done);
            let words = self.words[at / 4..].iter().zip(&self.written[at / 4..]);
            for ((word, written), bytes) in words.zip(bytes[done..].as_chunks().0.iter().take(whole)) {
                word.store(u32::from_le_bytes(*bytes), Relaxed);
                written.store(0xf, Relaxed);
            }
            done += 4 * whole;
            if let Some(&byte) = bytes.get(done) {
                self.store(offset + done, 1, byte.into(), 0);
                done += 1;
            }
        }
    }

    /// One value for `len` bytes; `poison`: they count as never written.
    pub(crate) fn fill(&self, offset: usize, len: usize, byte: u8, poison: bool) {
        let (value, bad) = (u64::from_le_bytes([byte; 8]), if poison { 0xff } else { 0 });
        let mut done = 0;
        while done < len {
            let at = offset + done;
            let whole = Self::words_at(at, len - done);
            for word in at / 4..at / 4 + whole {
                self.store_word(word, value as u32, bad);
            }
            done += 4 * whole;
            if done < len {
                self.store(offset + done, 1, value, bad);
                done += 1;
            }
        }
    }

    /// Copies bytes, poison too. Within one storage the ranges may not overlap.
    pub(crate) fn copy_from(&self, offset: usize, from: &Storage, source: usize, len: usize) {
        let mut done = 0;
        while done < len {
            let (to, at) = (offset + done, source + done);
            let whole = Self::words_at(to, len - done).min(Self::words_at(at, len - done));
            for n in 0..whole {
                let (word, written) = (&from.words[at / 4 + n], &from.written[at / 4 + n]);
                self.words[to / 4 + n].store(word.load(Relaxed), Relaxed);
                self.written[to / 4 + n].store(written.load(Relaxed), Relaxed);
            }
            done += 4 * whole;
            if done < len {
                let (value, poison) = from.load(source + done, 1);
                self.store(offset + done, 1, value, poison);
                done += 1;
            }
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
