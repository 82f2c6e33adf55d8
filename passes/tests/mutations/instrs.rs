//! Mutations of instruction lists: instructions left out, repeated, moved, or reading and writing elsewhere.

use super::{Kind, Mutant};
use pcc_ir::program::{
    AttentionCall, Base, CollectiveKind, FuncProgram, Gemm, InstrKind, Loc, LocalParam, Matrix, Program,
    Scalar, Storage,
};
use pcc_ir::{Axis, AxisRef, ReduceKind};
use pcc_passes::driver::Compiled;

pub const KINDS: &[Kind] = &[
    ("dropped instruction", |c| {
        each(c, |f, i| {
            f.instrs.remove(i);
            true
        })
    }),
    ("weight in another form", |c| params(c, |p| p.storage = Storage::Dense)),
    ("weight in panels over other dims", |c| {
        params(c, |p| {
            if let Storage::Panels { k, n } = &mut p.storage {
                std::mem::swap(k, n);
            }
        })
    }),
    ("product with panels of another matrix", |c| {
        gemms(c, |g| match &mut g.packed {
            Some(packed) => {
                std::mem::swap(&mut packed.k, &mut packed.n);
                packed.k != packed.n
            }
            None => false,
        })
    }),
    ("product that reads panels as dense memory", |c| gemms(c, |g| g.packed.take().is_some())),
    ("rows of another piece of a table", |c| {
        each(c, |f, i| match &mut f.instrs[i].kind {
            InstrKind::Rows(r) => {
                r.base = Scalar::Const(1);
                true
            }
            _ => false,
        })
    }),
    ("collective made twice", |c| {
        each(c, |f, i| {
            let again = f.instrs[i].clone();
            let is = matches!(again.kind, InstrKind::Collective(_));
            f.instrs.insert(i + 1, again);
            is
        })
    }),
    ("product made twice", |c| {
        each(c, |f, i| {
            let again = f.instrs[i].clone();
            let is = matches!(again.kind, InstrKind::Gemm(_));
            f.instrs.insert(i + 1, again);
            is
        })
    }),
    ("instruction after its result is read", |c| {
        each(c, |f, i| {
            let mut instr = f.instrs.remove(i);
            let made = addresses(&mut instr.kind, &c.program).into_iter().filter(|a| a.1).map(|a| *a.0);
            let made: Vec<Loc> = made.collect();
            let read = f.instrs[i..].iter().any(|later| later.kind.locs().iter().any(|l| made.contains(l)));
            f.instrs.push(instr);
            read
        })
    }),
    ("collective over other axes", |c| {
        each(c, |f, i| match &mut f.instrs[i].kind {
            InstrKind::Collective(call) => {
                call.axes = vec![AxisRef { axis: Axis::Dp, pre: 1, size: 1 }];
                true
            }
            _ => false,
        })
    }),
    ("collective of another kind", |c| {
        each(c, |f, i| match &mut f.instrs[i].kind {
            InstrKind::Collective(call) => {
                call.kind = match call.kind {
                    CollectiveKind::AllReduce => CollectiveKind::Broadcast,
                    _ => CollectiveKind::AllReduce,
                };
                true
            }
            _ => false,
        })
    }),
    ("collective by another reduction", |c| {
        each(c, |f, i| match &mut f.instrs[i].kind {
            InstrKind::Collective(call)
                if matches!(call.kind, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter) =>
            {
                call.reduce = ReduceKind::Max;
                true
            }
            _ => false,
        })
    }),
    ("collective along another dim", |c| {
        each(c, |f, i| match &mut f.instrs[i].kind {
            InstrKind::Collective(call) if call.kind == CollectiveKind::AllGather => {
                call.concat_dim += 1;
                true
            }
            InstrKind::Collective(call) if call.kind == CollectiveKind::ReduceScatter => {
                call.split_dim += 1;
                true
            }
            _ => false,
        })
    }),
    ("product of another depth", |c| {
        gemms(c, |g| {
            g.k.full -= 1;
            g.k.full > 0
        })
    }),
    ("product with another scale", |c| {
        gemms(c, |g| {
            g.alpha *= 2.0;
            true
        })
    }),
    ("product added to what was there", |c| {
        gemms(c, |g| {
            g.accumulate = true;
            true
        })
    }),
    ("product of the same operand twice", |c| {
        gemms(c, |g| {
            g.a = Matrix { row: g.a.row, col: g.a.col, ..g.b };
            true
        })
    }),
    ("attention made twice", |c| {
        each(c, |f, i| {
            let again = f.instrs[i].clone();
            let is = matches!(again.kind, InstrKind::Attention(_));
            f.instrs.insert(i + 1, again);
            is
        })
    }),
    ("attention with another scale", |c| {
        attentions(c, |a| {
            a.scale *= 2.0;
            true
        })
    }),
    ("attention with another mask", |c| {
        attentions(c, |a| {
            a.window = Some(a.window.map_or(3, |w| w + 1));
            true
        })
    }),
    ("attention that also looks ahead", |c| {
        attentions(c, |a| {
            a.causal = !a.causal;
            true
        })
    }),
    ("attention over fewer keys", |c| {
        attentions(c, |a| {
            a.t.full -= 1;
            a.t.full > 0
        })
    }),
    ("attention with keys for values", |c| {
        attentions(c, |a| {
            a.v = a.k.clone();
            true
        })
    }),
    ("address out of range", |c| {
        locs(c, |l, _| {
            l.offset += 1 << 40;
            true
        })
    }),
    ("write past the end", |c| {
        locs(c, |l, f| {
            let bytes = match l.base {
                Base::Frame => f.frame_bytes,
                Base::Slot(s) => f.slot_bytes[s as usize],
            };
            l.offset = bytes;
            true
        })
    }),
    ("another argument", |c| {
        locs(c, |l, f| match &mut l.base {
            Base::Slot(s) if *s < f.args => {
                let old = *s;
                let same = |t: &u32| *t != old && f.slot_bytes[*t as usize] == f.slot_bytes[old as usize];
                (0..f.args).find(same).map(|t| *s = t).is_some()
            }
            _ => false,
        })
    }),
    ("write to an argument", |c| {
        written(c, |l, f| {
            l.base = Base::Slot(0);
            l.offset = 0;
            !f.in_place.iter().any(|p| p.0 == 0)
        })
    }),
    ("buffers of the frame that overlap", overlap),
    ("result left in the frame", |c| {
        written(c, |l, f| match l.base {
            Base::Slot(s) if s >= f.args => {
                l.base = Base::Frame;
                true
            }
            _ => false,
        })
    }),
    ("another device's piece", scalars),
    ("frame too small", |c| {
        funcs(c, |f| {
            f.frame_bytes /= 2;
            true
        })
    }),
    ("in place without an update", |c| {
        funcs(c, |f| {
            let free = f.slot_bytes[0] == f.slot_bytes[f.args as usize] && f.in_place.is_empty();
            f.in_place.push((0, f.args));
            free
        })
    }),
    ("not in place any more", |c| funcs(c, |f| f.in_place.pop().is_some())),
];

/// Values and places in the model that a function's messages may name.
pub fn func_names(c: &Compiled, func: usize) -> Vec<String> {
    let name = &c.program.funcs[func].name;
    let of = c.local.funcs.values().filter(|f| f.name == *name);
    let values = of.flat_map(|f| f.values.keys().map(|v| v.to_string()).collect::<Vec<_>>());
    let places = c.program.funcs[func].notes.iter().map(|n| n.what.clone());
    // A wrong binding shows where the function is called.
    let callers =
        c.local.entries.iter().flat_map(|e| c.local.funcs[e.func].values.keys()).map(|v| v.to_string());
    values.chain(places).chain(callers).collect()
}

/// Functions that steps call.
fn called(p: &Program) -> Vec<usize> {
    let steps = p.entries.iter().flat_map(|e| &e.stages).flat_map(|s| &s.steps);
    let mut called: Vec<usize> = steps
        .filter_map(|s| match s {
            pcc_ir::program::Step::Call { func, .. } => Some(*func as usize),
            _ => None,
        })
        .collect();
    called.sort_unstable();
    called.dedup();
    called
}

pub fn funcs(c: &Compiled, change: impl Fn(&mut FuncProgram) -> bool) -> Vec<Mutant> {
    let mut mutants = vec![];
    for i in called(&c.program) {
        let mut compiled = c.clone();
        let f = &mut compiled.program.funcs[i];
        if change(f) && *f != c.program.funcs[i] {
            mutants.push(Mutant { compiled, names: func_names(c, i) });
        }
    }
    mutants
}

/// A mutant for each parameter that is changed.
fn params(c: &Compiled, change: impl Fn(&mut LocalParam)) -> Vec<Mutant> {
    let mutant = |i: usize| {
        let mut compiled = c.clone();
        change(&mut compiled.program.params[i]);
        let names = c.local.funcs.values().map(|f| f.name.clone()).collect();
        (compiled.program != c.program).then_some(Mutant { compiled, names })
    };
    (0..c.program.params.len()).filter_map(mutant).collect()
}

pub fn each(c: &Compiled, change: impl Fn(&mut FuncProgram, usize) -> bool) -> Vec<Mutant> {
    let most = c.program.funcs.iter().map(|f| f.instrs.len()).max().unwrap_or(0);
    (0..most).flat_map(|i| funcs(c, |f| i < f.instrs.len() && change(f, i))).collect()
}

fn attentions(c: &Compiled, change: impl Fn(&mut AttentionCall) -> bool) -> Vec<Mutant> {
    each(c, |f, i| match &mut f.instrs[i].kind {
        InstrKind::Attention(a) => change(a),
        _ => false,
    })
}

fn gemms(c: &Compiled, change: impl Fn(&mut Gemm) -> bool) -> Vec<Mutant> {
    each(c, |f, i| match &mut f.instrs[i].kind {
        InstrKind::Gemm(g) => change(g),
        _ => false,
    })
}

/// Every address of an instruction, and whether it is written.
pub fn addresses<'a>(kind: &'a mut InstrKind, p: &Program) -> Vec<(&'a mut Loc, bool)> {
    match kind {
        InstrKind::Kernel(l) => {
            let accesses = &p.kernels[l.kernel].accesses;
            l.ptrs.iter_mut().zip(accesses).map(|(l, a)| (l, a.write)).collect()
        }
        InstrKind::Gemm(g) => vec![(&mut g.a.loc, false), (&mut g.b.loc, false), (&mut g.c.loc, true)],
        InstrKind::Attention(a) => {
            let read = [&mut a.q, &mut a.k, &mut a.v, &mut a.k_pos].into_iter();
            let read = read.chain(&mut a.q_pos).chain(&mut a.slopes).map(|v| (&mut v.loc, false));
            read.chain([(&mut a.out.loc, true)]).chain(a.scratch.iter_mut().map(|l| (l, true))).collect()
        }
        InstrKind::TopK(t) => t.locs_mut().into_iter().zip([false, true, true]).collect(),
        InstrKind::Sample(s) => s.locs_mut().into_iter().zip([false, false, false, true]).collect(),
        InstrKind::Rows(r) => vec![(&mut r.table, false), (&mut r.indices, false), (&mut r.out, true)],
        InstrKind::Collective(c) => vec![(&mut c.src, false), (&mut c.dst, true)],
    }
}

fn some_locs(
    c: &Compiled,
    only_written: bool,
    change: impl Fn(&mut Loc, &FuncProgram) -> bool,
) -> Vec<Mutant> {
    let mut mutants = vec![];
    for k in 0..8 {
        mutants.extend(each(c, |f, i| {
            let before = f.clone();
            let mut found = addresses(&mut f.instrs[i].kind, &c.program);
            match found.get_mut(k) {
                Some((loc, write)) if *write || !only_written => change(loc, &before),
                _ => false,
            }
        }));
    }
    mutants
}

fn locs(c: &Compiled, change: impl Fn(&mut Loc, &FuncProgram) -> bool) -> Vec<Mutant> {
    some_locs(c, false, change)
}

fn written(c: &Compiled, change: impl Fn(&mut Loc, &FuncProgram) -> bool) -> Vec<Mutant> {
    some_locs(c, true, change)
}

/// One buffer of the frame put where another lies that is written before it and read after it.
fn overlap(c: &Compiled) -> Vec<Mutant> {
    let mut mutants = vec![];
    for i in called(&c.program) {
        for (from, onto) in clashes(c, i) {
            let mut compiled = c.clone();
            let p = c.program.clone();
            for instr in &mut compiled.program.funcs[i].instrs {
                for (loc, _) in addresses(&mut instr.kind, &p) {
                    if loc.base == Base::Frame && loc.offset == from {
                        loc.offset = onto;
                    }
                }
            }
            mutants.push(Mutant { compiled, names: func_names(c, i) });
        }
    }
    mutants
}

/// Pairs of frame offsets, each used for one buffer only, such that the first is written while the second waits to be read.
fn clashes(c: &Compiled, func: usize) -> Vec<(u64, u64)> {
    let mut f = c.program.funcs[func].clone();
    let mut uses: std::collections::BTreeMap<u64, Vec<(usize, bool)>> = Default::default();
    for (at, instr) in f.instrs.iter_mut().enumerate() {
        for (loc, write) in addresses(&mut instr.kind, &c.program) {
            if loc.base == Base::Frame {
                uses.entry(loc.offset).or_default().push((at, write));
            }
        }
    }
    let writes = |u: &[(usize, bool)]| u.iter().filter(|x| x.1).map(|x| x.0).collect::<Vec<_>>();
    let once: Vec<_> = uses.into_iter().filter(|(_, u)| writes(u).len() == 1).collect();
    let mut found = vec![];
    for (a, x) in &once {
        for (b, y) in &once {
            let (wx, wy, last) = (writes(x)[0], writes(y)[0], y.iter().map(|u| u.0).max().unwrap_or(0));
            if a != b && wy < wx && wx < last {
                found.push((*a, *b));
            }
        }
    }
    found
}

/// Scalars by which kernels know their device's piece.
fn scalars(c: &Compiled) -> Vec<Mutant> {
    let mut mutants = vec![];
    for k in 0..4 {
        mutants.extend(each(c, |f, i| {
            let InstrKind::Kernel(l) = &mut f.instrs[i].kind else { return false };
            let mut placed = l.scalars.iter_mut().filter(|s| !matches!(s, Scalar::Const(_)));
            match placed.nth(k) {
                Some(Scalar::Valid { global, .. } | Scalar::Base { global, .. }) => *global += 1,

                _ => return false,
            }
            true
        }));
    }
    mutants
}
