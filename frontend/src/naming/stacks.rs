//! Sources of stacks: where the tensors of all layers are named and arranged alike, one source stands for them.

use crate::transformer::{Network, Place};
use pcc_ir::repeat::{Numbering, names};
use pcc_ir::source::Values;
use pcc_ir::{Diagnostic, ParamSource};

/// Gives every parameter its source; `sources` has one a layer. A network whose layers are not stored alike is unfolded.
pub(super) fn bind(network: &mut Network, sources: Vec<Vec<ParamSource>>) -> Result<(), Diagnostic> {
    let rows = network.weights.iter().zip(&sources);
    let folded: Option<Vec<ParamSource>> = rows.map(|((_, place), of)| fold(*place, of)).collect();
    if let Some(folded) = folded {
        for (param, source) in network.module.params.values_mut().zip(folded) {
            param.source = source;
        }
        return Ok(());
    }
    let stacks = network.module.params.values().map(|p| p.stack);
    let numbers = Numbering::new(stacks).map_err(Diagnostic::internal)?;
    network.module = network.module.expanded()?.into_owned();
    let mut weights = Vec::with_capacity(numbers.len() as usize);
    for (param, (row, k)) in network.module.params.values_mut().zip((0..).map_while(|n| numbers.origin(n))) {
        let (row, k) = (row as usize, k as usize);
        if let (Some(source), Some((weight, place))) = (sources[row].get(k), network.weights.get(row)) {
            param.source = source.clone();
            weights
                .push((weight.clone(), place.layers().nth(k).flatten().map_or(Place::Outside, Place::Layer)));
        }
    }
    network.weights = weights;
    Ok(())
}

/// The one source whose elements are these, if there is one.
fn fold(place: Place, sources: &[ParamSource]) -> Option<ParamSource> {
    let first = sources.first()?;
    let Place::Layers { first: number, step, count } = place else { return Some(first.clone()) };
    let Values::Tensor(view) = &first.values else { return None };
    let (text, name) = (number.to_string(), &view.tensor);
    let digit = |i: usize| name.as_bytes().get(i).is_some_and(u8::is_ascii_digit);
    // The layer's number may stand anywhere in the name, but not within another number.
    let starts = name.match_indices(&text).map(|(i, _)| i);
    let whole = starts.filter(|&i| (i == 0 || !digit(i - 1)) && !digit(i + text.len()));
    let mut stacks = whole.map(|i| {
        let mut view = view.clone();
        view.tensor = format!("{}{}{}", &name[..i], names::place(number, step), &name[i + text.len()..]);
        ParamSource::tensor(view)
    });
    let all = sources.len() == count as usize;
    stacks.find(|s| all && sources.iter().zip(0..).all(|(source, k)| s.element(k) == *source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcc_ir::source::TensorView;

    const PLACE: Place = Place::Layers { first: 1, step: 2, count: 3 };

    fn tensors(names: [&str; 3]) -> Vec<ParamSource> {
        names.map(|n| ParamSource::tensor(TensorView::whole(n, [2, 3]))).into()
    }

    #[test]
    fn names_that_count_layers_fold() {
        let folded = fold(PLACE, &tensors(["h.1.w1", "h.3.w1", "h.5.w1"])).unwrap();
        assert_eq!(folded.tensor_name(), Some("h.{1+2}.w1"));
        let folded = fold(PLACE, &tensors(["w1.1", "w1.3", "w1.5"])).unwrap();
        assert_eq!(folded.tensor_name(), Some("w1.{1+2}"));
        assert_eq!(fold(PLACE, &tensors(["h.1.w", "h.3.w", "h.6.w"])), None);
        assert_eq!(fold(PLACE, &tensors(["h.11.w", "h.13.w", "h.15.w"])), None);
    }

    #[test]
    fn layers_that_are_stored_otherwise_do_not_fold() {
        let mut sources = tensors(["h.1.w", "h.3.w", "h.5.w"]);
        let turned = TensorView::whole("h.5.w", [3, 2]).permute(&[1, 0]).unwrap();
        sources[2] = ParamSource::tensor(turned);
        assert_eq!(fold(PLACE, &sources), None);
    }
}
