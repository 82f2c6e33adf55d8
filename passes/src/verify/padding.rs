//! What is proved of the padding of local values.

use pcc_ir::{Op, Pad, ReduceKind, Rule, Sharding};

/// What all padding of one dim holds. A dim that no device pads counts as zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fill {
    Zero,
    /// This number, put there by a mask.
    Number(f64),
    /// Anything, NaN included.
    Any,
}

impl Fill {
    /// Whether a reduction of this kind may read the padding.
    pub(super) fn is_identity(self, kind: ReduceKind) -> bool {
        match self {
            Fill::Zero => kind.identity() == 0.0,
            Fill::Number(x) => kind.identity() == x,
            Fill::Any => false,
        }
    }

    fn pad(self) -> Pad {
        if self == Fill::Zero { Pad::Zero } else { Pad::Unspecified }
    }
}

/// The fills as a claim puts them.
pub(super) fn pads(fills: &[Fill]) -> Vec<Pad> {
    fills.iter().map(|f| f.pad()).collect()
}

pub(super) fn of_claim(pads: &[Pad]) -> Vec<Fill> {
    pads.iter().map(|p| if *p == Pad::Zero { Fill::Zero } else { Fill::Any }).collect()
}

/// Dims that no device pads have nothing but zeros in their padding.
pub(super) fn settle(fills: &mut [Fill], sharding: &Sharding, shape: &[usize]) {
    for (d, (fill, &n)) in fills.iter_mut().zip(shape).enumerate() {
        if !sharding.pads(d, n) {
            *fill = Fill::Zero;
        }
    }
}

/// The padding an op leaves in each result, as its own rule says. Masks also leave their number.
pub(super) fn of_results(op: &Op, rule: &Rule, args: &[&[Fill]]) -> Vec<Vec<Fill>> {
    let given: Vec<Vec<Pad>> = args.iter().map(|fills| pads(fills)).collect();
    let mut made: Vec<Vec<Fill>> = op.result_pads(rule, &given).iter().map(|p| of_claim(p)).collect();
    if let (Op::MaskTail(mask), [before], [after]) = (op, args, &mut made[..])
        && mask.value != 0.0
    {
        // The masked rows run through the padding of the other dims: only equal numbers stay.
        let here = Fill::Number(mask.value);
        for (d, fill) in after.iter_mut().enumerate() {
            if d == mask.dim || before.get(d) == Some(&here) {
                *fill = here;
            }
        }
    }
    made
}
