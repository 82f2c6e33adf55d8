//! Parser of the text form. Reads hostile text: every number is checked before it is used as an index or a size.

use super::lex::Lexer;
use crate::diagnostic::Diagnostic;
use crate::graph::{
    Entry, Func, FuncId, Inst, Label, Module, Param, ParamId, Role, State, StateId, Value, ValueId,
};
use crate::mesh::{Axis, AxisRef, Mesh};
use crate::ops::Op;
use crate::repeat::Repeat;
use crate::sharding::{Claim, Pad, Sharding, Term};
use crate::types::{DType, ReduceKind, Type};
use cranelift_entity::EntityRef;
use std::collections::BTreeMap;

/// Sums in claims nest no deeper.
const MAX_DEPTH: usize = 64;

/// Reads a module. The result is well formed as text; [`crate::verifier`] says whether it means something.
///
/// # Errors
/// The text is no module: line, column, and what was expected.
pub fn parse(text: &str) -> Result<Module, Diagnostic> {
    let mut p = Parser { lex: Lexer::new(text), mesh: Mesh::default() };
    p.module()
}

struct Parser<'a> {
    lex: Lexer<'a>,
    mesh: Mesh,
}

impl Parser<'_> {
    fn module(&mut self) -> Result<Module, Diagnostic> {
        self.lex.expect("module")?;
        let mut module = Module { name: self.lex.string()?, ..Module::default() };
        self.mesh_sizes()?;
        module.mesh = self.mesh;
        while !self.lex.at_end() {
            if self.lex.eat("param") {
                self.dense(module.params.len())?;
                module.params.push(self.param()?);
            } else if self.lex.eat("state") {
                self.dense(module.states.len())?;
                let (name, ty) = self.named_type()?;
                let stack = self.optional_stack()?;
                let sharding = self.optional_sharding()?;
                module.states.push(State { name, ty, sharding, stack });
            } else if self.lex.eat("fn") {
                self.dense(module.funcs.len())?;
                let func = self.func()?;
                module.funcs.push(func);
            } else if self.lex.eat("entry") {
                let entry = self.entry()?;
                module.entries.push(entry);
            } else {
                return Err(self.lex.error("`param`, `state`, `fn` or `entry`"));
            }
        }
        self.check_references(&module)?;
        Ok(module)
    }

    /// Functions, parameters and states that entries and calls name must exist.
    fn check_references(&self, m: &Module) -> Result<(), Diagnostic> {
        let missing = |what: String| Err(Diagnostic::input(format!("{what} does not exist")));
        for func in m.funcs.values() {
            for inst in &func.insts {
                if let Op::Call(f) = inst.op
                    && m.funcs.get(f).is_none()
                {
                    return missing(format!("function %{}, called in `{}`,", f.index(), func.name));
                }
            }
        }
        for e in &m.entries {
            if m.funcs.get(e.func).is_none() {
                return missing(format!("function %{} of entry `{}`", e.func.index(), e.name));
            }
            for role in &e.args {
                match role {
                    Role::Param(p) if m.params.get(*p).is_none() => {
                        return missing(format!("parameter %{} of entry `{}`", p.index(), e.name));
                    }
                    Role::State(s) if m.states.get(*s).is_none() => {
                        return missing(format!("state %{} of entry `{}`", s.index(), e.name));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Table entries come in order, so that their numbers are their positions.
    fn dense(&mut self, next: usize) -> Result<(), Diagnostic> {
        let error = self.lex.error(&format!("%{next}"));
        if self.lex.id()? as usize == next { Ok(()) } else { Err(error) }
    }

    fn mesh_sizes(&mut self) -> Result<(), Diagnostic> {
        self.lex.expect("mesh")?;
        let sizes = self.lex.list("(", ")", |lex| {
            let error = lex.error("an axis (pp, dp, cp, ep or tp)");
            let axis = Axis::from_name(lex.word()?).ok_or(error)?;
            lex.expect("=")?;
            let error = lex.error("a size of 1 to 2^20");
            let size = lex.number::<u32>()?;
            if size == 0 || size > 1 << 20 { Err(error) } else { Ok((axis, size)) }
        })?;
        let mut devices: u64 = 1;
        for (axis, size) in sizes {
            *self.mesh.size_mut(axis) = size;
            devices = devices.saturating_mul(size.into());
        }
        if devices > 1 << 20 { Err(self.lex.error("a mesh of at most 2^20 devices")) } else { Ok(()) }
    }

    fn named_type(&mut self) -> Result<(String, Type), Diagnostic> {
        let name = self.lex.string()?;
        self.lex.expect(":")?;
        Ok((name, self.ty()?))
    }

    fn param(&mut self) -> Result<Param, Diagnostic> {
        let (name, ty) = self.named_type()?;
        let stack = self.optional_stack()?;
        let sharding = self.optional_sharding()?;
        self.lex.expect("=")?;
        let error = self.lex.error("the source of a parameter");
        let source = serde_json::from_value(self.lex.json()?).map_err(|e| error.help(e.to_string()))?;
        Ok(Param { name, ty, source, sharding, stack })
    }

    fn ty(&mut self) -> Result<Type, Diagnostic> {
        let error = self.lex.error("an element type (f32, bf16, i32, ...)");
        let dtype = DType::from_name(self.lex.word()?).ok_or(error)?;
        let error = self.lex.error("dims of at least 1 whose product is below 2^60");
        let ty = Type::new(dtype, self.lex.list("[", "]", |lex| lex.number::<usize>())?);
        ty.checked().map(|_| ty.clone()).ok_or(error)
    }

    fn optional_stack(&mut self) -> Result<Option<u32>, Diagnostic> {
        if self.lex.eat("stack") { self.lex.number().map(Some) } else { Ok(None) }
    }

    fn optional_sharding(&mut self) -> Result<Option<Sharding>, Diagnostic> {
        if self.lex.eat("sharding") { self.sharding().map(Some) } else { Ok(None) }
    }

    fn axis(lex: &mut Lexer<'_>, mesh: &Mesh) -> Result<AxisRef, Diagnostic> {
        let error = lex.error("an axis");
        let axis = Axis::from_name(lex.word()?).ok_or(error)?;
        if !lex.eat(":") {
            return Ok(mesh.whole(axis));
        }
        let error = lex.error("a part (pre)size whose product divides the axis");
        lex.expect("(")?;
        let pre = lex.number()?;
        lex.expect(")")?;
        let size = lex.number()?;
        mesh.part(axis, pre, size).ok_or(error)
    }

    fn sharding(&mut self) -> Result<Sharding, Diagnostic> {
        let mesh = self.mesh;
        let dims = self.lex.list("[", "]", |lex| lex.list("{", "}", |lex| Self::axis(lex, &mesh)))?;
        let mut partial = Vec::new();
        if self.lex.eat("partial") {
            partial = self.lex.list("{", "}", |lex| {
                let axis = Self::axis(lex, &mesh)?;
                let error = lex.error("sum, max or min");
                let word = lex.word()?;
                let kinds = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min];
                Ok((axis, kinds.into_iter().find(|k| k.name() == word).ok_or(error)?))
            })?;
        }
        Ok(Sharding { dims, partial })
    }

    fn value(&mut self) -> Result<(ValueId, Value), Diagnostic> {
        let id = self.lex.id()?;
        self.lex.expect(":")?;
        let mut value = Value::new(self.ty()?);
        if self.lex.next_is("\"") {
            value.name = self.lex.string()?;
        }
        if self.lex.eat("labels") {
            value.labels = self.lex.list("(", ")", |lex| {
                let error = lex.error("batch, seq or _");
                match lex.word()? {
                    "batch" => Ok(Some(Label::Batch)),
                    "seq" => Ok(Some(Label::Seq)),
                    "_" => Ok(None),
                    _ => Err(error),
                }
            })?;
        }
        value.sharding = self.optional_sharding()?;
        if self.lex.eat("claim") {
            value.claim = Some(self.claim()?);
        }
        Ok((ValueId::from_u32(id), value))
    }

    fn claim(&mut self) -> Result<Claim, Diagnostic> {
        let term = self.term(0)?;
        self.lex.expect("sharding")?;
        let sharding = self.sharding()?;
        self.lex.expect("pad")?;
        let pad = self.lex.list("(", ")", |lex| {
            let error = lex.error("zero or any");
            match lex.word()? {
                "zero" => Ok(Pad::Zero),
                "any" => Ok(Pad::Unspecified),
                _ => Err(error),
            }
        })?;
        Ok(Claim { term, sharding, pad })
    }

    fn term(&mut self, depth: usize) -> Result<Term, Diagnostic> {
        if depth > MAX_DEPTH {
            return Err(self.lex.error("a claim that is not so deep"));
        }
        if !self.lex.eat("sum") {
            return Ok(Term::Value(ValueId::from_u32(self.lex.id()?)));
        }
        self.lex.expect("(")?;
        let mut terms = vec![self.term(depth + 1)?];
        while self.lex.eat(",") {
            terms.push(self.term(depth + 1)?);
        }
        self.lex.expect(")")?;
        Ok(Term::Sum(terms))
    }

    fn func(&mut self) -> Result<Func, Diagnostic> {
        let mut func = Func::new(self.lex.string()?);
        let mut values = BTreeMap::new();
        self.lex.expect("(")?;
        while !self.lex.eat(")") {
            if !func.args.is_empty() {
                self.lex.expect(",")?;
            }
            func.args.push(self.define(&mut values)?);
        }
        self.lex.expect("->")?;
        func.results = self.ids()?;
        self.lex.expect("{")?;
        while !self.lex.eat("}") {
            if self.lex.eat("unused") {
                self.define(&mut values)?;
            } else {
                let inst = self.inst(&mut values)?;
                func.insts.push(inst);
            }
        }
        let count = values.len();
        for (next, (id, value)) in values.into_iter().enumerate() {
            if id.index() != next {
                return Err(Diagnostic::input(format!("function `{}` does not define %{next}", func.name))
                    .why(format!("its {count} values must be numbered 0 to {}", count - 1)));
            }
            func.values.push(value);
        }
        let known = |v: &ValueId| v.index() < count;
        let used = func.insts.iter().flat_map(|i| &i.args).chain(&func.results);
        match used.copied().find(|v| !known(v)) {
            Some(v) => Err(Diagnostic::input(format!(
                "function `{}` uses %{}, which nothing defines",
                func.name,
                v.index()
            ))),
            None => Ok(func),
        }
    }

    fn define(&mut self, values: &mut BTreeMap<ValueId, Value>) -> Result<ValueId, Diagnostic> {
        let error = self.lex.error("a value that is not defined yet");
        let (id, value) = self.value()?;
        if values.insert(id, value).is_some() { Err(error) } else { Ok(id) }
    }

    fn ids(&mut self) -> Result<Vec<ValueId>, Diagnostic> {
        self.lex.list("(", ")", |lex| lex.id().map(ValueId::from_u32))
    }

    fn inst(&mut self, values: &mut BTreeMap<ValueId, Value>) -> Result<Inst, Diagnostic> {
        let mut results = Vec::new();
        while self.lex.next_is("%") {
            results.push(self.define(values)?);
            if !self.lex.eat(",") {
                break;
            }
        }
        if !results.is_empty() {
            self.lex.expect("=")?;
        }
        let error = self.lex.error("an op");
        let name = self.lex.word()?;
        let args = self.ids()?;
        let op = match name {
            "call" => {
                self.lex.expect("fn")?;
                Op::Call(FuncId::from_u32(self.lex.id()?))
            }
            "reshard" => {
                self.lex.expect("sharding")?;
                Op::Reshard(self.sharding()?)
            }
            _ => {
                // Attributes never start with a letter or `%`; what follows an op without any does.
                let has = ["{", "[", "\"", "-", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
                let json = if has.iter().any(|c| self.lex.next_is(c)) {
                    let attrs = self.lex.json()?;
                    serde_json::Value::Object([(name.to_owned(), attrs)].into_iter().collect())
                } else {
                    serde_json::Value::from(name)
                };
                serde_json::from_value(json).map_err(|e| error.help(e.to_string()))?
            }
        };
        let loc = if self.lex.eat("loc") { self.lex.string()? } else { String::new() };
        Ok(Inst { op, args, results, loc })
    }

    fn entry(&mut self) -> Result<Entry, Diagnostic> {
        let name = self.lex.string()?;
        self.lex.expect("fn")?;
        let func = FuncId::from_u32(self.lex.id()?);
        let args = self.lex.list("(", ")", |lex| {
            if lex.eat("input") {
                Ok(Role::Input(lex.string()?))
            } else if lex.eat("param") {
                Ok(Role::Param(ParamId::from_u32(lex.id()?)))
            } else if lex.eat("state") {
                Ok(Role::State(StateId::from_u32(lex.id()?)))
            } else {
                Err(lex.error("`input`, `param` or `state`"))
            }
        })?;
        self.lex.expect("->")?;
        let results = self.lex.list("(", ")", |lex| lex.string())?;
        self.lex.expect("alias")?;
        let aliases = self.lex.list("[", "]", |lex| {
            lex.expect("(")?;
            let arg = lex.number()?;
            lex.expect(",")?;
            let result = lex.number()?;
            lex.expect(")")?;
            Ok((arg, result))
        })?;
        self.lex.expect("weight")?;
        let weight = self.lex.number()?;
        let repeats = match self.lex.eat("repeat") {
            true => self.lex.list("[", "]", |lex| {
                lex.expect("(")?;
                let first = lex.number()?;
                lex.expect(",")?;
                let calls = lex.number()?;
                lex.expect(",")?;
                let count = lex.number()?;
                lex.expect(")")?;
                Ok(Repeat { first, calls, count })
            })?,
            false => Vec::new(),
        };
        Ok(Entry { name, func, args, results, aliases, weight, repeats })
    }
}
