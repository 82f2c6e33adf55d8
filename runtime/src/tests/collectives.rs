//! Every collective against its definition: each device gets its own rows of the input and shows its buffer as rows of the output.

use super::fixture::*;
use pcc_ir::program::{CollectiveKind, InstrKind, Program, Slot, StageProgram};
use pcc_ir::{Axis, AxisRef, Mesh, ReduceKind};

/// One collective over `axes` of a mesh with tp alone; `src` and `dst` are local shapes. Devices' buffers are stacked along a
/// new first dim, padded to a multiple of nothing: shape `[devices, ...]`.
fn one(
    mesh: Mesh,
    kind: CollectiveKind,
    axes: &[AxisRef],
    src: &[u64],
    dst: &[u64],
    dims: [u32; 2],
) -> Program {
    let n = mesh.devices();
    let bytes = |shape: &[u64]| shape.iter().product::<u64>() * 4;
    let stacked = |shape: &[u64]| -> Vec<usize> {
        std::iter::once(n).chain(shape.iter().map(|&d| d as usize)).collect()
    };
    let call = collective(kind, axes, [src, dst], dims, [slot(0), slot(1)]);
    let sharding = |shape: &[u64]| split(shape.len() + 1, 0, &[tp(&mesh)]);
    program(
        mesh,
        vec![func("f", &[bytes(src)], &[bytes(dst)], 0, vec![InstrKind::Collective(call)])],
        vec![io("x", &stacked(src), sharding(src))],
        vec![io("y", &stacked(dst), sharding(dst))],
        vec![StageProgram {
            arena_bytes: 0,
            shared_bytes: 0,
            steps: vec![super::fixture::call(0, &[Slot::Input(0), Slot::Output(0)])],
        }],
    )
}

/// Runs it with 1, 2 and 3 workers, checks that they agree, and returns what each device holds.
fn run(p: &Program, src: &[u64], x: &[f32]) -> Vec<Vec<f32>> {
    let n = p.mesh.devices();
    let shape: Vec<usize> = std::iter::once(n).chain(src.iter().map(|&d| d as usize)).collect();
    let outputs: Vec<Vec<f32>> = [1, 2, 3]
        .map(|workers| {
            let mut session = session(p.clone(), vec![], workers);
            let out = forward(&mut session, &[("x", &shape, x.to_vec())], 1).unwrap();
            out["y"].as_f32().unwrap().to_vec()
        })
        .to_vec();
    assert_eq!(outputs[0], outputs[1]);
    assert_eq!(outputs[0], outputs[2]);
    outputs[0].chunks(outputs[0].len() / n).map(<[f32]>::to_vec).collect()
}

fn devices(x: &[f32], n: usize) -> Vec<&[f32]> {
    x.chunks(x.len() / n).collect()
}

#[test]
fn all_reduce_sums_and_takes_extremes_in_every_group() {
    let mesh = mesh(1, 1, 6);
    let sub = [mesh.part(Axis::Tp, 1, 3).unwrap(), mesh.part(Axis::Tp, 3, 2).unwrap()];
    for (axes, count) in
        [(vec![tp(&mesh)], 40_000), (vec![sub[0]], 7), (vec![sub[1]], 7), (vec![sub[1], sub[0]], 7)]
    {
        for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min] {
            let mut p = one(mesh, CollectiveKind::AllReduce, &axes, &[count], &[count], [0, 0]);
            let InstrKind::Collective(call) = &mut p.funcs[0].instrs[0].kind else { unreachable!() };
            call.reduce = kind;
            let x = numbers(6 * count as usize, 1);
            let found = run(&p, &[count], &x);
            let parts = devices(&x, 6);
            for (d, found) in found.iter().enumerate() {
                let group = mesh.group(d, &axes);
                for (i, &value) in found.iter().enumerate() {
                    let all = group.iter().map(|&m| f64::from(parts[m][i]));
                    assert_eq!(f64::from(value), all.reduce(|a, b| kind.apply(a, b)).unwrap());
                }
            }
        }
    }
}

#[test]
fn all_gather_drops_padding_of_uneven_pieces() {
    let mesh = mesh(1, 1, 4);
    // 5 over 4 devices: pieces of 2, 2, 1, 0. Whatever is in the padding must not arrive.
    let p = one(mesh, CollectiveKind::AllGather, &[tp(&mesh)], &[3, 2, 2], &[3, 5, 2], [0, 1]);
    let x = numbers(4 * 12, 2);
    let parts = devices(&x, 4);
    for found in run(&p, &[3, 2, 2], &x) {
        for (r, c, i) in (0..3).flat_map(|r| (0..5).flat_map(move |c| (0..2).map(move |i| (r, c, i)))) {
            assert_eq!(found[(r * 5 + c) * 2 + i], parts[c / 2][(r * 2 + c % 2) * 2 + i]);
        }
    }
}

#[test]
fn reduce_scatter_zeroes_the_tail() {
    let mesh = mesh(1, 1, 4);
    let p = one(mesh, CollectiveKind::ReduceScatter, &[tp(&mesh)], &[3, 5], &[3, 2], [1, 0]);
    let x = numbers(4 * 15, 3);
    let parts = devices(&x, 4);
    for (d, found) in run(&p, &[3, 5], &x).iter().enumerate() {
        for (r, c) in (0..3).flat_map(|r| (0..2).map(move |c| (r, c))) {
            let global = d * 2 + c;
            let expected: f32 = if global < 5 { parts.iter().map(|p| p[r * 5 + global]).sum() } else { 0.0 };
            assert_eq!(found[r * 2 + c], expected);
        }
    }
}

#[test]
fn all_to_all_moves_a_split_from_one_dim_to_another() {
    let mesh = mesh(1, 1, 4);
    // Globally 5 x 7: split along columns (2, 2, 2, 1) before, along rows (2, 2, 1, 0) after.
    let p = one(mesh, CollectiveKind::AllToAll, &[tp(&mesh)], &[5, 2], &[2, 7], [0, 1]);
    let x = numbers(4 * 10, 4);
    let parts = devices(&x, 4);
    for (d, found) in run(&p, &[5, 2], &x).iter().enumerate() {
        for (r, c) in (0..2).flat_map(|r| (0..7).map(move |c| (r, c))) {
            let global = d * 2 + r;
            let expected = if global < 5 { parts[c / 2][global * 2 + c % 2] } else { 0.0 };
            assert_eq!(found[r * 7 + c], expected, "device {d}, {r}, {c}");
        }
    }
}

#[test]
fn broadcast_copies_the_first_member() {
    let mesh = mesh(1, 1, 6);
    let axes = [mesh.part(Axis::Tp, 2, 3).unwrap()];
    let p = one(mesh, CollectiveKind::Broadcast, &axes, &[5], &[5], [0, 0]);
    let x = numbers(30, 5);
    for (d, found) in run(&p, &[5], &x).iter().enumerate() {
        assert_eq!(found, devices(&x, 6)[d / 3 * 3]);
    }
}

#[test]
fn all_reduce_in_place_many_times_on_many_devices() {
    // 64 devices, 50 rounds of y = sum(y) / 64: the mean stays after the first.
    let mesh = mesh(1, 1, 64);
    let round = || {
        InstrKind::Collective(collective(
            CollectiveKind::AllReduce,
            &[tp(&mesh)],
            [&[3], &[3]],
            [0, 0],
            [slot(1), slot(1)],
        ))
    };
    let mut p = one(mesh, CollectiveKind::AllReduce, &[tp(&mesh)], &[3], &[3], [0, 0]);
    let scale = map_kernel(&mut p, "scale", 1, 3, [slot(1), slot(1)]);
    let mut kinds = vec![p.funcs[0].instrs[0].kind.clone(), scale.clone()];
    for _ in 0..50 {
        kinds.extend([round(), scale.clone()]);
    }
    p.funcs[0] = func("f", &[12], &[12], 0, kinds);
    let x = numbers(64 * 3, 6);
    for workers in [1, 2, 5] {
        let mut session = session(p.clone(), vec![map(|x| x / 64.0)], workers);
        let out = forward(&mut session, &[("x", &[64, 3], x.clone())], 1).unwrap();
        for (i, &y) in out["y"].as_f32().unwrap().iter().enumerate() {
            let mean = (0..64).map(|d| x[d * 3 + i % 3]).sum::<f32>() / 64.0;
            assert_eq!(y, mean);
        }
    }
}
