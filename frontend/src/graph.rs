//! Loads a model.json: the module, its checkpoint, and what is fixed in the file.

use crate::load::{LoadOptions, Model, Summary};
use crate::model_json::{self, Info, Loaded};
use crate::naming;
use crate::weights::{Checkpoint, ElementType, list_names};
use pcc_ir::graph::{Label, Role};
use pcc_ir::program::ModelInfo;
use pcc_ir::source::{TensorView, Values};
use pcc_ir::{Diagnostic, Module, ParamSource};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What the file says, without its weights.
pub(crate) fn describe(value: Value, path: &Path) -> Result<Summary, Diagnostic> {
    let loaded = read(value, path, false, 0)?;
    let (rows, seq) = capacities(&loaded.module).map_err(|d| d.at(path.display().to_string()))?;
    let Info { family, class, task, layers, max_seq, .. } = loaded.info;
    let max_seq = if max_seq == 0 { seq.unwrap_or(1) } else { max_seq };
    Ok(Summary { family, class, task, layers, max_seq, rows, seq })
}

pub(crate) fn load(value: Value, path: &Path, options: &LoadOptions) -> Result<Model, Diagnostic> {
    let place = |d: Diagnostic| in_file(d, path);
    let mut loaded = read(value, path, options.weights.is_some(), options.seed)?;
    let (rows, seq) = capacities(&loaded.module).map_err(place)?;
    check_capacity("--batch", "batch", rows, Some(options.batch_rows)).map_err(place)?;
    check_capacity("--seq", "sequence", seq, options.seq).map_err(place)?;
    let inside = |name: &String| path.parent().unwrap_or(Path::new("")).join(name);
    let weights = options.weights.clone().or_else(|| loaded.weights.as_ref().map(inside));
    let checkpoint = weights.map(|w| Checkpoint::open(&w)).transpose()?;
    let mut notices = Vec::new();
    match &checkpoint {
        Some(checkpoint) => notices.extend(bind(&mut loaded.module, checkpoint)?),
        None if loaded.module.params.values().any(|p| matches!(p.source.values, Values::Random(_))) => {
            notices.push(format!("no weights were given: they are random, from seed {}", options.seed));
        }
        None => {}
    }
    let tokenizer: Option<PathBuf> = loaded.info.tokenizer.as_ref().map(inside);
    let Info { family, class, task, vocab, layers, max_seq, bos, eos, .. } = loaded.info;
    let info = ModelInfo {
        name: loaded.module.name.clone(),
        family,
        class,
        parameters: count_parameters(&loaded.module)?,
        task,
        vocab,
        seq: seq.unwrap_or_default(),
        layers,
        tokenizer: tokenizer.as_ref().map(|t| t.display().to_string()),
        bos,
        eos,
    };
    let max_seq = if max_seq == 0 { seq.unwrap_or(1) } else { max_seq };
    Ok(Model { module: loaded.module, info, checkpoint, tokenizer, notices, max_seq })
}

fn read(value: Value, path: &Path, weights: bool, seed: u64) -> Result<Loaded, Diagnostic> {
    model_json::read(value, weights, seed).map_err(|d| in_file(d, path))
}

/// The place inside the file, after the file.
fn in_file(d: Diagnostic, path: &Path) -> Diagnostic {
    let place = match &d.place {
        Some(inside) => format!("{}: {inside}", path.display()),
        None => path.display().to_string(),
    };
    d.at(place)
}

/// Scalars in all parameters, or a diagnostic when their bytes pass 2^60.
pub(crate) fn count_parameters(module: &Module) -> Result<u64, Diagnostic> {
    let bytes = module.params.values().try_fold(0u64, |sum, p| {
        let bytes = (p.ty.checked()? as u64).checked_mul(p.stack.unwrap_or(1).into())?;
        sum.checked_add(bytes).filter(|&n| n < 1 << 60)
    });
    match bytes {
        Some(_) => Ok(module.parameters()),
        None => Err(Diagnostic::input("the model's parameters together pass 2^60 bytes")),
    }
}

/// Extents of the dims labelled batch and seq. All batch dims have one extent; of seq dims the largest counts.
fn capacities(module: &Module) -> Result<(Option<usize>, Option<usize>), Diagnostic> {
    let (mut rows, mut seq) = (None, None);
    for entry in &module.entries {
        let func = &module.funcs[entry.func];
        for (role, &v) in entry.args.iter().zip(&func.args) {
            let value = &func.values[v];
            for (label, &extent) in value.labels.iter().zip(&value.ty.shape) {
                match (label, role) {
                    (Some(Label::Batch), _) if rows.is_some_and(|r| r != extent) => {
                        return Err(Diagnostic::input(format!(
                            "`{}` has {extent} rows of the batch",
                            value.name
                        ))
                        .at(format!("entry `{}`", entry.name))
                        .why(format!("another input or state has {}", rows.unwrap_or_default())));
                    }
                    (Some(Label::Batch), _) => rows = Some(extent),
                    (Some(Label::Seq), Role::Input(_)) => seq = seq.max(Some(extent)),
                    _ => {}
                }
            }
        }
    }
    Ok((rows, seq))
}

/// The file fixes these extents.
fn check_capacity(
    flag: &str,
    what: &str,
    fixed: Option<usize>,
    asked: Option<usize>,
) -> Result<(), Diagnostic> {
    match (fixed, asked) {
        (Some(fixed), Some(asked)) if fixed != asked => {
            Err(Diagnostic::input(format!("the model's {what} dim has {fixed}, not {asked}"))
                .why("the sizes of a model.json are fixed in the file")
                .help(format!("leave {flag} at {fixed}, or write the file again with other sizes")))
        }
        _ => Ok(()),
    }
}

/// Finds the tensors of all parameters; says which tensors no parameter uses.
///
/// # Errors
/// Missing, wrong-shaped and undecodable tensors, all in one message.
fn bind(module: &mut Module, checkpoint: &Checkpoint) -> Result<Option<String>, Diagnostic> {
    let mut unused: BTreeSet<String> = checkpoint.tensors().map(|t| t.name.to_owned()).collect();
    let (mut missing, mut wrong) = (Vec::new(), Vec::new());
    for p in module.params.values_mut() {
        let Values::Tensor(view) = &p.source.values else { continue };
        // A tensor used whole may be stored in another order of elements under another name, as in GGUF files.
        let whole = *view == TensorView::whole(&*view.tensor, &*view.file_shape);
        let found = match checkpoint.tensor(&view.tensor) {
            None if !whole || !checkpoint.contains(&view.tensor) => {
                missing.push(view.tensor.clone());
                continue;
            }
            None => checkpoint.view(&view.tensor)?,
            Some(t) if t.shape == view.file_shape => view.clone(),
            Some(t) => {
                let (needed, has) = (&view.file_shape, t.shape);
                wrong.push(format!("`{}` has shape {has:?} where {needed:?} is needed", view.tensor));
                continue;
            }
        };
        if let Some(ElementType::Other { name, .. }) = checkpoint.tensor(&found.tensor).map(|t| t.element) {
            wrong.push(format!("`{}` has the unsupported element type {name}", found.tensor));
        }
        if found.shape() != p.ty.shape {
            wrong.push(format!(
                "`{}` has shape {:?} where {:?} is needed",
                found.tensor,
                found.shape(),
                p.ty.shape
            ));
        }
        unused.remove(&found.tensor);
        p.source = ParamSource::tensor(found);
    }
    naming::report(&checkpoint.path().display().to_string(), &missing, &wrong, &[])?;
    let unused: Vec<String> = unused.into_iter().collect();
    let notice = format!("{} tensors of the checkpoint are not used: {}", unused.len(), list_names(&unused));
    Ok((!unused.is_empty()).then_some(notice))
}
