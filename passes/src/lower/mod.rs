//! Lowers a local module to a program.
//!
//! What: every function becomes an instruction list over planned buffers, once; every entry becomes per-stage lists of calls with bindings.
//! Why: what runs per step is then only kernels, matrix products and collectives at fixed addresses.
//!
//! ```text
//! %h = silu(%g); %m = mul(%h, %u); %p = dot_general(%m, %w)
//! kernel pcc_3_binary [frame+0, frame+4096] -> frame+8192; gemm frame+8192 slot 4 -> frame+0
//! ```

mod attention;
pub(crate) mod buffers;
mod clips;
mod collective;
mod express;
mod func;
mod gemm;
mod kernel_build;
mod materialise;
mod once;
mod parts;
mod selection;
mod stages;
mod storage;
mod time;
mod weight;

use crate::cost::Cluster;
use crate::cut_stages::{CallCost, cut_stages};
use clips::{Clips, FuncClips, InPlace};
use kernel_build::KernelTable;
use pcc_ir::graph::{Label, Role};
use pcc_ir::kernel::KernelId;
use pcc_ir::program::{
    BatchPlan, ConstantData, DeviceKind, EntryProgram, InstrKind, IoSpec, Launch, LocalParam, LocalState,
    ModelInfo, Program, Step, Target, VERSION, WeightsRef,
};
use pcc_ir::repeat::{Chain, Numbering};
use pcc_ir::{AxisRef, DType, Diagnostic, Entry, Func, FuncId, Mesh, Module, Op, Sharding, Type, ValueId};
use stages::{EntryLowering, Lowered};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use storage::Storages;

/// What lowering needs besides the module.
pub struct LowerInput<'a> {
    /// The sharded module: global types and shardings of what users give and get.
    pub sharded: &'a Module,
    /// The local module.
    pub local: &'a Module,
    pub info: ModelInfo,
    pub batch: BatchPlan,
    /// What products compute in.
    pub dtype: DType,
    pub device: DeviceKind,
    pub weights: Option<WeightsRef>,
    /// Bytes of device memory, when a stage must be bounded.
    pub memory: Option<u64>,
    pub cluster: Cluster,
    /// A stage cut to use instead of a search: calls of each stage.
    pub stages: Option<Vec<Range<usize>>>,
}

/// What lowering makes.
pub struct Output {
    pub program: Program,
    /// Calls of the unfolded chain that each stage runs.
    pub cut: Vec<Range<usize>>,
    /// Modelled seconds of one micro-batch of the first entry on each stage.
    pub stage_seconds: Vec<f64>,
}

/// Lowers the module.
///
/// # Errors
/// The chain cannot be cut as asked. What is no chain of calls or has no placement is an internal fault.
pub fn lower(input: &LowerInput<'_>) -> Result<Output, Diagnostic> {
    let local = input.local;
    let mut kernels = KernelTable::default();
    let mut constants = Vec::new();
    let storages = match input.device {
        DeviceKind::Cpu => storage::choose(local, input.sharded),
        DeviceKind::Gpu => Storages::default(),
    };
    let pairs = in_place_pairs(local)?;
    let masked = pcc_ir::absent::is_unseen(input.sharded);
    let clips = Clips::of(input.sharded, local, &input.batch, masked, &pairs);
    let team = match input.device {
        DeviceKind::Cpu => once::team(&local.mesh),
        DeviceKind::Gpu => Vec::new(),
    };
    let lowered = lower_functions(
        (local, input.device),
        (&clips, &pairs, &storages),
        &team,
        &mut kernels,
        &mut constants,
    )?;
    let chains = chains(local)?;
    let cut = stage_cut(input, &storages, &lowered, &chains)?;
    let entries = local
        .entries
        .iter()
        .zip(&chains)
        .map(|(entry, chain)| lower_entry(input, entry, chain, &lowered, &cut))
        .collect::<Result<Vec<_>, _>>()?;
    let stage_seconds = chains.first().map(|c| stage_times(local, c, &cut, &input.cluster));
    let sharding = |s: &Option<Sharding>, what: &str| {
        s.clone().ok_or_else(|| Diagnostic::internal(format!("`{what}` was given no sharding")))
    };
    let params = local.params.iter().zip(input.sharded.params.values()).map(|((id, p), global)| {
        let sharding = sharding(&global.sharding, &p.name)?;
        Ok(LocalParam {
            name: p.name.clone(),
            source: p.source.clone(),
            ty: global.ty.clone(),
            sharding,
            stack: p.stack,
            storage: storages.param(id),
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
        dtype: input.dtype,
        batch: input.batch,
        unseen: masked,
        kernels: kernels.kernels,
        params: params.collect::<Result<_, Diagnostic>>()?,
        states: states.collect::<Result<_, Diagnostic>>()?,
        constants,
        team,
        entries,
        funcs: lowered.programs,
        target: Target::default(),
        weights: input.weights.clone(),
        levels_digest: String::new(),
    };
    drop_unused(&mut program);
    Ok(Output { program, cut, stage_seconds: stage_seconds.unwrap_or_default() })
}

/// The entries, unfolded.
fn chains(local: &Module) -> Result<Vec<Chain>, Diagnostic> {
    let fault = |place: &str, why: String| {
        Diagnostic::internal("an entry is no chain of calls").at(place.to_owned()).why(why)
    };
    let params = Numbering::new(local.params.values().map(|p| p.stack));
    let states = Numbering::new(local.states.values().map(|s| s.stack));
    let (params, states) = match (params, states) {
        (Ok(params), Ok(states)) => (params, states),
        (Err(why), _) | (_, Err(why)) => return Err(fault("the stacks", why)),
    };
    let chain = |e: &Entry| {
        Chain::with(local, e, &params, &states).map_err(|why| fault(&format!("entry `{}`", e.name), why))
    };
    local.entries.iter().map(chain).collect()
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

/// The callees of an entry, in order.
fn callees(func: &Func) -> Result<Vec<FuncId>, Diagnostic> {
    let callee = |op: &Op| match op {
        Op::Call(f) => Ok(*f),
        op => Err(Diagnostic::internal(format!("`{}` at the top level of entry `{}`", op.name(), func.name))),
    };
    func.insts.iter().map(|i| callee(&i.op)).collect()
}

/// Lowers each function that some entry calls, once.
fn lower_functions(
    (local, device): (&Module, DeviceKind),
    (clips, pairs, storages): (&Clips, &InPlace, &Storages),
    team: &[AxisRef],
    kernels: &mut KernelTable,
    constants: &mut Vec<ConstantData>,
) -> Result<Lowered, Diagnostic> {
    let mut out = Lowered {
        index: HashMap::new(),
        programs: Vec::new(),
        constants: Vec::new(),
        copies: HashMap::new(),
    };
    let shareable = once::results(local, pairs, team);
    let nothing = HashSet::new();
    for entry in &local.entries {
        let main = &local.funcs[entry.func];
        for id in callees(main)? {
            if out.index.contains_key(&id) {
                continue;
            }
            let func = &local.funcs[id];
            let shareable = shareable.get(&id).unwrap_or(&nothing);
            let known = (&clips.func(id), &pairs[&id][..], &storages.args(id, func)[..]);
            let (program, consts) =
                func::lower_func(func, (&local.mesh, device), known, (team, shareable), kernels)?;
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
    let (program, _) = func::lower_func(
        &f,
        (mesh, DeviceKind::Cpu),
        (&FuncClips::default(), &[], &[]),
        (&[], &HashSet::new()),
        kernels,
    )?;
    out.copies.insert(bytes, out.programs.len() as u32);
    out.programs.push(program);
    out.constants.push(Vec::new());
    Ok(())
}

/// The in-place pairs of every function that some entry calls.
fn in_place_pairs(local: &Module) -> Result<InPlace, Diagnostic> {
    let uses: Vec<Uses> = local.entries.iter().map(|e| Uses::of(&local.funcs[e.func], e)).collect();
    let mut pairs = HashMap::new();
    for entry in &local.entries {
        for id in callees(&local.funcs[entry.func])? {
            pairs.entry(id).or_insert_with(|| in_place(local, &uses, id, &local.funcs[id]));
        }
    }
    Ok(pairs)
}

/// What an entry's function does with its values.
struct Uses {
    /// Results that are the new values of arguments.
    new: HashMap<ValueId, ValueId>,
    /// How often each value is an operand.
    reads: HashMap<ValueId, usize>,
    results: HashSet<ValueId>,
}

impl Uses {
    fn of(func: &Func, entry: &Entry) -> Self {
        let mut reads = HashMap::new();
        func.insts.iter().flat_map(|i| &i.args).for_each(|&v| *reads.entry(v).or_default() += 1);
        let alias = |&(a, r): &(usize, usize)| Some((*func.args.get(a)?, *func.results.get(r)?));
        let new = entry.aliases.iter().filter_map(alias).collect();
        Self { new, reads, results: func.results.iter().copied().collect() }
    }
}

/// In-place pairs of a function that hold at every call: the argument is a state of the entry, the result its new value.
fn in_place(local: &Module, uses: &[Uses], id: FuncId, func: &Func) -> Vec<(usize, usize)> {
    let everywhere = |&(a, r): &(usize, usize)| {
        local.entries.iter().zip(uses).all(|(entry, uses)| {
            let main = &local.funcs[entry.func];
            main.insts.iter().filter(|i| i.op == Op::Call(id)).all(|call| {
                // The old value is overwritten: nothing else may need it.
                let old = call.args[a];
                let kept = uses.reads.get(&old).is_some_and(|&n| n > 1) || uses.results.contains(&old);
                !kept && uses.new.get(&old) == Some(&call.results[r])
            })
        })
    };
    parts::in_place_pairs(func).into_iter().filter(everywhere).collect()
}

/// Modelled time and bytes of each call of the chain, summed over entries as they are weighted.
fn chain_costs(
    input: &LowerInput<'_>,
    storages: &Storages,
    lowered: &Lowered,
    chains: &[Chain],
) -> Result<Vec<CallCost>, Diagnostic> {
    let local = input.local;
    let mut costs: Vec<CallCost> = Vec::new();
    for (entry, chain) in local.entries.iter().zip(chains) {
        let main = &local.funcs[entry.func];
        if !costs.is_empty() && costs.len() != chain.calls.len() {
            return Err(Diagnostic::input("the entries of the model are chains of different lengths")
                .at(entry.name.clone())
                .help("with several entries, give each the same chain of functions, or use --pp 1"));
        }
        costs.resize(chain.calls.len(), CallCost::default());
        let held = |(&v, role): (&ValueId, &Role)| {
            let bytes = main.ty(v).bytes() as u64;
            let micro_batches = input.batch.micro_batches as u64;
            match role {
                Role::Input(_) => None,
                Role::Param(p) => Some((v, storages.param(*p).bytes(main.ty(v)))),
                Role::State(_) => Some((v, bytes.saturating_mul(micro_batches))),
            }
        };
        let held: HashMap<ValueId, u64> = main.args.iter().zip(&entry.args).filter_map(held).collect();
        let mut seconds = Seconds::default();
        // All repetitions of a call cost the same.
        let mut of_inst: Vec<CallCost> = Vec::with_capacity(main.insts.len());
        for (inst, id) in main.insts.iter().zip(callees(main)?) {
            of_inst.push(CallCost {
                time: entry.weight * seconds.of(local, id, &input.cluster),
                held: inst.args.iter().filter_map(|v| held.get(v)).sum(),
                frame: lowered.programs[lowered.index[&id] as usize].frame_bytes,
            });
        }
        for (cost, call) in costs.iter_mut().zip(&chain.calls) {
            let one = of_inst[call.inst as usize];
            cost.time += one.time;
            cost.held = cost.held.max(one.held);
            cost.frame = cost.frame.max(one.frame);
        }
    }
    Ok(costs)
}

/// Modelled seconds of calls, by function.
#[derive(Default)]
struct Seconds(HashMap<FuncId, f64>);

impl Seconds {
    fn of(&mut self, local: &Module, f: FuncId, cluster: &Cluster) -> f64 {
        *self.0.entry(f).or_insert_with(|| time::call_time(&local.funcs[f], &local.mesh, cluster))
    }
}

fn stage_cut(
    input: &LowerInput<'_>,
    storages: &Storages,
    lowered: &Lowered,
    chains: &[Chain],
) -> Result<Vec<Range<usize>>, Diagnostic> {
    let stages = input.local.mesh.pp as usize;
    let calls = chains.iter().map(|c| c.calls.len()).max().unwrap_or(0);
    match &input.stages {
        Some(cut) if cut.len() == stages && cut.last().map(|r| r.end) == Some(calls) => Ok(cut.clone()),
        Some(_) => {
            Err(Diagnostic::input("the plan cuts another chain of layers than this model has").at("--plan"))
        }
        None if stages == 1 && input.memory.is_none() => Ok(std::iter::once(0..calls).collect()),
        None => cut_stages(&chain_costs(input, storages, lowered, chains)?, stages, input.memory),
    }
}

fn lower_entry(
    input: &LowerInput<'_>,
    entry: &Entry,
    chain: &Chain,
    lowered: &Lowered,
    cut: &[Range<usize>],
) -> Result<EntryProgram, Diagnostic> {
    let func = &input.local.funcs[entry.func];
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
    let layer_of = layers(input.local, chain);
    EntryLowering { name: &entry.name, func, chain, lowered, cut, layer_of: &layer_of, inputs, outputs }
        .lower(input.local.mesh.pp)
}

/// Which calls of a chain are layers: those of functions the frontend named so (`layer`, `forward.layer`, `forward.layer.1`),
/// else all of them.
fn layers(module: &Module, chain: &Chain) -> Vec<Option<u32>> {
    let mut known: HashMap<FuncId, bool> = HashMap::new();
    let mut is_named = |f: FuncId| {
        let named = || module.funcs[f].name.split('.').any(|part| part.starts_with("layer"));
        *known.entry(f).or_insert_with(named)
    };
    let named: Vec<bool> = chain.calls.iter().map(|c| is_named(c.func)).collect();
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
fn stage_times(local: &Module, chain: &Chain, cut: &[Range<usize>], cluster: &Cluster) -> Vec<f64> {
    let mut seconds = Seconds::default();
    let mut time = |c: usize| chain.calls.get(c).map(|c| seconds.of(local, c.func, cluster));
    cut.iter().map(|r| r.clone().filter_map(&mut time).sum()).collect()
}
