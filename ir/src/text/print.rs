//! Printer of the text form.

use crate::graph::{Entry, Func, FuncId, Label, Module, Role, Value, ValueId};
use crate::mesh::Mesh;
use crate::ops::Op;
use crate::repeat::Repeat;
use crate::sharding::{Claim, Pad, Term};
use cranelift_entity::EntityRef;
use std::collections::HashSet;
use std::fmt::{self, Formatter, Write};

/// A JSON string literal.
fn quoted(s: &str) -> String {
    serde_json::Value::from(s).to_string()
}

fn json(value: &impl serde::Serialize) -> Result<String, fmt::Error> {
    serde_json::to_string(value).map_err(|_| fmt::Error)
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let m = self.mesh;
        writeln!(
            f,
            "module {} mesh(pp={}, dp={}, cp={}, ep={}, tp={})",
            quoted(&self.name),
            m.pp,
            m.dp,
            m.cp,
            m.ep,
            m.tp
        )?;
        for (id, p) in self.params.iter() {
            write!(f, "param %{} {} : {}{}", id.index(), quoted(&p.name), p.ty, stack_text(p.stack))?;
            if let Some(s) = &p.sharding {
                write!(f, " sharding {}", s.text(&m))?;
            }
            writeln!(f, " = {}", json(&p.source)?)?;
        }
        for (id, s) in self.states.iter() {
            write!(f, "state %{} {} : {}{}", id.index(), quoted(&s.name), s.ty, stack_text(s.stack))?;
            if let Some(s) = &s.sharding {
                write!(f, " sharding {}", s.text(&m))?;
            }
            writeln!(f)?;
        }
        for (id, func) in self.funcs.iter() {
            write_func(f, id, func, &m)?;
        }
        for entry in &self.entries {
            write_entry(f, entry)?;
        }
        Ok(())
    }
}

fn stack_text(count: Option<u32>) -> String {
    count.map_or_else(String::new, |n| format!(" stack {n}"))
}

fn list(values: &[ValueId]) -> String {
    values.iter().map(|v| format!("%{}", v.index())).collect::<Vec<_>>().join(", ")
}

fn write_func(f: &mut Formatter<'_>, id: FuncId, func: &Func, mesh: &Mesh) -> fmt::Result {
    write!(f, "fn %{} {} (", id.index(), quoted(&func.name))?;
    let mut defined = HashSet::new();
    for (i, &v) in func.args.iter().enumerate() {
        defined.insert(v);
        write!(f, "{}{}", if i > 0 { ", " } else { "" }, value_text(v, &func.values[v], mesh)?)?;
    }
    writeln!(f, ") -> ({}) {{", list(&func.results))?;
    for inst in &func.insts {
        f.write_str("  ")?;
        for (i, &v) in inst.results.iter().enumerate() {
            defined.insert(v);
            write!(f, "{}{}", if i > 0 { ", " } else { "" }, value_text(v, &func.values[v], mesh)?)?;
        }
        write!(
            f,
            "{}{}",
            if inst.results.is_empty() { "" } else { " = " },
            op_text(&inst.op, &inst.args, mesh)?
        )?;
        if !inst.loc.is_empty() {
            write!(f, " loc {}", quoted(&inst.loc))?;
        }
        writeln!(f)?;
    }
    for (v, value) in func.values.iter().filter(|(v, _)| !defined.contains(v)) {
        writeln!(f, "  unused {}", value_text(v, value, mesh)?)?;
    }
    writeln!(f, "}}")
}

fn value_text(v: ValueId, value: &Value, mesh: &Mesh) -> Result<String, fmt::Error> {
    let mut s = format!("%{}: {}", v.index(), value.ty);
    if !value.name.is_empty() {
        write!(s, " {}", quoted(&value.name))?;
    }
    if !value.labels.is_empty() {
        let name = |l: &Option<Label>| match l {
            Some(Label::Batch) => "batch",
            Some(Label::Seq) => "seq",
            None => "_",
        };
        write!(s, " labels ({})", value.labels.iter().map(name).collect::<Vec<_>>().join(", "))?;
    }
    if let Some(sharding) = &value.sharding {
        write!(s, " sharding {}", sharding.text(mesh))?;
    }
    if let Some(claim) = &value.claim {
        write!(s, " {}", claim_text(claim, mesh))?;
    }
    Ok(s)
}

fn claim_text(claim: &Claim, mesh: &Mesh) -> String {
    let pad = |p: &Pad| match p {
        Pad::Zero => "zero",
        Pad::Unspecified => "any",
    };
    let pads = claim.pad.iter().map(pad).collect::<Vec<_>>().join(", ");
    format!("claim {} sharding {} pad ({pads})", term_text(&claim.term), claim.sharding.text(mesh))
}

fn term_text(term: &Term) -> String {
    match term {
        Term::Value(v) => format!("%{}", v.index()),
        Term::Sum(terms) => format!("sum({})", terms.iter().map(term_text).collect::<Vec<_>>().join(", ")),
    }
}

/// `name(args) attributes`. The attributes are the JSON of the op's variant; a reshard shows its sharding.
fn op_text(op: &Op, args: &[ValueId], mesh: &Mesh) -> Result<String, fmt::Error> {
    if let Op::Reshard(s) = op {
        return Ok(format!("reshard({}) sharding {}", list(args), s.text(mesh)));
    }
    if let Op::Call(callee) = op {
        return Ok(format!("call({}) fn %{}", list(args), callee.index()));
    }
    match serde_json::to_value(op).map_err(|_| fmt::Error)? {
        serde_json::Value::String(name) => Ok(format!("{name}({})", list(args))),
        serde_json::Value::Object(map) => {
            let (name, attrs) = map.iter().next().ok_or(fmt::Error)?;
            Ok(format!("{name}({}) {attrs}", list(args)))
        }
        _ => Err(fmt::Error),
    }
}

fn write_entry(f: &mut Formatter<'_>, e: &Entry) -> fmt::Result {
    let role = |r: &Role| match r {
        Role::Input(name) => format!("input {}", quoted(name)),
        Role::Param(p) => format!("param %{}", p.index()),
        Role::State(s) => format!("state %{}", s.index()),
    };
    let args = e.args.iter().map(role).collect::<Vec<_>>().join(", ");
    let results = e.results.iter().map(|r| quoted(r)).collect::<Vec<_>>().join(", ");
    let aliases = e.aliases.iter().map(|(a, r)| format!("({a}, {r})")).collect::<Vec<_>>().join(", ");
    write!(
        f,
        "entry {} fn %{} ({args}) -> ({results}) alias [{aliases}] weight {}",
        quoted(&e.name),
        e.func.index(),
        e.weight
    )?;
    if !e.repeats.is_empty() {
        let repeat = |r: &Repeat| format!("({}, {}, {})", r.first, r.calls, r.count);
        write!(f, " repeat [{}]", e.repeats.iter().map(repeat).collect::<Vec<_>>().join(", "))?;
    }
    writeln!(f)
}
