//! GPU architectures that code is generated for.

use serde::{Deserialize, Serialize};

/// A target of LLVM's NVPTX back end that pcc has checked. LLVM aborts on pairs of architecture and PTX version that it does not know, so only
/// these are ever handed to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arch {
    #[serde(rename = "sm_80")]
    Sm80,
    #[serde(rename = "sm_90")]
    Sm90,
    #[serde(rename = "sm_90a")]
    Sm90a,
    #[serde(rename = "sm_100a")]
    Sm100a,
}

impl Arch {
    pub const ALL: [Arch; 4] = [Arch::Sm80, Arch::Sm90, Arch::Sm90a, Arch::Sm100a];

    /// As `--target`, LLVM and ptxas have it.
    pub fn name(self) -> &'static str {
        match self {
            Arch::Sm80 => "sm_80",
            Arch::Sm90 => "sm_90",
            Arch::Sm90a => "sm_90a",
            Arch::Sm100a => "sm_100a",
        }
    }

    /// The architecture of a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.name() == name)
    }

    /// The PTX version that code is written in, as LLVM's feature: the oldest that has the architecture and all that kernels use, so that old
    /// drivers can load it. (PTX ISA, release notes.)
    pub fn ptx(self) -> &'static str {
        match self {
            Arch::Sm80 => "ptx70",
            Arch::Sm90 => "ptx78",
            Arch::Sm90a => "ptx80",
            Arch::Sm100a => "ptx86",
        }
    }

    /// Compute capability: major, minor.
    pub fn capability(self) -> (u32, u32) {
        match self {
            Arch::Sm80 => (8, 0),
            Arch::Sm90 | Arch::Sm90a => (9, 0),
            Arch::Sm100a => (10, 0),
        }
    }

    /// Whether a device of this capability runs the code: newer ones too, unless the architecture is one of those (`a`) that promise
    /// nothing for others.
    pub fn runs_on(self, capability: (u32, u32)) -> bool {
        match self {
            Arch::Sm90a | Arch::Sm100a => capability == self.capability(),
            Arch::Sm80 | Arch::Sm90 => capability >= self.capability(),
        }
    }
}
