//! Lowers a local module to a program.
//!
//! What: every function becomes an instruction list over planned buffers, once; every entry becomes per-stage lists of calls with bindings.
//! Why: what runs per step is then only kernels, matrix products and collectives at fixed addresses.
//!
//! ```text
//! %h = silu(%g); %m = mul(%h, %u); %p = dot_general(%m, %w)
//! kernel pcc_3_binary [frame+0, frame+4096] -> frame+8192; gemm frame+8192 slot 4 -> frame+0
//! ```

pub(crate) mod buffers;
mod collective;
mod express;
mod func;
mod gemm;
mod kernel_build;
mod materialise;
mod parts;
mod stages;
mod time;

use crate::cost::Cluster;
use crate::cut_stages::{CallCost, cut_stages};
use kernel_build::KernelTable;
use pcc_ir::graph::{Label, Role};
use pcc_ir::kernel::KernelId;
use pcc_ir::program::{
    BatchPlan, ConstantData, EntryProgram, InstrKind, IoSpec, Launch, LocalParam, LocalState, ModelInfo,
    Program, Step, Target, VERSION, WeightsRef,
};
use pcc_ir::{DType, Diagnostic, Entry, Func, FuncId, Mesh, Module, Op, Sharding, Type, ValueId};
use stages::{EntryLowering, Lowered};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// What lowering needs besides the module.
pub struct LowerInput<'a> {
    /// The sharded module: global types and shardings of what users give and get.
    pub sharded: &'a Module,
    /// The local module.
    pub local: &'a Module,
    pub info: ModelInfo,
    pub batch: BatchPlan,
    pub weights: Option<WeightsRef>,
    /// Bytes of device memory, when a stage must be bounded.
    pub memory: Option<u64>,
    pub cluster: Cluster,
    /// A stage cut to use instead of a search: calls of each stage.
    pub stages: Option<Vec<Range<usize>>>,
}

/// Lowers the module. Also returns which calls of the chain each stage runs.
pub fn lower(input: &LowerInput<'_>) -> Result<(Program, Vec<Range<usize>>), Diagnostic> {
    let local = input.local;
    let mut kernels = KernelTable::default();
    let mut constants = Vec::new();
    let lowered = lower_functions(local, &mut kernels, &mut constants)?;
    let cut = stage_cut(input, &lowered)?;
    let entries = local
        .entries
        .iter()
        .map(|entry| lower_entry(input, entry, &lowered, &cut))
        .collect::<Result<Vec<_>, _>>()?;
    let sharding = |s: &Option<Sharding>, what: &str| {
        s.clone().ok_or_else(|| Diagnostic::internal(format!("`{what}` was given no sharding")))
    };
    let params = local.params.values().zip(input.sharded.params.values()).map(|(p, global)| {
        let sharding = sharding(&global.sharding, &p.name)?;
        Ok(LocalParam {
            name: p.name.clone(),
            source: p.source.clone(),
            ty: global.ty.clone(),
            sharding,
            stack: p.stack,
        })
    });
    let states = local.states.values().zip(input.sharded.states.values()).map(|(s, global)| {
        let sharding = sharding(&global.sharding, &s.name)?;
        Ok(LocalState { name: s.name.clone(), ty: global.ty.clone(), sharding, stack: s.stack })
    });
    let mut program = Program {
        version: VERSION,
        model: input.info.clone(),
        mesh: local.mesh,
        dtype: DType::F32,
        batch: input.batch,
        kernels: kernels.kernels,
        params: params.collect::<Result<_, Diagnostic>>()?,
        states: states.collect::<Result<_, Diagnostic>>()?,
        constants,
        entries,
        funcs: lowered.programs,
        target: Target::default(),
        weights: input.weights.clone(),
        levels_digest: String::new(),
    };
    drop_unused(&mut program);
    Ok((program, cut))
}

/// Drops functions that no step calls (copies made in advance) and kernels that no function launches.
fn drop_unused(program: &mut Program) {
    let steps = program.entries.iter_mut().flat_map(|e| &mut e.stages).flat_map(|s| &mut s.steps);
    let mut calls: Vec<&mut u32> = steps
        .filter_map(|s| match s {
            Step::Call { func, .. } => Some(func),
            _ => None,
        })
        .collect();
    let used: BTreeSet<u32> = calls.iter().map(|f| **f).collect();
    let at: HashMap<u32, u32> = used.iter().zip(0..).map(|(&old, new)| (old, new)).collect();
    for func in &mut calls {
        **func = at[&**func];
    }
    let mut index = 0;
    program.funcs.retain(|_| {
        index += 1;
        used.contains(&(index - 1))
    });
    let mut launches: Vec<&mut Launch> = program
        .funcs
        .iter_mut()
        .flat_map(|f| &mut f.instrs)
        .filter_map(|i| match &mut i.kind {
            InstrKind::Kernel(l) => Some(l),
            _ => None,
        })
        .collect();
    let used: BTreeSet<KernelId> = launches.iter().map(|l| l.kernel).collect();
    let old = std::mem::take(&mut program.kernels);
    let mut at = HashMap::new();
    for id in used {
        at.insert(id, program.kernels.push(old[id].clone()));
    }
    for launch in &mut launches {
        launch.kernel = at[&launch.kernel];
    }
}

/// The callees of an entry, in chain order.
fn chain(func: &Func) -> Result<Vec<FuncId>, Diagnostic> {
    let callee = |op: &Op| match op {
        Op::Call(f) => Ok(*f),
        op => Err(Diagnostic::internal(format!("`{}` at the top level of entry `{}`", op.name(), func.name))),
    };
    func.insts.iter().map(|i| callee(&i.op)).collect()
}

/// Lowers each function that some entry calls, once.
fn lower_functions(
    local: &Module,
    kernels: &mut KernelTable,
    constants: &mut Vec<ConstantData>,
) -> Result<Lowered, Diagnostic> {
    let mut out = Lowered {
        index: HashMap::new(),
        programs: Vec::new(),
        constants: Vec::new(),
        copies: HashMap::new(),
    };
    for entry in &local.entries {
        let main = &local.funcs[entry.func];
        for id in chain(main)? {
            if out.index.contains_key(&id) {
                continue;
            }
            let func = &local.funcs[id];
            let pairs = in_place(local, id, func);
            let (program, consts) = func::lower_func(func, &local.mesh, &pairs, kernels)?;
            out.index.insert(id, out.programs.len() as u32);
            out.programs.push(program);
            out.constants.push(consts.into_iter().map(|c| intern_constant(constants, c)).collect());
        }
        for &v in &main.results {
            add_copy(&mut out, main.ty(v), &local.mesh, kernels)?;
        }
    }
    Ok(out)
}

fn intern_constant(constants: &mut Vec<ConstantData>, c: ConstantData) -> u32 {
    let at = constants.iter().position(|k| *k == c).unwrap_or_else(|| {
        constants.push(c);
        constants.len() - 1
    });
    at as u32
}

/// A function that copies its argument, for results that are arguments or repeats; dropped at the end where nothing calls it.
fn add_copy(out: &mut Lowered, ty: &Type, mesh: &Mesh, kernels: &mut KernelTable) -> Result<(), Diagnostic> {
    let bytes = ty.bytes() as u64;
    if out.copies.contains_key(&bytes) {
        return Ok(());
    }
    let mut f = Func::new("copy");
    let v = f.arg(ty.clone(), "x");
    f.results.push(v);
    let (program, _) = func::lower_func(&f, mesh, &[], kernels)?;
    out.copies.insert(bytes, out.programs.len() as u32);
    out.programs.push(program);
    out.constants.push(Vec::new());
    Ok(())
}

/// In-place pairs of a function that hold at every call: the argument is a state of the entry, the result its new value.
fn in_place(local: &Module, id: FuncId, func: &Func) -> Vec<(usize, usize)> {
    let everywhere = |&(a, r): &(usize, usize)| {
        local.entries.iter().all(|entry| {
            let main = &local.funcs[entry.func];
            main.insts.iter().filter(|i| i.op == Op::Call(id)).all(|call| {
                let arg = main.args.iter().position(|&v| v == call.args[a]);
                let result = main.results.iter().position(|&v| v == call.results[r]);
                // The old value is overwritten: nothing else may need it.
                let old = call.args[a];
                let reads = main.insts.iter().flat_map(|i| &i.args).filter(|&&v| v == old).count();
                let kept = reads > 1 || main.results.contains(&old);
                !kept && matches!((arg, result), (Some(a), Some(r)) if entry.aliases.contains(&(a, r)))
            })
        })
    };
    parts::in_place_pairs(func).into_iter().filter(everywhere).collect()
}

/// Modelled time and bytes of each call of the chain, summed over entries as they are weighted.
fn chain_costs(input: &LowerInput<'_>, lowered: &Lowered) -> Result<Vec<CallCost>, Diagnostic> {
    let local = input.local;
    let mut costs: Vec<CallCost> = Vec::new();
    for entry in &local.entries {
        let main = &local.funcs[entry.func];
        let calls = chain(main)?;
        if !costs.is_empty() && costs.len() != calls.len() {
            return Err(Diagnostic::input("the entries of the model are chains of different lengths")
                .at(entry.name.clone())
                .help("with several entries, give each the same chain of functions, or use --pp 1"));
        }
        costs.resize(calls.len(), CallCost::default());
        for ((cost, call), id) in costs.iter_mut().zip(&main.insts).zip(calls) {
            let program = &lowered.programs[lowered.index[&id] as usize];
            cost.time += entry.weight * time::call_time(&local.funcs[id], &local.mesh, &input.cluster);
            let held = |v: &ValueId| {
                let i = main.args.iter().position(|a| a == v)?;
                let bytes = main.ty(*v).bytes() as u64;
                match entry.args[i] {
                    Role::Input(_) => None,
                    Role::Param(_) => Some(bytes),
                    Role::State(_) => Some(bytes.saturating_mul(input.batch.micro_batches as u64)),
                }
            };
            cost.held = cost.held.max(call.args.iter().filter_map(held).sum());
            cost.frame = cost.frame.max(program.frame_bytes);
        }
    }
    Ok(costs)
}

fn stage_cut(input: &LowerInput<'_>, lowered: &Lowered) -> Result<Vec<Range<usize>>, Diagnostic> {
    let stages = input.local.mesh.pp as usize;
    if stages == 1 && input.memory.is_none() {
        let longest = input.local.entries.iter().map(|e| input.local.funcs[e.func].insts.len()).max();
        let whole = 0..longest.unwrap_or(0);
        return Ok(vec![whole]);
    }
    let costs = chain_costs(input, lowered)?;
    match &input.stages {
        Some(cut) if cut.len() == stages && cut.last().map(|r| r.end) == Some(costs.len()) => Ok(cut.clone()),
        Some(_) => {
            Err(Diagnostic::input("the plan cuts another chain of layers than this model has").at("--plan"))
        }
        None => cut_stages(&costs, stages, input.memory),
    }
}

fn lower_entry(
    input: &LowerInput<'_>,
    entry: &Entry,
    lowered: &Lowered,
    cut: &[Range<usize>],
) -> Result<EntryProgram, Diagnostic> {
    let func = &input.local.funcs[entry.func];
    let calls = chain(func)?;
    let stage_of: Vec<u32> =
        (0..calls.len()).map(|c| cut.iter().position(|r| r.contains(&c)).unwrap_or(0) as u32).collect();
    let global = &input.sharded.funcs[entry.func];
    let spec = |name: &str, v: ValueId, i: usize, of: &[ValueId]| {
        let value = &global.values[of[i]];
        let sharding = func.values[v].claim.as_ref().map(|c| c.sharding.clone());
        let sharding = sharding.ok_or_else(|| {
            Diagnostic::internal(format!("`{name}` of entry `{}` has no claim", entry.name))
        })?;
        let label = |l| value.labels.iter().position(|&x| x == Some(l));
        Ok::<_, Diagnostic>(IoSpec {
            name: name.to_owned(),
            ty: value.ty.clone(),
            sharding,
            batch_dim: label(Label::Batch),
            seq_dim: label(Label::Seq),
        })
    };
    let mut inputs = Vec::new();
    for (i, (&v, role)) in func.args.iter().zip(&entry.args).enumerate() {
        if let Role::Input(name) = role {
            inputs.push(spec(name, v, i, &global.args)?);
        }
    }
    let mut outputs = Vec::new();
    for (i, (&v, name)) in func.results.iter().zip(&entry.results).enumerate() {
        if !entry.aliases.iter().any(|&(_, r)| r == i) {
            outputs.push(spec(name, v, i, &global.results)?);
        }
    }
    let layer_of = layers(input.local, &calls);
    EntryLowering {
        entry,
        func,
        lowered,
        stage_of: &stage_of,
        layer_of: &layer_of,
        inputs,
        outputs,
        makers: HashMap::new(),
    }
    .lower(input.local.mesh.pp)
}

/// Which calls of a chain are layers: those of functions the frontend named so (`layer`, `forward.layer`, `forward.layer.1`),
/// else all of them.
pub(crate) fn layers(module: &Module, calls: &[FuncId]) -> Vec<Option<u32>> {
    let named: Vec<bool> = calls
        .iter()
        .map(|&f| module.funcs[f].name.split('.').any(|part| part.starts_with("layer")))
        .collect();
    let any = named.iter().any(|&n| n);
    let mut next = 0;
    let number = |is: bool| {
        (is || !any).then(|| {
            next += 1;
            next - 1
        })
    };
    named.into_iter().map(number).collect()
}

/// Modelled seconds of one micro-batch of an entry on each stage.
pub fn stage_times(
    local: &Module,
    entry: &Entry,
    cut: &[Range<usize>],
    cluster: &Cluster,
) -> Result<Vec<f64>, Diagnostic> {
    let calls = chain(&local.funcs[entry.func])?;
    let mut known: HashMap<FuncId, f64> = HashMap::new();
    let mut time =
        |f: FuncId| *known.entry(f).or_insert_with(|| time::call_time(&local.funcs[f], &local.mesh, cluster));
    Ok(cut.iter().map(|r| r.clone().filter_map(|c| calls.get(c)).map(|&f| time(f)).sum()).collect())
}
