//! Cuts the chain of calls into pipeline stages.
//!
//! What: gives every call of the entries to one stage, contiguous, so that the slowest stage is as fast as it can be and no stage
//! exceeds the device memory; embedding and head are calls like any other, so they are counted. Why: a pipeline runs at the
//! speed of its slowest stage. Exact dynamic programming over the chain, `O(calls^2 * stages)`; ties go to the cut whose sum of
//! squared stage times is least, then to the earliest cut.
//!
//! ```text
//! embed layer layer layer head        costs 1 4 4 4 6, 2 stages
//! [embed layer layer] [layer head]    9 and 10
//! ```

use pcc_ir::Diagnostic;
use std::ops::Range;

/// Cost of one call in the chain.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallCost {
    /// Modelled time of one micro-batch on one device, seconds.
    pub time: f64,
    /// Bytes a device holds for it all the time: parameters, and the states of every micro-batch.
    pub held: u64,
    /// Bytes it works in. The calls of a stage share them: a stage needs its largest.
    pub frame: u64,
}

/// Ranges of calls, one per stage. `memory` bounds the bytes of a stage.
pub fn cut_stages(
    costs: &[CallCost],
    stages: usize,
    memory: Option<u64>,
) -> Result<Vec<Range<usize>>, Diagnostic> {
    let n = costs.len();
    if stages == 0 || stages > n {
        return Err(Diagnostic::input(format!(
            "--pp {stages} cuts the model into more stages than it has parts"
        ))
        .why(format!("the chain has {n} parts: the embedding, the layers and the head"))
        .help(format!("the most is --pp {}", n.max(1))));
    }
    let mut before = vec![CallCost::default(); n + 1];
    for (i, c) in costs.iter().enumerate() {
        before[i + 1] = CallCost { time: before[i].time + c.time, held: before[i].held + c.held, frame: 0 };
    }
    let stage = |from: usize, to: usize, frame: u64| {
        let held = before[to].held - before[from].held;
        let fits = memory.is_none_or(|m| held.saturating_add(frame) <= m);
        let time = before[to].time - before[from].time;
        fits.then_some((time, time * time))
    };
    // best[s][i]: the best cut of the first i calls into s stages, as (slowest, sum of squares), and where its last stage starts.
    let mut best = vec![vec![None::<((f64, f64), usize)>; n + 1]; stages + 1];
    best[0][0] = Some(((0.0, 0.0), 0));
    for s in 1..=stages {
        for i in s..=n {
            let frames = largest_frames(&costs[..i]);
            for from in (s - 1)..i {
                let last = stage(from, i, frames[from]);
                let (Some((sofar, _)), Some((time, square))) = (best[s - 1][from], last) else {
                    continue;
                };
                let cand = (sofar.0.max(time), sofar.1 + square);
                if best[s][i].is_none_or(|(b, _)| less(cand, b)) {
                    best[s][i] = Some((cand, from));
                }
            }
        }
    }
    let mut cuts = Vec::with_capacity(stages);
    let mut end = n;
    for s in (1..=stages).rev() {
        let Some((_, from)) = best[s][end] else { return Err(no_fit(costs, stages, memory)) };
        cuts.push(from..end);
        end = from;
    }
    cuts.reverse();
    Ok(cuts)
}

/// The largest frame from each call to the last.
fn largest_frames(costs: &[CallCost]) -> Vec<u64> {
    let mut largest = 0;
    let mut frames: Vec<u64> = Vec::with_capacity(costs.len());
    for cost in costs.iter().rev() {
        largest = cost.frame.max(largest);
        frames.push(largest);
    }
    frames.reverse();
    frames
}

/// Compares cuts; times within a billionth are equal, so that rounding never decides.
fn less(a: (f64, f64), b: (f64, f64)) -> bool {
    let close = |x: f64, y: f64| (x - y).abs() <= 1e-9 * x.abs().max(y.abs());
    if close(a.0, b.0) { !close(a.1, b.1) && a.1 < b.1 } else { a.0 < b.0 }
}

fn no_fit(costs: &[CallCost], stages: usize, memory: Option<u64>) -> Diagnostic {
    let total: u64 = costs.iter().map(|c| c.held).sum();
    let largest = costs.iter().map(|c| c.held.saturating_add(c.frame)).max().unwrap_or(0);
    Diagnostic::input(format!("no cut into {stages} stages fits the device memory"))
        .why(format!(
            "a device holds {total} bytes of weights and state over all stages; the largest part needs {largest} with what it works in, \
             and a device has {}",
            memory.unwrap_or(0)
        ))
        .help("use more stages (--pp) or split the weights further (--tp)")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(t: &[f64]) -> Vec<CallCost> {
        t.iter().map(|&time| CallCost { time, held: 1, frame: 0 }).collect()
    }

    /// Every cut, by brute force: the least slowest stage.
    fn slowest_by_enumeration(t: &[f64], stages: usize) -> f64 {
        if stages == 1 {
            return t.iter().sum();
        }
        (1..=t.len() - (stages - 1))
            .map(|i| t[..i].iter().sum::<f64>().max(slowest_by_enumeration(&t[i..], stages - 1)))
            .fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn the_slowest_stage_is_the_least_of_all_cuts() {
        for t in
            [vec![1., 4., 4., 4., 6.], vec![5., 1., 1., 1., 1., 1., 9.], vec![3., 3., 2., 2., 8., 1., 1., 4.]]
        {
            for stages in 1..=t.len() {
                let cut = cut_stages(&times(&t), stages, None).unwrap();
                assert_eq!(cut.len(), stages);
                assert_eq!((cut[0].start, cut[stages - 1].end), (0, t.len()));
                assert!(cut.windows(2).all(|w| w[0].end == w[1].start) && cut.iter().all(|r| !r.is_empty()));
                let slowest = cut.iter().map(|r| t[r.clone()].iter().sum::<f64>()).fold(0.0, f64::max);
                assert!((slowest - slowest_by_enumeration(&t, stages)).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn equal_layers_spread_evenly_and_a_heavy_head_stands_alone() {
        // 30 equal layers over 4: none dropped, sizes differ by at most one.
        let sizes: Vec<_> =
            cut_stages(&times(&[1.0; 30]), 4, None).unwrap().iter().map(|r| r.len()).collect();
        assert_eq!(sizes.iter().sum::<usize>(), 30);
        assert!(sizes.iter().all(|&s| s == 7 || s == 8));
        let cut = cut_stages(&times(&[0.1, 1., 1., 9.]), 2, None).unwrap();
        assert_eq!(cut, [0..3, 3..4]);
    }

    #[test]
    fn memory_bounds_a_stage() {
        let costs = [(1.0, 90), (1.0, 20), (1.0, 20), (1.0, 20)].map(|(time, held)| CallCost {
            time,
            held,
            frame: 0,
        });
        assert_eq!(cut_stages(&costs, 2, Some(100)).unwrap(), [0..1, 1..4]);
        assert!(cut_stages(&costs, 2, Some(80)).is_err());
        assert!(cut_stages(&costs, 5, None).unwrap_err().help.unwrap().contains("--pp 4"));
    }

    #[test]
    fn calls_of_a_stage_share_what_they_work_in() {
        let costs = [50, 50, 70].map(|frame| CallCost { time: 1.0, held: 10, frame });
        let whole = cut_stages(&costs, 1, Some(100)).unwrap();
        assert_eq!((whole.len(), &whole[0]), (1, &(0..3)));
        assert!(cut_stages(&costs, 1, Some(99)).is_err());
        // The last call works in too much to stand with another.
        assert_eq!(cut_stages(&costs, 2, Some(80)).unwrap(), [0..2, 2..3]);
    }
}
