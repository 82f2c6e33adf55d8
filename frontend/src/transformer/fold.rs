//! Runs of equal layers, folded ([`pcc_ir::repeat`]): a model of 800 layers is built as fast as one of three.

use super::Layer;
use pcc_ir::repeat::names;
use std::cmp::Reverse;

/// Which layers a call is, or a weight belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// None: embedding, head.
    Outside,
    Layer(usize),
    /// Every `step`-th one from `first` on, `count` of them.
    Layers {
        first: usize,
        step: usize,
        count: u32,
    },
}

impl Place {
    /// The first of the layers.
    pub fn first(self) -> Option<usize> {
        match self {
            Place::Outside => None,
            Place::Layer(first) | Place::Layers { first, .. } => Some(first),
        }
    }

    /// The number of a layer, or what stands for the numbers of many.
    pub fn number(self) -> Option<String> {
        match self {
            Place::Outside => None,
            Place::Layer(i) => Some(i.to_string()),
            Place::Layers { first, step, .. } => Some(names::place(first, step)),
        }
    }

    /// Elements of the stack that the layers' weights are.
    pub fn stack(self) -> Option<u32> {
        if let Place::Layers { count, .. } = self { Some(count) } else { None }
    }

    /// The layers one by one; `None` for no layer.
    pub fn layers(self) -> impl Iterator<Item = Option<usize>> {
        let (first, step, count) = match self {
            Place::Outside | Place::Layer(_) => (self.first(), 0, 1),
            Place::Layers { first, step, count } => (Some(first), step, count),
        };
        (0..count as usize).map(move |k| first.map(|f| f + k * step))
    }
}

/// A chain of layers with its repeats.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Folded {
    pub(super) places: Vec<Place>,
    /// First place of each body, its length, and how many repetitions it stands for.
    pub(super) repeats: Vec<(usize, usize, u32)>,
}

/// Layers repeat after this many at most.
const LONGEST: usize = 12;

/// Folds runs of three or more equal repetitions, the longest run first, of the shortest period: its first repetition stays, a body stands
/// for the others. Linear in the layers.
pub(super) fn fold(layers: &[Layer]) -> Folded {
    let mut out = Folded::default();
    let mut at = 0;
    while at < layers.len() {
        let rest = &layers[at..];
        let runs = (1..=LONGEST.min(rest.len() / 3)).filter_map(|period| {
            let equal = rest.iter().zip(&rest[period..]).take_while(|(a, b)| a == b).count();
            let repetitions = 1 + equal / period;
            (repetitions >= 3).then_some((period, repetitions))
        });
        let run = runs.min_by_key(|&(period, repetitions)| (Reverse(period * repetitions), period));
        let Some((period, repetitions)) = run else {
            out.places.push(Place::Layer(at));
            at += 1;
            continue;
        };
        let count = repetitions as u32 - 1;
        out.places.extend((at..at + period).map(Place::Layer));
        out.repeats.push((out.places.len(), period, count));
        let body = at + period..at + 2 * period;
        out.places.extend(body.map(|first| Place::Layers { first, step: period, count }));
        at += repetitions * period;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::families;
    use crate::transformer::{Capacity, Transformer};

    /// A model with a window in every layer whose letter is `w`.
    fn model(layers: &str) -> (Transformer, &'static crate::naming::Naming) {
        let config = serde_json::json!({
            "model_type": "llama", "hidden_size": 8, "num_hidden_layers": layers.len(), "num_attention_heads": 2,
            "num_key_value_heads": 2, "intermediate_size": 8, "vocab_size": 8, "max_position_embeddings": 16,
            "rms_norm_eps": 1e-5, "hidden_act": "silu",
        });
        let description = families::read(&Config::new(config.as_object().unwrap(), "")).unwrap();
        let mut model = description.transformer;
        for (layer, letter) in model.layers.iter_mut().zip(layers.chars()) {
            layer.attention.window = (letter == 'w').then_some(4);
        }
        (model, description.naming)
    }

    fn folded(layers: &str) -> (Vec<String>, Vec<(usize, usize, u32)>) {
        let folded = fold(&model(layers).0.layers);
        (folded.places.iter().filter_map(|p| p.number()).collect(), folded.repeats)
    }

    fn numbers(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn runs_of_any_period_fold_and_the_rest_stays() {
        assert_eq!(folded("aa"), (numbers("0 1"), vec![]));
        assert_eq!(folded("aaa"), (numbers("0 {1+1}"), vec![(1, 1, 2)]));
        assert_eq!(folded("wawawaw"), (numbers("0 1 {2+2} {3+2} 6"), vec![(2, 2, 2)]));
        assert_eq!(folded("aaaawwww"), (numbers("0 {1+1} 4 {5+1}"), vec![(1, 1, 3), (3, 1, 3)]));
        let four = numbers("0 1 2 3 {4+4} {5+4} {6+4} {7+4}");
        assert_eq!(folded("waaawaaawaaa"), (four, vec![(4, 4, 2)]));
        assert_eq!(folded("waawaawaawa"), (numbers("0 1 2 {3+3} {4+3} {5+3} 9 10"), vec![(3, 3, 2)]));
    }

    #[test]
    fn every_layer_is_in_one_place() {
        for layers in ["a", "aaaaa", "wawawaw", "waawaawaawa", "aaaawwwwa"] {
            let folded = fold(&model(layers).0.layers);
            let mut all: Vec<usize> = folded.places.iter().flat_map(|p| p.layers()).flatten().collect();
            all.sort_unstable();
            assert_eq!(all, (0..layers.len()).collect::<Vec<_>>());
        }
    }

    /// Unfolded, the module is the one that is built layer by layer: as many calls, each parameter with its own name and values.
    #[test]
    fn an_unfolded_model_has_every_layer() {
        for (layers, calls) in [("aaaaa", 7), ("wawawaw", 9), ("waawaawaawa", 13)] {
            let (model, naming) = model(layers);
            let network = model.build("m", naming, Capacity { rows: 1, seq: 4, seed: 3 }).unwrap();
            pcc_ir::verifier::verify(&network.module).unwrap();
            let flat = network.module.expanded().unwrap().into_owned();
            pcc_ir::verifier::verify(&flat).unwrap();
            assert_eq!(flat.parameters(), network.module.parameters());
            for entry in &flat.entries {
                let main = &flat.funcs[entry.func];
                assert_eq!(main.insts.len(), calls);
                for (i, inst) in main.insts.iter().enumerate().take(calls - 1).skip(1) {
                    let layer = format!("model.layers.{}", i - 1);
                    assert_eq!(inst.loc, layer);
                    let roles = inst.args.iter().filter_map(|v| main.args.iter().position(|a| a == v));
                    let mut weights = 0;
                    for role in roles.map(|i| &entry.args[i]) {
                        if let pcc_ir::graph::Role::Param(p) = role {
                            let p = &flat.params[*p];
                            assert!(p.name.starts_with(&format!("{layer}.")), "{} in {layer}", p.name);
                            assert!(p.source.name().is_none_or(|n| n == p.name));
                            weights += 1;
                        }
                        if let pcc_ir::graph::Role::State(s) = role {
                            assert!(flat.states[*s].name.starts_with(&format!("layers.{}.", i - 1)));
                        }
                    }
                    assert_eq!(weights, 9);
                }
            }
        }
    }
}
