//! Cuts the chain of calls into pipeline stages.
//!
//! What: gives every call of the entries to one stage, contiguous, so that the slowest stage is as fast as it can be and no stage
//! exceeds the device memory; embedding and head are calls like any other, so they are counted. Why: a pipeline runs at the
//! speed of its slowest stage. Exact dynamic programming over the chain; ties go to the cut whose sum of squared stage times is least,
//! then to the earliest cut. As the last stage of a cut begins later it gets faster and those before it slower, so that only begins
//! around the place where the two meet can be best: `O(calls * stages * log calls)` unless nearly all cuts are equally good.
//!
//! ```text
//! embed layer layer layer head        costs 1 4 4 4 6, 2 stages
//! [embed layer layer] [layer head]    9 and 10
//! ```

use pcc_ir::Diagnostic;
use std::collections::VecDeque;
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
    let time = |from: usize, to: usize| before[to].time - before[from].time;
    let earliest = earliest_starts(costs, &before, memory);
    // best[s][i]: the best cut of the first i calls into s stages, as (slowest, sum of squares), and where its last stage starts. With
    // fewer calls there is one whenever there is one with more.
    let mut best = vec![vec![None::<((f64, f64), usize)>; n + 1]; stages + 1];
    best[0][0] = Some(((0.0, 0.0), 0));
    for s in 1..=stages {
        let (done, open) = best.split_at_mut(s);
        let sofar = &done[s - 1];
        let reach = sofar.iter().rposition(Option::is_some).unwrap_or(0);
        for i in s..=n {
            let starts = (s - 1).max(earliest[i])..(i - 1).min(reach) + 1;
            let slowest = |from: usize| sofar[from].map_or(f64::INFINITY, |b| b.0.0.max(time(from, i)));
            for from in near_least(starts, |from| sofar[from].is_none_or(|b| b.0.0 >= time(from, i)), slowest)
            {
                let (Some((before, _)), last) = (sofar[from], time(from, i)) else { continue };
                let cand = (before.0.max(last), before.1 + last * last);
                if open[0][i].is_none_or(|(b, _)| less(cand, b)) {
                    open[0][i] = Some((cand, from));
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

/// For each number of calls, the earliest start of a last stage that fits the memory.
fn earliest_starts(costs: &[CallCost], before: &[CallCost], memory: Option<u64>) -> Vec<usize> {
    let mut out = vec![0; costs.len() + 1];
    let Some(memory) = memory else { return out };
    // Calls of the stage whose frame is larger than all after it, and so may be the largest.
    let mut largest: VecDeque<usize> = VecDeque::new();
    let mut from = 0;
    for (i, cost) in costs.iter().enumerate() {
        while largest.back().is_some_and(|&c| costs[c].frame <= cost.frame) {
            largest.pop_back();
        }
        largest.push_back(i);
        let fits = |from: usize, largest: &VecDeque<usize>| {
            let frame = largest.front().map_or(0, |&c| costs[c].frame);
            (before[i + 1].held - before[from].held).saturating_add(frame) <= memory
        };
        while from <= i && !fits(from, &largest) {
            from += 1;
            while largest.front().is_some_and(|&c| c < from) {
                largest.pop_front();
            }
        }
        out[i + 1] = from;
    }
    out
}

/// The places of a range whose value is near the least, in order, where the values fall as long as `rises` is false, and rise from there.
fn near_least(
    range: Range<usize>,
    rises: impl Fn(usize) -> bool,
    value: impl Fn(usize) -> f64,
) -> Range<usize> {
    if range.is_empty() {
        return range;
    }
    let (mut low, mut high) = (range.start, range.end);
    while low < high {
        let middle = low + (high - low) / 2;
        if rises(middle) { high = middle } else { low = middle + 1 }
    }
    let at = [low.checked_sub(1).filter(|&f| f >= range.start), Some(low).filter(|&f| f < range.end)];
    let least = at.into_iter().flatten().map(&value).fold(f64::INFINITY, f64::min);
    // More than what `less` calls equal.
    let near = |&from: &usize| value(from) <= least * (1.0 + 1e-6);
    let start = (range.start..low).rev().take_while(near).last().unwrap_or(low);
    let end = (low..range.end).take_while(near).last().map_or(low, |last| last + 1);
    start..end
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

    /// Every start of every last stage tried, as the recurrence says.
    fn cut_by_trying_all(
        costs: &[CallCost],
        stages: usize,
        memory: Option<u64>,
    ) -> Option<Vec<Range<usize>>> {
        let n = costs.len();
        let mut best = vec![vec![None::<((f64, f64), usize)>; n + 1]; stages + 1];
        best[0][0] = Some(((0.0, 0.0), 0));
        // Times as differences of sums, so that they are rounded alike.
        let sum = |to: usize| costs[..to].iter().fold(0.0, |t, c| t + c.time);
        for s in 1..=stages {
            for i in s..=n {
                for from in (s - 1)..i {
                    let stage = &costs[from..i];
                    let held: u64 = stage.iter().map(|c| c.held).sum();
                    let frame = stage.iter().map(|c| c.frame).max().unwrap();
                    let time = sum(i) - sum(from);
                    let Some((before, _)) = best[s - 1][from] else { continue };
                    let cand = (before.0.max(time), before.1 + time * time);
                    let fits = memory.is_none_or(|m| held + frame <= m);
                    if fits && best[s][i].is_none_or(|(b, _): ((f64, f64), usize)| less(cand, b)) {
                        best[s][i] = Some((cand, from));
                    }
                }
            }
        }
        let mut end = n;
        let mut cuts: Vec<Range<usize>> = Vec::new();
        for s in (1..=stages).rev() {
            let from = best[s][end]?.1;
            cuts.push(from..end);
            end = from;
        }
        cuts.reverse();
        Some(cuts)
    }

    #[test]
    fn starts_that_are_passed_over_are_never_best() {
        let mut seed = 1u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..3000 {
            let kinds = 1 + random(4);
            let kind: Vec<CallCost> = (0..kinds)
                .map(|_| CallCost { time: random(4) as f64 / 3.0, held: random(5), frame: random(5) })
                .collect();
            let costs: Vec<CallCost> = (0..1 + random(14)).map(|_| kind[random(kinds) as usize]).collect();
            let stages = 1 + random(costs.len() as u64) as usize;
            let memory = (random(2) == 0).then(|| 4 + random(20));
            let cut = cut_stages(&costs, stages, memory).ok();
            assert_eq!(cut, cut_by_trying_all(&costs, stages, memory), "{costs:?} {stages} {memory:?}");
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
