//! Builds one function: arguments, weights and ops, with types inferred op by op.

use super::weight::{Kind, Weight};
use crate::naming::Naming;
use pcc_ir::graph::Label;
use pcc_ir::ops::{BinaryKind, Broadcast, Constant, DotGeneral, Literal, Op, UnaryKind};
use pcc_ir::{DType, Diagnostic, Func, Type, ValueId};

/// A function. Its arguments are chain values and inputs, then these weights, then states.
#[derive(Clone, Debug)]
pub(super) struct Built {
    pub(super) func: Func,
    pub(super) weights: Vec<Weight>,
}

pub(super) struct FuncBuilder<'a> {
    func: Func,
    weights: Vec<(Weight, ValueId)>,
    states: Vec<ValueId>,
    naming: &'a Naming,
}

impl<'a> FuncBuilder<'a> {
    pub(super) fn new(name: impl Into<String>, naming: &'a Naming) -> Self {
        Self { func: Func::new(name), weights: Vec::new(), states: Vec::new(), naming }
    }

    pub(super) fn arg(
        &mut self,
        ty: Type,
        name: &str,
        labels: &[Option<Label>],
    ) -> Result<ValueId, Diagnostic> {
        check_size(&ty, name)?;
        let v = self.func.arg(ty, name);
        if labels.iter().any(Option::is_some) {
            self.func.values[v].labels = labels.to_vec();
        }
        Ok(v)
    }

    /// An argument for a weight; asked for twice under one role it is one argument.
    pub(super) fn weight(&mut self, role: &str, shape: &[usize], kind: Kind) -> Result<ValueId, Diagnostic> {
        if let Some((_, v)) = self.weights.iter().find(|(w, _)| w.role == role) {
            return Ok(*v);
        }
        let v = self.arg(Type::f32(shape), role, &[])?;
        self.weights.push((Weight::new(role, shape, kind), v));
        Ok(v)
    }

    /// An argument for a state tensor.
    pub(super) fn state(&mut self, ty: Type, name: &str) -> Result<ValueId, Diagnostic> {
        let v = self.arg(ty, name, &[Some(Label::Batch), None, None, None])?;
        self.states.push(v);
        Ok(v)
    }

    pub(super) fn ty(&self, v: ValueId) -> &Type {
        self.func.ty(v)
    }

    pub(super) fn shape(&self, v: ValueId) -> Vec<usize> {
        self.func.ty(v).shape.clone()
    }

    /// Where a block's ops come from in the user's model: the module that holds the weights of a role.
    pub(super) fn loc(&self, role: &str) -> String {
        self.naming.module(role)
    }

    /// Adds an op with one result.
    pub(super) fn op(&mut self, op: Op, args: &[ValueId], loc: &str) -> Result<ValueId, Diagnostic> {
        let name = op.name();
        let fault = |why: String| {
            Diagnostic::internal(format!("the frontend built a wrong `{name}`")).at(loc.to_owned()).why(why)
        };
        let types: Vec<&Type> = args.iter().map(|&a| self.func.ty(a)).collect();
        let results = op.infer(&types).map_err(fault)?;
        for ty in &results {
            check_size(ty, loc)?;
        }
        let made = self.func.push(op, args.to_vec(), results, loc);
        match made.as_slice() {
            [one] => Ok(*one),
            _ => Err(fault(format!("it has {} results where one is used", made.len()))),
        }
    }

    pub(super) fn unary(&mut self, kind: UnaryKind, x: ValueId, loc: &str) -> Result<ValueId, Diagnostic> {
        self.op(Op::Unary(kind), &[x], loc)
    }

    pub(super) fn binary(
        &mut self,
        kind: BinaryKind,
        a: ValueId,
        b: ValueId,
        loc: &str,
    ) -> Result<ValueId, Diagnostic> {
        self.op(Op::Binary(kind), &[a, b], loc)
    }

    pub(super) fn add(&mut self, a: ValueId, b: ValueId, loc: &str) -> Result<ValueId, Diagnostic> {
        self.binary(BinaryKind::Add, a, b, loc)
    }

    /// Repeats `x` along the leading dims that `shape` has more: `[h] -> [b, s, h]`.
    pub(super) fn broadcast_leading(
        &mut self,
        x: ValueId,
        shape: &[usize],
        loc: &str,
    ) -> Result<ValueId, Diagnostic> {
        let rank = self.ty(x).rank();
        let dims = (shape.len().saturating_sub(rank)..shape.len()).collect();
        self.op(Op::Broadcast(Broadcast { shape: shape.to_vec(), dims }), &[x], loc)
    }

    /// A constant whose elements are all equal.
    pub(super) fn splat(&mut self, ty: Type, value: f64, loc: &str) -> Result<ValueId, Diagnostic> {
        self.op(Op::Constant(Constant { ty, value: Literal::Splat(value) }), &[], loc)
    }

    /// A linear map of the last dims of x: [`Self::product`] and [`Self::bias`].
    pub(super) fn linear(
        &mut self,
        x: ValueId,
        role: &str,
        weight: &[usize],
        inputs: usize,
        bias: bool,
    ) -> Result<ValueId, Diagnostic> {
        let y = self.product(x, role, weight, inputs)?;
        self.bias(y, role, weight.len().saturating_sub(inputs), bias)
    }

    /// `x * factor`.
    pub(super) fn scaled(&mut self, x: ValueId, factor: f64, loc: &str) -> Result<ValueId, Diagnostic> {
        let factor = self.splat(self.ty(x).clone(), factor, loc)?;
        self.binary(BinaryKind::Mul, x, factor, loc)
    }

    /// Contracts the last dims of x with the first `inputs` dims of the weight: `[b, s, h] x [h, f] -> [b, s, f]`.
    pub(super) fn product(
        &mut self,
        x: ValueId,
        role: &str,
        weight: &[usize],
        inputs: usize,
    ) -> Result<ValueId, Diagnostic> {
        let loc = self.loc(role);
        let w = self.weight(&format!("{role}.weight"), weight, Kind::Matrix { inputs })?;
        let rank = self.ty(x).rank();
        let dot = DotGeneral {
            lhs_batch: vec![],
            rhs_batch: vec![],
            lhs_contract: (rank.saturating_sub(inputs)..rank).collect(),
            rhs_contract: (0..inputs).collect(),
            result: None,
        };
        self.op(Op::DotGeneral(dot), &[x, w], &loc)
    }

    /// Adds the role's bias, of the last `outputs` dims of y, if it is present.
    pub(super) fn bias(
        &mut self,
        y: ValueId,
        role: &str,
        outputs: usize,
        present: bool,
    ) -> Result<ValueId, Diagnostic> {
        if !present {
            return Ok(y);
        }
        let loc = self.loc(role);
        let shape = self.shape(y);
        let outputs = shape.get(shape.len().saturating_sub(outputs)..).unwrap_or_default();
        let b = self.weight(&format!("{role}.bias"), outputs, Kind::Bias)?;
        let b = self.broadcast_leading(b, &shape, &loc)?;
        self.add(y, b, &loc)
    }

    /// i32 positions 0, 1, .. along the second dim of `[rows, len]`.
    pub(super) fn iota_positions(
        &mut self,
        rows: usize,
        len: usize,
        loc: &str,
    ) -> Result<ValueId, Diagnostic> {
        let iota = pcc_ir::ops::Iota { ty: Type::i32([rows, len]), dim: 1, base: None };
        self.op(Op::Iota(iota), &[], loc)
    }

    pub(super) fn convert(&mut self, x: ValueId, dtype: DType, loc: &str) -> Result<ValueId, Diagnostic> {
        self.op(Op::Convert(dtype), &[x], loc)
    }

    /// Ends the function. Values are numbered as they are printed: arguments first, then results in order.
    pub(super) fn finish(mut self, results: Vec<ValueId>) -> Built {
        let class = |v: &ValueId| match () {
            () if self.states.contains(v) => 2,
            () if self.weights.iter().any(|(_, w)| w == v) => 1,
            () => 0,
        };
        self.func.args.sort_by_key(class);
        self.func.results = results;
        crate::canonical::renumber(&mut self.func);
        Built { func: self.func, weights: self.weights.into_iter().map(|(w, _)| w).collect() }
    }
}

/// Refuses tensors too large to address, in the user's terms.
fn check_size(ty: &Type, what: &str) -> Result<(), Diagnostic> {
    match ty.checked() {
        Some(_) => Ok(()),
        None => Err(Diagnostic::input(format!("a tensor of type {ty} is empty or too large"))
            .at(what.to_owned())
            .why("every dim must be at least 1 and a tensor may have at most 2^60 bytes")
            .help("lower --batch or --seq, or correct the sizes in the model's config")),
    }
}
