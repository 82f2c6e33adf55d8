//! Kernels by their definition, without compiled code: slow, for checks and tests.

use crate::kernels::{KernelCall, KernelSet, Operand};
use pcc_ir::kernel::Kernel;
use pcc_ir::kernel_eval::{KernelData, eval_kernel};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Runs kernels by [`pcc_ir::kernel_eval`].
pub struct Interpreter {
    kernels: Vec<Kernel>,
    /// Buffers are copied out and back, so calls take turns.
    turn: Mutex<()>,
}

impl Interpreter {
    /// The kernels of a program, in the order of their ids.
    pub fn new<'k>(kernels: impl IntoIterator<Item = &'k Kernel>) -> Self {
        Self { kernels: kernels.into_iter().cloned().collect(), turn: Mutex::new(()) }
    }
}

impl KernelSet for Interpreter {
    fn call(&self, call: &KernelCall<'_>, rows: Range<i64>) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // Operands in one buffer must see each other's bytes: each distinct window is copied once.
        let mut windows: Vec<&Operand<'_>> = Vec::new();
        let mut bases = Vec::new();
        for operand in call.operands {
            let same = |w: &&Operand<'_>| w.window.as_ptr() == operand.window.as_ptr();
            let index = windows.iter().position(same).unwrap_or_else(|| {
                windows.push(operand);
                windows.len() - 1
            });
            if operand.window.len() > windows[index].window.len() {
                windows[index] = operand;
            }
            bases.push((index, operand.offset));
        }
        let copy = |operand: &&Operand<'_>| {
            let mut bytes = vec![0; operand.window.len()];
            operand.window.read(0, &mut bytes);
            bytes
        };
        let before: Vec<Vec<u8>> = windows.iter().map(copy).collect();
        let mut buffers = before.clone();
        let mut data = KernelData {
            buffers: &mut buffers,
            bases: &bases,
            extents: call.extents,
            strides: call.strides,
            scalars: call.scalars,
        };
        use cranelift_entity::EntityRef;
        let kernel = &self.kernels[call.kernel.index()];
        if let Err(why) = eval_kernel(kernel, &mut data, rows) {
            // invariant: validation keeps every launch inside its buffers; if not, the executor reports this with its place.
            panic!("kernel {}: {why}", kernel.name);
        }
        for ((operand, old), new) in windows.iter().zip(&before).zip(&buffers) {
            write_changes(operand, old, new);
        }
    }
}

/// Writes only what changed: other parts of the buffer may be other workers'.
fn write_changes(operand: &Operand<'_>, old: &[u8], new: &[u8]) {
    let mut at = 0;
    while at < new.len() {
        let run = new[at..].iter().zip(&old[at..]).take_while(|(a, b)| a != b).count();
        if run > 0 {
            operand.window.write(at, &new[at..at + run]);
        }
        at += run.max(1);
    }
}
