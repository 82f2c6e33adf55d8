//! Continues prompts: one run of `prefill` over all of them, then runs of `decode`, a token a row each.

use crate::sampling::Sampling;
use crate::session::Session;
use crate::tensor::HostTensor;
use pcc_ir::Diagnostic;
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
    let logits = prefill(session, generation.prompts)?;
    timing.prefill = start.elapsed().as_secs_f64();
    take_tokens(generation, &logits, seq, &mut rows, on_token)?;
    let start = Instant::now();
    while rows.iter().any(|r| !r.done) {
        let logits = decode(session, &rows, seq)?;
        for row in rows.iter_mut().filter(|r| !r.done) {
            row.filled += 1;
        }
        take_tokens(generation, &logits, seq, &mut rows, on_token)?;
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

/// Runs all prompts, padded to the longest; the logits of each one's last token.
fn prefill(session: &mut Session, prompts: &[Vec<u32>]) -> Result<Vec<f32>, Diagnostic> {
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
    logits(session, "prefill", inputs.into(), prompts.len())
}

/// Runs one token of every row. Rows that are done run too, on a position that is never read again: a row keeps its place in the
/// batch, where its cache is.
fn decode(session: &mut Session, rows: &[Row], seq: usize) -> Result<Vec<f32>, Diagnostic> {
    let tokens = rows.iter().map(|r| r.last as i32).collect();
    let positions = rows.iter().map(|r| r.filled.min(seq - 1) as i32).collect();
    let inputs = [
        ("tokens".to_owned(), HostTensor::i32([rows.len(), 1], tokens)),
        ("positions".to_owned(), HostTensor::i32([rows.len()], positions)),
    ];
    logits(session, "decode", inputs.into(), rows.len())
}

fn logits(
    session: &mut Session,
    entry: &str,
    inputs: BTreeMap<String, HostTensor>,
    rows: usize,
) -> Result<Vec<f32>, Diagnostic> {
    let outputs = session.run(entry, &inputs, rows)?;
    // A row of logits each, of the vocabulary.
    let wanted = rows.saturating_mul(session.program().model.vocab);
    let logits =
        outputs.get("logits").and_then(HostTensor::as_f32).filter(|l| l.len() == wanted && wanted > 0);
    logits
        .map(<[f32]>::to_vec)
        .ok_or_else(|| Diagnostic::internal(format!("entry `{entry}` gives no f32 `logits` of each row")))
}

/// Chooses a token for every row that goes on, and decides whether it does.
fn take_tokens(
    generation: &Generation<'_>,
    logits: &[f32],
    seq: usize,
    rows: &mut [Row],
    on_token: &mut dyn FnMut(usize, u32) -> Result<bool, Diagnostic>,
) -> Result<(), Diagnostic> {
    let vocab = logits.len() / rows.len();
    for (i, row) in rows.iter_mut().enumerate().filter(|(_, r)| !r.done) {
        let token = generation.sampling.choose(&logits[i * vocab..][..vocab], row.made as u64)?;
        row.last = token;
        row.made += 1;
        let stop = generation.stop_tokens.contains(&token);
        let full = row.filled >= seq || row.made >= generation.max_tokens;
        row.done = !on_token(i, token)? || stop || full;
    }
    Ok(())
}
