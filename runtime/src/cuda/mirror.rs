//! The host's copy of the devices' inputs and outputs.

use super::plan::Plan;
use crate::distribute::HostSide;
use crate::layout::{Layout, local_bytes};
use crate::memory::{Mapping, Window};
use pcc_ir::Diagnostic;
use pcc_ir::program::{IoSpec, Program, Slot};
use std::sync::Arc;

/// One range a device, in which inputs and outputs lie as they do in its memory.
pub(super) struct Mirror {
    plan: Arc<Plan>,
    memory: Mapping,
    /// Of each device: where its range begins, here and in its memory.
    starts: Vec<(usize, usize)>,
}

impl Mirror {
    pub(super) fn new(plan: Arc<Plan>) -> Result<Self, Diagnostic> {
        let (mut starts, mut total) = (Vec::new(), 0usize);
        for device in 0..plan.program.mesh.devices() {
            let io = plan.layout.io_of(device);
            starts.push((total, io.offset));
            total = total.saturating_add(io.len);
        }
        let memory = Mapping::new(total)?;
        Ok(Self { plan, memory, starts })
    }

    /// The window of an input or output of a device, and its offset in the device's memory.
    fn at(
        &self,
        entry: usize,
        device: usize,
        micro_batch: usize,
        slot: Slot,
        bytes: usize,
    ) -> (Window<'_>, usize) {
        let at = self.plan.layout.slot(entry, device, micro_batch, slot);
        let (here, there) = self.starts[device];
        (self.memory.window(here + (at - there), bytes), at)
    }

    /// Inputs of a device, with their offsets in its memory.
    pub(super) fn inputs(&self, device: usize, entry: usize, micro_batches: &[usize]) -> Vec<(u64, Vec<u8>)> {
        let specs = &self.plan.program.entries[entry].inputs;
        let stage = &self.plan.layout.stages[device / self.plan.layout.stage_devices()].entries[entry];
        let used = specs.iter().enumerate().filter(|(i, _)| stage.inputs[*i].is_some());
        let mut all = Vec::new();
        for (index, spec) in used {
            for &micro_batch in micro_batches {
                let bytes = local_bytes(&spec.sharding, &spec.ty) as usize;
                let (window, at) = self.at(entry, device, micro_batch, Slot::Input(index as u32), bytes);
                let mut copy = vec![0; bytes];
                window.read(0, &mut copy);
                all.push((at as u64, copy));
            }
        }
        all
    }

    /// Where a device's outputs lie in its memory, and how long they are.
    pub(super) fn outputs(&self, device: usize, entry: usize, micro_batches: &[usize]) -> Vec<(u64, usize)> {
        let specs = &self.plan.program.entries[entry].outputs;
        let stage = &self.plan.layout.stages[device / self.plan.layout.stage_devices()].entries[entry];
        let of = |(index, spec): (usize, &IoSpec)| {
            let bytes = local_bytes(&spec.sharding, &spec.ty) as usize;
            let slot = Slot::Output(index as u32);
            let at = |&m: &usize| (self.plan.layout.slot(entry, device, m, slot) as u64, bytes);
            stage.outputs[index].map(|_| micro_batches.iter().map(at).collect::<Vec<_>>())
        };
        specs.iter().enumerate().filter_map(of).flatten().collect()
    }

    /// A device's outputs as they are sent to other processes: its number, then for each range its offset, its length and its bytes.
    pub(super) fn packed(&self, device: usize, entry: usize, micro_batches: &[usize]) -> Vec<u8> {
        let (here, there) = self.starts[device];
        let mut packed = (device as u64).to_le_bytes().to_vec();
        for (at, len) in self.outputs(device, entry, micro_batches) {
            packed.extend(at.to_le_bytes());
            packed.extend((len as u64).to_le_bytes());
            let first = packed.len();
            packed.resize(first + len, 0);
            self.memory.window(here + (at as usize - there), len).read(0, &mut packed[first..]);
        }
        packed
    }

    /// Takes what another process has packed.
    ///
    /// # Errors
    /// It is no such thing: ranges lie outside the device's outputs.
    pub(super) fn unpack(&self, packed: &[u8]) -> Result<(), Diagnostic> {
        let wrong = || Diagnostic::run("another rank sent outputs of another program");
        let number = |bytes: &mut &[u8]| -> Option<u64> {
            let (first, rest) = bytes.split_first_chunk::<8>()?;
            *bytes = rest;
            Some(u64::from_le_bytes(*first))
        };
        let mut rest = packed;
        let device =
            number(&mut rest).and_then(|d| usize::try_from(d).ok()).filter(|&d| d < self.starts.len());
        let device = device.ok_or_else(wrong)?;
        let (io, start) = (self.plan.layout.io_of(device), self.starts[device].1 as u64);
        while !rest.is_empty() {
            let (at, len) = (number(&mut rest).ok_or_else(wrong)?, number(&mut rest).ok_or_else(wrong)?);
            let inside =
                at.checked_sub(start).and_then(|o| o.checked_add(len)).is_some_and(|e| e <= io.len as u64);
            let Some((bytes, after)) = rest.split_at_checked(len as usize).filter(|_| inside) else {
                return Err(wrong());
            };
            self.write(device, at, bytes);
            rest = after;
        }
        Ok(())
    }

    /// Takes what a device has at an offset of its memory.
    pub(super) fn write(&self, device: usize, at: u64, bytes: &[u8]) {
        let (here, there) = self.starts[device];
        self.memory.window(here + (at as usize - there), bytes.len()).write(0, bytes);
    }
}

impl HostSide for Mirror {
    fn program(&self) -> &Program {
        &self.plan.program
    }

    fn layout(&self) -> &Layout {
        &self.plan.layout
    }

    fn window(
        &self,
        entry: usize,
        device: usize,
        micro_batch: usize,
        slot: Slot,
        bytes: usize,
    ) -> Window<'_> {
        self.at(entry, device, micro_batch, slot, bytes).0
    }
}
