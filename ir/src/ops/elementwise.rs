//! Elementwise functions of one and two operands, and comparisons.

use super::{Define, Op, need, need_float, operands, same_shape_rule};
use crate::eval::{At, Tensor, erf};
use crate::rule::{Rule, Split};
use crate::sharding;
use crate::types::{DType, ReduceKind, Type};
use serde::{Deserialize, Serialize};

/// An enum whose variants have names in the text form.
macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$each])* $variant,)* }

        impl $name {
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// The name in every text form.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            /// The inverse of `name`.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|k| k.name() == name)
            }
        }
    };
}

kinds! {
    /// Elementwise functions of one operand. `Gelu` is the erf form, `GeluTanh` the tanh approximation.
    /// `Neg`, `Abs` and `Relu` also take integers; `Not` takes bools.
    UnaryKind {
        Neg = "neg",
        Abs = "abs",
        Exp = "exp",
        Log = "log",
        Sqrt = "sqrt",
        Rsqrt = "rsqrt",
        Recip = "recip",
        Sin = "sin",
        Cos = "cos",
        Tanh = "tanh",
        Erf = "erf",
        Sigmoid = "sigmoid",
        Silu = "silu",
        Gelu = "gelu",
        GeluTanh = "gelu_tanh",
        Relu = "relu",
        Not = "not",
    }
}

kinds! {
    /// Elementwise functions of two operands of equal type. `And` and `Or` take bools, `Pow` floats, the others
    /// numbers. Integer division truncates; by zero it gives 0.
    BinaryKind {
        Add = "add",
        Sub = "sub",
        Mul = "mul",
        Div = "div",
        Max = "max",
        Min = "min",
        Pow = "pow",
        And = "and",
        Or = "or",
    }
}

kinds! {
    /// Elementwise comparisons of two operands of equal type; the result is `bool`.
    CompareKind {
        Eq = "eq",
        Ne = "ne",
        Lt = "lt",
        Le = "le",
        Gt = "gt",
        Ge = "ge",
    }
}

impl UnaryKind {
    /// The function on one number.
    pub fn apply(self, x: f64) -> f64 {
        match self {
            UnaryKind::Neg => -x,
            UnaryKind::Abs => x.abs(),
            UnaryKind::Exp => x.exp(),
            UnaryKind::Log => x.ln(),
            UnaryKind::Sqrt => x.sqrt(),
            UnaryKind::Rsqrt => 1.0 / x.sqrt(),
            UnaryKind::Recip => 1.0 / x,
            UnaryKind::Sin => x.sin(),
            UnaryKind::Cos => x.cos(),
            UnaryKind::Tanh => x.tanh(),
            UnaryKind::Erf => erf(x),
            UnaryKind::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            UnaryKind::Silu => x / (1.0 + (-x).exp()),
            UnaryKind::Gelu => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
            UnaryKind::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
            UnaryKind::Relu => x.max(0.0),
            UnaryKind::Not => f64::from(u8::from(x == 0.0)),
        }
    }

    /// Whether zero maps to zero.
    fn keeps_zero(self) -> bool {
        use UnaryKind::*;
        match self {
            Neg | Abs | Sqrt | Sin | Tanh | Erf | Silu | Gelu | GeluTanh | Relu => true,
            Exp | Log | Rsqrt | Recip | Cos | Sigmoid | Not => false,
        }
    }
}

impl Define for UnaryKind {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x] = operands(args)?;
        match self {
            UnaryKind::Not if x.dtype != DType::Bool => return Err(format!("needs bool elements, got {x}")),
            UnaryKind::Not => {}
            UnaryKind::Neg | UnaryKind::Abs | UnaryKind::Relu => need_number(x)?,
            _ => need_float(x)?,
        }
        Ok(vec![x.clone()])
    }

    fn rule(&self, _: &[&Type], results: &[&Type]) -> Rule {
        same_shape_rule(1, &results[0].shape)
    }

    fn flops(&self, _: &[&Type], results: &[&Type]) -> f64 {
        results[0].elements() as f64
    }

    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        match self {
            UnaryKind::Neg => args[0].filter(|&kind| kind == ReduceKind::Sum),
            _ => None,
        }
    }

    fn result_pads(&self, rule: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        rule.carried_pads(pads, if self.keeps_zero() { &[0] } else { &[] })
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::Unary(*self)
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let dtype = results[0].dtype;
        let data = args[0].data.iter().map(|&x| keep_exact(dtype, self.apply(x)));
        Ok(vec![Tensor { ty: results[0].clone(), data: data.collect::<Result<_, _>>()? }])
    }
}

impl BinaryKind {
    /// The function on two numbers of a type.
    pub fn apply(self, dtype: DType, a: f64, b: f64) -> f64 {
        match self {
            BinaryKind::Add => a + b,
            BinaryKind::Sub => a - b,
            // Products of two i32 pass 2^53, where f64 would round before the wrap.
            BinaryKind::Mul if dtype == DType::I32 => f64::from((a as i32).wrapping_mul(b as i32)),
            BinaryKind::Mul => a * b,
            BinaryKind::Div if dtype.is_float() => a / b,
            BinaryKind::Div if b == 0.0 => 0.0,
            BinaryKind::Div => (a / b).trunc(),
            BinaryKind::Max => a.max(b),
            BinaryKind::Min => a.min(b),
            BinaryKind::Pow => a.powf(b),
            BinaryKind::And => a * b,
            BinaryKind::Or => a.max(b),
        }
    }
}

impl Define for BinaryKind {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [a, b] = operands(args)?;
        need("the second operand", b, a)?;
        match self {
            BinaryKind::And | BinaryKind::Or if a.dtype == DType::Bool => {}
            BinaryKind::And | BinaryKind::Or => return Err(format!("needs bool elements, got {a}")),
            BinaryKind::Pow => need_float(a)?,
            _ => need_number(a)?,
        }
        Ok(vec![a.clone()])
    }

    fn rule(&self, _: &[&Type], results: &[&Type]) -> Rule {
        same_shape_rule(2, &results[0].shape)
    }

    fn flops(&self, _: &[&Type], results: &[&Type]) -> f64 {
        results[0].elements() as f64
    }

    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        use BinaryKind::*;
        use ReduceKind::{Max as MaxOf, Min as MinOf, Sum};
        match (self, args[0], args[1]) {
            (Add | Sub, Some(Sum), Some(Sum)) => Some(Sum),
            (Mul, Some(Sum), None) | (Mul, None, Some(Sum)) => Some(Sum),
            (Max, Some(MaxOf) | None, Some(MaxOf) | None) => Some(MaxOf),
            (Min, Some(MinOf) | None, Some(MinOf) | None) => Some(MinOf),
            _ => None,
        }
    }

    fn result_pads(&self, rule: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        match self {
            // 0 / 0 is NaN and 0 ^ 0 is 1.
            BinaryKind::Div | BinaryKind::Pow => rule.carried_pads(pads, &[]),
            _ => rule.carried_pads(pads, &[0, 1]),
        }
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::Binary(*self)
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let dtype = results[0].dtype;
        let pairs = args[0].data.iter().zip(&args[1].data);
        let data = pairs.map(|(&a, &b)| keep_exact(dtype, self.apply(dtype, a, b)));
        Ok(vec![Tensor { ty: results[0].clone(), data: data.collect::<Result<_, _>>()? }])
    }
}

impl CompareKind {
    pub fn apply(self, a: f64, b: f64) -> bool {
        match self {
            CompareKind::Eq => a == b,
            CompareKind::Ne => a != b,
            CompareKind::Lt => a < b,
            CompareKind::Le => a <= b,
            CompareKind::Gt => a > b,
            CompareKind::Ge => a >= b,
        }
    }
}

impl Define for CompareKind {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [a, b] = operands(args)?;
        need("the second operand", b, a)?;
        Ok(vec![Type::new(DType::Bool, a.shape.clone())])
    }

    fn rule(&self, _: &[&Type], results: &[&Type]) -> Rule {
        same_shape_rule(2, &results[0].shape)
    }

    fn flops(&self, _: &[&Type], results: &[&Type]) -> f64 {
        results[0].elements() as f64
    }

    fn result_pads(&self, rule: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        match self {
            CompareKind::Ne | CompareKind::Lt | CompareKind::Gt => rule.carried_pads(pads, &[0, 1]),
            CompareKind::Eq | CompareKind::Le | CompareKind::Ge => rule.carried_pads(pads, &[]),
        }
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::Compare(*self)
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let pairs = args[0].data.iter().zip(&args[1].data);
        let data = pairs.map(|(&a, &b)| f64::from(u8::from(self.apply(a, b)))).collect();
        Ok(vec![Tensor { ty: results[0].clone(), data }])
    }
}

fn need_number(ty: &Type) -> Result<(), String> {
    if ty.dtype == DType::Bool { Err(format!("needs numbers, got {ty}")) } else { Ok(()) }
}

/// Wraps an exact integer result to its type; floats stay as they are.
pub(super) fn keep_exact(dtype: DType, x: f64) -> Result<f64, String> {
    match dtype {
        DType::I32 => Ok(f64::from(x as i64 as i32)),
        DType::I64 if x.abs() > 9_007_199_254_740_992.0 => {
            Err(format!("the integer {x} is beyond 2^53, which the evaluator cannot hold"))
        }
        _ => Ok(x),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{check, floats, ints, refused};
    use super::*;

    #[test]
    fn activations_equal_published_formulas() {
        // Python's math module.
        let xs = floats(&[5], &[-3.0, -0.5, 0.0, 1.0, 2.5]);
        for (kind, want) in [
            (UnaryKind::Gelu, [-0.0040496941, -0.1542687694, 0.0, 0.8413447461, 2.4844758367]),
            (UnaryKind::GeluTanh, [-0.0036373921, -0.1542859902, 0.0, 0.8411919906, 2.4849157339]),
            (UnaryKind::Silu, [-0.1422776195, -0.1887703344, 0.0, 0.7310585786, 2.3103545499]),
            (UnaryKind::Sigmoid, [0.0474258732, 0.3775406688, 0.5, 0.7310585786, 0.92414182]),
            (UnaryKind::Relu, [0.0, 0.0, 0.0, 1.0, 2.5]),
            (UnaryKind::Abs, [3.0, 0.5, 0.0, 1.0, 2.5]),
        ] {
            check(Op::Unary(kind), std::slice::from_ref(&xs), &want);
        }
        let four = floats(&[1], &[4.0]);
        check(Op::Unary(UnaryKind::Rsqrt), std::slice::from_ref(&four), &[0.5]);
        check(Op::Unary(UnaryKind::Recip), std::slice::from_ref(&four), &[0.25]);
        check(Op::Binary(BinaryKind::Pow), &[four, floats(&[1], &[1.5])], &[8.0]);
    }

    #[test]
    fn integers_are_exact() {
        let pair = |a, b| [ints(&[1], &[a]), ints(&[1], &[b])];
        check(Op::Binary(BinaryKind::Div), &pair(-7, 2), &[-3.0]);
        check(Op::Binary(BinaryKind::Div), &pair(7, 0), &[0.0]);
        check(Op::Binary(BinaryKind::Add), &pair(i32::MAX, 1), &[f64::from(i32::MIN)]);
        // 1234567891^2 mod 2^32 as signed, by Python.
        check(Op::Binary(BinaryKind::Mul), &pair(1_234_567_891, 1_234_567_891), &[f64::from(-1521747479)]);
        check(Op::Binary(BinaryKind::Div), &pair(i32::MIN, -1), &[f64::from(i32::MIN)]);
        let big = Tensor::splat(Type::new(DType::I64, [1]), 9e15);
        let ty = big.ty.clone();
        let error = Op::Binary(BinaryKind::Add).eval(&[&big, &big], &[&ty], At::default()).unwrap_err();
        assert!(error.contains("2^53"), "{error}");
    }

    #[test]
    fn comparisons_and_types() {
        let (a, b) = (floats(&[3], &[1.0, 2.0, f64::NAN]), floats(&[3], &[2.0, 2.0, 2.0]));
        for (kind, want) in [
            (CompareKind::Eq, [0.0, 1.0, 0.0]),
            (CompareKind::Ne, [1.0, 0.0, 1.0]),
            (CompareKind::Lt, [1.0, 0.0, 0.0]),
            (CompareKind::Le, [1.0, 1.0, 0.0]),
            (CompareKind::Gt, [0.0, 0.0, 0.0]),
            (CompareKind::Ge, [0.0, 1.0, 0.0]),
        ] {
            check(Op::Compare(kind), &[a.clone(), b.clone()], &want);
        }
        refused(Op::Unary(UnaryKind::Exp), &[Type::i32([2])], "exp: needs floating-point");
        refused(Op::Unary(UnaryKind::Not), &[Type::f32([2])], "bool");
        refused(Op::Binary(BinaryKind::Add), &[Type::f32([2]), Type::f32([3])], "must be f32[2]");
        refused(Op::Binary(BinaryKind::Add), &[Type::f32([2])], "takes 2 operands, got 1");
        assert!(UnaryKind::ALL.iter().all(|k| UnaryKind::from_name(k.name()) == Some(*k)));
    }
}
