//! Runs with fewer rows and positions than compiled for: what is missing counts as zeros, and what a run does not write it does not
//! read, though every buffer holds NaN before.

use super::rng::Rng;
use super::sharded::{self, Builder};
use super::{arguments, compare, graph, host, module, run_seeds, session};
use pcc_ir::eval::{Tensor, eval_func};
use pcc_ir::graph::Label;
use pcc_ir::program::BatchPlan;
use pcc_ir::{Module, ValueId};
use pcc_runtime::HostTensor;
use std::collections::BTreeMap;

/// A dim of every input and output, or none.
type Dims = BTreeMap<ValueId, usize>;

#[test]
fn short_inputs_equal_zero_padded_ones() {
    run_seeds(one);
}

/// Which of two labels a seed tries, or both.
fn labels(seed: u64) -> Vec<Label> {
    match seed % 3 {
        0 => vec![Label::Seq],
        1 => vec![Label::Batch],
        _ => vec![Label::Seq, Label::Batch],
    }
}

fn one(seed: u64) -> Result<usize, String> {
    let mut rng = Rng::new(seed ^ 0x50a7);
    let mesh = sharded::mesh(&mut rng);
    let count = rng.within(3, 9);
    let mut b = graph::random(rng, mesh, "body", count);
    let mut found: BTreeMap<Label2, (usize, Dims)> = BTreeMap::new();
    for label in labels(seed) {
        let taken = found.values().next().map(|(n, _)| *n);
        let replicas = if label == Label::Batch { mesh.dp as usize } else { 1 };
        if let Some(dims) = label_dims(&mut b, taken, replicas) {
            found.insert(key(label), dims);
        }
    }
    let whole = |v: &ValueId| b.sharding(*v).partial.is_empty();
    // Without a labelled dim an output is over all positions or rows, and short runs are refused.
    let usable = |v: &ValueId| whole(v) && found.values().all(|(n, _)| b.f.ty(*v).shape.contains(n));
    b.f.results = b.made().into_iter().filter(usable).rev().take(3).collect();
    b.f.results.dedup();
    if b.f.results.is_empty() || found.is_empty() {
        return Ok(0);
    }
    for (n, dims) in found.values_mut() {
        for &v in &b.f.results {
            dims.insert(v, b.f.ty(v).shape.iter().position(|m| m == n).unwrap_or(0));
        }
    }
    let module = labelled(&b, mesh, seed, &found);
    let replicas = mesh.dp as usize;
    let rows = found.get(&key(Label::Batch)).map_or(replicas, |f| f.0);
    let mut session = session(&module, BatchPlan { batch: rows, replicas, micro_batches: 1 })?;
    let whole = arguments(&b, &mut Rng::new(seed ^ 0xabcd));
    let mut compared = 0;
    let mut sizes = Rng::new(seed ^ 0x517e);
    for _ in 0..4 {
        let given: BTreeMap<Label2, usize> =
            found.iter().map(|(&l, (n, _))| (l, sizes.within(1, *n))).collect();
        compared += run(&b, &module, &found, &whole, &given, &mut session, replicas)?;
    }
    Ok(compared)
}

/// `Label` in a map.
type Label2 = bool;

fn key(label: Label) -> Label2 {
    label == Label::Batch
}

/// An extent that some argument has, at least 2, not `taken`, a multiple of `of`, and where arguments have it first.
fn label_dims(b: &mut Builder, taken: Option<usize>, of: usize) -> Option<(usize, Dims)> {
    let extents: Vec<usize> = b.f.args.iter().flat_map(|&v| b.f.ty(v).shape.clone()).collect();
    let extents: Vec<usize> =
        extents.into_iter().filter(|&n| n > 1 && Some(n) != taken && n.is_multiple_of(of)).collect();
    if extents.is_empty() {
        return None;
    }
    let n = b.rng.pick(&extents);
    let dims = b.f.args.iter().filter_map(|&v| Some((v, b.f.ty(v).shape.iter().position(|&m| m == n)?)));
    Some((n, dims.collect()))
}

/// The module with labels on the dims of inputs and outputs.
fn labelled(b: &Builder, mesh: pcc_ir::Mesh, seed: u64, found: &BTreeMap<Label2, (usize, Dims)>) -> Module {
    let mut m = module(b, mesh, seed);
    let main = m.entries[0].func;
    let f = &mut m.funcs[main];
    let outer =
        f.args.clone().into_iter().zip(&b.f.args).chain(f.results.clone().into_iter().zip(&b.f.results));
    for (v, inner) in outer.collect::<Vec<_>>() {
        let mut labels = vec![None; f.values[v].ty.rank()];
        for (&l, (_, dims)) in found {
            if let Some(&d) = dims.get(inner) {
                labels[d] = Some(if l { Label::Batch } else { Label::Seq });
            }
        }
        f.values[v].labels = labels;
    }
    m
}

/// The dims of a value that a run cuts, and to what.
fn cuts(
    v: ValueId,
    found: &BTreeMap<Label2, (usize, Dims)>,
    given: &BTreeMap<Label2, usize>,
) -> Vec<(usize, usize)> {
    found.iter().filter_map(|(l, (_, dims))| Some((*dims.get(&v)?, given[l]))).collect()
}

/// Where in the batch each given row lies: rows are spread over the replicas.
fn place(
    l: usize,
    d: usize,
    cuts: &[(usize, usize)],
    batch: Option<(usize, &BatchPlan, usize)>,
) -> Option<usize> {
    let (_, n) = *cuts.iter().find(|c| c.0 == d)?;
    match batch {
        Some((dim, plan, rows)) if dim == d => {
            let cell = plan.cell(rows, l / plan.rows(), 0);
            cell.clone().nth(l % plan.rows())
        }
        _ => (l < n).then_some(l),
    }
}

#[allow(clippy::too_many_arguments)]
fn run(
    b: &Builder,
    module: &Module,
    found: &BTreeMap<Label2, (usize, Dims)>,
    whole: &[Tensor],
    given: &BTreeMap<Label2, usize>,
    session: &mut pcc_runtime::Session,
    replicas: usize,
) -> Result<usize, String> {
    let capacity = found.get(&key(Label::Batch)).map(|f| f.0);
    let plan = BatchPlan { batch: capacity.unwrap_or(replicas), replicas, micro_batches: 1 };
    let rows = given.get(&key(Label::Batch)).copied();
    let batch = |v: ValueId| {
        let dim = *found.get(&key(Label::Batch))?.1.get(&v)?;
        Some((dim, &plan, rows?))
    };
    // What the user gives is cut out of the whole arguments; the reference sees the same numbers where the program has them, and zeros.
    let mut inputs = BTreeMap::new();
    let mut padded = Vec::new();
    for (i, (&v, t)) in b.f.args.iter().zip(whole).enumerate() {
        let cuts = cuts(v, found, given);
        let shape = cut_shape(&t.ty.shape, &cuts);
        let user = gather(t, &shape, |d, at| Some(at).filter(|_| d < shape.len()));
        let full = t.ty.shape.clone();
        let spread = gather(&user, &full, |d, at| match cuts.iter().any(|c| c.0 == d) {
            true => place(at, d, &cuts, batch(v)),
            false => Some(at),
        });
        inputs.insert(format!("x{i}"), host(&user));
        padded.push(spread);
    }
    let body = module.func_named("body").ok_or("no body")?;
    let want = eval_func(module, body, &padded)?;
    let got = session
        .run("main", &inputs, rows.unwrap_or(replicas))
        .map_err(|d| format!("run of {given:?}: {d}"))?;
    for (i, (&v, want)) in b.f.results.iter().zip(&want).enumerate() {
        let got: &HostTensor = &got[&format!("y{i}")];
        let cuts = cuts(v, found, given);
        let shape = cut_shape(&want.ty.shape, &cuts);
        // The row of the batch that each of the user's rows is.
        let at = |d: usize, i: usize| match batch(v) {
            Some((dim, plan, rows)) if dim == d => (0..plan.batch)
                .find(|&l| plan.cell(rows, l / plan.rows(), 0).clone().nth(l % plan.rows()) == Some(i)),
            _ => Some(i),
        };
        let want = gather(want, &shape, at);
        compare(got, &want).map_err(|e| format!("result {i} of a run of {given:?}: {e}"))?;
    }
    Ok(want.len())
}

fn cut_shape(shape: &[usize], cuts: &[(usize, usize)]) -> Vec<usize> {
    let of = |(d, &n): (usize, &usize)| cuts.iter().find(|c| c.0 == d).map_or(n, |c| c.1);
    shape.iter().enumerate().map(of).collect()
}

/// The tensor of `shape` whose element at an index is that of `t` at what `at` makes of the index, dim by dim; zero where it makes
/// nothing.
fn gather(t: &Tensor, shape: &[usize], at: impl Fn(usize, usize) -> Option<usize>) -> Tensor {
    let ty = pcc_ir::Type::new(t.ty.dtype, shape.to_vec());
    Tensor::from_fn(ty, |i| {
        let (mut rest, mut from, mut stride) = (i, Some(0usize), 1);
        for d in (0..shape.len()).rev() {
            let i = at(d, rest % shape[d]);
            rest /= shape[d];
            from = from.zip(i).map(|(f, i)| f + i * stride);
            stride *= t.ty.shape[d];
        }
        from.map_or(0.0, |f| t.data[f])
    })
}
