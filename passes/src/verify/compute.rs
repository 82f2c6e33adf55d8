//! Whether a local op is the local form of an op of the sharded function, and what its results then are.

use super::layout::{canonical, cut_partial, is_free_of, merged_partial, points};
use super::padding::{Fill, of_results};
use pcc_ir::mesh::AxisRef;
use pcc_ir::rule::Split;
use pcc_ir::{Mesh, Op, ReduceKind, Rule, Sharding, Type};

/// What is known of an operand.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a> {
    /// Global type of what it stands for.
    pub global: &'a Type,
    pub local: &'a Type,
    /// As claimed, and in canonical form.
    pub sharding: &'a Sharding,
    pub canonical: &'a Sharding,
    pub fills: &'a [Fill],
}

/// A result: its global type, its local type and the sharding it claims.
#[derive(Clone, Copy)]
pub(super) struct Outcome<'a> {
    pub global: &'a Type,
    pub local: &'a Type,
    pub sharding: &'a Sharding,
}

/// Why an op does not make what is claimed; of operand `operand` when that is to blame.
pub(super) struct Wrong {
    pub operand: Option<usize>,
    pub why: String,
}

fn wrong(why: impl Into<String>) -> Wrong {
    Wrong { operand: None, why: why.into() }
}

/// Checks that `local`, on these operands, makes what the op `global` makes on what they stand for, laid out as claimed. Gives the
/// padding of each result.
pub(super) fn check(
    mesh: &Mesh,
    global: &Op,
    local: &Op,
    operands: &[Operand<'_>],
    results: &[Outcome<'_>],
) -> Result<Vec<Vec<Fill>>, Wrong> {
    let args: Vec<&Type> = operands.iter().map(|o| o.global).collect();
    let made: Vec<&Type> = results.iter().map(|r| r.global).collect();
    global.check(&args, &made).map_err(wrong)?;
    let rule = global.rule(&args, &made);
    check_local_form(&rule, global, local, operands, results)?;
    check_reduced_padding(&rule, local, operands)?;
    let passing = passing_partials(mesh, local, operands)?;
    let split = canonical_split(&rule, operands, results).ok_or_else(|| no_split(local))?;
    for (i, r) in results.iter().enumerate() {
        let mut expected = rule.result_sharding(i, &split);
        expected.partial.extend(&passing);
        let expected = canonical(&r.global.shape, &expected);
        if expected != canonical(&r.global.shape, r.sharding) {
            let (claimed, expected) = (r.sharding.text(mesh), expected.text(mesh));
            return Err(wrong(format!(
                "`{}` on these operands makes it {expected}, but it claims {claimed}",
                local.name()
            )));
        }
    }
    let fills: Vec<&[Fill]> = operands.iter().map(|o| o.fills).collect();
    Ok(of_results(local, &rule, &fills))
}

fn no_split(local: &Op) -> Wrong {
    wrong(format!(
        "the dims of its operands and of its claim are not split alike, or as `{}` cannot be",
        local.name()
    ))
}

/// The local op must be what the op's rule makes of the split, device bases included.
fn check_local_form(
    rule: &Rule,
    global: &Op,
    local: &Op,
    operands: &[Operand<'_>],
    results: &[Outcome<'_>],
) -> Result<(), Wrong> {
    let args: Vec<&Type> = operands.iter().map(|o| o.local).collect();
    let made: Vec<&Type> = results.iter().map(|r| r.local).collect();
    // As written first: bases name the axes as the claims do.
    let written: Vec<&Sharding> = operands.iter().map(|o| o.sharding).collect();
    let claimed: Vec<&Sharding> = results.iter().map(|r| r.sharding).collect();
    let splits = [rule.split_from(&written, &claimed), canonical_split(rule, operands, results)];
    let mut expected = None;
    for split in splits.iter().flatten() {
        let op = global.localize(rule, split, &args, &made);
        if op == *local {
            return Ok(());
        }
        expected.get_or_insert(op);
    }
    match expected {
        None => Err(no_split(local)),
        Some(op) => Err(wrong(format!("its local form should be {}, but is {}", brief(&op), brief(local)))),
    }
}

/// An op with its attributes, cut where constants are long.
fn brief(op: &Op) -> String {
    let text = format!("{op:?}");
    match text.char_indices().nth(160) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn canonical_split(rule: &Rule, operands: &[Operand<'_>], results: &[Outcome<'_>]) -> Option<Split> {
    let args: Vec<&Sharding> = operands.iter().map(|o| o.canonical).collect();
    let claims: Vec<Sharding> = results.iter().map(|r| canonical(&r.global.shape, r.sharding)).collect();
    rule.split_from(&args, &claims.iter().collect::<Vec<_>>())
}

/// Padding that the op reduces must hold the identity of the reduction.
fn check_reduced_padding(rule: &Rule, local: &Op, operands: &[Operand<'_>]) -> Result<(), Wrong> {
    for (i, o) in operands.iter().enumerate() {
        for (d, &n) in o.global.shape.iter().enumerate() {
            let Some(kind) = rule.reduce_need(i, d) else { continue };
            if o.canonical.pads(d, n) && !o.fills[d].is_identity(kind) {
                let (op, kind) = (local.name(), kind.name());
                let why = format!(
                    "`{op}` takes the {kind} over dim {d} of operand {i}, whose padding is not masked for it"
                );
                return Err(Wrong { operand: Some(i), why });
            }
        }
    }
    Ok(())
}

/// Partials of the operands that pass to the results, axis by axis.
fn passing_partials(
    mesh: &Mesh,
    op: &Op,
    operands: &[Operand<'_>],
) -> Result<Vec<(AxisRef, ReduceKind)>, Wrong> {
    let ends = points(operands.iter().flat_map(|o| o.canonical.partial.iter().map(|p| p.0)));
    let partials: Vec<_> = operands.iter().map(|o| cut_partial(&o.canonical.partial, &ends)).collect();
    let mut axes: Vec<AxisRef> = partials.iter().flatten().map(|p| p.0).collect();
    axes.sort_unstable();
    axes.dedup();
    let mut passing = Vec::new();
    for a in axes {
        let text = || mesh.axis_text(a);
        let mut kinds = Vec::with_capacity(operands.len());
        for (i, (partial, o)) in partials.iter().zip(operands).enumerate() {
            let kind = partial.iter().find(|p| p.0 == a).map(|p| p.1);
            if kind.is_none() && !is_free_of(o.canonical, &[a]) {
                let why =
                    format!("operand {i} differs along {}, over which another operand is unreduced", text());
                return Err(Wrong { operand: Some(i), why });
            }
            kinds.push(kind);
        }
        match op.partial_rule(&kinds) {
            Some(kind) => passing.extend(kind.map(|k| (a, k))),
            None => {
                let name = op.name();
                return Err(wrong(format!(
                    "`{name}` reads an operand that is not yet reduced over {}",
                    text()
                )));
            }
        }
    }
    Ok(merged_partial(&passing))
}
