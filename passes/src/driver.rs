//! The pipeline: graph to program, every step timed, the whole checked.

use crate::cost::Cluster;
use crate::lower::{self, LowerInput};
use crate::plan::Plan;
use crate::report::{PassReport, Report, SearchReport, VerifyReport, report};
use crate::solve::Solution;
use crate::{assign_shardings, cast_dtype, outline, partition, rewrite, solve, verify};
use pcc_ir::graph::Label;
use pcc_ir::program::{BatchPlan, DeviceKind, ModelInfo, Program, WeightsRef};
use pcc_ir::{DType, Diagnostic, Mesh, Module, ValueId};
use std::ops::Range;
use std::time::Instant;

/// The passes, declared once for the command line, timing and help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    CastDtype,
    Outline,
    SolveShardings,
    AssignShardings,
    Partition,
    RewriteCollectives,
    Lower,
    Verify,
}

impl Pass {
    /// In the order they run: functions are found in what is computed, sharding needs functions, partitioning needs shardings, rewriting needs collectives, lowering comes
    /// last, and the checker sees every level.
    pub const ALL: [Pass; 8] = [
        Pass::CastDtype,
        Pass::Outline,
        Pass::SolveShardings,
        Pass::AssignShardings,
        Pass::Partition,
        Pass::RewriteCollectives,
        Pass::Lower,
        Pass::Verify,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Pass::CastDtype => "cast_dtype",
            Pass::Outline => "outline",
            Pass::SolveShardings => "solve_shardings",
            Pass::AssignShardings => "assign_shardings",
            Pass::Partition => "partition",
            Pass::RewriteCollectives => "rewrite_collectives",
            Pass::Lower => "lower",
            Pass::Verify => "verify",
        }
    }

    /// One line for help.
    pub fn summary(self) -> &'static str {
        match self {
            Pass::CastDtype => "multiply matrices and attend in bf16",
            Pass::Outline => "turn repeated parts of a flat graph into functions",
            Pass::SolveShardings => "choose a sharding for every value",
            Pass::AssignShardings => "write shardings into the module, insert reshards",
            Pass::Partition => "make shapes local and collectives explicit",
            Pass::RewriteCollectives => "replace collectives by cheaper equal ones",
            Pass::Lower => "fuse kernels, plan buffers, cut stages",
            Pass::Verify => "prove every claim",
        }
    }

    /// Whether the pass brings a module to a module, so that `opt` can run it.
    pub fn is_module_pass(self) -> bool {
        !matches!(self, Pass::SolveShardings | Pass::Lower | Pass::Verify)
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.name() == name)
    }
}

/// A level of the program that can be printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Graph,
    Sharded,
    Local,
    Program,
}

impl Level {
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "graph" => Some(Level::Graph),
            "sharded" => Some(Level::Sharded),
            "local" => Some(Level::Local),
            "program" => Some(Level::Program),
            _ => None,
        }
    }
}

/// What to compile for.
#[derive(Clone, Debug)]
pub struct Options {
    pub mesh: Mesh,
    /// Split values carried from layer to layer over tp along their sequence dim.
    pub sp: bool,
    pub batch: BatchPlan,
    /// What matrix products and attention compute in, and what is kept of weights and caches: f32, or a 16-bit type.
    pub dtype: DType,
    pub device: DeviceKind,
    /// Bytes of device memory that bound a stage.
    pub memory: Option<u64>,
    /// A plan to replay instead of searching.
    pub plan: Option<Plan>,
    pub info: ModelInfo,
    pub weights: Option<WeightsRef>,
    /// Print the module after this pass, on stderr.
    pub print_after: Option<Pass>,
}

/// Everything a compile makes.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub graph: Module,
    pub sharded: Module,
    pub local: Module,
    pub program: Program,
    pub plan: Plan,
    pub report: Report,
}

impl Compiled {
    /// Text form of a level (JSON for the program).
    ///
    /// # Errors
    /// The program does not serialise: a fault of pcc.
    pub fn text(&self, level: Level) -> Result<String, Diagnostic> {
        match level {
            Level::Graph => Ok(self.graph.to_string()),
            Level::Sharded => Ok(self.sharded.to_string()),
            Level::Local => Ok(self.local.to_string()),
            Level::Program => serde_json::to_string_pretty(&self.program)
                .map_err(|e| Diagnostic::internal(format!("the program as JSON: {e}"))),
        }
    }
}

/// Times passes and prints after the one asked for.
struct Runner {
    passes: Vec<PassReport>,
    print_after: Option<Pass>,
}

impl Runner {
    fn step<T>(&mut self, pass: Pass, work: impl FnOnce() -> Result<T, Diagnostic>) -> Result<T, Diagnostic> {
        let start = Instant::now();
        let made = work()?;
        self.passes.push(PassReport { name: pass.name().to_owned(), seconds: start.elapsed().as_secs_f64() });
        Ok(made)
    }

    fn module(
        &mut self,
        pass: Pass,
        work: impl FnOnce() -> Result<Module, Diagnostic>,
    ) -> Result<Module, Diagnostic> {
        let module = self.step(pass, work)?;
        if self.print_after == Some(pass) {
            eprintln!("// after {}\n{module}", pass.name());
        }
        Ok(module)
    }
}

/// Runs module passes in the order given, each checked to exist for modules; `check` is called after each.
///
/// # Errors
/// What a pass or `check` reports; a pass that makes no module, or one whose predecessor is missing.
pub fn run_passes(
    mut module: Module,
    passes: &[Pass],
    sp: bool,
    check: impl Fn(Pass, &Module) -> Result<(), Diagnostic>,
) -> Result<Module, Diagnostic> {
    let cluster = Cluster::a100();
    let mut sharded = None;
    for &pass in passes {
        let is_local = module.funcs.values().any(|f| f.values.values().any(|v| v.claim.is_some()));
        if is_local && pass != Pass::RewriteCollectives {
            return Err(Diagnostic::usage(format!("`{}` cannot run on a local module", pass.name()))
                .help("cast_dtype,outline,assign_shardings,partition run on a graph, in this order"));
        }
        let is_sharded = || module.funcs.values().any(|f| f.values.values().any(|v| v.sharding.is_some()));
        if pass == Pass::Outline && is_sharded() {
            return Err(Diagnostic::usage("`outline` cannot run on a module whose values have shardings")
                .help("cast_dtype,outline,assign_shardings,partition run on a graph, in this order"));
        }
        module = match pass {
            Pass::CastDtype => cast_dtype::cast_dtype(&module, DType::BF16, DeviceKind::Cpu)?,
            Pass::Outline => outline::outline(&module, module.mesh.pp as usize)?,
            Pass::AssignShardings => {
                let assignment = solve(&module, sp, &cluster)?.assignment;
                assign_shardings::assign_shardings(&module, &assignment, &module.mesh, &cluster)?
            }
            Pass::Partition => {
                let mut entries = module.entries.iter().map(|e| &module.funcs[e.func]);
                if !entries.all(|f| f.values.values().all(|v| v.sharding.is_some())) {
                    return Err(Diagnostic::usage("partition needs a module whose values have shardings")
                        .help("run outline,assign_shardings,partition on a graph"));
                }
                let local = partition::partition(&module)?;
                sharded = Some(module);
                local
            }
            Pass::RewriteCollectives => {
                let Some(sharded) = &sharded else {
                    return Err(Diagnostic::usage(
                        "rewrite_collectives needs the module before partitioning",
                    )
                    .help("run partition,rewrite_collectives on a sharded module"));
                };
                rewrite::rewrite_collectives(&mut module, sharded)?;
                module
            }
            Pass::SolveShardings | Pass::Lower | Pass::Verify => {
                return Err(Diagnostic::usage(format!("`{}` makes no module", pass.name())));
            }
        };
        check(pass, &module)?;
    }
    Ok(module)
}

/// Micro-batches run one after another and nothing adds up over them, and rows that pad a batch are zeros and not masked. So where
/// there are either, every result must keep the rows apart.
fn check_rows_apart(graph: &Module, batch: &BatchPlan) -> Result<(), Diagnostic> {
    let full = batch.rows().checked_mul(batch.replicas) == Some(batch.batch);
    if batch.micro_batches == 1 && full {
        return Ok(());
    }
    for entry in &graph.entries {
        let f = &graph.funcs[entry.func];
        let has_rows = |v: &ValueId| f.values[*v].labels.contains(&Some(Label::Batch));
        if !f.args.iter().any(has_rows) {
            continue;
        }
        for (i, (v, name)) in f.results.iter().zip(&entry.results).enumerate() {
            if !has_rows(v) && !entry.aliases.iter().any(|&(_, r)| r == i) {
                let what = format!("result `{name}` does not keep the rows of the batch apart");
                return Err(Diagnostic::input(what)
                    .at(format!("entry `{}`", entry.name))
                    .why("rows of several micro-batches, or fewer than the replicas hold, are not reduced")
                    .help("use --micro-batches 1, and a --batch that --dp divides"));
            }
        }
    }
    Ok(())
}

/// Chooses shardings.
fn solve(graph: &Module, sp: bool, cluster: &Cluster) -> Result<Solution, Diagnostic> {
    let options = solve::Options { sp, cluster: cluster.clone(), ..solve::Options::new(graph.mesh) };
    solve::solve(graph, &options)
}

/// Compiles a graph module.
///
/// # Errors
/// The model cannot be split as asked (with the nearest choices), the plan is of another model, or a check failed.
pub fn compile(mut graph: Module, options: &Options) -> Result<Compiled, Diagnostic> {
    let cluster = Cluster::a100();
    graph.mesh = options.mesh;
    let mut run = Runner { passes: Vec::new(), print_after: options.print_after };
    if options.dtype != DType::F32 {
        graph =
            run.module(Pass::CastDtype, || cast_dtype::cast_dtype(&graph, options.dtype, options.device))?;
    }
    let graph = run.module(Pass::Outline, || {
        let mut graph = outline::outline(&graph, options.mesh.pp as usize)?;
        solve::label_results(&mut graph)?;
        check_rows_apart(&graph, &options.batch)?;
        Ok(graph)
    })?;
    let mut search = SearchReport::default();
    let assignment = run.step(Pass::SolveShardings, || match &options.plan {
        Some(plan) => plan.assignment(&graph, &options.mesh, options.sp),
        None => {
            let found = solve(&graph, options.sp, &cluster)?;
            (search.components, search.variables, search.gap) =
                (found.components, found.variables, found.gap);
            Ok(found.assignment)
        }
    })?;
    let sharded = run.module(Pass::AssignShardings, || {
        assign_shardings::assign_shardings(&graph, &assignment, &options.mesh, &cluster)
    })?;
    let local = run.module(Pass::Partition, || partition::partition(&sharded))?;
    let local = run.module(Pass::RewriteCollectives, || {
        let mut local = local;
        search.rewrites = rewrite::rewrite_collectives(&mut local, &sharded)?;
        Ok(local)
    })?;
    let stages = match &options.plan {
        Some(plan) if !plan.stages.is_empty() => Some(stage_ranges(&plan.stages)?),
        _ => None,
    };
    let input = LowerInput {
        sharded: &sharded,
        local: &local,
        info: options.info.clone(),
        batch: options.batch,
        dtype: options.dtype,
        device: options.device,
        weights: options.weights.clone(),
        memory: options.memory,
        cluster: cluster.clone(),
        stages,
    };
    if local.entries.is_empty() {
        return Err(Diagnostic::input("the model has no entry"));
    }
    let lower::Output { program, cut, stage_seconds } = run.step(Pass::Lower, || lower::lower(&input))?;
    let mut report = report(&program, &stage_seconds, &cluster);
    let start = Instant::now();
    let summary = run.step(Pass::Verify, || {
        verify::check(&verify::CheckInput {
            graph: &graph,
            sharded: &sharded,
            local: &local,
            program: &program,
        })
    })?;
    report.verify = VerifyReport {
        ok: true,
        values: summary.values,
        functions: summary.functions,
        seconds: start.elapsed().as_secs_f64(),
    };
    let mut plan = Plan::new(&graph, &assignment, options.mesh, options.sp, options.batch);
    plan.stages = cut.iter().map(|r| r.len()).collect();
    report.search = search;
    report.compile.passes = run.passes;
    Ok(Compiled { graph, sharded, local, program, plan, report })
}

/// Lengths of consecutive stages, as a plan file gives them, as ranges of calls.
fn stage_ranges(lengths: &[usize]) -> Result<Vec<Range<usize>>, Diagnostic> {
    let mut start = 0usize;
    // An entry that gives back what it gets is a chain of no calls.
    let empty = lengths == [0];
    let range = |&n: &usize| {
        let end = start.checked_add(n).filter(|_| n > 0 || empty).ok_or_else(|| {
            Diagnostic::input("the plan has a stage without a call, or of more calls than a model can have")
                .at("`stages` of the plan")
                .help("give every stage one call or more; they add up to the model's calls")
        })?;
        Ok(std::mem::replace(&mut start, end)..end)
    };
    lengths.iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_lengths_of_a_plan_are_checked() {
        assert_eq!(stage_ranges(&[2, 1, 3]).unwrap(), [0..2, 2..3, 3..6]);
        // A model of no calls.
        assert_eq!(stage_ranges(&[0]).unwrap(), vec![0..0]);
        for wrong in [&[2, 0, 1][..], &[usize::MAX, 2]] {
            assert!(stage_ranges(wrong).unwrap_err().to_string().contains("stage"));
        }
    }
}
