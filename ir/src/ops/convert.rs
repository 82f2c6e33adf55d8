//! Conversion of the element type. Floats round to nearest even; float to integer truncates and saturates (NaN gives
//! 0); to bool is `x != 0`.

use super::{Define, Op, operands, same_shape_rule};
use crate::eval::{At, Tensor, round_to};
use crate::rule::{Rule, Split};
use crate::sharding;
use crate::types::{DType, ReduceKind, Type};

pub(super) struct Convert(pub(super) DType);

impl Define for Convert {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x] = operands(args)?;
        Ok(vec![Type::new(self.0, x.shape.clone())])
    }

    fn rule(&self, _: &[&Type], results: &[&Type]) -> Rule {
        same_shape_rule(1, &results[0].shape)
    }

    fn flops(&self, _: &[&Type], results: &[&Type]) -> f64 {
        results[0].elements() as f64
    }

    fn result_pads(&self, rule: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        rule.carried_pads(pads, &[0])
    }

    /// The rule does not know the operand's type, so only conversions that never round commute with sums: those to
    /// f64. Every conversion between numbers is monotone and so commutes with max and min; to bool is not.
    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        match args[0]? {
            ReduceKind::Sum if self.0 != DType::F64 => None,
            _ if self.0 == DType::Bool => None,
            kind => Some(kind),
        }
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::Convert(self.0)
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let data = args[0].data.iter().map(|&x| round_to(self.0, x)).collect();
        Ok(vec![Tensor { ty: results[0].clone(), data }])
    }
}
