//! Types of PTX.

/// A type of an instruction or variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Pred,
    B(u8),
    U(u8),
    S(u8),
    /// Two of 16 bits in one register.
    U16x2,
    S16x2,
    F16,
    F16x2,
    BF16,
    BF16x2,
    F32,
    F32x2,
    F64,
}

impl Type {
    /// The type of a modifier without its dot.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "pred" => Type::Pred,
            "b8" => Type::B(1),
            "b16" => Type::B(2),
            "b32" => Type::B(4),
            "b64" => Type::B(8),
            "u8" => Type::U(1),
            "u16" => Type::U(2),
            "u32" => Type::U(4),
            "u64" => Type::U(8),
            "s8" => Type::S(1),
            "s16" => Type::S(2),
            "s32" => Type::S(4),
            "s64" => Type::S(8),
            "u16x2" => Type::U16x2,
            "s16x2" => Type::S16x2,
            "f16" => Type::F16,
            "f16x2" => Type::F16x2,
            "bf16" => Type::BF16,
            "bf16x2" => Type::BF16x2,
            "f32" => Type::F32,
            "f32x2" => Type::F32x2,
            "f64" => Type::F64,
            _ => return None,
        })
    }

    /// Bytes; 1 of a predicate.
    pub(crate) fn bytes(self) -> u8 {
        match self {
            Type::Pred => 1,
            Type::B(n) | Type::U(n) | Type::S(n) => n,
            Type::F16 | Type::BF16 => 2,
            Type::U16x2 | Type::S16x2 | Type::F16x2 | Type::BF16x2 | Type::F32 => 4,
            Type::F32x2 | Type::F64 => 8,
        }
    }

    pub(crate) fn is_float(self) -> bool {
        !matches!(self, Type::Pred | Type::B(_) | Type::U(_) | Type::S(_) | Type::U16x2 | Type::S16x2)
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Type::S(_))
    }

    /// Whether a register declared as `self` may stand where an instruction wants `wanted`, sizes aside: untyped bits go with all, integers with
    /// integers, floats with the same float; two halves live in untyped registers only.
    pub(crate) fn agrees(self, wanted: Type) -> bool {
        use Type::{B, Pred, S, U};
        match (self, wanted) {
            (Pred, _) | (_, Pred) => self == wanted,
            (B(_), _) | (_, B(_)) => true,
            (U(_) | S(_), U(_) | S(_)) => true,
            _ => self == wanted,
        }
    }
}
