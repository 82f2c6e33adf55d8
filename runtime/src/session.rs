//! A program in memory, ready to run its entries.

#[cfg(feature = "cuda")]
use crate::cuda::{Cluster, GpuOptions};
use crate::distribute::{HostSide, Sizes};
use crate::executor::{Executor, Run, Settings};
use crate::kernels::KernelSet;
use crate::layout::Layout;
use crate::machine::Machine;
use crate::memory::Mapping;
use crate::params::{self, Progress};
use crate::tensor::HostTensor;
use crate::trace::{TraceSink, Traced};
use crate::{collect, distribute, validate};
use pcc_ir::Diagnostic;
use pcc_ir::program::{EntryProgram, IoSpec, Program, Task};
use pcc_ir::source::ReadParams;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};

/// How a session runs.
#[derive(Clone, Default)]
pub struct Options {
    /// Threads; 0 means one a core the process may use. Results are the same bits for any number.
    pub workers: usize,
    /// Takes the time of every instruction, after each run; nothing is timed without one.
    pub trace: Option<TraceSink>,
    /// Whether to fill all buffers but parameters and states with NaN before each run: shows whether something is read that the run did not
    /// write.
    pub poison: bool,
    /// Set to true, from any thread, to end the run between instructions.
    pub cancel: Arc<AtomicBool>,
}

/// A loaded program: parameters and states live here, runs go through [`Session::run`].
pub struct Session {
    backend: Backend,
    trace: Option<TraceSink>,
    poison: bool,
}

/// Where the program is loaded.
enum Backend {
    Cpu(Executor),
    #[cfg(feature = "cuda")]
    Gpu(Cluster),
}

impl Backend {
    fn host(&self) -> &dyn HostSide {
        match self {
            Backend::Cpu(executor) => &executor.shared().machine,
            #[cfg(feature = "cuda")]
            Backend::Gpu(cluster) => cluster.host(),
        }
    }
}

impl Session {
    /// Checks the program, allocates its memory and loads parameters in parallel, telling `progress`.
    ///
    /// # Errors
    /// The program is damaged, the machine has too little memory, or a parameter cannot be read.
    pub fn new(
        program: Program,
        kernels: Box<dyn KernelSet>,
        weights: &dyn ReadParams,
        options: &Options,
        progress: Progress<'_>,
    ) -> Result<Self, Diagnostic> {
        let program = program.expanded()?;
        validate::check(&program)?;
        let layout = Layout::new(&program)?;
        let memory = Mapping::new(layout.total)?;
        params::load(&program, &layout, &memory, weights, progress)?;
        let settings = Settings {
            workers: options.workers,
            trace: options.trace.is_some(),
            cancel: options.cancel.clone(),
        };
        let executor = Executor::new(Machine::new(program, layout, memory, kernels), settings)?;
        Ok(Self { backend: Backend::Cpu(executor), trace: options.trace.clone(), poison: options.poison })
    }

    /// As [`Session::new`], on GPUs: a program for one of [`pcc_ir::gpu::Arch`], with the PTX of its kernels.
    ///
    /// # Errors
    /// Also: no driver or too old a one, not enough GPUs or others than compiled for, too little memory on one.
    #[cfg(feature = "cuda")]
    pub fn on_gpus(
        program: Program,
        ptx: String,
        weights: &dyn ReadParams,
        options: &Options,
        gpus: &GpuOptions,
        progress: Progress<'_>,
    ) -> Result<Self, Diagnostic> {
        let program = program.expanded()?;
        validate::check(&program)?;
        let cluster = Cluster::new(program, ptx, weights, gpus, options.cancel.clone(), progress)?;
        Ok(Self { backend: Backend::Gpu(cluster), trace: None, poison: false })
    }

    /// Whether this process speaks for all: of several that run one program together, one shows and writes the results.
    pub fn is_first(&self) -> bool {
        match &self.backend {
            Backend::Cpu(_) => true,
            #[cfg(feature = "cuda")]
            Backend::Gpu(cluster) => cluster.is_first(),
        }
    }

    /// The loaded program.
    pub fn program(&self) -> &Program {
        self.backend.host().program()
    }

    /// Bytes of all devices together.
    pub fn memory_bytes(&self) -> usize {
        self.backend.host().layout().total
    }

    /// Runs `entry` on `rows` rows, at most the batch compiled for. Inputs are by name, with `rows` as their batch extent and a
    /// sequence extent of at most the capacity, the same for all; what is missing is padded with zeros. Outputs have the
    /// same extents. States keep what the run left in them.
    ///
    /// # Errors
    /// An input is missing, unknown, or does not fit; the run is cancelled or fails (states are then undefined until
    /// [`Session::reset_states`]).
    pub fn run(
        &mut self,
        entry: &str,
        inputs: &BTreeMap<String, HostTensor>,
        rows: usize,
    ) -> Result<BTreeMap<String, HostTensor>, Diagnostic> {
        let mut outputs = BTreeMap::new();
        self.run_into(entry, inputs, rows, &mut outputs)?;
        Ok(outputs)
    }

    /// As [`Session::run`], into `outputs`, whose memory is used again where it is enough: for runs in a loop with large outputs.
    /// Names that are no outputs are removed; after an error what it holds is of no use.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_into(
        &mut self,
        entry: &str,
        inputs: &BTreeMap<String, HostTensor>,
        rows: usize,
        outputs: &mut BTreeMap<String, HostTensor>,
    ) -> Result<(), Diagnostic> {
        let program = self.program();
        let index = find_entry(program, entry)?;
        let batch = program.batch;
        if rows == 0 || rows > batch.batch {
            return Err(Diagnostic::input(format!("{rows} rows were given"))
                .why(format!("the program was compiled for 1 to {}", batch.batch))
                .help("give fewer rows, or compile with a larger --batch"));
        }
        // Missing rows are zeros and not masked: what is reduced over the batch would count them.
        let io = &program.entries[index];
        let has_rows = |spec: &IoSpec| spec.batch_dim.is_some();
        if rows < batch.batch
            && io.inputs.iter().any(has_rows)
            && let Some(reduced) = io.outputs.iter().find(|o| !has_rows(o))
        {
            return Err(Diagnostic::input(format!("{rows} rows were given"))
                .why(format!(
                    "output `{}` is over the whole batch, of the {} rows compiled for",
                    reduced.name, batch.batch
                ))
                .help(format!("give {} rows, or compile with --batch {rows}", batch.batch)));
        }
        if self.poison
            && let Backend::Cpu(executor) = &self.backend
        {
            poison(&executor.shared().machine);
        }
        let seq = distribute::write_inputs(self.backend.host(), index, inputs, rows)?;
        refuse_short_reduction(self.program(), index, seq)?;
        let has_rows = |&m: &usize| (0..batch.replicas).any(|r| !batch.cell(rows, r, m).is_empty());
        let micro_batches: Vec<usize> = (0..batch.micro_batches).filter(has_rows).collect();
        let sizes = Sizes { rows, seq };
        match &mut self.backend {
            Backend::Cpu(executor) => {
                let outcome = executor.run(Run { entry: index, micro_batches, rows, seq });
                // Also those of a run that failed: they would be taken for the next one's.
                let handed_over = self.hand_over_events(rows, seq);
                outcome?;
                handed_over?;
            }
            #[cfg(feature = "cuda")]
            Backend::Gpu(cluster) => cluster.run(index, micro_batches, sizes)?,
        }
        collect::outputs(self.backend.host(), index, sizes, outputs)
    }

    /// Sets all states to zero, as they are at the start.
    ///
    /// # Errors
    /// A GPU fails.
    pub fn reset_states(&mut self) -> Result<(), Diagnostic> {
        let machine = match &self.backend {
            Backend::Cpu(executor) => &executor.shared().machine,
            #[cfg(feature = "cuda")]
            Backend::Gpu(cluster) => return cluster.reset_states(),
        };
        for device in 0..machine.program.mesh.devices() {
            for extent in machine.layout.states_of(device, machine.program.batch.micro_batches) {
                machine.memory.window(extent.offset, extent.len).zero();
            }
        }
        Ok(())
    }

    /// Hands the times of a run to whoever asked for them.
    fn hand_over_events(&self, rows: usize, seq: Option<usize>) -> Result<(), Diagnostic> {
        let Some(sink) = &self.trace else { return Ok(()) };
        let mut events = match &self.backend {
            Backend::Cpu(executor) => executor.take_events(),
            #[cfg(feature = "cuda")]
            Backend::Gpu(_) => return Ok(()),
        };
        events.sort_by_key(|e| (e.start, e.device));
        let traced = Traced { program: self.program(), events: &events, rows, seq };
        sink.lock().unwrap_or_else(PoisonError::into_inner).add(&traced)
    }
}

/// Fills everything that no run may rely on with bytes that are NaN in every float type.
fn poison(machine: &Machine) {
    for device in 0..machine.program.mesh.devices() {
        for extent in machine.layout.scratch_of(device) {
            machine.memory.window(extent.offset, extent.len).fill(0xFF);
        }
    }
}

/// Positions past a shorter sequence are zeros. Language models and encoders mask them; what another graph reduces over the
/// sequence would count them.
fn refuse_short_reduction(program: &Program, entry: usize, seq: Option<usize>) -> Result<(), Diagnostic> {
    let io = &program.entries[entry];
    let capacity = io.inputs.iter().find_map(|i| i.seq_dim.map(|d| i.ty.shape[d]));
    let (Some(given), Some(capacity)) = (seq, capacity) else { return Ok(()) };
    let reduced = io.outputs.iter().find(|o| o.seq_dim.is_none());
    match reduced {
        Some(output) if program.model.task == Task::Graph && given < capacity => {
            Err(Diagnostic::input(format!("{given} positions were given"))
                .why(format!(
                    "output `{}` is over the whole sequence, of the {capacity} compiled for",
                    output.name
                ))
                .help(format!("give {capacity} positions, or compile the model for {given}")))
        }
        _ => Ok(()),
    }
}

/// The index of an entry by name.
fn find_entry(program: &Program, name: &str) -> Result<usize, Diagnostic> {
    let found = program.entries.iter().position(|e: &EntryProgram| e.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = program.entries.iter().map(|e| e.name.as_str()).collect();
        Diagnostic::input(format!("the program has no entry `{name}`"))
            .help(format!("it has {}", names.join(", ")))
    })
}
