//! Building functions: instructions with inferred types, and short forms for common ops.

use crate::diagnostic::Diagnostic;
use crate::graph::{Func, FuncId, ValueId};
use crate::ops::{BinaryKind, Broadcast, Constant, DotGeneral, Literal, Op, Reduce, Slice, UnaryKind};
use crate::types::{DType, ReduceKind, Type};

impl Func {
    /// Adds an instruction whose result types the op infers. `loc` says where in the user's model it comes from.
    ///
    /// # Errors
    /// The operands do not fit the op (a fault of the input, at `loc`). A call needs [`Func::call`].
    pub fn apply(&mut self, op: Op, args: &[ValueId], loc: &str) -> Result<Vec<ValueId>, Diagnostic> {
        let wrong = |why: String| {
            let place = if loc.is_empty() { self.name.clone() } else { loc.to_owned() };
            Diagnostic::input("an operation does not fit its operands").at(place).why(why)
        };
        let mut types = Vec::with_capacity(args.len());
        for &v in args {
            types.push(&self.values.get(v).ok_or_else(|| wrong(format!("there is no value {v}")))?.ty);
        }
        let types = op.infer(&types).map_err(wrong)?;
        Ok(self.push(op, args.to_vec(), types, loc))
    }

    /// Adds a call of `callee`, which is function `id` of the module.
    ///
    /// # Errors
    /// The arguments are not of the function's types.
    pub fn call(
        &mut self,
        id: FuncId,
        callee: &Func,
        args: &[ValueId],
        loc: &str,
    ) -> Result<Vec<ValueId>, Diagnostic> {
        let wrong = |why: String| {
            Diagnostic::input(format!("a call of `{}` does not fit", callee.name)).at(loc).why(why)
        };
        if args.len() != callee.args.len() {
            return Err(wrong(format!("it takes {} arguments, got {}", callee.args.len(), args.len())));
        }
        for (i, (&arg, &param)) in args.iter().zip(&callee.args).enumerate() {
            let got = &self.values.get(arg).ok_or_else(|| wrong(format!("there is no value {arg}")))?.ty;
            if got != callee.ty(param) {
                let name = &callee.values[param].name;
                return Err(wrong(format!("argument {i} `{name}` is {}, got {got}", callee.ty(param))));
            }
        }
        let types = callee.results.iter().map(|&v| callee.ty(v).clone()).collect();
        Ok(self.push(Op::Call(id), args.to_vec(), types, loc))
    }

    /// Adds an instruction of one result at the location of the last one.
    pub fn one(&mut self, op: Op, args: &[ValueId]) -> Result<ValueId, Diagnostic> {
        let loc = self.insts.last().map(|i| i.loc.clone()).unwrap_or_default();
        let name = op.name();
        let results = self.apply(op, args, &loc)?;
        results.first().copied().ok_or_else(|| Diagnostic::internal(format!("{name} has no result")))
    }

    pub fn unary(&mut self, kind: UnaryKind, x: ValueId) -> Result<ValueId, Diagnostic> {
        self.one(Op::Unary(kind), &[x])
    }

    /// Both operands of one type.
    pub fn binary(&mut self, kind: BinaryKind, a: ValueId, b: ValueId) -> Result<ValueId, Diagnostic> {
        self.one(Op::Binary(kind), &[a, b])
    }

    pub fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, Diagnostic> {
        self.binary(BinaryKind::Add, a, b)
    }

    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, Diagnostic> {
        self.binary(BinaryKind::Mul, a, b)
    }

    /// `x` plus a bias along its trailing dims.
    pub fn add_bias(&mut self, x: ValueId, bias: ValueId) -> Result<ValueId, Diagnostic> {
        let (n, m) = (self.ty(x).rank(), self.ty(bias).rank());
        let dims: Vec<_> = (n.saturating_sub(m)..n).collect();
        let bias = self.broadcast_like(bias, &dims, x)?;
        self.add(x, bias)
    }

    /// Contracts the last `contract` dims of `x` with the first of `w`: a linear layer.
    pub fn linear(&mut self, x: ValueId, w: ValueId, contract: usize) -> Result<ValueId, Diagnostic> {
        let n = self.ty(x).rank();
        let dot = DotGeneral {
            lhs_contract: (n.saturating_sub(contract)..n).collect(),
            rhs_contract: (0..contract).collect(),
            ..DotGeneral::default()
        };
        self.one(Op::DotGeneral(dot), &[x, w])
    }

    /// A constant of one number.
    pub fn splat(&mut self, ty: Type, value: f64) -> Result<ValueId, Diagnostic> {
        self.one(Op::Constant(Constant { ty, value: Literal::Splat(value) }), &[])
    }

    /// A constant of the type of `like`.
    pub fn splat_like(&mut self, like: ValueId, value: f64) -> Result<ValueId, Diagnostic> {
        self.splat(self.ty(like).clone(), value)
    }

    /// `x` times a number.
    pub fn scaled(&mut self, x: ValueId, by: f64) -> Result<ValueId, Diagnostic> {
        let by = self.splat_like(x, by)?;
        self.mul(x, by)
    }

    /// `x` repeated to the shape of `like`; `dims[i]` is the dim that dim i of `x` becomes.
    pub fn broadcast_like(
        &mut self,
        x: ValueId,
        dims: &[usize],
        like: ValueId,
    ) -> Result<ValueId, Diagnostic> {
        let shape = self.ty(like).shape.clone();
        if self.ty(x).shape == shape {
            return Ok(x);
        }
        self.one(Op::Broadcast(Broadcast { shape, dims: dims.to_vec() }), &[x])
    }

    pub fn convert(&mut self, x: ValueId, dtype: DType) -> Result<ValueId, Diagnostic> {
        if self.ty(x).dtype == dtype { Ok(x) } else { self.one(Op::Convert(dtype), &[x]) }
    }

    pub fn reshape(&mut self, x: ValueId, shape: Vec<usize>) -> Result<ValueId, Diagnostic> {
        self.one(Op::Reshape(shape), &[x])
    }

    pub fn transpose(&mut self, x: ValueId, perm: Vec<usize>) -> Result<ValueId, Diagnostic> {
        self.one(Op::Transpose(perm), &[x])
    }

    /// Elements `start..limit` of one dim.
    pub fn slice_dim(
        &mut self,
        x: ValueId,
        dim: usize,
        start: usize,
        limit: usize,
    ) -> Result<ValueId, Diagnostic> {
        let mut slice = Slice { start: vec![0; self.ty(x).rank()], limit: self.ty(x).shape.clone() };
        if let (Some(s), Some(l)) = (slice.start.get_mut(dim), slice.limit.get_mut(dim)) {
            (*s, *l) = (start, limit);
        }
        self.one(Op::Slice(slice), &[x])
    }

    pub fn concat(&mut self, parts: &[ValueId], dim: usize) -> Result<ValueId, Diagnostic> {
        self.one(Op::Concat(dim), parts)
    }

    pub fn reduce(&mut self, kind: ReduceKind, x: ValueId, dims: &[usize]) -> Result<ValueId, Diagnostic> {
        self.one(Op::Reduce(Reduce { kind, dims: dims.to_vec() }), &[x])
    }

    /// Reduces `dim` and repeats the result along it: the shape stays.
    pub fn reduce_keep(&mut self, kind: ReduceKind, x: ValueId, dim: usize) -> Result<ValueId, Diagnostic> {
        let reduced = self.reduce(kind, x, &[dim])?;
        let others: Vec<_> = (0..self.ty(x).rank()).filter(|&d| d != dim).collect();
        let shape = self.ty(x).shape.clone();
        self.one(Op::Broadcast(Broadcast { shape, dims: others }), &[reduced])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misfits_name_the_place() {
        let mut f = Func::new("main");
        let x = f.arg(Type::f32([2, 3]), "x");
        let w = f.arg(Type::f32([4, 5]), "w");
        let error = f.linear(x, w, 1).unwrap_err();
        assert!(error.why.unwrap().contains("f32[2,3] and f32[4,5]"));
        let error = f.apply(Op::Softmax(crate::ops::Softmax { dim: 2 }), &[x], "layers.0.attn").unwrap_err();
        assert_eq!(error.place.as_deref(), Some("layers.0.attn"));
        assert!(f.apply(Op::Select, &[ValueId::from_u32(9)], "").is_err());
        assert!(f.insts.is_empty());
    }
}
