//! Functions over the lanes of a warp, made from functions of numbers.

/// A function of one operand: `one!(|a: u32| a.count_ones())`.
macro_rules! one {
    (|$a:ident: $t:ty| $e:expr) => {{
        fn lanes(d: &mut $crate::ptx::code::Values, a: &$crate::ptx::code::Values) {
            for (d, a) in d.iter_mut().zip(a) {
                let $a = <$t as $crate::ptx::number::Number>::of(*a);
                *d = $crate::ptx::number::Number::bits($e);
            }
        }
        lanes as $crate::ptx::code::One
    }};
}

/// A function of two operands: `two!(|a: u32, b: u32| a & b)`.
macro_rules! two {
    (|$a:ident: $t:ty, $b:ident: $u:ty| $e:expr) => {{
        fn lanes(
            d: &mut $crate::ptx::code::Values,
            a: &$crate::ptx::code::Values,
            b: &$crate::ptx::code::Values,
        ) {
            for (d, (a, b)) in d.iter_mut().zip(a.iter().zip(b)) {
                let $a = <$t as $crate::ptx::number::Number>::of(*a);
                let $b = <$u as $crate::ptx::number::Number>::of(*b);
                *d = $crate::ptx::number::Number::bits($e);
            }
        }
        lanes as $crate::ptx::code::Two
    }};
}

/// A function of three operands.
macro_rules! three {
    (|$a:ident: $t:ty, $b:ident: $u:ty, $c:ident: $v:ty| $e:expr) => {{
        fn lanes(
            d: &mut $crate::ptx::code::Values,
            a: &$crate::ptx::code::Values,
            b: &$crate::ptx::code::Values,
            c: &$crate::ptx::code::Values,
        ) {
            for (d, (a, (b, c))) in d.iter_mut().zip(a.iter().zip(b.iter().zip(c))) {
                let $a = <$t as $crate::ptx::number::Number>::of(*a);
                let $b = <$u as $crate::ptx::number::Number>::of(*b);
                let $c = <$v as $crate::ptx::number::Number>::of(*c);
                *d = $crate::ptx::number::Number::bits($e);
            }
        }
        lanes as $crate::ptx::code::Three
    }};
}

/// One of several types, by a type known when decoding: `typed!(kind; U32 => u32, S32 => i32; T, two!(|a: T, b: T| a.min(b)))` is none for others.
macro_rules! typed {
    ($kind:expr; $($pattern:pat => $t:ty),+; $name:ident, $e:expr) => {
        match $kind {
            $($pattern => {
                type $name = $t;
                Some($e)
            })+
            _ => None,
        }
    };
}

pub(crate) use {one, three, two, typed};
