//! `pcc generate ARTIFACT --prompt TEXT`.

use super::{print_json, print_text};
use crate::diagnose::notice;
use crate::{open, trace};
use pcc_frontend::tokenizer::Tokenizer;
use pcc_ir::Diagnostic;
use pcc_ir::program::Task;
use pcc_runtime::{Generation, Sampling, Summary};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Args {
    /// Artifact directory (NAME.pcc) of a language model
    artifact: PathBuf,
    #[command(flatten)]
    open: open::Args,
    /// Text to continue; several times: a batch
    #[arg(long, required = true)]
    prompt: Vec<String>,
    /// Most tokens to generate for each prompt
    #[arg(long, default_value_t = 64)]
    max_tokens: usize,
    /// 0 always takes the likeliest token
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Sample among the likeliest tokens that make up this probability
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    /// Sample among this many likeliest tokens, before top-p counts; 0: among all
    #[arg(long, default_value_t = 0)]
    top_k: u32,
    /// Seed of sampling
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Stop when the text contains this
    #[arg(long)]
    stop: Vec<String>,
    /// Wrap the prompt as a chat message (ChatML)
    #[arg(long)]
    chat: bool,
    /// Tokenizer: tokenizer.json, a folder with one, or a GGUF file [default: the model's]
    #[arg(long)]
    tokenizer: Option<PathBuf>,
    /// One JSON object on stdout instead of streamed text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    prompt_tokens: Vec<u32>,
    tokens: Vec<u32>,
    text: String,
    ended: Ended,
}

/// Why a row has no more tokens.
#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Ended {
    /// It holds a text of --stop.
    StopText,
    /// The model ended it.
    StopToken,
    MaxTokens,
    /// The program was compiled for no more positions.
    Capacity,
}

#[derive(Serialize)]
struct Seconds {
    prefill: f64,
    decode: f64,
}

pub fn run(args: &Args) -> Result<(), Diagnostic> {
    check(args)?;
    let artifact = open::artifact(&args.artifact, &args.open)?;
    let model = artifact.program.model.clone();
    if model.task != Task::CausalLm {
        return Err(Diagnostic::input("this model does not generate text")
            .why("it is no causal language model")
            .help("use `pcc run` for its outputs"));
    }
    let tokenizer = open::tokenizer(&model, args.tokenizer.as_deref())?;
    let encode = |p: &String| if args.chat { tokenizer.encode_chat(None, p) } else { tokenizer.encode(p) };
    let prompts = args.prompt.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
    let eos: Vec<u32> = model.eos.iter().chain(tokenizer.eos()).copied().collect();
    let generation = Generation {
        prompts: &prompts,
        max_tokens: args.max_tokens,
        sampling: Sampling {
            temperature: args.temperature,
            top_p: args.top_p,
            top_k: args.top_k,
            seed: args.seed,
        },
        stop_tokens: &eos,
    };
    // Weights may take minutes: what is wrong with the request is said before.
    generation.check(&artifact.program)?;
    let mut opened = open::session(artifact, &args.open, args.json)?;
    let mut rows = Rows::new(args, &tokenizer, &prompts);
    let timing =
        pcc_runtime::generate(&mut opened.session, &generation, &mut |row, token| rows.push(row, token))?;
    let profile = opened.finish_trace()?;
    let seconds = Seconds { prefill: timing.prefill, decode: timing.decode };
    let ended: Vec<Ended> = (0..prompts.len()).map(|row| rows.ended(row, &eos)).collect();
    if ended.contains(&Ended::Capacity) {
        let seq = model.seq;
        notice(&format!(
            "the text ends where the {seq} positions do that the model was compiled for: compile with a larger --seq"
        ));
    }
    rows.finish(&prompts, &ended, seconds, profile)
}

fn check(args: &Args) -> Result<(), Diagnostic> {
    if !(args.temperature >= 0.0 && args.temperature.is_finite()) {
        return Err(Diagnostic::usage(format!("--temperature {}", args.temperature))
            .help("it is finite, and 0 or more"));
    }
    if !(args.top_p > 0.0 && args.top_p <= 1.0) {
        return Err(Diagnostic::usage(format!("--top-p {}", args.top_p)).help("it is above 0 and at most 1"));
    }
    if args.max_tokens == 0 {
        return Err(Diagnostic::usage("--max-tokens 0 generates nothing").help("use 1 or more"));
    }
    if args.stop.iter().any(String::is_empty) {
        return Err(Diagnostic::usage("--stop is an empty text"));
    }
    Ok(())
}

/// The rows under way: streams a single one, collects several.
struct Rows<'a> {
    args: &'a Args,
    streams: Vec<pcc_frontend::tokenizer::TextStream<'a>>,
    texts: Vec<String>,
    /// Whether a stop text ended each row.
    stopped: Vec<bool>,
    /// Bytes of each text that are printed.
    printed: Vec<usize>,
    tokens: Vec<Vec<u32>>,
}

impl<'a> Rows<'a> {
    fn new(args: &'a Args, tokenizer: &'a Tokenizer, prompts: &[Vec<u32>]) -> Self {
        let n = prompts.len();
        let streams = prompts.iter().map(|p| tokenizer.stream_after(p)).collect();
        Self {
            args,
            streams,
            texts: vec![String::new(); n],
            stopped: vec![false; n],
            printed: vec![0; n],
            tokens: vec![Vec::new(); n],
        }
    }

    fn streaming(&self) -> bool {
        !self.args.json && self.texts.len() == 1
    }

    /// Takes a token; false ends the row.
    fn push(&mut self, row: usize, token: u32) -> Result<bool, Diagnostic> {
        self.tokens[row].push(token);
        let piece = self.streams[row].push(token)?;
        self.texts[row] += &piece;
        let stop = self.args.stop.iter().filter_map(|s| self.texts[row].find(s.as_str())).min();
        if let Some(at) = stop {
            self.texts[row].truncate(at);
            self.stopped[row] = true;
        }
        self.print(row, stop.is_some())?;
        Ok(stop.is_none())
    }

    /// Prints what cannot become part of a stop text any more.
    fn print(&mut self, row: usize, all: bool) -> Result<(), Diagnostic> {
        if !self.streaming() || super::is_silent() {
            return Ok(());
        }
        let text = &self.texts[row];
        let hold = if all { 0 } else { self.args.stop.iter().map(|s| s.len() - 1).max().unwrap_or(0) };
        let mut end = text.len().saturating_sub(hold).max(self.printed[row]);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut out = std::io::stdout().lock();
        let piece = text.get(self.printed[row]..end).unwrap_or_default();
        let written = out.write_all(piece.as_bytes()).and_then(|()| out.flush());
        self.printed[row] = self.printed[row].max(end);
        match written {
            Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(Diagnostic::run("cannot write to standard output").why(e.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Why a row has no more tokens.
    fn ended(&self, row: usize, stop_tokens: &[u32]) -> Ended {
        let tokens = &self.tokens[row];
        match tokens.last() {
            _ if self.stopped[row] => Ended::StopText,
            Some(last) if stop_tokens.contains(last) => Ended::StopToken,
            _ if tokens.len() >= self.args.max_tokens => Ended::MaxTokens,
            _ => Ended::Capacity,
        }
    }

    fn finish(
        mut self,
        prompts: &[Vec<u32>],
        ended: &[Ended],
        seconds: Seconds,
        profile: Option<Summary>,
    ) -> Result<(), Diagnostic> {
        for (row, stream) in std::mem::take(&mut self.streams).into_iter().enumerate() {
            // What a stop text cut off is not wanted: neither is the unfinished character behind it.
            if !self.stopped[row] {
                self.texts[row] += &stream.finish()?;
            }
        }
        if self.streaming() {
            self.print(0, true)?;
            print_text("")?;
            trace::show(profile.as_ref());
            return Ok(());
        }
        let mut rows: Vec<Row> = Vec::new();
        for (row, (prompt, &ended)) in prompts.iter().zip(ended).enumerate() {
            let (tokens, text) = (self.tokens[row].clone(), self.texts[row].clone());
            rows.push(Row { prompt_tokens: prompt.clone(), tokens, text, ended });
        }
        if !self.args.json {
            let shown = rows.iter().zip(&self.args.prompt);
            shown.into_iter().try_for_each(|(r, p)| print_text(&format!("{p}{}\n", r.text)))?;
            trace::show(profile.as_ref());
            return Ok(());
        }
        let mut object = match rows.as_slice() {
            [one] => serde_json::json!({
                "prompt_tokens": one.prompt_tokens, "tokens": one.tokens, "text": one.text, "ended": one.ended,
                "seconds": seconds,
            }),
            _ => serde_json::json!({ "rows": rows, "seconds": seconds }),
        };
        if let Some(profile) = profile {
            object["profile"] = serde_json::json!(profile);
        }
        print_json(&object)
    }
}
