//! The entry of an encoder: `forward(tokens, attention_mask, token_types) -> last_hidden_state`.

use super::attention::Mode;
use super::entry::{EntryBuilder, LayerFuncs, Network, NetworkBuilder};
use super::fold::Place;
use super::func::{Built, FuncBuilder};
use super::{Capacity, Layer, Transformer};
use crate::naming::Naming;
use pcc_ir::graph::Label;
use pcc_ir::ops::{CompareKind, Op};
use pcc_ir::{Diagnostic, Type, ValueId};

const PER_POSITION: [Option<Label>; 2] = [Some(Label::Batch), Some(Label::Seq)];

pub(super) fn build(
    model: &Transformer,
    name: &str,
    naming: &Naming,
    capacity: Capacity,
) -> Result<Network, Diagnostic> {
    let mut network = NetworkBuilder::new(model, name, naming, capacity);
    let mut entry = EntryBuilder::new("forward");
    let ids = Type::i32([capacity.rows, capacity.seq]);
    let tokens = entry.input(ids.clone(), "tokens", &PER_POSITION);
    let mask = entry.input(ids.clone(), "attention_mask", &PER_POSITION);
    let mut inputs = vec![tokens];
    if model.embedding.token_types.is_some() {
        inputs.push(entry.input(ids, "token_types", &PER_POSITION));
    }
    let embed = embed_func(&network)?;
    let embed = network.add_func(embed);
    let mut chain = entry.call(&mut network, &embed, &inputs, Place::Outside, vec![]);
    let mut funcs = LayerFuncs::new();
    for place in entry.places(&model.layers) {
        let Some(layer) = place.first().and_then(|i| model.layers.get(i)) else { continue };
        let callee = funcs.get(&mut network, layer, "forward", |n, name| layer_func(n, layer, name))?;
        let inputs: Vec<ValueId> = chain.into_iter().chain([mask]).collect();
        chain = entry.call(&mut network, &callee, &inputs, place, vec![]);
    }
    let outputs: Vec<(&str, ValueId)> = chain.into_iter().map(|v| ("last_hidden_state", v)).collect();
    entry.finish(&mut network, &outputs);
    Ok(network.finish())
}

/// `tokens [b, s] (, token_types [b, s]) -> x [b, s, h]`.
fn embed_func(network: &NetworkBuilder) -> Result<Built, Diagnostic> {
    let (model, Capacity { rows, seq, .. }) = (network.model, network.capacity);
    let mut f = FuncBuilder::new("forward.embed", network.naming);
    let tokens = f.arg(Type::i32([rows, seq]), "tokens", &PER_POSITION)?;
    let token_types = match model.embedding.token_types {
        Some(_) => Some(f.arg(Type::i32([rows, seq]), "token_types", &PER_POSITION)?),
        None => None,
    };
    let loc = f.loc("embed.positions");
    let positions = match model.embedding.needs_positions() {
        true => Some(f.iota_positions(rows, seq, &loc)?),
        false => None,
    };
    let x = model.embedding.build(&mut f, model, tokens, positions, token_types)?;
    Ok(f.finish(vec![x]))
}

/// `x [b, s, h], attention_mask [b, s], weights.. -> x`. A position whose mask is 0 is seen by no query.
fn layer_func(network: &NetworkBuilder, layer: &Layer, name: String) -> Result<Built, Diagnostic> {
    let Capacity { rows, seq, .. } = network.capacity;
    let mut f = FuncBuilder::new(name, network.naming);
    let hidden = network.model.hidden;
    let x = f.arg(Type::f32([rows, seq, hidden]), "x", &[Some(Label::Batch), Some(Label::Seq), None])?;
    let ids = Type::i32([rows, seq]);
    let mask = f.arg(ids.clone(), "attention_mask", &PER_POSITION)?;
    let loc = f.loc("attn");
    let positions = f.iota_positions(rows, seq, &loc)?;
    let zero = f.splat(ids.clone(), 0.0, &loc)?;
    let seen = f.op(Op::Compare(CompareKind::Ne), &[mask, zero], &loc)?;
    let hidden_key = f.splat(ids, -1.0, &loc)?;
    let keys = f.op(Op::Select, &[seen, positions, hidden_key], &loc)?;
    let made = layer.build(&mut f, x, Mode::Whole { positions, keys }, seq)?;
    Ok(f.finish(vec![made.out]))
}
