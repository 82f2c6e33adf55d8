//! Programs without stacks, as they run.

use super::{LocalParam, LocalState, Program};
use crate::diagnostic::Diagnostic;
use crate::repeat::{Numbering, names};

/// Bytes that descriptions of parameters may take when they are unfolded.
const MOST_BYTES: usize = 1 << 28;

impl Program {
    /// The program with every parameter and state by itself, in the order in which slots count them.
    ///
    /// # Errors
    /// A stack is not well formed, or the program was edited to need absurdly many.
    pub fn expanded(mut self) -> Result<Self, Diagnostic> {
        let folded = self.params.iter().any(|p| p.stack.is_some());
        if !folded && self.states.iter().all(|s| s.stack.is_none()) {
            return Ok(self);
        }
        let damaged = |why: String| Diagnostic::input("the program's stacks are not well formed").why(why);
        let params = Numbering::new(self.params.iter().map(|p| p.stack)).map_err(damaged)?;
        let states = Numbering::new(self.states.iter().map(|s| s.stack)).map_err(damaged)?;
        let count = |stack: Option<u32>| stack.unwrap_or(1) as usize;
        let names = self.params.iter().map(|p| (text(p), p.stack));
        let bytes = names.chain(self.states.iter().map(|s| (s.name.len() + 256, s.stack)));
        let all =
            bytes.fold(0usize, |n, (bytes, stack)| n.saturating_add(bytes.saturating_mul(count(stack))));
        if all > MOST_BYTES {
            return Err(damaged(format!("unfolded they take {all} bytes")));
        }
        let param = |(row, k): (u32, u32)| {
            let p = &self.params[row as usize];
            match p.stack {
                None => p.clone(),
                Some(_) => LocalParam {
                    name: names::element(&p.name, k),
                    source: p.source.element(k),
                    stack: None,
                    ..p.clone()
                },
            }
        };
        let state = |(row, k): (u32, u32)| {
            let s = &self.states[row as usize];
            match s.stack {
                None => s.clone(),
                Some(_) => LocalState { name: names::element(&s.name, k), stack: None, ..s.clone() },
            }
        };
        let flat_params = (0..params.len()).filter_map(|n| params.origin(n)).map(param).collect();
        let flat_states = (0..states.len()).filter_map(|n| states.origin(n)).map(state).collect();
        (self.params, self.states) = (flat_params, flat_states);
        Ok(self)
    }
}

/// About how many bytes a parameter's description takes.
fn text(p: &LocalParam) -> usize {
    let source = match &p.source.values {
        crate::source::Values::Tensor(view) => {
            let segments: usize = view.dims.iter().map(|d| 32 + 16 * d.len()).sum();
            view.tensor.len() + 8 * view.file_shape.len() + segments
        }
        crate::source::Values::Random(random) => random.name.len(),
        crate::source::Values::Constant(_) => 0,
    };
    let axes: usize = p.sharding.dims.iter().map(|d| 32 + 16 * d.len()).sum();
    p.name.len() + source + axes + 16 * p.ty.shape.len() + 256
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Program;
    use crate::source::ParamSource;
    use crate::{Sharding, Type};

    fn param(name: &str, stack: Option<u32>) -> LocalParam {
        LocalParam {
            name: name.into(),
            source: ParamSource::random([2], 1, name, 0.5),
            ty: Type::f32([2]),
            sharding: Sharding::replicated(1),
            stack,
            storage: Default::default(),
        }
    }

    fn program(params: Vec<LocalParam>) -> Program {
        let json = r#"{"version":2,"model":{"name":"","family":"","class":"","parameters":0,"task":"graph","vocab":0,"seq":0,
            "layers":0,"tokenizer":null,"bos":null,"eos":[]},"mesh":{"pp":1,"dp":1,"cp":1,"ep":1,"tp":1},"dtype":"f32",
            "batch":{"batch":1,"replicas":1,"micro_batches":1},"kernels":{"elems":[],"unused":null},"funcs":[],"params":[],"states":[],"constants":[],
            "entries":[],"target":{"name":"","features":[],"object_digest":""},"weights":null}"#;
        Program { params, ..serde_json::from_str(json).unwrap() }
    }

    #[test]
    fn stacks_become_parameters_layer_by_layer() {
        let folded =
            program(vec![param("e", None), param("l.{1+1}.a", Some(2)), param("l.{1+1}.b", Some(2))]);
        let flat = folded.expanded().unwrap();
        let names = ["e", "l.1.a", "l.1.b", "l.2.a", "l.2.b"].map(|n| param(n, None));
        assert_eq!(flat.params, names);
        assert_eq!(flat.clone().expanded().unwrap(), flat);
    }

    #[test]
    fn hostile_stacks_are_refused() {
        for stack in [0, u32::MAX, 1 << 20] {
            let e = program(vec![param("l.{1+1}", Some(stack))]).expanded().unwrap_err();
            assert!(e.what.contains("stacks"), "{e}");
        }
        let long = format!("{}{{1+1}}", "x".repeat(100_000));
        assert!(program(vec![param(&long, Some(10_000))]).expanded().is_err());
    }
}
