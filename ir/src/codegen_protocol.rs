//! What `pcc compile` and the `pcc-codegen` executable say to each other: one JSON object a line, a [`Request`] in, a
//! [`Reply`] out, any number of times, until standard input ends.

use crate::diagnostic::Diagnostic;
use crate::gpu::{Arch, LibraryKernel};
use crate::kernel::Kernel;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Kernels to generate and where to put the shared object, or the PTX.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub kernels: Vec<Kernel>,
    #[serde(default)]
    pub cpu: Cpu,
    /// PTX for a GPU instead of an object for a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// The shared object, or the PTX of all kernels; written aside and renamed.
    pub out: String,
    /// Folder of generated objects by content, made when it is not there. None: nothing is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
}

/// Which GPU to generate for, and what besides the fused kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    pub arch: Arch,
    /// Distinct.
    pub library: Vec<LibraryKernel>,
}

/// Which CPU to generate for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cpu {
    /// The documented features this machine has.
    #[default]
    Native,
    /// Exactly these features, as `is_x86_feature_detected` names them (and what they imply).
    Features(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reply {
    Built(Built),
    Failed { error: Diagnostic },
}

/// The shared object is in place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Built {
    /// Always true: tells the reply from an error at a glance.
    pub ok: bool,
    /// One per kernel of the request: equal kernels share one symbol.
    pub symbols: Vec<String>,
    /// Features the code may use: a machine must have them all.
    pub features: Vec<String>,
    /// SHA-256 of the shared object, in hex.
    pub object_digest: String,
    /// Kernels generated now, and taken from the cache.
    pub generated: u32,
    pub cached: u32,
    /// Wall seconds by step: `init`, `emit`, `link`, `total`.
    pub seconds: BTreeMap<String, f64>,
}
