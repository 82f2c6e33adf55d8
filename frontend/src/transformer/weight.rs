//! What a block says of a weight it needs.

use pcc_ir::source::ParamSource;

/// A weight by its role in the family-independent model (`attn.q.weight`), with its logical shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    pub role: String,
    pub shape: Vec<usize>,
    pub kind: Kind,
}

/// How a weight is used: decides its layout in a checkpoint and its values without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A linear map; the first `inputs` dims are contracted.
    Matrix { inputs: usize },
    /// Rows that are looked up: `[rows, hidden]`.
    Table,
    /// Added to a linear map's result or a norm's.
    Bias,
    /// Multiplies a normalised value.
    Scale,
}

impl Kind {
    pub(crate) fn is_matrix(self) -> bool {
        matches!(self, Kind::Matrix { .. })
    }
}

/// Standard deviation of random matrices and tables.
const STD: f32 = 0.02;

impl Weight {
    pub fn new(role: impl Into<String>, shape: impl Into<Vec<usize>>, kind: Kind) -> Self {
        Self { role: role.into(), shape: shape.into(), kind }
    }

    /// Values for a model without weights: scales 1, biases 0, the rest noise that depends on the seed and on `name`.
    pub fn without_checkpoint(&self, seed: u64, name: &str) -> ParamSource {
        match self.kind {
            Kind::Matrix { .. } | Kind::Table => ParamSource::random(self.shape.clone(), seed, name, STD),
            Kind::Bias => ParamSource::zeros(self.shape.clone()),
            Kind::Scale => ParamSource::ones(self.shape.clone()),
        }
    }
}
