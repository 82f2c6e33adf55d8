//! Memory that is written twice, or while it is read: parts of an instruction run on several workers at a time.

use super::fixture::*;
use pcc_ir::Sharding;
use pcc_ir::program::*;

/// Copies 32 floats from a slot to another by way of two values.
fn copies(slots: [Slot; 2]) -> Program {
    let spec = |name: &str| io(name, &[32], Sharding::replicated(1));
    let steps = vec![
        call(0, &[Slot::Input(0), slots[0]]),
        call(0, &[slots[0], slots[1]]),
        call(0, &[slots[1], Slot::Output(0)]),
    ];
    let stage = StageProgram { arena_bytes: 512, shared_bytes: 0, steps };
    let mut p = program(mesh(1, 1, 1), vec![], vec![spec("x")], vec![spec("y")], vec![stage]);
    let copy = map_kernel(&mut p, "copy", 4, 8, [slot(0), slot(1)]);
    p.funcs = vec![func("copy", &[128], &[128], 512, vec![copy])];
    p
}

fn refusal(p: &Program) -> String {
    crate::validate::check(p).map_or_else(|e| e.to_string(), |()| String::new())
}

#[test]
fn a_result_is_no_other_slots_memory() {
    let at = Slot::Value;
    assert_eq!(refusal(&copies([at(0), at(128)])), "");
    assert_eq!(refusal(&copies([at(128), at(0)])), "");
    assert!(refusal(&copies([at(0), at(0)])).contains("slots 0 and 1 of copy share memory"));
    assert!(refusal(&copies([at(0), at(64)])).contains("steps[1]"));
    assert!(refusal(&copies([at(64), at(0)])).contains("share memory"));
    assert!(refusal(&copies([Slot::Output(0), at(0)])).is_empty());
    assert!(refusal(&copies([at(0), Slot::Output(0)])).contains("steps[2]"));
    // What is updated in place is one buffer, and only of one argument.
    let mut p = copies([at(0), at(0)]);
    p.funcs[0].in_place = vec![(0, 1)];
    p.entries[0].stages[0].steps = vec![call(0, &[at(0), at(0)]), call(1, &[at(0), Slot::Output(0)])];
    p.funcs.push(FuncProgram { in_place: vec![], ..p.funcs[0].clone() });
    assert_eq!(refusal(&p), "");
    p.funcs[0].in_place.push((0, 1));
    assert!(refusal(&p).contains("slots 0 and 1 are one buffer"));
    // Two results.
    let mut p = copies([at(0), at(128)]);
    p.funcs[0].results = 2;
    p.funcs[0].slot_bytes.push(128);
    p.entries[0].stages[0].steps = vec![call(0, &[Slot::Input(0), at(0), Slot::Output(0)])];
    assert_eq!(refusal(&p), "");
    p.entries[0].stages[0].steps = vec![call(0, &[Slot::Input(0), Slot::Output(0), Slot::Output(0)])];
    assert!(refusal(&p).contains("slots 2 and 1 of copy share memory"));
}

fn launch_of(p: &mut Program) -> &mut Launch {
    match &mut p.funcs[0].instrs[0].kind {
        InstrKind::Kernel(launch) => launch,
        kind => panic!("{kind:?}"),
    }
}

#[test]
fn a_kernel_writes_each_element_once_and_not_where_other_rows_read() {
    type Edit = fn(&mut Launch);
    let cases: &[(Edit, &str)] = &[
        // In place, to the side of what is read, and backwards.
        (|l| l.ptrs = vec![frame(0), frame(0)], ""),
        (|l| l.ptrs = vec![frame(0), frame(128)], ""),
        (|l| (l.ptrs[1], l.strides) = (frame(96), vec![8, 1, -8, 1]), ""),
        // Rows of 8 in turn with what is read.
        (|l| (l.ptrs, l.strides) = (vec![frame(0), frame(32)], vec![16, 1, 16, 1]), ""),
        (|l| (l.ptrs, l.strides) = (vec![frame(0), frame(28)], vec![16, 1, 16, 1]), "still needs"),
        (|l| (l.ptrs, l.strides) = (vec![frame(0), frame(32)], vec![16, 1, 24, 1]), "still needs"),
        (|l| l.ptrs = vec![frame(0), frame(4)], "still needs"),
        (|l| (l.ptrs, l.strides) = (vec![frame(0), frame(0)], vec![0, 1, 8, 1]), "still needs"),
        (|l| l.strides = vec![8, 1, 0, 1], "two stores to one element"),
        (|l| l.strides = vec![8, 1, 7, 1], "two stores to one element"),
        (|l| l.strides = vec![0, 1, 8, 1], ""),
        // A single row may step as it likes.
        (|l| (l.extents[0], l.strides) = (1.into(), vec![8, 1, 0, 1]), ""),
    ];
    for (i, (edit, why)) in cases.iter().enumerate() {
        let mut p = copies([Slot::Value(0), Slot::Value(128)]);
        edit(launch_of(&mut p));
        let found = refusal(&p);
        assert!(found.contains(why) && found.is_empty() == why.is_empty(), "case {i}: {found}");
    }
}

#[test]
fn a_product_writes_each_element_once() {
    type Edit = fn(&mut Gemm);
    let with = |edit: Edit| {
        let mut p = copies([Slot::Value(0), Slot::Value(128)]);
        let InstrKind::Gemm(mut g) = gemm(2, 4, 3, slot(0), slot(0), frame(128)) else { unreachable!() };
        g.batch = vec![BatchDim { extent: 3.into(), a: 0, b: 0, c: 8 }];
        edit(&mut g);
        p.funcs[0].instrs[0].kind = InstrKind::Gemm(g);
        refusal(&p)
    };
    // As it is, rows of each batch in turn, columns first, from the last row to the first.
    let sound: [Edit; 4] = [
        |_| {},
        |g| (g.c.row, g.batch[0].c) = (12, 4),
        |g| (g.c.row, g.c.col) = (1, 2),
        |g| (g.c.loc, g.c.row) = (frame(144), -4),
    ];
    sound.into_iter().for_each(|edit| assert_eq!(with(edit), ""));
    let broken: [Edit; 6] = [
        |g| g.c.row = 0,
        |g| g.c.row = 3,
        |g| g.c.col = 0,
        |g| g.batch[0].c = 0,
        |g| g.batch[0].c = 4,
        |g| g.batch[0].c = -7,
    ];
    for edit in broken {
        let why = with(edit);
        assert!(why.contains("two results to one element"), "{why}");
    }
}

#[test]
fn attention_writes_each_element_once() {
    let attend = |strides: &[i64]| {
        let of = |loc, strides: &[i64]| Strided { loc, dtype: pcc_ir::DType::F32, strides: strides.to_vec() };
        let mut p = copies([Slot::Value(0), Slot::Value(128)]);
        p.funcs[0].instrs[0].kind = InstrKind::Attention(Box::new(AttentionCall {
            b: 1.into(),
            s: 2.into(),
            t: 2.into(),
            g: 1.into(),
            r: 2.into(),
            d: 4.into(),
            e: 4.into(),
            scale: 0.5,
            causal: false,
            window: None,
            softcap: None,
            bf16_bias: false,
            q: of(slot(0), &[0, 8, 0, 4, 1]),
            k: of(slot(0), &[0, 4, 0, 1]),
            v: of(slot(0), &[0, 4, 0, 1]),
            q_pos: None,
            k_pos: Strided { dtype: pcc_ir::DType::I32, ..of(slot(0), &[0, 1]) },
            slopes: None,
            out: of(frame(128), strides),
            scratch: None,
        }));
        refusal(&p)
    };
    assert_eq!(attend(&[0, 8, 0, 4, 1]), "");
    assert_eq!(attend(&[0, 4, 0, 8, 1]), "");
    for strides in [[0, 0, 0, 4, 1], [0, 8, 0, 0, 1], [0, 8, 0, 4, 0], [0, 4, 0, 4, 1], [0, 8, 0, 3, 1]] {
        assert!(attend(&strides).contains("two results to one element"), "{strides:?}");
    }
}
