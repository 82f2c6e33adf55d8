//! PTX text, checked and made ready to run.

pub(crate) mod code;
mod decode;
mod lanes;
mod lex;
pub(crate) mod number;
pub(crate) mod slots;
mod syntax;
mod types;

use crate::Fault;
use code::Code;
use std::sync::Arc;

/// All kernels of a PTX text.
#[derive(Debug)]
pub struct Module {
    kernels: Vec<Kernel>,
    /// The architecture of `.target`.
    pub target: String,
}

/// A kernel that can be launched.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub name: String,
    /// Bytes of each parameter, in order.
    pub params: Vec<u32>,
    /// Bytes of static shared memory.
    pub shared: u32,
    /// Threads of a block at most, if `.maxntid` or `.reqntid` says so.
    pub max_threads: Option<u32>,
    /// Threads that a block must have, if `.reqntid` says so.
    pub threads: Option<u32>,
    pub(crate) code: Arc<Code>,
}

impl Module {
    /// Reads a PTX text.
    ///
    /// # Errors
    /// The text is wrong, or has a directive, opcode, modifier or type that is not known here; the line is named.
    pub fn load(text: &str) -> Result<Module, Fault> {
        let parsed = syntax::parse(text)?;
        let data = Arc::new(decode::lay_out_data(&parsed.variables)?);
        let whole: Arc<str> = text.into();
        let mut kernels: Vec<Kernel> = Vec::new();
        for entry in &parsed.entries {
            if kernels.iter().any(|k| k.name == entry.name) {
                return Err(Fault::new(format!("two kernels named {}", entry.name)));
            }
            let code = decode::kernel(entry, &parsed.variables, &data, (&whole, &parsed.target))?;
            kernels.push(Kernel {
                name: entry.name.clone(),
                params: code.params.iter().map(|p| p.bytes as u32).collect(),
                shared: code.shared.iter().map(|r| r.bytes as u32).sum(),
                max_threads: entry.max_threads,
                threads: entry.threads,
                code: Arc::new(code),
            });
        }
        Ok(Module { kernels, target: parsed.target })
    }

    /// The kernel of a name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|k| k.name == name)
    }

    /// Every kernel.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }
}
