//! What the ranks of a GPU have in common: its context, and the program's kernels on it. The driver compiles PTX anew for every module that is
//! loaded, which takes seconds for a large program, and each copy has memory of its own.

use super::driver::{Context, Module};
use std::sync::{Arc, OnceLock};

/// A GPU, opened by the first of its ranks that comes; the others wait for it. GPUs are opened at the same time.
pub(super) struct Shared {
    ordinal: usize,
    ptx: Arc<str>,
    opened: OnceLock<Result<Opened, Unopened>>,
}

/// Modules go before their context does.
struct Opened {
    module: Module,
    context: Context,
}

/// Why a GPU cannot be used: what was done, and what went wrong.
#[derive(Clone, Debug)]
pub(super) struct Unopened {
    pub(super) doing: &'static str,
    pub(super) why: String,
}

/// The beginning of what a compiler says: it may quote lines of any length.
fn shortened(log: &str) -> String {
    log.chars().take(600).collect()
}

impl Shared {
    pub(super) fn new(ordinal: usize, ptx: Arc<str>) -> Self {
        Self { ordinal, ptx, opened: OnceLock::new() }
    }

    /// Makes the GPU the calling thread's; its kernels.
    pub(super) fn enter(&self) -> Result<&Module, Unopened> {
        let opened = self.opened.get_or_init(|| self.open()).as_ref().map_err(Clone::clone)?;
        let failed = |e: super::driver::Failure| Unopened { doing: OPENING, why: e.to_string() };
        opened.context.bind().map_err(failed)?;
        Ok(&opened.module)
    }

    fn open(&self) -> Result<Opened, Unopened> {
        let failed = |e: super::driver::Failure| Unopened { doing: OPENING, why: e.to_string() };
        let context = Context::new(self.ordinal).map_err(failed)?;
        let module = Module::load(&self.ptx).map_err(|refused| {
            let why = match refused.log.is_empty() {
                true => refused.failure.to_string(),
                false => format!("{}: {}", refused.failure, shortened(&refused.log)),
            };
            Unopened { doing: "loading the kernels", why }
        })?;
        Ok(Opened { module, context })
    }
}

const OPENING: &str = "opening the device";

impl Drop for Opened {
    fn drop(&mut self) {
        // The last rank may be gone and another thread drop this: a module is unloaded in its own context. If that cannot be entered, the module goes
        // with it.
        let _ = self.context.bind();
    }
}
