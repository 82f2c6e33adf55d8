//! Turns statements into code. What is not known is refused, with its line.

mod arith;
mod control;
mod convert;
mod float;
mod logic;
mod memory;
mod modifiers;
mod names;
mod wgmma;

use super::code::{Address, Code, Data, Instruction, Op, Slot};
use super::slots;
use super::syntax::{self, Entry, Kind, Operand};
use super::types::Type;
use crate::Fault;
use modifiers::Modifiers;
use names::Names;
pub(crate) use names::lay_out_data;
use std::sync::Arc;

/// What decoding of one instruction says: an error has no place yet.
type Decoded<T> = Result<T, String>;

/// Makes a kernel's code. `text` is the whole PTX text, for messages, and what its `.target` says.
pub(crate) fn kernel(
    entry: &Entry,
    variables: &[syntax::Variable],
    data: &Arc<Vec<Data>>,
    (text, target): (&Arc<str>, &str),
) -> Result<Code, Fault> {
    let names = Names::new(entry, variables, data)?;
    let mut decoder = Decoder {
        names,
        target,
        instructions: Vec::new(),
        line: 0,
        guard: None,
        shared_grain: 16,
        global_grain: 16,
    };
    for statement in &entry.body {
        decoder.line = statement.line;
        let place = || format!("line {}", statement.line);
        let fault = |what: String| Fault { what, at: place() };
        match &statement.kind {
            Kind::Open => decoder.names.open(),
            Kind::Close => decoder.names.close(),
            Kind::Registers(class, list) => decoder.names.registers(*class, list).map_err(fault)?,
            Kind::Variable(_) | Kind::Targets(..) => {}
            Kind::Label(name) => {
                decoder.names.label(name, decoder.instructions.len() as u32).map_err(fault)?
            }
            Kind::Instruction(instruction) => decoder.instruction(instruction).map_err(|what| Fault {
                what: format!("{what}: {}", line_of(text, statement.line)),
                at: place(),
            })?,
        }
    }
    // A kernel may end without `ret`.
    decoder.guard = None;
    decoder.push(Op::Exit);
    decoder.finish(text)
}

fn line_of(text: &str, line: u32) -> &str {
    text.lines().nth(line.saturating_sub(1) as usize).unwrap_or("").trim()
}

struct Decoder<'a> {
    names: Names<'a>,
    /// The architecture.
    target: &'a str,
    instructions: Vec<Instruction>,
    line: u32,
    guard: Option<(Slot, bool)>,
    shared_grain: u8,
    global_grain: u8,
}

impl Decoder<'_> {
    fn instruction(&mut self, instruction: &syntax::Instruction) -> Decoded<()> {
        self.guard = match &instruction.guard {
            Some((name, not)) => Some((self.names.register(name, Type::Pred, false)?, !not)),
            None => None,
        };
        let before = self.instructions.len();
        let mut words = instruction.opcode.split('.');
        let name = words.next().unwrap_or_default().to_owned();
        let mut modifiers = Modifiers::new(words);
        let operands = &instruction.operands[..];
        let known = self.arith(&name, &mut modifiers, operands)?
            || self.float(&name, &mut modifiers, operands)?
            || self.logic(&name, &mut modifiers, operands)?
            || self.convert(&name, &mut modifiers, operands)?
            || self.memory(&name, &mut modifiers, operands)?
            || self.wgmma(&name, &mut modifiers, operands)?
            || self.control(&name, &mut modifiers, operands)?;
        if !known {
            return Err(format!("unknown opcode {name}"));
        }
        modifiers.end()?;
        for extra in self.instructions.iter_mut().skip(before + 1) {
            extra.counts = 0;
        }
        Ok(())
    }

    fn push(&mut self, op: Op) {
        self.instructions.push(Instruction {
            op,
            guard: self.guard,
            line: self.line,
            counts: 1,
            names_sums: false,
        });
    }

    /// The operands, if there are so many.
    fn operands<'o, const N: usize>(&self, operands: &'o [Operand]) -> Decoded<&'o [Operand; N]> {
        operands.try_into().map_err(|_| format!("{} operands instead of {N}", operands.len()))
    }

    /// A register that is written.
    fn result(&mut self, operand: &Operand, wanted: Type) -> Decoded<Slot> {
        match operand {
            Operand::Name(name) => self.names.register(name, wanted, false),
            _ => Err("a result is a register".into()),
        }
    }

    /// A register or number that is read.
    fn value(&mut self, operand: &Operand, wanted: Type) -> Decoded<Slot> {
        self.names.value(operand, wanted, false)
    }

    /// The same where a register may be wider than the type.
    fn wide_value(&mut self, operand: &Operand, wanted: Type) -> Decoded<Slot> {
        self.names.value(operand, wanted, true)
    }

    /// A register for a value within one instruction.
    fn scratch(&mut self) -> Slot {
        self.names.scratch()
    }

    fn constant(&mut self, value: u64) -> Slot {
        self.names.constant(value)
    }

    fn address(&mut self, operand: &Operand, space: &[&str]) -> Decoded<Address> {
        self.names.address(operand, space)
    }

    fn finish(mut self, text: &Arc<str>) -> Result<Code, Fault> {
        self.names.bind(&mut self.instructions)?;
        slots::mark_sums(&mut self.instructions);
        Ok(self.names.code(self.instructions, text.clone(), self.shared_grain, self.global_grain))
    }
}
