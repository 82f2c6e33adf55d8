//! Runs that fail: devices that wait for each other, kernels that panic, cancellation.

use super::fixture::*;
use crate::{NoWeights, Options, Session};
use pcc_ir::Fault;
use pcc_ir::program::*;

/// Two stages on `tp` devices each; `first` and `second` are their steps. Function 0 copies 8 bytes.
fn two_stages(tp: u32, first: Vec<Step>, second: Vec<Step>) -> Program {
    let spec = |name: &str| io(name, &[2], pcc_ir::Sharding::replicated(1));
    let stage = |steps| StageProgram { arena_bytes: 128, shared_bytes: 0, steps };
    let mut p =
        program(mesh(2, 1, tp), vec![], vec![spec("x")], vec![spec("y")], vec![stage(first), stage(second)]);
    let copy = map_kernel(&mut p, "copy", 1, 2, [slot(0), slot(1)]);
    p.funcs = vec![func("copy", &[8], &[8], 0, vec![copy])];
    p
}

fn send(to: u32, tag: u32) -> Step {
    Step::Send { to, tag, slot: Slot::Value(0), bytes: 8 }
}

fn recv(from: u32, tag: u32) -> Step {
    Step::Recv { from, tag, slot: Slot::Value(0), bytes: 8 }
}

#[test]
fn a_deadlock_is_reported_with_what_each_device_waits_for() {
    let copy = call(0, &[Slot::Value(0), Slot::Output(0)]);
    let p = two_stages(3, vec![recv(1, 4), send(1, 5)], vec![recv(0, 5), send(0, 4), copy]);
    for workers in [1, 2, 4] {
        let mut session = session(p.clone(), vec![map(|x| x)], workers);
        for _ in 0..20 {
            let e = forward(&mut session, &[("x", &[2], vec![1.0, 2.0])], 1).unwrap_err();
            assert_eq!(e.fault, Fault::Run);
            let why = e.why.unwrap();
            assert!(
                why.contains("devices 0, 1, 2 waits in step 0 (receive of message 4 from stage 1)"),
                "{why}"
            );
            assert!(
                why.contains("devices 3, 4, 5 waits in step 0 (receive of message 5 from stage 0)"),
                "{why}"
            );
        }
    }
}

#[test]
fn crossing_messages_do_not_deadlock() {
    // With blocking sends both stages would wait for each other.
    let copy = call(0, &[Slot::Value(0), Slot::Output(0)]);
    let fill = call(0, &[Slot::Input(0), Slot::Value(0)]);
    let p =
        two_stages(2, vec![fill.clone(), send(1, 4), recv(1, 5)], vec![fill, send(0, 5), recv(0, 4), copy]);
    let mut session = session(p, vec![map(|x| x + 1.0)], 2);
    let out = forward(&mut session, &[("x", &[2], vec![1.0, 2.0])], 1).unwrap();
    assert_eq!(out["y"].as_f32().unwrap(), [3.0, 4.0]);
}

#[test]
fn a_panic_in_a_kernel_ends_the_run_and_says_where() {
    let copy = call(0, &[Slot::Value(0), Slot::Output(0)]);
    let fill = call(0, &[Slot::Input(0), Slot::Value(0)]);
    let p = two_stages(2, vec![fill, send(1, 0)], vec![recv(0, 0), copy]);
    for workers in [1, 3] {
        let kernel = [map(|x| if x == 13.0 { panic!("unlucky {x}") } else { x })];
        let mut session = session(p.clone(), kernel.into(), workers);
        let e = forward(&mut session, &[("x", &[2], vec![1.0, 13.0])], 1).unwrap_err();
        assert_eq!((e.fault, e.why.as_deref()), (Fault::Internal, Some("unlucky 13")));
        let place = e.place.unwrap();
        assert!(place.contains("stage 0, step 0 (copy, kernel 0 `the op of copy`)"), "{place}");
        // The session is still whole.
        let out = forward(&mut session, &[("x", &[2], vec![1.0, 2.0])], 1).unwrap();
        assert_eq!(out["y"].as_f32().unwrap(), [1.0, 2.0]);
    }
}

#[test]
fn cancellation_ends_the_run() {
    let copy = call(0, &[Slot::Value(0), Slot::Output(0)]);
    let fill = call(0, &[Slot::Input(0), Slot::Value(0)]);
    let p = two_stages(2, vec![fill, send(1, 0)], vec![recv(0, 0), copy]);
    let options = Options { workers: 2, ..Options::default() };
    let cancel = options.cancel.clone();
    let function = map(move |x| {
        if x == 5.0 {
            cancel.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        x
    });
    let kernels = Box::new(Functions(vec![function]));
    let mut session = Session::new(p, kernels, &NoWeights, &options, &|_, _| {}).unwrap();
    assert!(forward(&mut session, &[("x", &[2], vec![1.0, 2.0])], 1).is_ok());
    let e = forward(&mut session, &[("x", &[2], vec![5.0, 2.0])], 1).unwrap_err();
    assert_eq!((e.fault, e.what.as_str()), (Fault::Run, "the run was cancelled"));
}
