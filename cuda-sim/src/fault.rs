//! What went wrong in a simulated device.

use std::fmt;

/// A fault of a kernel, of a copy or of their use: what, and where in the PTX (line) and grid (block, thread) if it happened there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub what: String,
    pub at: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at.is_empty() { f.write_str(&self.what) } else { write!(f, "{} at {}", self.what, self.at) }
    }
}

impl std::error::Error for Fault {}
