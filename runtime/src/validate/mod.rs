//! Checks a program before anything is allocated or run. An artifact may be truncated, edited or hostile: afterwards no index is
//! out of range, no size overflows, and no instruction of any device reaches outside the buffers it names.
//!
//! What the program computes is the business of `verify`; this is about memory and about runs that end.

mod attention;
mod entry;
mod instr;
mod kernel;
mod launch;
mod reach;
mod selection;
mod team;

use pcc_ir::program::{FuncProgram, Program, VERSION};
use pcc_ir::{Axis, AxisRef, Diagnostic, Mesh, Sharding, Type};

/// Larger sizes than this, in bytes or elements, exist nowhere.
const LARGEST: u64 = 1 << 58;
/// Most devices of a mesh.
const DEVICES: u64 = pcc_ir::mesh::MAX_DEVICES;
/// Most dims of a tensor, kernel or batch of products.
const DIMS: usize = 16;

/// Checks the whole program.
///
/// # Errors
/// The first fault found, with its path in program.json.
pub(crate) fn check(program: &Program) -> Result<(), Diagnostic> {
    check_version(program.version)?;
    let mesh = &program.mesh;
    let devices = Axis::ALL.iter().try_fold(1u64, |n, &a| n.checked_mul(mesh.size(a).into()));
    require(devices.is_some_and(|n| n > 0 && n <= DEVICES), "mesh", || {
        format!("its axes multiply to no number of devices from 1 to {DEVICES}")
    })?;
    let batch = &program.batch;
    let cells = batch.replicas.checked_mul(batch.micro_batches).filter(|&n| n > 0 && n as u64 <= DEVICES);
    require(cells.is_some() && batch.batch > 0 && (batch.batch as u64) < LARGEST, "batch", || {
        format!(
            "{} rows, {} replicas and {} micro-batches are no batch",
            batch.batch, batch.replicas, batch.micro_batches
        )
    })?;
    team::check_program(program)?;
    for (id, kernel) in program.kernels.iter() {
        kernel::check(kernel).map_err(|why| damaged(&format!("kernels[{}]", index(id)), why))?;
    }
    for (i, param) in program.params.iter().enumerate() {
        let place = format!("params[{i}] `{}`", param.name);
        check_placed(mesh, &param.ty, &param.sharding, &place)?;
        param.source.validate().map_err(|d| damaged(&place, d.to_string()))?;
        let local = param.sharding.local_shape(&param.ty.shape);
        param.storage.check(&param.ty, &param.source, &local).map_err(|why| damaged(&place, why))?;
        require(param.source.shape == param.ty.shape, &place, || {
            format!("its source has shape {:?}, it has {:?}", param.source.shape, param.ty.shape)
        })?;
    }
    for (i, state) in program.states.iter().enumerate() {
        check_placed(mesh, &state.ty, &state.sharding, &format!("states[{i}] `{}`", state.name))?;
    }
    for (i, constant) in program.constants.iter().enumerate() {
        let whole = constant.ty.checked().is_some() && constant.ty.elements() == constant.data.len();
        require(whole, &format!("constants[{i}]"), || {
            format!("{} elements for {}", constant.data.len(), constant.ty)
        })?;
    }
    for (i, func) in program.funcs.iter().enumerate() {
        check_func(program, func, &format!("funcs[{i}] `{}`", func.name))?;
    }
    entry::check_all(program)
}

/// An artifact of another version is refused.
pub(crate) fn check_version(version: u32) -> Result<(), Diagnostic> {
    if version == VERSION {
        return Ok(());
    }
    Err(Diagnostic::input(format!("the artifact has version {version}, this pcc reads version {VERSION}"))
        .help("compile the model again"))
}

/// A fault at `place` in program.json.
fn damaged(place: &str, why: impl Into<String>) -> Diagnostic {
    Diagnostic::input("the artifact is damaged")
        .at(format!("program.json, {place}"))
        .why(why)
        .help("compile the model again")
}

fn require(holds: bool, place: &str, why: impl FnOnce() -> String) -> Result<(), Diagnostic> {
    if holds { Ok(()) } else { Err(damaged(place, why())) }
}

fn index(id: impl cranelift_entity::EntityRef) -> usize {
    id.index()
}

/// A type of sane size, with a sharding of its rank over axes of the mesh.
fn check_placed(mesh: &Mesh, ty: &Type, sharding: &Sharding, place: &str) -> Result<(), Diagnostic> {
    let sane = ty.rank() <= DIMS && ty.checked().is_some_and(|n| (n as u64) < LARGEST);
    require(sane, place, || "its shape has a zero dim or too many elements".to_owned())?;
    require(sharding.dims.len() == ty.rank(), place, || {
        format!("its sharding has {} dims, its type {}", sharding.dims.len(), ty.rank())
    })?;
    require(sharding.partial.is_empty(), place, || "it is a partial".to_owned())?;
    let axes: Vec<AxisRef> = sharding.axes().collect();
    check_axes(mesh, &axes).map_err(|why| damaged(place, why))
}

/// Axes of the mesh, no two of which overlap, within a stage.
fn check_axes(mesh: &Mesh, axes: &[AxisRef]) -> Result<(), String> {
    if axes.len() > DIMS {
        return Err(format!("{} axes", axes.len()));
    }
    for (i, &a) in axes.iter().enumerate() {
        if mesh.part(a.axis, a.pre, a.size) != Some(a) {
            return Err(format!("{}:({}){} is no part of the mesh", a.axis, a.pre, a.size));
        }
        if a.axis == Axis::Pp {
            return Err("devices of several stages are no group".to_owned());
        }
        if axes[..i].iter().any(|&b| a.overlaps(b)) {
            return Err(format!("axis {} is used twice", a.axis));
        }
    }
    Ok(())
}

fn check_func(program: &Program, func: &FuncProgram, place: &str) -> Result<(), Diagnostic> {
    let slots = func.slot_bytes.len();
    let fixed = (func.args as usize).saturating_add(func.results as usize);
    require(fixed <= slots, place, || format!("{fixed} arguments and results, but {slots} slots"))?;
    let sizes = func.slot_bytes.iter().chain(std::iter::once(&func.frame_bytes));
    require(sizes.clone().all(|&n| n < LARGEST), place, || "a buffer is too large".to_owned())?;
    for &(arg, result) in &func.in_place {
        let paired = arg < func.args && (func.args..fixed as u32).contains(&result);
        require(paired, place, || format!("slots {arg} and {result} are no argument and result"))?;
        let pairs = func.in_place.iter().filter(|p| p.0 == arg || p.1 == result).count();
        let bytes = [arg, result].map(|slot| func.slot_bytes[slot as usize]);
        require(pairs == 1 && bytes[0] == bytes[1], place, || {
            format!("slots {arg} and {result} are one buffer, but not of one size, or others are the same")
        })?;
    }
    func.packed().map_err(|(at, why)| damaged(&format!("{place}, instrs[{at}]"), why))?;
    for (i, instr) in func.instrs.iter().enumerate() {
        let place = format!("{place}, instrs[{i}]");
        require((instr.note as usize) < func.notes.len(), &place, || {
            format!("there is no note {}", instr.note)
        })?;
        instr::check(program, func, &instr.kind).map_err(|why| damaged(&place, why))?;
    }
    team::check_func(program, func, place)
}
