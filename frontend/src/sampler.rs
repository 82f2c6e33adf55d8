//! Lets a causal language model draw its tokens itself.

use crate::load::Model;
use pcc_ir::graph::{Entry, Label, Role};
use pcc_ir::ops::{Op, Sample};
use pcc_ir::program::Task;
use pcc_ir::{Diagnostic, Func, FuncId, Module, Type, ValueId};

/// The entries that text is generated with, whose result `logits` f32 [rows, vocab] becomes `token` i32 [rows].
const ENTRIES: [&str; 2] = ["prefill", "decode"];

impl Model {
    /// Whether [`Model::draw_tokens`] would take it.
    pub fn can_draw_tokens(&self) -> bool {
        self.info.task == Task::CausalLm && ENTRIES.iter().all(|name| logits(&self.module, name).is_some())
    }

    /// The model whose entries `prefill` and `decode` give `token` i32 [rows] instead of `logits`: drawn as [`Sample`] says, by the inputs `settings` f32
    /// [rows, 2] and `key` i32 [rows, 4]. So logits need not leave the devices.
    ///
    /// # Errors
    /// The model has no such entries, or already has inputs of these names.
    pub fn draw_tokens(mut self) -> Result<Self, Diagnostic> {
        if !self.can_draw_tokens() {
            return Err(Diagnostic::usage("this model has no tokens to draw")
                .why("its entries `prefill` and `decode` must give f32 `logits` of each row")
                .help("leave --sampler out, or compile a causal language model"));
        }
        for name in ENTRIES {
            draw_in(&mut self.module, name)?;
        }
        Ok(self)
    }
}

/// The number of an entry and of its result `logits`, with the type.
fn logits(module: &Module, name: &str) -> Option<(usize, usize, Type)> {
    let at = module.entries.iter().position(|e| e.name == name)?;
    let entry = &module.entries[at];
    let result = entry.results.iter().position(|r| r == "logits")?;
    let func = &module.funcs[entry.func];
    let ty = func.ty(*func.results.get(result)?).clone();
    (ty.rank() == 2 && ty == Type::f32(ty.shape.clone())).then_some((at, result, ty))
}

/// The inputs of an entry that draws, for so many rows.
fn inputs(rows: usize) -> [(&'static str, Type); 2] {
    [("settings", Type::f32([rows, 2])), ("key", Type::i32([rows, 4]))]
}

fn draw_in(module: &mut Module, name: &str) -> Result<(), Diagnostic> {
    let missing = || Diagnostic::internal(format!("entry `{name}` without logits"));
    let (at, result, ty) = logits(module, name).ok_or_else(missing)?;
    let rows = ty.shape[0];
    // What another entry runs, too, stays as it is.
    let id = module.entries[at].func;
    if module.entries.iter().filter(|e| e.func == id).count() > 1 {
        let own = Func { name: free_name(module, name), ..module.funcs[id].clone() };
        module.entries[at].func = module.funcs.push(own);
    }
    let Entry { func: id, args, results, aliases, .. } = &mut module.entries[at];
    let taken = |role: &Role| matches!(role, Role::Input(n) if inputs(rows).iter().any(|(i, _)| i == n));
    if args.iter().any(taken) {
        return Err(Diagnostic::input("an input has a name that drawing tokens needs")
            .at(format!("entry `{name}`"))
            .why("`settings` and `key` say how tokens are drawn")
            .help("give --sampler host"));
    }
    if results.iter().any(|r| r == "token") {
        return Err(Diagnostic::input("an output has the name of drawn tokens, `token`")
            .at(format!("entry `{name}`"))
            .help("give --sampler host"));
    }
    let id = *id;
    let func = &mut module.funcs[id];
    // Inputs come before parameters and states.
    let first = args.iter().take_while(|r| matches!(r, Role::Input(_))).count();
    let draw = add_inputs(func, first, rows);
    let roles = inputs(rows).map(|(name, _)| Role::Input(name.to_owned()));
    args.splice(first..first, roles);
    aliases.iter_mut().filter(|a| a.0 >= first).for_each(|a| a.0 += draw.len());
    "token".clone_into(&mut results[result]);
    let logits = func.results[result];
    let Some((call, callee, place)) = maker(func, logits) else {
        func.results[result] = sample(func, logits, &draw, rows);
        crate::canonical::renumber(func);
        return Ok(());
    };
    func.insts[call].args.extend(draw);
    func.values[logits].ty = Type::i32([rows]);
    func.values[logits].labels.truncate(1);
    crate::canonical::renumber(func);
    // The function that makes the logits, which another entry may call too, goes on to the token: entries keep their calls.
    let mut head = module.funcs[callee].clone();
    let last = head.args.len();
    let draw = add_inputs(&mut head, last, rows);
    let made = head.results[place];
    head.results[place] = sample(&mut head, made, &draw, rows);
    crate::canonical::renumber(&mut head);
    let users = module.funcs.values().flat_map(|f| &f.insts);
    if users.filter(|i| i.op == Op::Call(callee)).count() == 1 {
        module.funcs[callee] = head;
    } else {
        head.name = free_name(module, &format!("{name}.token"));
        let head = module.funcs.push(head);
        module.funcs[id].insts[call].op = Op::Call(head);
    }
    Ok(())
}

/// The name, with a number if a function has it.
fn free_name(module: &Module, name: &str) -> String {
    let taken = |n: &String| module.funcs.values().any(|f| f.name == *n);
    let numbered = (2..).map(|i| format!("{name}.{i}"));
    std::iter::once(name.to_owned()).chain(numbered).find(|n| !taken(n)).unwrap_or_default()
}

/// The call that alone makes and hands on a value: its number, its function, and which result it is.
fn maker(func: &Func, v: ValueId) -> Option<(usize, FuncId, usize)> {
    let uses = func.insts.iter().flat_map(|i| &i.args).chain(&func.results).filter(|&&u| u == v);
    let at = func.insts.iter().position(|i| i.results.contains(&v)).filter(|_| uses.count() == 1)?;
    let inst = &func.insts[at];
    let Op::Call(callee) = inst.op else { return None };
    Some((at, callee, inst.results.iter().position(|&r| r == v)?))
}

/// Adds the arguments that say how to draw, the first as number `at`.
fn add_inputs(func: &mut Func, at: usize, rows: usize) -> Vec<ValueId> {
    let add = |(i, (name, ty))| {
        let v = func.arg(ty, name);
        func.values[v].labels = vec![Some(Label::Batch), None];
        func.args.pop();
        func.args.insert(at + i, v);
        v
    };
    inputs(rows).into_iter().enumerate().map(add).collect()
}

fn sample(func: &mut Func, logits: ValueId, draw: &[ValueId], rows: usize) -> ValueId {
    let operands = [&[logits], draw].concat();
    func.push(Op::Sample(Sample {}), operands, vec![Type::i32([rows])], "sample")[0]
}
