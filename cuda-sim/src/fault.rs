//! What went wrong in a simulated device.

use std::fmt;

/// A fault of a kernel, of a copy or of their use: what, and where in the PTX (line) and grid (block, thread) if it happened there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub what: String,
    pub at: String,
}

impl Fault {
    /// A fault with no place.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), at: String::new() }
    }

    /// The same at a place, unless one is known already.
    pub fn at(mut self, place: impl FnOnce() -> String) -> Self {
        if self.at.is_empty() {
            self.at = place();
        }
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at.is_empty() { f.write_str(&self.what) } else { write!(f, "{} at {}", self.what, self.at) }
    }
}

impl std::error::Error for Fault {}
