//! `pcc eval ARTIFACT --data FILE`.

use super::{grouped, print_json, print_text};
use crate::{open, progress, trace};
use pcc_ir::Diagnostic;
use pcc_runtime::{Evaluation, Score, Summary, evaluate};
use serde::Serialize;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(clap::Args)]
pub struct Args {
    /// Artifact directory (NAME.pcc) of a language model
    artifact: PathBuf,
    #[command(flatten)]
    open: open::Args,
    /// Text to predict, UTF-8; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Tokens from one window to the next; what windows share is context only [default: the sequence compiled for]
    #[arg(long)]
    stride: Option<usize>,
    /// Tokenizer: tokenizer.json, a folder with one, or a GGUF file [default: the model's]
    #[arg(long)]
    tokenizer: Option<PathBuf>,
    /// One JSON object on stdout
    #[arg(long)]
    json: bool,
}

/// Largest text, bytes.
const MAX_TEXT: u64 = 1 << 30;

#[derive(Serialize)]
struct Outcome {
    /// Tokens of the text, and how many of them were predicted.
    tokens: usize,
    predicted: usize,
    windows: usize,
    /// Tokens of a window at most, and from one to the next.
    window: usize,
    stride: usize,
    /// Mean negative log likelihood of a predicted token, nats.
    nll: f64,
    perplexity: f64,
    /// Tokens predicted a second of running.
    tokens_per_second: f64,
    seconds: Seconds,
    /// Where the time went, with --trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Summary>,
}

#[derive(Serialize)]
struct Seconds {
    load: f64,
    run: f64,
}

pub fn run(args: &Args) -> Result<(), Diagnostic> {
    let text = read(&args.data)?;
    let artifact = open::artifact(&args.artifact, &args.open)?;
    let model = artifact.program.model.clone();
    let stride = args.stride.unwrap_or(model.seq);
    // What is wrong with the model is said before a tokenizer is looked for.
    Evaluation { tokens: &[0, 0], stride }.check(&artifact.program)?;
    let tokenizer = open::tokenizer(&model, args.tokenizer.as_deref())?;
    let tokens = tokenizer.encode(&text)?;
    let evaluation = Evaluation { tokens: &tokens, stride };
    let place = |d: Diagnostic| if d.place.is_none() { d.at(args.data.display().to_string()) } else { d };
    evaluation.check(&artifact.program).map_err(place)?;
    let start = Instant::now();
    let mut opened = open::session(artifact, &args.open, args.json)?;
    let load = start.elapsed().as_secs_f64();
    let bar = progress::count(args.json, "tokens");
    let score = evaluate(&mut opened.session, &evaluation, &mut |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let score = score?;
    let profile = opened.finish_trace()?;
    let outcome = Outcome { profile, ..outcome(&score, tokens.len(), model.seq, stride, load) };
    if args.json {
        return print_json(&outcome);
    }
    print_text(&text_of(&outcome))?;
    trace::show(outcome.profile.as_ref());
    Ok(())
}

fn outcome(score: &Score, tokens: usize, window: usize, stride: usize, load: f64) -> Outcome {
    Outcome {
        tokens,
        predicted: score.predicted,
        windows: score.windows,
        window,
        stride,
        nll: score.mean(),
        perplexity: score.perplexity(),
        tokens_per_second: score.predicted as f64 / score.seconds,
        seconds: Seconds { load, run: score.seconds },
        profile: None,
    }
}

fn text_of(o: &Outcome) -> String {
    format!(
        "{} tokens in {} window(s) of at most {}, {} apart: {} predicted\n\
         {:.4} nats a token, perplexity {:.4}; loaded in {:.2} s, {:.1} tokens/s",
        grouped(o.tokens as u64),
        grouped(o.windows as u64),
        o.window,
        o.stride,
        grouped(o.predicted as u64),
        o.nll,
        o.perplexity,
        o.seconds.load,
        o.tokens_per_second
    )
}

fn read(path: &Path) -> Result<String, Diagnostic> {
    let place = path.display().to_string();
    let failed =
        |e: std::io::Error| Diagnostic::input("cannot read the text").at(place.clone()).why(e.to_string());
    let mut bytes = Vec::new();
    let most = MAX_TEXT + 1;
    if path == Path::new("-") {
        std::io::stdin().lock().take(most).read_to_end(&mut bytes).map_err(failed)?;
    } else {
        File::open(path).and_then(|f| f.take(most).read_to_end(&mut bytes)).map_err(failed)?;
    }
    if bytes.len() as u64 > MAX_TEXT {
        return Err(Diagnostic::input("the text is too large")
            .at(place)
            .why(format!("at most {MAX_TEXT} bytes are read")));
    }
    String::from_utf8(bytes).map_err(|e| {
        Diagnostic::input("the text is not UTF-8")
            .at(place)
            .why(format!("byte {} starts no character", e.utf8_error().valid_up_to()))
            .help("convert it, for instance with iconv")
    })
}
