//! Calls, reshards, sends and receives: ops that only passes and executors give a meaning to.

use super::{Define, Op, operands};
use crate::eval::{At, Tensor};
use crate::rule::{Rule, Split};
use crate::types::Type;

pub(super) struct Call<'a>(pub(super) &'a Op);
pub(super) struct Reshard<'a>(pub(super) &'a Op);
pub(super) struct Send<'a>(pub(super) &'a Op);
pub(super) struct Recv<'a>(pub(super) &'a Op, pub(super) &'a Type);

impl Define for Call<'_> {
    fn infer(&self, _: &[&Type]) -> Result<Vec<Type>, String> {
        Err("the types of a call are those of its function".into())
    }

    fn rule(&self, args: &[&Type], results: &[&Type]) -> Rule {
        Rule::replicated(args, results)
    }

    fn flops(&self, _: &[&Type], _: &[&Type]) -> f64 {
        0.0
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        self.0.clone()
    }

    fn eval(&self, _: &[&Tensor], _: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        Err("needs the module".into())
    }
}

impl Define for Reshard<'_> {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x] = operands(args)?;
        match self.0 {
            Op::Reshard(s) if s.dims.len() != x.rank() => {
                Err(format!("a sharding of {} dims does not fit {x}", s.dims.len()))
            }
            _ => Ok(vec![x.clone()]),
        }
    }

    fn rule(&self, args: &[&Type], results: &[&Type]) -> Rule {
        Rule::replicated(args, results)
    }

    fn flops(&self, _: &[&Type], _: &[&Type]) -> f64 {
        0.0
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        self.0.clone()
    }

    fn eval(&self, args: &[&Tensor], _: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        Ok(vec![args[0].clone()])
    }
}

impl Define for Send<'_> {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [_] = operands(args)?;
        Ok(vec![])
    }

    fn rule(&self, args: &[&Type], results: &[&Type]) -> Rule {
        Rule::replicated(args, results)
    }

    fn flops(&self, _: &[&Type], _: &[&Type]) -> f64 {
        0.0
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        self.0.clone()
    }

    fn eval(&self, _: &[&Tensor], _: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        Err("crosses pipeline stages".into())
    }
}

impl Define for Recv<'_> {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [] = operands(args)?;
        Ok(vec![self.1.clone()])
    }

    fn rule(&self, args: &[&Type], results: &[&Type]) -> Rule {
        Rule::replicated(args, results)
    }

    fn flops(&self, _: &[&Type], _: &[&Type]) -> f64 {
        0.0
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        self.0.clone()
    }

    fn eval(&self, _: &[&Tensor], _: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        Err("crosses pipeline stages".into())
    }
}
