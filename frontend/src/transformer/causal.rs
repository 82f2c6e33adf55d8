//! The entries of a causal language model: `forward`, and `prefill` and `decode` with a cache.

use super::attention::{CACHES, Mode};
use super::entry::{EntryBuilder, LayerFuncs, Network, NetworkBuilder};
use super::fold::Place;
use super::func::{Built, FuncBuilder};
use super::{Capacity, Head, Layer, Transformer};
use crate::naming::Naming;
use pcc_ir::graph::Label;
use pcc_ir::{Diagnostic, Op, Type, ValueId};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Logits of every position.
    Forward,
    /// Fills the caches; logits of each row's last token.
    Prefill,
    /// One token a row.
    Decode,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Forward => "forward",
            Kind::Prefill => "prefill",
            Kind::Decode => "decode",
        }
    }

    /// Extent of the sequence dim, and its label: one position is no sequence to split.
    fn positions(self, seq: usize) -> (usize, Option<Label>) {
        match self {
            Kind::Forward | Kind::Prefill => (seq, Some(Label::Seq)),
            Kind::Decode => (1, None),
        }
    }
}

pub(super) fn build(
    model: &Transformer,
    name: &str,
    naming: &Naming,
    capacity: Capacity,
) -> Result<Network, Diagnostic> {
    let mut network = NetworkBuilder::new(model, name, naming, capacity);
    for kind in [Kind::Forward, Kind::Prefill, Kind::Decode] {
        build_entry(&mut network, kind)?;
    }
    Ok(network.finish())
}

/// Calls `embed`, the layers and `head` one after another.
fn build_entry(network: &mut NetworkBuilder, kind: Kind) -> Result<(), Diagnostic> {
    let (model, Capacity { rows, seq, .. }) = (network.model, network.capacity);
    let mut entry = EntryBuilder::new(kind.name());
    let (len, label) = kind.positions(seq);
    let tokens = entry.input(Type::i32([rows, len]), "tokens", &[Some(Label::Batch), label]);
    // What a row needs beyond its tokens: its length in prefill, the position of its token in decode.
    let per_row = match kind {
        Kind::Forward => None,
        Kind::Prefill => Some(entry.input(Type::i32([rows]), "lengths", &[Some(Label::Batch)])),
        Kind::Decode => Some(entry.input(Type::i32([rows]), "positions", &[Some(Label::Batch)])),
    };
    let positions = per_row.filter(|_| kind == Kind::Decode);

    let embed = embed_func(network, kind)?;
    let embed = network.add_func(embed);
    let needs_positions = model.embedding.needs_positions();
    let inputs: Vec<ValueId> = [tokens].into_iter().chain(positions.filter(|_| needs_positions)).collect();
    let mut chain = entry.call(network, &embed, &inputs, Place::Outside, vec![]);

    let mut funcs = LayerFuncs::new();
    for place in entry.places(&model.layers) {
        let Some((layer, number)) = place.first().and_then(|i| model.layers.get(i)).zip(place.number())
        else {
            continue;
        };
        let build = |n: &NetworkBuilder, name: String| layer_func(n, kind, layer, name);
        let callee = funcs.get(network, layer, kind.name(), build)?;
        let caches = match kind {
            Kind::Forward => vec![],
            Kind::Prefill | Kind::Decode => {
                let ty = layer.attention.cache_type(rows, seq);
                CACHES.iter().map(|c| (format!("layers.{number}.{c}"), ty.clone())).collect()
            }
        };
        let inputs: Vec<ValueId> = chain.into_iter().chain(positions).collect();
        chain = entry.call(network, &callee, &inputs, place, caches);
    }

    let head = head_func(network, kind)?;
    let head = network.add_func(head);
    let inputs: Vec<ValueId> = chain.into_iter().chain(per_row.filter(|_| kind == Kind::Prefill)).collect();
    let logits = entry.call(network, &head, &inputs, Place::Outside, vec![]);
    let outputs: Vec<(&str, ValueId)> = logits.into_iter().map(|v| ("logits", v)).collect();
    entry.finish(network, &outputs);
    Ok(())
}

/// `tokens [b, s] (, positions [b]) -> x [b, s, h]`.
fn embed_func(network: &NetworkBuilder, kind: Kind) -> Result<Built, Diagnostic> {
    let (model, Capacity { rows, seq, .. }) = (network.model, network.capacity);
    let mut f = FuncBuilder::new(format!("{}.embed", kind.name()), network.naming);
    let (len, label) = kind.positions(seq);
    let tokens = f.arg(Type::i32([rows, len]), "tokens", &[Some(Label::Batch), label])?;
    let loc = f.loc("embed.positions");
    let positions = match kind {
        _ if !model.embedding.needs_positions() => None,
        Kind::Forward | Kind::Prefill => Some(f.iota_positions(rows, len, &loc)?),
        Kind::Decode => {
            let positions = f.arg(Type::i32([rows]), "positions", &[Some(Label::Batch)])?;
            Some(f.op(Op::Reshape(vec![rows, 1]), &[positions], &loc)?)
        }
    };
    let x = model.embedding.build(&mut f, model, tokens, positions, None)?;
    Ok(f.finish(vec![x]))
}

/// `x [b, s, h] (, positions [b]), weights.. (, caches..) -> x (, caches..)`.
fn layer_func(
    network: &NetworkBuilder,
    kind: Kind,
    layer: &Layer,
    name: String,
) -> Result<Built, Diagnostic> {
    let Capacity { rows, seq, .. } = network.capacity;
    let mut f = FuncBuilder::new(name, network.naming);
    let (len, label) = kind.positions(seq);
    let x = f.arg(Type::f32([rows, len, network.model.hidden]), "x", &[Some(Label::Batch), label, None])?;
    let loc = f.loc("attn");
    let mode = match kind {
        Kind::Forward => {
            let positions = f.iota_positions(rows, len, &loc)?;
            Mode::Whole { positions, keys: positions }
        }
        Kind::Prefill => Mode::Fill { positions: f.iota_positions(rows, len, &loc)? },
        Kind::Decode => {
            Mode::Step { positions: f.arg(Type::i32([rows]), "positions", &[Some(Label::Batch)])? }
        }
    };
    let made = layer.build(&mut f, x, mode, seq)?;
    Ok(f.finish([made.out].into_iter().chain(made.caches.into_iter().flatten()).collect()))
}

/// `x [b, s, h] (, lengths [b]) -> logits [b, s, vocab]`, or `[b, vocab]` of one position a row.
fn head_func(network: &NetworkBuilder, kind: Kind) -> Result<Built, Diagnostic> {
    let (model, Capacity { rows, seq, .. }) = (network.model, network.capacity);
    let mut f = FuncBuilder::new(format!("{}.head", kind.name()), network.naming);
    let (len, label) = kind.positions(seq);
    let x = f.arg(Type::f32([rows, len, model.hidden]), "x", &[Some(Label::Batch), label, None])?;
    let x = match kind {
        Kind::Forward => x,
        Kind::Prefill => {
            let lengths = f.arg(Type::i32([rows]), "lengths", &[Some(Label::Batch)])?;
            Head::last_token(&mut f, x, lengths)?
        }
        Kind::Decode => {
            let loc = f.loc("head");
            f.op(Op::Reshape(vec![rows, model.hidden]), &[x], &loc)?
        }
    };
    let logits = model.head.build(&mut f, model, x)?;
    Ok(f.finish(vec![logits]))
}
