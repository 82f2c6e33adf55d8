//! Tokenizers from the `tokenizer.ggml.*` keys of a GGUF file.
//!
//! Two kinds are supported. `gpt2` is byte-level BPE with its merges listed, and `tokenizer.ggml.pre` names how the
//! text is cut into words first. `llama` is SentencePiece's BPE: no words, no merges, a score for each piece.

use super::Tokenizer;
use crate::weights::GgufMeta;
use pcc_ir::Diagnostic;
use std::collections::HashMap;
use tokenizers::decoders::{
    DecoderWrapper, byte_fallback::ByteFallback, fuse::Fuse, sequence::Sequence as Decoders, strip::Strip,
};
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::{NFC, Prepend, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::{
    PreTokenizerWrapper, byte_level::ByteLevel, digits::Digits, sequence::Sequence as PreTokenizers,
    split::Split, split::SplitPattern,
};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

/// Words as Llama 3 and Qwen 2 cut them; they differ in how many digits go together.
const WORDS_BEFORE_DIGITS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|";
const WORDS_AFTER_DIGITS: &str = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// What the keys call the kinds of tokens that matter here.
const NORMAL: i64 = 1;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// SentencePiece's own limit of a piece is 16 characters; some vocabularies go to a few hundred.
const MAX_PIECE: usize = 1024;
/// Ways to join two pieces; vocabularies of 256,000 pieces have under a million.
const MAX_MERGES: usize = 1 << 22;

pub(super) fn from_gguf(meta: &GgufMeta) -> Result<Tokenizer, Diagnostic> {
    let key = "tokenizer.ggml.model";
    let (mut inner, adds_bos) = match meta.required(key, meta.str(key)?)? {
        "gpt2" => byte_level_bpe(meta)?,
        "llama" => (sentencepiece_bpe(meta)?, true),
        other => {
            let why = format!("tokenizers of kind `{other}` are not supported");
            return Err(meta
                .wrong(key, why)
                .help("supported: gpt2 (byte-level BPE), llama (SentencePiece BPE)"));
        }
    };
    let tokens = tokens(meta)?;
    let added: Vec<AddedToken> = tokens
        .iter()
        .zip(kinds(meta, tokens.len())?)
        .filter(|&(_, &kind)| kind == CONTROL || kind == USER_DEFINED)
        .map(|(token, &kind)| AddedToken::from(token.as_str(), kind == CONTROL).normalized(false))
        .collect();
    inner.add_special_tokens(&added);
    let id = |name: &str| -> Result<Option<u32>, Diagnostic> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = meta.uint(&key)? else { return Ok(None) };
        match u32::try_from(id).ok().filter(|&id| (id as usize) < tokens.len()) {
            Some(id) => Ok(Some(id)),
            None => Err(meta.wrong(&key, format!("{id} is beyond the {} tokens", tokens.len()))),
        }
    };
    let (bos, eos) = (id("bos")?, id("eos")?);
    let mut ends: Vec<u32> = eos.into_iter().chain(id("eot")?).collect();
    ends.sort_unstable();
    ends.dedup();
    let before = bos.filter(|_| adds_bos);
    let after = eos.filter(|_| matches!(meta.bool("tokenizer.ggml.add_eos_token"), Ok(Some(true))));
    let before = match meta.bool("tokenizer.ggml.add_bos_token")? {
        Some(true) => bos,
        Some(false) => None,
        None => before,
    };
    Ok(Tokenizer { inner, bos, eos: ends, before, after })
}

fn tokens(meta: &GgufMeta) -> Result<&[String], Diagnostic> {
    let key = "tokenizer.ggml.tokens";
    meta.required(key, meta.strings(key)?)
}

/// The kind of each token; absent, all are normal.
fn kinds(meta: &GgufMeta, tokens: usize) -> Result<&[i64], Diagnostic> {
    let key = "tokenizer.ggml.token_type";
    match meta.ints(key)? {
        None => Ok(&[]),
        Some(kinds) if kinds.len() == tokens => Ok(kinds),
        Some(kinds) => Err(meta.wrong(key, format!("it has {} entries for {tokens} tokens", kinds.len()))),
    }
}

/// Ids by token; a token listed twice would make ids ambiguous.
fn vocabulary(meta: &GgufMeta) -> Result<Vocab, Diagnostic> {
    let tokens = tokens(meta)?;
    let vocab: Vocab = tokens.iter().cloned().zip(0..).collect();
    if vocab.len() == tokens.len() {
        return Ok(vocab);
    }
    let twice = tokens.iter().zip(0u32..).find(|(token, id)| vocab.get(*token) != Some(id));
    let name = twice.map(|(token, _)| token.as_str()).unwrap_or_default();
    Err(meta.wrong("tokenizer.ggml.tokens", format!("`{name}` is listed twice")))
}

/// How a text is cut into words before BPE, what is done to the text before that, whether a word that is a token is
/// taken whole, and whether a text begins with bos unless the file says otherwise.
struct Words {
    pre: PreTokenizerWrapper,
    nfc: bool,
    ignore_merges: bool,
    adds_bos: bool,
}

fn words(meta: &GgufMeta) -> Result<Words, Diagnostic> {
    let key = "tokenizer.ggml.pre";
    let bytes = |use_regex| ByteLevel::new(false, true, use_regex);
    let split = |digits: &str| -> Result<PreTokenizerWrapper, Diagnostic> {
        let pattern = format!("{WORDS_BEFORE_DIGITS}{digits}{WORDS_AFTER_DIGITS}");
        let split = Split::new(SplitPattern::Regex(pattern), SplitDelimiterBehavior::Isolated, false);
        let split = split.map_err(|e| Diagnostic::internal(format!("a word pattern is wrong: {e}")))?;
        Ok(PreTokenizers::new(vec![split.into(), bytes(false).into()]).into())
    };
    let of = |pre, nfc, ignore_merges, adds_bos| Ok(Words { pre, nfc, ignore_merges, adds_bos });
    match meta.required(key, meta.str(key)?)? {
        "gpt-2" => of(bytes(true).into(), false, false, false),
        "smollm" => {
            let pre = PreTokenizers::new(vec![Digits::new(true).into(), bytes(true).into()]);
            of(pre.into(), false, false, false)
        }
        "llama-bpe" | "llama3" | "llama-v3" => of(split(r"\p{N}{1,3}")?, false, true, true),
        "qwen2" => of(split(r"\p{N}")?, true, false, false),
        other => Err(meta
            .wrong(key, format!("the way `{other}` cuts words is not supported"))
            .help("supported: gpt-2, smollm, llama-bpe, qwen2")),
    }
}

fn byte_level_bpe(meta: &GgufMeta) -> Result<(tokenizers::Tokenizer, bool), Diagnostic> {
    let words = words(meta)?;
    let key = "tokenizer.ggml.merges";
    let mut merges = Merges::new();
    for merge in meta.required(key, meta.strings(key)?)? {
        // Byte-level tokens have no spaces: the one space parts the two.
        match merge.split_once(' ') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() => {
                merges.push((left.to_string(), right.to_string()));
            }
            _ => return Err(meta.wrong(key, format!("`{merge}` is not two tokens"))),
        }
    }
    let bpe = BPE::builder()
        .vocab_and_merges(vocabulary(meta)?, merges)
        .ignore_merges(words.ignore_merges)
        .build()
        .map_err(|e| meta.wrong(key, e.to_string()))?;
    let mut inner = tokenizers::Tokenizer::new(bpe);
    inner
        .with_normalizer(words.nfc.then_some(NFC))
        .with_pre_tokenizer(Some(words.pre))
        .with_decoder(Some(ByteLevel::default()));
    Ok((inner, words.adds_bos))
}

fn sentencepiece_bpe(meta: &GgufMeta) -> Result<tokenizers::Tokenizer, Diagnostic> {
    let vocab = vocabulary(meta)?;
    let merges = merges_by_score(meta, &vocab)?;
    let unknown = match meta.uint("tokenizer.ggml.unknown_token_id")? {
        Some(id) => usize::try_from(id).ok().and_then(|id| tokens(meta).ok()?.get(id)),
        None => tokens(meta)?.iter().find(|t| *t == "<unk>"),
    };
    let mut bpe = BPE::builder().vocab_and_merges(vocab, merges).byte_fallback(true).fuse_unk(true);
    if let Some(unknown) = unknown {
        bpe = bpe.unk_token(unknown.clone());
    }
    let bpe = bpe.build().map_err(|e| meta.wrong("tokenizer.ggml.tokens", e.to_string()))?;
    let internal = |e: tokenizers::Error| Diagnostic::internal(format!("a space rule is wrong: {e}"));
    let to_mark = Replace::new(" ", "\u{2581}").map_err(internal)?;
    let from_mark = Replace::new("\u{2581}", " ").map_err(internal)?;
    // Spaces are written as U+2581, one more before the text unless the file says no; decoding drops that one.
    let prefix = meta.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let mut normalizers = vec![to_mark.into()];
    let mut decoders: Vec<DecoderWrapper> =
        vec![from_mark.into(), ByteFallback::new().into(), Fuse::new().into()];
    if prefix {
        normalizers.insert(0, Prepend::new("\u{2581}".into()).into());
        decoders.push(Strip::new(' ', 1, 0).into());
    }
    let mut inner = tokenizers::Tokenizer::new(bpe);
    inner.with_normalizer(Some(Normalizers::new(normalizers))).with_decoder(Some(Decoders::new(decoders)));
    Ok(inner)
}

/// SentencePiece joins the neighbours whose joined piece has the highest score; as ranked merges that is every way to
/// cut a normal piece into two known ones, by falling score.
fn merges_by_score(meta: &GgufMeta, vocab: &Vocab) -> Result<Merges, Diagnostic> {
    let tokens = tokens(meta)?;
    let key = "tokenizer.ggml.scores";
    let scores = meta.required(key, meta.floats(key)?)?;
    if scores.len() != tokens.len() {
        return Err(meta.wrong(key, format!("it has {} entries for {} tokens", scores.len(), tokens.len())));
    }
    let kinds = kinds(meta, tokens.len())?;
    let joins = |id: usize| kinds.get(id).is_none_or(|&k| k == NORMAL || k == USER_DEFINED);
    let known: HashMap<&str, usize> =
        tokens.iter().map(String::as_str).zip(0..).filter(|(_, id)| joins(*id)).collect();
    let mut ranked = Vec::new();
    for ((piece, score), id) in tokens.iter().zip(scores).zip(0..) {
        if !joins(id) || !vocab.contains_key(piece) {
            continue;
        }
        if piece.len() > MAX_PIECE {
            return Err(
                meta.wrong("tokenizer.ggml.tokens", format!("a piece of {} bytes is too long", piece.len()))
            );
        }
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            if let (Some(&l), Some(&r)) = (known.get(left), known.get(right)) {
                ranked.push((*score, l, r));
            }
        }
        if ranked.len() > MAX_MERGES {
            return Err(meta
                .wrong("tokenizer.ggml.tokens", format!("there are over {MAX_MERGES} ways to join pieces")));
        }
    }
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let name = |id: usize| tokens.get(id).cloned().unwrap_or_default();
    Ok(ranked.into_iter().map(|(_, l, r)| (name(l), name(r))).collect())
}
