//! Names and layouts of a family's checkpoints: each family has one table, this is what reads it.
//!
//! A weight is known to the blocks by its role (`attn.q.weight`) and its logical shape. A [`Row`] says which module of
//! the published model holds it; the suffix (`weight`, `bias`) is kept. [`Naming::bind`] turns a checkpoint's tensors into
//! views of logical shape and reports everything that does not fit in one message.

mod layout;
mod stacks;

use crate::transformer::{Network, Place, Weight};
use crate::weights::{Checkpoint, ElementType, list_names};
use pcc_ir::source::TensorView;
use pcc_ir::{Diagnostic, ParamSource};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// One module of the published model.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Role without the suffix: `attn.q`.
    pub role: &'static str,
    /// Published name without the suffix; `{i}` stands for the layer.
    pub module: &'static str,
    pub piece: Piece,
}

/// Which of the published tensor's outputs a weight has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    Whole,
    /// The k-th of n equal parts.
    Part(usize, usize),
    /// These, of a projection to all queries, then all keys, then all values.
    Stacked(Qkv),
    /// These, of a projection to the queries, the key and the value of one kv head after another.
    PerHead(Qkv),
}

/// Queries `[.., kv, group, head_dim]`, or keys or values `[.., kv, head_dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qkv {
    Queries,
    Keys,
    Values,
}

impl Row {
    pub const fn new(role: &'static str, module: &'static str) -> Self {
        Self { role, module, piece: Piece::Whole }
    }

    pub const fn part(role: &'static str, module: &'static str, k: usize, n: usize) -> Self {
        Self { role, module, piece: Piece::Part(k, n) }
    }

    pub const fn stacked(role: &'static str, module: &'static str, which: Qkv) -> Self {
        Self { role, module, piece: Piece::Stacked(which) }
    }

    pub const fn per_head(role: &'static str, module: &'static str, which: Qkv) -> Self {
        Self { role, module, piece: Piece::PerHead(which) }
    }
}

/// How linear maps are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrices {
    /// `nn.Linear`: `[outputs, inputs]`.
    OutputsFirst,
    /// GPT-2's `Conv1D`: `[inputs, outputs]`.
    InputsFirst,
}

/// Everything a family says of its checkpoints.
#[derive(Clone, Copy, Debug)]
pub struct Naming {
    pub rows: &'static [Row],
    pub matrices: Matrices,
    /// Prefixes a checkpoint's names may have or lack (`model.`).
    pub prefixes: &'static [&'static str],
    /// Older endings of names, and today's.
    pub renames: &'static [(&'static str, &'static str)],
    /// Tensors a checkpoint may hold that are no parameters of the model (buffers, other heads), without the
    /// prefix; a `*` at the start or end stands for anything.
    pub ignored: &'static [&'static str],
}

impl Naming {
    fn row(&self, role: &str) -> Option<&'static Row> {
        self.rows.iter().find(|r| r.role == role)
    }

    /// Whether every layer has its own weight of this role.
    pub fn in_layer(&self, role: &str) -> bool {
        let (module, _) = split_suffix(role);
        self.row(module).is_some_and(|r| r.module.contains("{i}"))
    }

    /// The parameter's name: the published one, with the part's role at its end where one tensor holds several.
    pub fn name(&self, role: &str, place: Place) -> String {
        let (module, suffix) = split_suffix(role);
        let number = place.number();
        let layer = number.as_deref();
        match self.row(module) {
            Some(row) if row.piece != Piece::Whole => {
                let (_, part) = split_suffix(module);
                format!("{}.{part}.{suffix}", in_layer(row.module, layer))
            }
            Some(row) => format!("{}.{suffix}", in_layer(row.module, layer)),
            None => in_layer(role, layer),
        }
    }

    /// The published tensor that holds a weight.
    fn tensor(&self, role: &str, layer: Option<usize>) -> String {
        let (module, suffix) = split_suffix(role);
        let module = self.row(module).map_or(module, |r| r.module);
        let number = layer.map(|i| i.to_string());
        format!("{}.{suffix}", in_layer(module, number.as_deref()))
    }

    /// A module for messages, as the user's model names it inside a layer: `self_attn.q_proj`.
    pub fn module(&self, role: &str) -> String {
        let module = self.row(role).map_or(role, |r| r.module);
        module.split_once("{i}.").map_or(module, |(_, inner)| inner).to_owned()
    }

    /// A layer for messages, by its number: `model.layers.3`.
    pub fn layer_module(&self, layer: &str) -> String {
        let before = self.rows.iter().find_map(|r| r.module.split_once("{i}")).map_or("layers.", |(b, _)| b);
        format!("{before}{layer}")
    }

    /// Today's name without the optional prefix.
    fn normalise<'n>(&self, name: &'n str) -> Cow<'n, str> {
        let name = self.prefixes.iter().find_map(|p| name.strip_prefix(p)).unwrap_or(name);
        for (old, new) in self.renames {
            if let Some(stem) = name.strip_suffix(old) {
                return Cow::Owned(format!("{stem}{new}"));
            }
        }
        Cow::Borrowed(name)
    }

    fn is_ignored(&self, name: &str) -> bool {
        self.ignored.iter().any(|&pattern| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
            (Some(end), _) => name.ends_with(end),
            (_, Some(start)) => name.starts_with(start),
            _ => name == pattern,
        })
    }

    /// Makes every parameter of the network a view of the checkpoint's tensor.
    ///
    /// # Errors
    /// Missing, unknown, wrong-shaped and undecodable tensors, all in one message.
    pub fn bind(&self, network: &mut Network, checkpoint: &Checkpoint) -> Result<(), Diagnostic> {
        let place = checkpoint.path().display().to_string();
        let mut published: BTreeMap<String, String> = BTreeMap::new();
        for name in checkpoint.published_names() {
            if let Some(other) = published.insert(self.normalise(&name).into_owned(), name.clone()) {
                return Err(Diagnostic::input(format!(
                    "tensors `{other}` and `{name}` are the same parameter"
                ))
                .at(place));
            }
        }
        let mut unused: BTreeSet<String> = published.keys().cloned().collect();
        let (mut missing, mut wrong) = (Vec::new(), Vec::new());
        let mut sources = Vec::with_capacity(network.weights.len());
        for (weight, place) in &network.weights {
            let mut of_layers = Vec::new();
            for layer in place.layers() {
                let tensor = self.tensor(&weight.role, layer);
                let Some((key, name)) = published.get_key_value(self.normalise(&tensor).as_ref()) else {
                    missing.push(tensor);
                    continue;
                };
                unused.remove(key);
                let view = checkpoint.view(name)?;
                let stored = checkpoint.tensor(&view.tensor).map(|t| t.element.clone());
                match self.arrange(weight, view) {
                    Err(why) => wrong.push(format!("`{tensor}` {why}")),
                    Ok(view) => match stored {
                        Some(ElementType::Other { name, .. }) => {
                            wrong.push(format!("`{tensor}` has the unsupported element type {name}"));
                        }
                        _ => of_layers.push(ParamSource::tensor(view)),
                    },
                }
            }
            sources.push(of_layers);
        }
        let unknown: Vec<String> = unused.into_iter().filter(|n| !self.is_ignored(n)).collect();
        report(&place, &missing, &wrong, &unknown)?;
        stacks::bind(network, sources)
    }

    /// The stored tensor in the logical shape.
    fn arrange(&self, weight: &Weight, stored: TensorView) -> Result<TensorView, String> {
        let (module, _) = split_suffix(&weight.role);
        let piece = self.row(module).map_or(Piece::Whole, |r| r.piece);
        layout::arrange(weight, piece, self.matrices, stored)
    }
}

/// `attn.q.weight` is `attn.q` and `weight`.
fn split_suffix(role: &str) -> (&str, &str) {
    role.rsplit_once('.').unwrap_or((role, ""))
}

fn in_layer(template: &str, layer: Option<&str>) -> String {
    match layer {
        Some(i) => template.replace("{i}", i),
        None => template.to_owned(),
    }
}

/// One message for everything that does not fit.
pub(crate) fn report(
    place: &str,
    missing: &[String],
    wrong: &[String],
    unknown: &[String],
) -> Result<(), Diagnostic> {
    let mut why = Vec::new();
    if !missing.is_empty() {
        why.push(format!("{} missing: {}", missing.len(), list_names(missing)));
    }
    if !wrong.is_empty() {
        let more = wrong.len().saturating_sub(8);
        let shown = wrong.iter().take(8).cloned().collect::<Vec<_>>().join(", ");
        why.push(if more == 0 { shown } else { format!("{shown} and {more} more") });
    }
    if !unknown.is_empty() {
        why.push(format!("{} unknown to this model: {}", unknown.len(), list_names(unknown)));
    }
    if why.is_empty() {
        return Ok(());
    }
    Err(Diagnostic::input("the weights are not of this model")
        .at(place)
        .why(why.join("; "))
        .help("give the weights the config belongs to, or leave them out to use random ones"))
}
