//! Shrunken twins: small models that are partitioned as a large one is, for checks that run the program.
//!
//! A twin has the mesh, the shardings and the stages of the real model, every distinct function of it, fewer layers and smaller
//! extents that are as uneven over the mesh: what can go wrong in the large goes wrong in the small.
//!
//! ```text
//! llama-3.1-405b --tp 8 --pp 4      126 layers of [16384] x [53248], 128256 tokens
//! its twin                          4 layers of [64] x [64], 64 tokens, on the same 32 devices
//! ```
//!
//! 1. [`layers`] leaves out calls that repeat others of their stage.
//! 2. [`dims`] joins dims into classes and chooses their extents.
//! 3. [`rewrite`] writes the module with them.

mod dims;
mod layers;
mod parameters;
mod rewrite;

#[cfg(test)]
mod tests;

use crate::plan::Plan;
use dims::{Dims, Least};
pub use parameters::randomise;
use pcc_ir::graph::{Label, Role};
use pcc_ir::program::{BatchPlan, ModelInfo};
use pcc_ir::{Diagnostic, Fault, Func, Module, Op, Type};

/// What running the reference evaluator on a module takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Floating-point operations, every entry once for each micro-batch.
    pub flops: f64,
    /// Bytes of parameters, states and values, of the reference and of the program together.
    pub bytes: f64,
}

/// Of a model that takes more than this, a twin is run.
const SMALL: Work = Work { flops: 2e9, bytes: 256e6 };
/// The most that the smallest twin may take: tens of seconds.
const MOST: Work = Work { flops: 2e10, bytes: 512e6 };

impl Work {
    /// The work of a module.
    pub fn of(module: &Module, batch: &BatchPlan) -> Self {
        let micro_batches = batch.micro_batches as f64;
        // The reference holds f64, the program at most f32 once a replica and stage.
        let stored = module.params.values().map(|p| p.ty.elements() as f64).sum::<f64>();
        let states = module.states.values().map(|s| s.ty.elements() as f64).sum::<f64>();
        let mut work = Work {
            flops: 0.0,
            bytes: stored * (8.0 + 4.0 * batch.replicas as f64) + states * 12.0 * micro_batches,
        };
        let mut values: f64 = 0.0;
        for entry in &module.entries {
            let f = &module.funcs[entry.func];
            let mut flops = func_flops(f);
            for inst in &f.insts {
                if let Op::Call(callee) = inst.op {
                    let g = &module.funcs[callee];
                    flops += func_flops(g);
                    values = values.max(bytes_of(g));
                }
            }
            values = values.max(bytes_of(f));
            work.flops += flops * micro_batches;
        }
        work.bytes += 2.0 * values;
        work
    }

    /// Whether a check may run it.
    pub fn is_small(&self) -> bool {
        self.fits(&SMALL)
    }

    fn fits(&self, most: &Work) -> bool {
        self.flops <= most.flops && self.bytes <= most.bytes
    }
}

fn func_flops(f: &Func) -> f64 {
    let flops = |inst: &pcc_ir::Inst| {
        let args: Vec<&Type> = inst.args.iter().map(|&v| f.ty(v)).collect();
        let results: Vec<&Type> = inst.results.iter().map(|&v| f.ty(v)).collect();
        inst.op.flops(&args, &results) + results.iter().map(|t| t.elements() as f64).sum::<f64>()
    };
    f.insts.iter().filter(|i| !matches!(i.op, Op::Call(_))).map(flops).sum()
}

fn bytes_of(f: &Func) -> f64 {
    f.values.values().map(|v| 8.0 * v.ty.elements() as f64).sum()
}

/// A twin, ready to be compiled as the model was.
#[derive(Clone, Debug)]
pub struct Twin {
    /// Its parameters are zeros until [`randomise`]d.
    pub graph: Module,
    /// The model's shardings and stage cut, for the twin.
    pub plan: Plan,
    pub batch: BatchPlan,
    pub info: ModelInfo,
}

/// Tried in turn until the twin is small enough.
const LEAST: [Least; 5] = [
    Least { wide: 64, seq: 16 },
    Least { wide: 32, seq: 16 },
    Least { wide: 32, seq: 8 },
    Least { wide: 16, seq: 8 },
    Least { wide: 8, seq: 4 },
];

/// Shrinks a model that was compiled by `plan` for `batch`. `graph` is outlined, as the checker sees it.
///
/// # Errors
/// The plan is of another model, or the model cannot be shrunk: its large dims are in reshapes, slices or joins.
pub fn twin(graph: &Module, plan: &Plan, batch: &BatchPlan, info: &ModelInfo) -> Result<Twin, Diagnostic> {
    let assignment = plan.assignment(graph, &graph.mesh, plan.sp)?;
    let (graph, assignment) = &crate::plan::unfolded(graph, &assignment)?;
    let stages = stages(graph, plan)?;
    let few = layers::fewer(graph, assignment, &stages);
    let rows = batch.replicas * batch.rows();
    let mut smallest = Work::default();
    for (i, least) in LEAST.into_iter().enumerate() {
        let dims = Dims::of(&few.module, &few.assignment);
        let free = dims.batch_is_free(rows);
        let batch = if free { fewer_rows(batch) } else { *batch };
        let new_rows = free.then(|| batch.replicas * batch.rows());
        let small = rewrite::resize(&few.module, &dims.sizes(&plan.mesh, least, new_rows));
        smallest = Work::of(&small, &batch);
        let most = if i + 1 == LEAST.len() { &MOST } else { &SMALL };
        if smallest.fits(most) {
            pcc_ir::verifier::verify(&small).map_err(|d| Diagnostic { fault: Fault::Internal, ..d })?;
            let mut twin_plan = Plan::new(&small, &few.assignment, plan.mesh, plan.sp, batch);
            twin_plan.stages = few.stages;
            let info = small_info(info, &few.module, &small);
            return Ok(Twin { graph: small, plan: twin_plan, batch, info });
        }
    }
    Err(too_large(graph, smallest))
}

fn too_large(graph: &Module, smallest: Work) -> Diagnostic {
    Diagnostic::input("the model is too large for the reference evaluator, and cannot be shrunk enough")
        .at(graph.name.clone())
        .why(format!(
            "the smallest twin still takes {:.1} Gflop and {:.0} MB: large dims are in reshapes, slices or joins, or there are \
             many replicas and stages",
            smallest.flops / 1e9,
            smallest.bytes / 1e6
        ))
        .help("use --numeric with a smaller --batch, --dp or --seq; without it, `pcc verify` proves any size")
}

/// Calls of each stage; checked, for a plan is a file that anyone can write.
fn stages(graph: &Module, plan: &Plan) -> Result<Vec<usize>, Diagnostic> {
    let calls = graph.entries.first().map_or(0, |e| graph.funcs[e.func].insts.len());
    if plan.stages.is_empty() && graph.mesh.pp == 1 {
        return Ok(vec![calls]);
    }
    let sum = plan.stages.iter().try_fold(0usize, |n, &s| n.checked_add(s));
    if plan.stages.len() == graph.mesh.pp as usize && sum == Some(calls) {
        return Ok(plan.stages.clone());
    }
    Err(Diagnostic::input("the plan cuts another chain of layers than this model has")
        .why(format!(
            "its stages have {:?} calls, the model has {calls} in {} stage(s)",
            plan.stages, graph.mesh.pp
        ))
        .help("compile the model again"))
}

/// At most two rows a cell and four micro-batches, and still uneven when the batch was.
fn fewer_rows(batch: &BatchPlan) -> BatchPlan {
    let micro_batches = batch.micro_batches.min(4);
    let cells = batch.replicas * micro_batches;
    let uneven = !batch.batch.is_multiple_of(batch.replicas * batch.micro_batches) && cells > 1;
    let rows = match batch.rows() {
        1 => cells,
        // The last cell has one row, the others two.
        _ if uneven => 2 * cells - 1,
        _ => 2 * cells,
    };
    BatchPlan { batch: rows, replicas: batch.replicas, micro_batches }
}

/// What is known of the model, with the twin's sizes.
fn small_info(info: &ModelInfo, graph: &Module, small: &Module) -> ModelInfo {
    let mut out = ModelInfo { name: format!("twin of {}", info.name), ..info.clone() };
    out.parameters = small.parameters();
    out.layers = small.entries.first().map_or(0, |e| small.funcs[e.func].insts.len());
    for (id, f) in &graph.funcs {
        let g = &small.funcs[id];
        for (inst, new) in f.insts.iter().zip(&g.insts) {
            let Op::Gather(gather) = &inst.op else { continue };
            let rows = |f: &Func, i: &pcc_ir::Inst| f.ty(i.args[0]).shape[gather.batch];
            if rows(f, inst) == info.vocab {
                out.vocab = rows(g, new);
            }
        }
    }
    for (entry, new) in graph.entries.iter().zip(&small.entries) {
        let (f, g) = (&graph.funcs[entry.func], &small.funcs[new.func]);
        for (&v, role) in f.args.iter().zip(&entry.args).filter(|a| matches!(a.1, Role::Input(_))) {
            let labels = &f.values[v].labels;
            let Some(i) = labels.iter().position(|&l| l == Some(Label::Seq)) else { continue };
            let at = new.args.iter().position(|r| r == role);
            if f.ty(v).shape.get(i) == Some(&info.seq)
                && let Some(&n) = at.and_then(|at| g.ty(g.args[at]).shape.get(i))
            {
                out.seq = n;
            }
        }
    }
    out
}
