//! Continues prompts: one run of `prefill` over all of them, then runs of `decode`, a token a row each.

use crate::sampling::{Sampling, choose};
use crate::session::Session;
use crate::tensor::HostTensor;
use pcc_ir::Diagnostic;
use pcc_ir::ops::sample::Draw;
use pcc_ir::program::Program;
use std::collections::BTreeMap;
use std::time::Instant;

/// What to generate.
#[derive(Clone, Copy, Debug)]
pub struct Generation<'a> {
    /// Token ids, one list a row, of any lengths; at most the batch compiled for.
    pub prompts: &'a [Vec<u32>],
    /// Most tokens for each row.
    pub max_tokens: usize,
    pub sampling: Sampling,
    /// A row ends when it has made one of these, which is given to the caller like any other.
    pub stop_tokens: &'a [u32],
}

/// Seconds of the two phases.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timing {
    pub prefill: f64,
    pub decode: f64,
}

/// A prompt under way.
struct Row {
    /// Tokens in the cache.
    filled: usize,
    /// The last token made, which the next run reads.
    last: u32,
    made: usize,
    done: bool,
}

/// Generates for every prompt, and calls `on_token(row, token)` for each token as it is made; `false` ends the row. A row ends
/// too at a stop token, after `max_tokens`, or when the sequence capacity is full. Rows do not influence each
/// other: each gets the tokens it would get alone.
///
/// # Errors
/// The program has no `prefill` and `decode`; a prompt is empty, too long or not of the vocabulary; too many prompts; a run
/// fails; `on_token` fails.
pub fn generate(
    session: &mut Session,
    generation: &Generation<'_>,
    on_token: &mut dyn FnMut(usize, u32) -> Result<bool, Diagnostic>,
) -> Result<Timing, Diagnostic> {
    let seq = generation.check(session.program())?;
    session.reset_states()?;
    let mut timing = Timing::default();
    let mut rows: Vec<Row> = generation
        .prompts
        .iter()
        .map(|p| Row { filled: p.len(), last: 0, made: 0, done: generation.max_tokens == 0 })
        .collect();
    let start = Instant::now();
    let tokens = prefill(session, generation, &rows)?;
    timing.prefill = start.elapsed().as_secs_f64();
    take_tokens(generation, &tokens, seq, &mut rows, on_token)?;
    let start = Instant::now();
    while rows.iter().any(|r| !r.done) {
        let tokens = decode(session, generation, &rows, seq)?;
        for row in rows.iter_mut().filter(|r| !r.done) {
            row.filled += 1;
        }
        take_tokens(generation, &tokens, seq, &mut rows, on_token)?;
    }
    timing.decode = start.elapsed().as_secs_f64();
    Ok(timing)
}

impl Generation<'_> {
    /// Checks the request against a program; returns the sequence capacity. [`generate`] does this first, and a caller may before it
    /// loads weights.
    ///
    /// # Errors
    /// The program has no `prefill` and `decode`; a prompt is empty, too long or not of the vocabulary; too many prompts.
    pub fn check(&self, program: &Program) -> Result<usize, Diagnostic> {
        self.sampling.check()?;
        for name in ["prefill", "decode"] {
            if !program.entries.iter().any(|e| e.name == name) {
                return Err(Diagnostic::input("this artifact cannot generate text")
                    .why(format!("it has no entry `{name}`"))
                    .help("compile a causal language model"));
            }
        }
        let (count, batch, seq) = (self.prompts.len(), program.batch.batch, program.model.seq);
        if count == 0 || count > batch {
            return Err(Diagnostic::input(format!("{count} prompts were given"))
                .why(format!("the program was compiled for 1 to {batch}"))
                .help("give fewer prompts, or compile with a larger --batch"));
        }
        for (i, prompt) in self.prompts.iter().enumerate() {
            let wrong = |what: String| Err(Diagnostic::input(what).at(format!("prompt {i}")));
            if prompt.is_empty() {
                return wrong("the prompt is empty".to_owned());
            }
            if prompt.len() > seq {
                return wrong(format!(
                    "the prompt has {} tokens, the program was compiled for {seq}",
                    prompt.len()
                ));
            }
            if let Some(token) = prompt.iter().find(|&&t| t as usize >= program.model.vocab.max(1)) {
                return wrong(format!(
                    "token {token} is not among the {} of the vocabulary",
                    program.model.vocab
                ));
            }
        }
        Ok(seq)
    }
}

/// Runs all prompts, padded to the longest; the token after each.
fn prefill(
    session: &mut Session,
    generation: &Generation<'_>,
    rows: &[Row],
) -> Result<Vec<Option<u32>>, Diagnostic> {
    let prompts = generation.prompts;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(1);
    let padded = |p: &Vec<u32>| -> Vec<i32> {
        p.iter().map(|&t| t as i32).chain(std::iter::repeat(0)).take(longest).collect()
    };
    let tokens = prompts.iter().flat_map(padded).collect();
    let lengths = prompts.iter().map(|p| p.len() as i32).collect();
    let inputs = [
        ("tokens".to_owned(), HostTensor::i32([prompts.len(), longest], tokens)),
        ("lengths".to_owned(), HostTensor::i32([prompts.len()], lengths)),
    ];
    next(session, "prefill", inputs.into(), generation, rows)
}

/// Runs one token of every row. Rows that are done run too, on a position that is never read again: a row keeps its place in the
/// batch, where its cache is.
fn decode(
    session: &mut Session,
    generation: &Generation<'_>,
    rows: &[Row],
    seq: usize,
) -> Result<Vec<Option<u32>>, Diagnostic> {
    let tokens = rows.iter().map(|r| r.last as i32).collect();
    let positions = rows.iter().map(|r| r.filled.min(seq - 1) as i32).collect();
    let inputs = [
        ("tokens".to_owned(), HostTensor::i32([rows.len(), 1], tokens)),
        ("positions".to_owned(), HostTensor::i32([rows.len()], positions)),
    ];
    next(session, "decode", inputs.into(), generation, rows)
}

/// Runs an entry for the next token of every row: drawn by the program if it does that, else here, of its logits, for rows that go on. `None` where
/// a logit is NaN.
fn next(
    session: &mut Session,
    entry: &str,
    mut inputs: BTreeMap<String, HostTensor>,
    generation: &Generation<'_>,
    rows: &[Row],
) -> Result<Vec<Option<u32>>, Diagnostic> {
    let draws: Vec<Draw> = rows.iter().map(|r| generation.sampling.draw(r.made as u32)).collect();
    let program = session.program();
    let draws_itself = program.draws(entry);
    let vocab = program.model.vocab;
    if draws_itself {
        let settings = draws.iter().flat_map(Draw::settings).collect();
        let key = draws.iter().flat_map(Draw::key).collect();
        inputs.insert("settings".to_owned(), HostTensor::f32([rows.len(), 2], settings));
        inputs.insert("key".to_owned(), HostTensor::i32([rows.len(), 4], key));
    }
    let outputs = session.run(entry, &inputs, rows.len())?;
    if draws_itself {
        let token = outputs.get("token").and_then(HostTensor::as_i32).filter(|t| t.len() == rows.len());
        let token = token.ok_or_else(|| {
            Diagnostic::internal(format!("entry `{entry}` gives no i32 `token` of each row"))
        })?;
        return Ok(token.iter().map(|&t| u32::try_from(t).ok()).collect());
    }
    // A row of logits each, of the vocabulary.
    let wanted = rows.len().saturating_mul(vocab);
    let logits =
        outputs.get("logits").and_then(HostTensor::as_f32).filter(|l| l.len() == wanted && wanted > 0);
    let logits = logits
        .ok_or_else(|| Diagnostic::internal(format!("entry `{entry}` gives no f32 `logits` of each row")))?;
    let token =
        |((row, logits), draw): ((&Row, &[f32]), &Draw)| if row.done { None } else { choose(logits, draw) };
    Ok(rows.iter().zip(logits.chunks_exact(vocab)).zip(&draws).map(token).collect())
}

/// Takes the token of every row that goes on, and decides whether it does.
fn take_tokens(
    generation: &Generation<'_>,
    tokens: &[Option<u32>],
    seq: usize,
    rows: &mut [Row],
    on_token: &mut dyn FnMut(usize, u32) -> Result<bool, Diagnostic>,
) -> Result<(), Diagnostic> {
    for (i, (row, token)) in rows.iter_mut().zip(tokens).enumerate().filter(|(_, (r, _))| !r.done) {
        let token = token
            .ok_or_else(|| Diagnostic::run("the model gives NaN for a token").at(format!("prompt {i}")))?;
        row.last = token;
        row.made += 1;
        let stop = generation.stop_tokens.contains(&token);
        let full = row.filled >= seq || row.made >= generation.max_tokens;
        row.done = !on_token(i, token)? || stop || full;
    }
    Ok(())
}
