//! Lets a causal language model draw its tokens itself.

use crate::load::Model;
use pcc_ir::graph::{Entry, Label, Role};
use pcc_ir::ops::{Op, Sample};
use pcc_ir::program::Task;
use pcc_ir::{Diagnostic, Func, Module, Type, ValueId};

/// The entries that text is generated with, whose result `logits` f32 [rows, vocab] becomes `token` i32 [rows].
const ENTRIES: [&str; 2] = ["prefill", "decode"];

impl Model {
    /// Whether [`Model::draw_tokens`] would take it.
    pub fn can_draw_tokens(&self) -> bool {
        self.info.task == Task::CausalLm && ENTRIES.iter().all(|name| logits(&self.module, name).is_some())
    }

    /// The model whose entries `prefill` and `decode` give `token` i32 [rows] instead of `logits`: drawn as [`Sample`] says, by the inputs `settings` f32
    /// [rows, 2] and `key` i32 [rows, 4], in a function of its own at the end of each entry. So logits need not leave the devices.
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

fn draw_in(module: &mut Module, name: &str) -> Result<(), Diagnostic> {
    let missing = || Diagnostic::internal(format!("entry `{name}` without logits"));
    let (at, result, ty) = logits(module, name).ok_or_else(missing)?;
    let rows = ty.shape[0];
    let inputs = [("settings", Type::f32([rows, 2])), ("key", Type::i32([rows, 4]))];
    let sample = module.funcs.push(sample_func(name, ty, &inputs));

    let Entry { func, args, results, aliases, .. } = &mut module.entries[at];
    let taken = |role: &Role| matches!(role, Role::Input(n) if inputs.iter().any(|(i, _)| i == n));
    if args.iter().any(taken) {
        return Err(Diagnostic::input("an input has a name that drawing tokens needs")
            .at(format!("entry `{name}`"))
            .why("`settings` and `key` say how tokens are drawn")
            .help("give --sampler host"));
    }
    let func = &mut module.funcs[*func];
    // Inputs come before parameters and states.
    let first = args.iter().take_while(|r| matches!(r, Role::Input(_))).count();
    let mut operands = vec![func.results[result]];
    for (i, (name, ty)) in inputs.into_iter().enumerate() {
        let v = func.arg(ty, name);
        func.values[v].labels = vec![Some(Label::Batch), None];
        operands.push(v);
        func.args.pop();
        func.args.insert(first + i, v);
        args.insert(first + i, Role::Input(name.to_owned()));
    }
    for alias in aliases.iter_mut().filter(|a| a.0 >= first) {
        alias.0 += operands.len() - 1;
    }
    let token: Vec<ValueId> = func.push(Op::Call(sample), operands, vec![Type::i32([rows])], "sample");
    func.results[result] = token[0];
    "token".clone_into(&mut results[result]);
    crate::canonical::renumber(func);
    Ok(())
}

/// `logits, settings, key -> token`.
fn sample_func(entry: &str, logits: Type, inputs: &[(&str, Type); 2]) -> Func {
    let rows = logits.shape[0];
    let mut f = Func::new(format!("{entry}.sample"));
    let mut args = vec![f.arg(logits, "logits")];
    args.extend(inputs.iter().map(|(name, ty)| f.arg(ty.clone(), *name)));
    for &v in &args {
        f.values[v].labels = vec![Some(Label::Batch), None];
    }
    f.results = f.push(Op::Sample(Sample {}), args, vec![Type::i32([rows])], "sample");
    f
}
