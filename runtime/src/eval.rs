//! Perplexity: how well a language model predicts a text.
//!
//! The text is cut into windows of the sequence capacity that begin `stride` tokens apart, to its end. A window predicts each of its
//! tokens from those before it in the window, and counts the ones that no earlier window has counted: with a stride of the whole
//! window all but its first token, with a smaller one the last `stride` of it, the others being context only.

use crate::session::Session;
use crate::tensor::HostTensor;
use pcc_ir::Diagnostic;
use pcc_ir::program::{Program, Task};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

/// What to evaluate.
#[derive(Clone, Copy, Debug)]
pub struct Evaluation<'a> {
    /// Token ids of the text.
    pub tokens: &'a [u32],
    /// Tokens from the start of a window to the start of the next: 1 to the sequence capacity.
    pub stride: usize,
}

/// How well the text was predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    pub windows: usize,
    /// Tokens that were predicted and counted.
    pub predicted: usize,
    /// Their negative log likelihoods, nats, added up.
    pub nll: f64,
    /// Seconds spent running the program.
    pub seconds: f64,
}

impl Score {
    /// Mean negative log likelihood of a token, nats.
    pub fn mean(&self) -> f64 {
        self.nll / self.predicted as f64
    }

    /// exp of the mean.
    pub fn perplexity(&self) -> f64 {
        self.mean().exp()
    }
}

/// A window: its tokens, and which of them it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    tokens: Range<usize>,
    counted: Range<usize>,
}

/// Windows of at most `capacity` of `count` tokens.
fn windows(count: usize, capacity: usize, stride: usize) -> Vec<Window> {
    let mut out = Vec::new();
    let (mut start, mut done) = (0usize, 0usize);
    loop {
        let end = count.min(start.saturating_add(capacity));
        let counted = done.max(start + 1)..end;
        if !counted.is_empty() {
            out.push(Window { tokens: start..end, counted });
        }
        if end == count {
            return out;
        }
        (start, done) = (start + stride, end);
    }
}

impl Evaluation<'_> {
    /// Checks the request against a program; what [`evaluate`] does first, and what a caller may do before it loads weights.
    ///
    /// # Errors
    /// The program is of no causal language model; the text is too short or not of the vocabulary; the stride does not fit.
    pub fn check(&self, program: &Program) -> Result<(), Diagnostic> {
        let (seq, vocab) = (program.model.seq, program.model.vocab);
        let forward = program.entries.iter().any(|e| e.name == "forward");
        if program.model.task != Task::CausalLm || !forward {
            return Err(Diagnostic::input("this model does not predict text")
                .why("perplexity is that of a causal language model, by its entry `forward`"));
        }
        if seq < 2 {
            return Err(Diagnostic::input(format!("the program was compiled for {seq} position(s)"))
                .why("a token is predicted from one before it")
                .help("compile with --seq 2 or more"));
        }
        if self.stride == 0 || self.stride > seq {
            return Err(Diagnostic::usage(format!("a stride of {} tokens", self.stride))
                .why(format!("windows have {seq} tokens, the sequence the program was compiled for"))
                .help(format!("use 1 to {seq}")));
        }
        if self.tokens.len() < 2 {
            return Err(Diagnostic::input(format!("the text has {} token(s)", self.tokens.len()))
                .why("a token is predicted from those before it: it takes at least two"));
        }
        match self.tokens.iter().position(|&t| t as usize >= vocab) {
            Some(at) => Err(Diagnostic::input(format!(
                "token {} is not among the {vocab} of the vocabulary",
                self.tokens[at]
            ))
            .at(format!("token {at} of the text"))
            .help("give the tokenizer of this model")),
            None => Ok(()),
        }
    }
}

/// Scores a text, as many windows at a time as the program has rows; tells `progress` how many tokens of how many are counted.
///
/// The result is the same for any number of workers: every token's likelihood is worked out in f64 from its f32 logits, and they
/// are added up in the order of the text.
///
/// # Errors
/// As [`Evaluation::check`]; a run fails; the model gives a logit that is no number.
pub fn evaluate(
    session: &mut Session,
    evaluation: &Evaluation<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Score, Diagnostic> {
    evaluation.check(session.program())?;
    let (seq, batch) = (session.program().model.seq, session.program().batch.batch);
    let windows = windows(evaluation.tokens.len(), seq, evaluation.stride);
    let total: usize = windows.iter().map(|w| w.counted.len()).sum();
    let mut outputs = BTreeMap::new();
    let mut score = Score { windows: windows.len(), ..Score::default() };
    for rows in windows.chunks(batch) {
        let start = Instant::now();
        let logits = forward(session, evaluation.tokens, rows, &mut outputs)?;
        score.seconds += start.elapsed().as_secs_f64();
        for (window, logits) in rows.iter().zip(logits.rows()) {
            score.nll += nll(evaluation.tokens, window, logits, logits_width(session))?;
            score.predicted += window.counted.len();
        }
        progress(score.predicted, total);
    }
    Ok(score)
}

fn logits_width(session: &Session) -> usize {
    session.program().model.vocab
}

/// Logits `[row, position, vocab]`.
struct Logits<'o> {
    data: &'o [f32],
    row: usize,
}

impl Logits<'_> {
    fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.data.chunks_exact(self.row)
    }
}

/// Runs the windows, one a row. Shorter ones are filled up: a causal model predicts nothing from what comes later.
fn forward<'o>(
    session: &mut Session,
    tokens: &[u32],
    rows: &[Window],
    outputs: &'o mut BTreeMap<String, HostTensor>,
) -> Result<Logits<'o>, Diagnostic> {
    let longest = rows.iter().map(|w| w.tokens.len()).max().unwrap_or(1);
    let padded = |w: &Window| {
        let ids = tokens[w.tokens.clone()].iter().map(|&t| t as i32);
        ids.chain(std::iter::repeat(0)).take(longest).collect::<Vec<_>>()
    };
    let ids = rows.iter().flat_map(padded).collect();
    let inputs = [("tokens".to_owned(), HostTensor::i32([rows.len(), longest], ids))];
    session.run_into("forward", &inputs.into(), rows.len(), outputs)?;
    let shape = [rows.len(), longest, logits_width(session)];
    let logits = outputs.get("logits").filter(|l| l.shape == shape).and_then(HostTensor::as_f32);
    let data = logits.ok_or_else(|| {
        Diagnostic::input("this model does not predict text")
            .why("its entry `forward` gives no f32 `logits` of each position over the vocabulary")
    })?;
    Ok(Logits { data, row: shape[1] * shape[2] })
}

/// Negative log likelihood of the counted tokens of a window.
fn nll(tokens: &[u32], window: &Window, logits: &[f32], vocab: usize) -> Result<f64, Diagnostic> {
    let one = |at: usize| {
        // The position before a token predicts it.
        let position = at - 1 - window.tokens.start;
        let logits = &logits[position * vocab..][..vocab];
        log_sum_exp(logits) - f64::from(logits[tokens[at] as usize])
    };
    let each: Vec<f64> = window.counted.clone().into_par_iter().map(one).collect();
    match each.iter().position(|x| x.is_nan()) {
        Some(i) => {
            let at = window.counted.start + i;
            Err(Diagnostic::run("the model gives no likelihood for a token: a logit is no number")
                .at(format!("token {at} of the text")))
        }
        None => Ok(each.iter().sum()),
    }
}

/// log(sum(exp(x))), shifted by the largest so that nothing overflows.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let top = logits.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
    let top = f64::from(top);
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - top).exp()).sum();
    top + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(count: usize, capacity: usize, stride: usize) -> Vec<(Range<usize>, Range<usize>)> {
        windows(count, capacity, stride).into_iter().map(|w| (w.tokens, w.counted)).collect()
    }

    #[test]
    fn windows_cover_the_text() {
        assert_eq!(counted(10, 4, 4), [(0..4, 1..4), (4..8, 5..8), (8..10, 9..10)]);
        // The ninth token begins a window in which nothing is predicted.
        assert_eq!(counted(9, 4, 4), [(0..4, 1..4), (4..8, 5..8)]);
        assert_eq!(counted(9, 4, 2), [(0..4, 1..4), (2..6, 4..6), (4..8, 6..8), (6..9, 8..9)]);
        assert_eq!(counted(3, 8, 1), [(0..3, 1..3)]);
        // With a stride below the capacity every token but the first is counted once.
        for (count, capacity, stride) in [(57, 8, 3), (57, 8, 7), (8, 8, 1), (9, 8, 1)] {
            let all: Vec<usize> = counted(count, capacity, stride).into_iter().flat_map(|w| w.1).collect();
            assert_eq!(all, (1..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn log_sum_exp_by_closed_forms() {
        assert!((log_sum_exp(&[0.0; 7]) - 7f64.ln()).abs() < 1e-15);
        assert!((log_sum_exp(&[1000.0, 1000.0]) - (1000.0 + 2f64.ln())).abs() < 1e-12);
        assert!((log_sum_exp(&[-1000.0, 0.0]) - 0.0).abs() < 1e-15);
        assert!(log_sum_exp(&[f32::NAN, 0.0]).is_nan());
    }
}
