//! Reads little-endian fields of a header, never past its end. Errors are the reason alone.

/// A position in a header.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Bytes left.
    pub(super) fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    pub(super) fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(n);
        match end.and_then(|end| self.bytes.get(self.at..end)) {
            Some(taken) => {
                self.at += n;
                Ok(taken)
            }
            None => {
                Err(format!("the header ends at byte {} where {n} more bytes are needed", self.bytes.len()))
            }
        }
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| "the header ends early".to_string())
    }

    pub(super) fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A u64 count that must at least be one of bytes left.
    pub(super) fn count(&mut self, of: &str) -> Result<usize, String> {
        let n = self.u64()?;
        let fits = usize::try_from(n).ok().filter(|&n| n <= self.left());
        fits.ok_or_else(|| format!("it claims {n} {of}, but only {} bytes follow", self.left()))
    }

    /// A u64 length and that many bytes of UTF-8.
    pub(super) fn string(&mut self, what: &str) -> Result<String, String> {
        let n = self.count(&format!("bytes of {what}"))?;
        let bytes = self.take(n)?;
        match std::str::from_utf8(bytes) {
            Ok(s) => Ok(s.to_string()),
            Err(e) => Err(format!("{what} at byte {} is not UTF-8: {e}", self.at - n)),
        }
    }

    /// A string that must not be empty.
    pub(super) fn name(&mut self, what: &str) -> Result<String, String> {
        let name = self.string(what)?;
        if name.is_empty() { Err(format!("{what} at byte {} is empty", self.at)) } else { Ok(name) }
    }
}
