//! What names stand for: registers, labels, variables, special registers.

use super::Decoded;
use crate::Fault;
use crate::ptx::code::{
    Address, Code, DATA_START, Data, Instruction, LOCAL_START, Op, Region, SHARED_START, Slot, Special, low,
};
use crate::ptx::syntax::{Entry, Kind, Operand, Variable};
use crate::ptx::types::Type;
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes left free between variables of shared or local memory, so that one cannot run into the next unseen.
const GAP: u64 = 64;

#[derive(Clone, Copy)]
struct Register {
    slot: Slot,
    class: Type,
}

pub(super) struct Names<'a> {
    /// One a scope, the innermost last.
    scopes: Vec<HashMap<String, Register>>,
    /// Registers declared by prefix and count: those used so far get slots.
    families: Vec<Vec<(String, u32, Type)>>,
    labels: HashMap<String, u32>,
    targets: HashMap<&'a str, &'a [String]>,
    /// Labels of branches, in the order of their provisional numbers.
    wanted: Vec<String>,
    slots: Slot,
    constants: HashMap<u64, Slot>,
    specials: Vec<(Slot, Special)>,
    shared: Vec<Region>,
    dynamic: u64,
    dynamic_names: Vec<String>,
    local: Vec<Region>,
    params: Vec<Region>,
    data: Arc<Vec<Data>>,
}

/// Initialised variables of a module, laid out.
pub(crate) fn lay_out_data(variables: &[Variable]) -> Result<Vec<Data>, Fault> {
    let mut data = Vec::new();
    let mut start = DATA_START;
    for variable in variables.iter().filter(|v| v.space != "shared") {
        let Some(bytes) = variable.init.clone() else {
            return Err(Fault {
                what: format!(
                    "variable {} of the module has no initial value: only constant ones are known",
                    variable.name
                ),
                at: format!("line {}", variable.line),
            });
        };
        let next = (start + bytes.len() as u64 + 4096).next_multiple_of(4096);
        data.push(Data { name: variable.name.clone(), start, bytes });
        start = next;
    }
    Ok(data)
}

/// Places variables one after another, with gaps. Answers where the next could lie.
fn lay_out(variables: &[&Variable], start: u64) -> (Vec<Region>, u64) {
    let mut regions = Vec::new();
    let mut at = start;
    for variable in variables {
        let bytes = variable.bytes.unwrap_or(0);
        at = at.next_multiple_of(variable.align);
        regions.push(Region { name: variable.name.clone(), start: at, bytes });
        at += bytes + GAP;
    }
    (regions, at)
}

/// Whether a kernel uses a variable of the module.
fn mentions(entry: &Entry, name: &str) -> bool {
    fn within(operand: &Operand, name: &str) -> bool {
        match operand {
            Operand::Name(n) | Operand::Address(Some(n), _) => n == name,
            Operand::Vector(parts) => parts.iter().any(|p| within(p, name)),
            _ => false,
        }
    }
    entry.body.iter().any(|s| match &s.kind {
        Kind::Instruction(i) => i.operands.iter().any(|o| within(o, name)),
        _ => false,
    })
}

impl<'a> Names<'a> {
    pub(super) fn new(
        entry: &'a Entry,
        variables: &[Variable],
        data: &Arc<Vec<Data>>,
    ) -> Result<Self, Fault> {
        let inner = entry.body.iter().filter_map(|s| match &s.kind {
            Kind::Variable(v) => Some(v),
            _ => None,
        });
        let inner: Vec<&Variable> = inner.collect();
        if let Some(bad) = inner.iter().find(|v| v.bytes.is_none() || v.init.is_some()) {
            let what = format!("variable {} in a kernel has an extent and no initial value", bad.name);
            return Err(Fault { what, at: format!("line {}", bad.line) });
        }
        let outer = variables.iter().filter(|v| mentions(entry, &v.name));
        let shared: Vec<&Variable> =
            outer.chain(inner.iter().copied()).filter(|v| v.space == "shared").collect();
        let (fixed, open): (Vec<_>, Vec<_>) = shared.into_iter().partition(|v| v.bytes.is_some());
        let (shared, end) = lay_out(&fixed, SHARED_START);
        let align = open.iter().map(|v| v.align).max().unwrap_or(16).max(16);
        let local: Vec<&Variable> = inner.into_iter().filter(|v| v.space == "local").collect();
        let mut params = Vec::new();
        let mut at = 0;
        for param in &entry.params {
            let bytes = param.bytes.unwrap_or(0);
            at = u64::next_multiple_of(at, param.align);
            params.push(Region { name: param.name.clone(), start: at, bytes });
            at += bytes;
        }
        let targets = entry.body.iter().filter_map(|s| match &s.kind {
            Kind::Targets(name, labels) => Some((name.as_str(), labels.as_slice())),
            _ => None,
        });
        Ok(Self {
            scopes: vec![HashMap::new()],
            families: vec![Vec::new()],
            labels: HashMap::new(),
            targets: targets.collect(),
            wanted: Vec::new(),
            slots: 0,
            constants: HashMap::new(),
            specials: Vec::new(),
            shared,
            dynamic: end.next_multiple_of(align),
            dynamic_names: open.into_iter().map(|v| v.name.clone()).collect(),
            local: lay_out(&local, LOCAL_START).0,
            params,
            data: data.clone(),
        })
    }

    pub(super) fn open(&mut self) {
        self.scopes.push(HashMap::new());
        self.families.push(Vec::new());
    }

    pub(super) fn close(&mut self) {
        self.scopes.pop();
        self.families.pop();
    }

    pub(super) fn registers(&mut self, class: Type, list: &[(String, Option<u32>)]) -> Decoded<()> {
        for (name, count) in list {
            if let Some(count) = count {
                if let Some(families) = self.families.last_mut() {
                    families.push((name.clone(), *count, class));
                }
                continue;
            }
            let slot = self.scratch();
            let scope = self.scopes.last_mut();
            if scope.is_some_and(|s| s.insert(name.clone(), Register { slot, class }).is_some()) {
                return Err(format!("register {name} is declared twice"));
            }
        }
        Ok(())
    }

    pub(super) fn label(&mut self, name: &str, at: u32) -> Decoded<()> {
        match self.labels.insert(name.to_owned(), at) {
            None => Ok(()),
            Some(_) => Err(format!("label {name} stands twice")),
        }
    }

    /// A number for a label, which [`Names::bind`] replaces.
    pub(super) fn target(&mut self, label: &str) -> u32 {
        self.wanted.push(label.to_owned());
        self.wanted.len() as u32 - 1
    }

    /// The labels of a `.branchtargets` list.
    pub(super) fn list(&self, name: &str) -> Decoded<&'a [String]> {
        self.targets.get(name).copied().ok_or_else(|| format!("no .branchtargets named {name}"))
    }

    /// Gives branches their targets.
    pub(super) fn bind(&self, instructions: &mut [Instruction]) -> Result<(), Fault> {
        let find = |number: &mut u32, line: u32| {
            let name = &self.wanted[*number as usize];
            let fault = || Fault { what: format!("no label {name}"), at: format!("line {line}") };
            *number = *self.labels.get(name).ok_or_else(fault)?;
            Ok(())
        };
        for instruction in instructions {
            match &mut instruction.op {
                Op::Branch { to, .. } => find(to, instruction.line)?,
                Op::Table { to, .. } => {
                    for to in to.iter_mut() {
                        find(to, instruction.line)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn scratch(&mut self) -> Slot {
        self.slots += 1;
        self.slots - 1
    }

    pub(super) fn constant(&mut self, value: u64) -> Slot {
        if let Some(&slot) = self.constants.get(&value) {
            return slot;
        }
        let slot = self.scratch();
        self.constants.insert(value, slot);
        slot
    }

    fn special(&mut self, special: Special) -> Slot {
        if let Some(&(slot, _)) = self.specials.iter().find(|(_, s)| *s == special) {
            return slot;
        }
        let slot = self.scratch();
        self.specials.push((slot, special));
        slot
    }

    fn find(&mut self, name: &str) -> Option<Register> {
        for depth in (0..self.scopes.len()).rev() {
            if let Some(&found) = self.scopes[depth].get(name) {
                return Some(found);
            }
            let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
            let number = &name[prefix.len()..];
            let plain = number == "0" || !number.starts_with('0');
            let number = number.parse::<u32>().ok().filter(|_| plain);
            let family =
                self.families[depth].iter().find(|(p, n, _)| p == prefix && number.is_some_and(|m| m < *n));
            if let Some(&(_, _, class)) = family {
                let slot = self.scratch();
                let register = Register { slot, class };
                self.scopes[depth].insert(name.to_owned(), register);
                return Some(register);
            }
        }
        None
    }

    /// The width in bytes of a register.
    pub(super) fn width(&mut self, operand: &Operand) -> Decoded<u8> {
        match operand {
            Operand::Name(name) => {
                self.find(name).map(|r| r.class.bytes()).ok_or_else(|| format!("unknown name {name}"))
            }
            _ => Err("a register is missing".into()),
        }
    }

    /// A register that an instruction of a type may name. `wide`: it may have more bits than the type, whose low ones count.
    pub(super) fn register(&mut self, name: &str, wanted: Type, wide: bool) -> Decoded<Slot> {
        let found = self.find(name).ok_or_else(|| format!("unknown register {name}"))?;
        let (have, want) = (found.class.bytes(), wanted.bytes());
        let fits = have == want || (wide && have > want && found.class != Type::Pred);
        if fits && (wide && have > want || found.class.agrees(wanted)) {
            Ok(found.slot)
        } else {
            Err(format!("register {name} of type {:?} where {wanted:?} is wanted", found.class))
        }
    }

    pub(super) fn value(&mut self, operand: &Operand, wanted: Type, wide: bool) -> Decoded<Slot> {
        let bytes = wanted.bytes();
        match operand {
            Operand::Int(n) if wanted != Type::Pred => {
                let bits = 8 * u32::from(bytes);
                let fits =
                    bits == 64 || *n < 1 << bits || (*n as i64) < 0 && (*n as i64) >= -(1i64 << (bits - 1));
                if fits {
                    Ok(self.constant(low(*n, bytes)))
                } else {
                    Err(format!("{} does not fit {wanted:?}", *n as i64))
                }
            }
            Operand::Int(n @ (0 | 1)) => Ok(self.constant(*n)),
            Operand::F32(bits) if bytes == 4 => Ok(self.constant((*bits).into())),
            Operand::F64(bits) if bytes == 8 => Ok(self.constant(*bits)),
            Operand::Name(name) if name == "WARP_SZ" => Ok(self.constant(32)),
            Operand::Name(name) if name.starts_with('%') => match special_of(name) {
                Some(special) if bytes == 4 => Ok(self.special(special)),
                Some(_) => Err(format!("{name} has 32 bits")),
                None => self.register(name, wanted, wide),
            },
            Operand::Name(name) => self.register(name, wanted, wide),
            _ => Err(format!("a value of type {wanted:?} is wanted")),
        }
    }

    /// The address of a variable in its own space, and the space.
    pub(super) fn variable(&self, name: &str) -> Option<(&'static str, u64)> {
        let find = |list: &[Region]| list.iter().find(|r| r.name == name).map(|r| r.start);
        if let Some(at) = find(&self.local) {
            return Some(("local", at));
        }
        if let Some(at) = find(&self.shared) {
            return Some(("shared", at));
        }
        if self.dynamic_names.iter().any(|n| n == name) {
            return Some(("shared", self.dynamic));
        }
        self.data.iter().find(|d| d.name == name).map(|d| ("data", d.start))
    }

    /// A parameter's place.
    pub(super) fn param(&self, name: &str) -> Option<&Region> {
        self.params.iter().find(|p| p.name == name)
    }

    /// An address in one of these spaces.
    pub(super) fn address(&mut self, operand: &Operand, spaces: &[&str]) -> Decoded<Address> {
        let Operand::Address(name, offset) = operand else { return Err("an address is wanted".into()) };
        let Some(name) = name else { return Ok(Address { base: self.constant(0), offset: *offset }) };
        if let Some((space, at)) = self.variable(name).filter(|_| self.find(name).is_none()) {
            if !spaces.contains(&space) {
                return Err(format!("variable {name} does not lie in that state space"));
            }
            return Ok(Address { base: self.constant(0), offset: at.wrapping_add(*offset) });
        }
        let found = self.find(name).ok_or_else(|| format!("unknown name {name}"))?;
        // Addresses of shared and local memory fit 32 bits.
        let narrow = found.class.bytes() == 4 && spaces.iter().any(|s| matches!(*s, "shared" | "local"));
        if found.class == Type::Pred || found.class.is_float() || !(found.class.bytes() == 8 || narrow) {
            return Err(format!("register {name} of type {:?} as an address", found.class));
        }
        Ok(Address { base: found.slot, offset: *offset })
    }

    pub(super) fn code(
        self,
        instructions: Vec<Instruction>,
        text: Arc<str>,
        shared_grain: u8,
        global_grain: u8,
    ) -> Code {
        let mut constants: Vec<(Slot, u64)> = self.constants.into_iter().map(|(v, s)| (s, v)).collect();
        constants.sort_unstable();
        Code {
            instructions,
            text,
            slots: self.slots as usize,
            constants,
            specials: self.specials,
            shared: self.shared,
            dynamic: self.dynamic,
            uses_dynamic: !self.dynamic_names.is_empty(),
            local: self.local,
            data: self.data,
            params: self.params,
            shared_grain,
            global_grain,
        }
    }
}

fn special_of(name: &str) -> Option<Special> {
    let axis = |special: fn(usize) -> Special, axis: &str| match axis {
        "x" => Some(special(0)),
        "y" => Some(special(1)),
        "z" => Some(special(2)),
        _ => None,
    };
    if let Some((name, of)) = name.split_once('.') {
        return match name {
            "%tid" => axis(Special::Tid, of),
            "%ntid" => axis(Special::Ntid, of),
            "%ctaid" => axis(Special::Ctaid, of),
            "%nctaid" => axis(Special::Nctaid, of),
            _ => None,
        };
    }
    Some(match name {
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::Warps,
        "%lanemask_eq" => Special::MaskEq,
        "%lanemask_lt" => Special::MaskLt,
        "%lanemask_le" => Special::MaskLe,
        "%lanemask_gt" => Special::MaskGt,
        "%lanemask_ge" => Special::MaskGe,
        "%dynamic_smem_size" => Special::DynamicShared,
        _ => return None,
    })
}
