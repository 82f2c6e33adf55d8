//! Ids worked out by hand from each kind's rules.

use super::Tokenizer;
use crate::weights::Checkpoint;
use crate::weights::gguf::written::GgufFile;
use pcc_ir::Diagnostic;
use proptest::prelude::*;
use std::path::PathBuf;

/// A folder with one file, and the file's path.
fn written(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

fn of_gguf(file: GgufFile) -> Result<Tokenizer, Diagnostic> {
    let (_folder, path) = written("m.gguf", &file.bytes());
    Tokenizer::from_gguf(Checkpoint::open(&path)?.gguf().unwrap())
}

/// The letters byte-level BPE writes bytes as: printable Latin-1 stands for itself, the rest are the letters from
/// U+0100 on, in order.
fn byte_letters() -> Vec<String> {
    let own = |b: u32| (0x21..=0x7E).contains(&b) || (0xA1..=0xAC).contains(&b) || (0xAE..=0xFF).contains(&b);
    let mut next = 0x100..;
    (0..256)
        .map(|b| if own(b) { b } else { next.next().unwrap() })
        .map(|c| char::from_u32(c).unwrap().into())
        .collect()
}

const MERGES: [&str; 7] = ["1 2", "12 3", "123 4", "' T", "\u{120} a", "a b", "\u{120}a b"];

/// Byte b has id b; the merges' results follow from 256 on, then `<bos>` 263, `<eos>` 264, ChatML 265 and 266.
fn byte_level(pre: &str) -> GgufFile {
    let merged = MERGES.map(|m| m.replace(' ', ""));
    let special = ["<bos>", "<eos>", "<|im_start|>", "<|im_end|>"].map(String::from);
    let tokens: Vec<String> = byte_letters().into_iter().chain(merged).chain(special).collect();
    let kinds: Vec<i32> = (0..267).map(|i| if i < 263 { 1 } else { 3 }).collect();
    GgufFile::new()
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", pre)
        .strings("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .strings("tokenizer.ggml.merges", &MERGES)
        .u32("tokenizer.ggml.bos_token_id", 263)
        .u32("tokenizer.ggml.eos_token_id", 264)
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[test]
fn each_way_of_cutting_words() {
    // 1234 is a token when the digits form one word; 'T when the apostrophe takes upper case too; the text begins
    // with bos in Llama 3.
    for (pre, digits, contraction, bos) in [
        ("gpt-2", vec![258], vec![39, 84], false),
        ("smollm", vec![49, 50, 51, 52], vec![39, 84], false),
        ("qwen2", vec![49, 50, 51, 52], vec![259], false),
        ("llama-bpe", vec![257, 52], vec![259], true),
    ] {
        let t = of_gguf(byte_level(pre)).unwrap();
        let expect = |text: &str, ids: &[u32]| {
            let bos = bos.then_some(263);
            let expected: Vec<u32> = bos.into_iter().chain(ids.iter().copied()).collect();
            let ids = t.encode(text).unwrap();
            assert_eq!(ids, expected, "{pre}: {text}");
            assert_eq!(t.decode(&ids, false).unwrap(), text, "{pre}");
        };
        expect("1234", &digits);
        expect("X'T", &[&[88][..], &contraction].concat());
        expect("ab ab", &[261, 262]);
        expect("\u{e9}\u{1f642}", &bytes("\u{e9}\u{1f642}"));
        expect("a\n\n b", &bytes("a\n\n b"));
    }
}

#[test]
fn composed_characters() {
    // e and a combining accent: Qwen composes them first, the others do not.
    for (pre, text) in [("qwen2", "\u{e9}"), ("smollm", "e\u{301}")] {
        assert_eq!(of_gguf(byte_level(pre)).unwrap().encode("e\u{301}").unwrap(), bytes(text), "{pre}");
    }
}

#[test]
fn special_tokens_and_chat() {
    let t = of_gguf(byte_level("gpt-2")).unwrap();
    assert_eq!((t.vocab_size(), t.bos(), t.eos()), (267, Some(263), &[264][..]));
    assert_eq!(t.encode("a<eos>").unwrap(), [97, 264]);
    assert_eq!(t.decode(&[97, 264, 98], false).unwrap(), "ab");
    assert_eq!(t.decode(&[97, 264, 98], true).unwrap(), "a<eos>b");
    let expected =
        [&[265], &bytes("user\nHi")[..], &[266], &bytes("\n")[..], &[265], &bytes("assistant\n")[..]];
    assert_eq!(t.encode_chat(None, "Hi").unwrap(), expected.concat());
    let system = [&[265], &bytes("system\nBe")[..], &[266], &bytes("\n")[..]].concat();
    assert!(t.encode_chat(Some("Be"), "Hi").unwrap().starts_with(&system));
    let t = of_gguf(byte_level("gpt-2").bool("tokenizer.ggml.add_bos_token", true)).unwrap();
    assert_eq!(t.encode("a").unwrap(), [263, 97]);
    assert_eq!(t.encode("<bos>a").unwrap(), [263, 97], "bos is not doubled");
    let t = of_gguf(byte_level("llama-bpe").bool("tokenizer.ggml.add_bos_token", false)).unwrap();
    assert_eq!(t.encode("a").unwrap(), [97]);
    let t = of_gguf(byte_level("gpt-2").bool("tokenizer.ggml.add_eos_token", true)).unwrap();
    assert_eq!(t.encode("a").unwrap(), [97, 264]);
}

/// Pieces: 0 `<unk>`, 1 `<s>`, 2 `</s>`, 3..259 the bytes, then the rest with falling scores.
fn sentencepiece() -> GgufFile {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    tokens.extend((0..256).map(|b| format!("<0x{b:02X}>")));
    let rest = ["\u{2581}a", "ab", "abc", "\u{2581}", "a", "b", "c"];
    tokens.extend(rest.map(String::from));
    let kinds: Vec<i32> =
        (0..266).map(|i| [2, 3, 3].get(i).copied().unwrap_or(if i < 259 { 6 } else { 1 })).collect();
    let scores: Vec<f32> = (0..266).map(|i| if i < 259 { 0.0 } else { 258.0 - i as f32 }).collect();
    GgufFile::new()
        .str("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .f32s("tokenizer.ggml.scores", &scores)
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .u32("tokenizer.ggml.unknown_token_id", 0)
}

#[test]
fn sentencepiece_joins_by_score() {
    let t = of_gguf(sentencepiece()).unwrap();
    // The text becomes "_ a b c": "_a" (259) has the best score, then b and c stay apart. Without the a in reach of
    // a space, "ab" (260) and then "abc" (261) are joined.
    assert_eq!(t.encode("abc").unwrap(), [1, 259, 264, 265]);
    assert_eq!(t.encode("cabc").unwrap(), [1, 262, 265, 261]);
    // A letter that is no piece is its bytes.
    assert_eq!(t.encode("\u{e9}").unwrap(), [1, 262, 3 + 0xC3, 3 + 0xA9]);
    for text in ["abc", "cabc a", "\u{e9} \u{1f642}b"] {
        assert_eq!(t.decode(&t.encode(text).unwrap(), false).unwrap(), text);
    }
    let t = of_gguf(sentencepiece().bool("tokenizer.ggml.add_space_prefix", false)).unwrap();
    assert_eq!(t.encode("abc").unwrap(), [1, 261]);
}

#[test]
fn streams_tell_whole_characters_and_keep_spaces() {
    let t = of_gguf(byte_level("gpt-2")).unwrap();
    let mut stream = t.stream_after(&[97]);
    let told: Vec<String> = bytes(" a\u{1f642}b").into_iter().map(|id| stream.push(id).unwrap()).collect();
    assert_eq!(told, [" ", "a", "", "", "", "\u{1f642}", "b"]);
    let mut stream = t.stream_after(&[]);
    assert_eq!((stream.push(0xF0).unwrap(), stream.push(264).unwrap()), (String::new(), String::new()));
    assert_eq!(stream.finish().unwrap(), "\u{FFFD}");
    // Bytes that never become a character are told in the end, a few tokens late.
    let mut stream = t.stream_after(&[]);
    let told: String = (0..100).map(|_| stream.push(0x80).unwrap()).collect();
    assert!(told.chars().count() >= 92 && told.chars().all(|c| c == '\u{FFFD}'), "{told}");
    // SentencePiece drops a space at the beginning of a text, but not of what follows a prompt.
    let t = of_gguf(sentencepiece()).unwrap();
    assert_eq!(t.stream_after(&[1, 259]).push(259).unwrap(), " a");
    assert_eq!(t.stream_after(&[]).push(259).unwrap(), "a");
}

#[test]
fn keys_that_cannot_be_used_are_named() {
    let refused = |file: GgufFile, words: &[&str]| {
        let text = of_gguf(file).unwrap_err().to_string();
        assert!(words.iter().all(|w| text.contains(w)), "{words:?} not in: {text}");
    };
    refused(GgufFile::new(), &["tokenizer.ggml.model", "missing"]);
    refused(GgufFile::new().str("tokenizer.ggml.model", "t5"), &["`t5`", "gpt2"]);
    refused(byte_level("falcon"), &["`falcon`", "smollm"]);
    let start = || GgufFile::new().str("tokenizer.ggml.model", "gpt2").str("tokenizer.ggml.pre", "gpt-2");
    refused(start(), &["tokenizer.ggml.merges", "missing"]);
    let tokens = |t: &[&str]| start().strings("tokenizer.ggml.tokens", t);
    refused(tokens(&["a", "b"]).strings("tokenizer.ggml.merges", &["a b"]), &["`ab`"]);
    refused(tokens(&["a"]).strings("tokenizer.ggml.merges", &["a"]), &["two tokens"]);
    let none: [&str; 0] = [];
    refused(tokens(&["a", "b", "a"]).strings("tokenizer.ggml.merges", &none), &["`a`", "twice"]);
    refused(
        tokens(&["a"]).strings("tokenizer.ggml.merges", &none).i32s("tokenizer.ggml.token_type", &[1, 1]),
        &["token_type", "2 entries for 1"],
    );
    refused(byte_level("gpt-2").u32("tokenizer.ggml.eot_token_id", 267), &["eot_token_id", "267"]);
    let pieces =
        GgufFile::new().str("tokenizer.ggml.model", "llama").strings("tokenizer.ggml.tokens", &["a"]);
    refused(pieces, &["scores", "missing"]);
    let long = "a".repeat(2000);
    let pieces =
        GgufFile::new().str("tokenizer.ggml.model", "llama").strings("tokenizer.ggml.tokens", &[long]);
    refused(pieces.f32s("tokenizer.ggml.scores", &[0.0]), &["too long"]);
}

/// A word-level tokenizer.json that would cut at two tokens and pad.
const JSON: &str = r#"{"version":"1.0","truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0},
"padding":{"strategy":{"Fixed":8},"direction":"Right","pad_to_multiple_of":null,"pad_id":0,"pad_type_id":0,"pad_token":"x"},
"added_tokens":[{"id":2,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
"normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
"model":{"type":"WordLevel","vocab":{"x":0,"y":1,"</s>":2},"unk_token":"x"}}"#;

#[test]
fn folders_give_special_tokens_and_no_truncation() {
    let (folder, path) = written("tokenizer.json", JSON.as_bytes());
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("config.json", r#"{"bos_token_id": 1, "eos_token_id": [2, 0]}"#);
    write("tokenizer_config.json", r#"{"eos_token": {"content": "</s>"}, "bos_token": "y"}"#);
    for from in [folder.path().to_path_buf(), path, folder.path().join("config.json")] {
        let t = Tokenizer::open(&from).unwrap();
        assert_eq!(t.encode("y x y").unwrap(), [1, 0, 1]);
        assert_eq!((t.bos(), t.eos()), (Some(1), &[0, 2][..]));
    }
    let chat = Tokenizer::open(folder.path()).unwrap().encode_chat(None, "x").unwrap_err();
    assert!(chat.what.contains("ChatML"), "{chat}");
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    assert!(Tokenizer::open(&folder.path().join("config.json")).unwrap_err().what.contains("no tokenizer"));
}

#[test]
fn malformed_json_is_an_error() {
    let id = JSON.replace("\"id\":2", "\"id\":4294967295");
    let template = r#"{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"no","type_id":0}}],"pair":[],"special_tokens":{}}"#;
    let template = JSON.replace("\"post_processor\":null", &format!("\"post_processor\":{template}"));
    let prefix =
        r#"{"model":{"type":"BPE","vocab":{"a":0},"merges":[["a","a"]],"continuing_subword_prefix":"__"}}"#;
    // What it says of 4 GiB follows; and a decoder that the crate panics in, on tokens shorter than what it cuts.
    let cut_off = r#""normalizer":{"type":"Sequence","normalizers":[{"type":"Precompiled","precompiled_charsmap":"/////wAAAAA="}]}"#;
    let cut_off = JSON.replace("\"normalizer\":null", cut_off);
    let strip =
        r#""decoder":{"type":"Sequence","decoders":[{"type":"Strip","content":"a","start":0,"stop":1}]}"#;
    let strip = JSON.replace("\"decoder\":null", strip);
    let nothing = r#""decoder":{"type":"Sequence","decoders":[{"type":"CTC","pad_token":"a","word_delimiter_token":"|","cleanup":true},{"type":"BPEDecoder","suffix":"x"}]}"#;
    let nothing = JSON.replace("\"decoder\":null", nothing);
    assert!(cut_off != JSON && strip != JSON && nothing != JSON);
    let deep = "[".repeat(100_000);
    let others = [&id, &template, &cut_off, &strip, &nothing, &deep].map(String::as_str);
    for text in [prefix, "", "{", "[]", "{}", "\u{1}", &JSON[..200]].into_iter().chain(others) {
        let (_folder, path) = written("tokenizer.json", text.as_bytes());
        let refused = Tokenizer::open(&path).unwrap_err();
        assert!(refused.place.is_some(), "{refused}");
    }
}

/// The crate's decoder takes the last of no tokens.
#[test]
fn no_tokens_are_no_text() {
    let bpe = JSON.replace("\"decoder\":null", r#""decoder":{"type":"BPEDecoder","suffix":"x"}"#);
    assert_ne!(bpe, JSON);
    let (_folder, path) = written("tokenizer.json", bpe.as_bytes());
    let tokenizer = Tokenizer::open(&path).unwrap();
    assert_eq!(tokenizer.decode(&[], false).unwrap(), "");
    assert_eq!(tokenizer.decode(&[99_999], false).unwrap(), "");
}

/// Tokens of a stream, pushed one at a time, and what is left at the end.
fn streamed(t: &Tokenizer, ids: &[u32]) -> String {
    let mut stream = t.stream_after(&[]);
    let told: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    told + &stream.finish().unwrap()
}

/// A text may hold U+FFFD, any number of them: they are characters like others, and complete.
#[test]
fn replacement_characters_in_a_text_are_streamed_as_they_are() {
    for file in [byte_level("gpt-2"), sentencepiece()] {
        let t = of_gguf(file).unwrap();
        let known = |text: &str| t.decode(&t.encode(text).unwrap(), false).unwrap();
        for text in [
            "\u{FFFD}\u{0DCA}",
            "\u{FFFD}\u{FFFD}\u{0DCA}",
            "a\u{FFFD}\u{FFFD}\u{FFFD}b\u{1f642}\u{FFFD}\u{e9}",
        ] {
            for text in [text.to_string(), text.repeat(5), "\u{FFFD}".repeat(40) + text] {
                assert_eq!(known(&text), text);
                assert_eq!(streamed(&t, &t.encode(&text).unwrap()), text);
            }
        }
    }
    let t = of_gguf(byte_level("gpt-2")).unwrap();
    let mut stream = t.stream_after(&[]);
    let told: Vec<String> = bytes("\u{FFFD}\u{e9}").into_iter().map(|id| stream.push(id).unwrap()).collect();
    assert_eq!(told, ["", "", "\u{FFFD}", "", "\u{e9}"], "each as soon as it is complete");
}

/// Bytes that are no text, with special tokens and ids of no token among them.
#[test]
fn invalid_bytes_are_streamed_as_they_are_decoded() {
    let t = of_gguf(byte_level("gpt-2")).unwrap();
    let mut state = 7u32;
    for length in (0..60).cycle().take(600) {
        let ids: Vec<u32> = (0..length)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let pick =
                    [0xE0, 0xB7, 0x8A, 0xEF, 0xBF, 0xBD, 0xF0, 0x9F, 0x99, 0x41, 0xFF, 262, 264, 9_999_999];
                pick[state as usize / 65_536 % pick.len()]
            })
            .collect();
        assert_eq!(streamed(&t, &ids), t.decode(&ids, false).unwrap(), "{ids:x?}");
    }
}

/// Tokens without a text are not kept: a stream of them takes no longer for each.
#[test]
fn silent_tokens_are_forgotten() {
    let t = of_gguf(byte_level("gpt-2")).unwrap();
    let ids: Vec<u32> = [97].into_iter().chain(std::iter::repeat_n(264, 200_000)).chain([98]).collect();
    assert_eq!(streamed(&t, &ids), "ab");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any text comes back from its ids, and streaming tells the same text.
    #[test]
    fn any_text_survives(text in "\\PC{0,40}", pre in prop::sample::select(vec!["gpt-2", "smollm", "llama-bpe"])) {
        let t = of_gguf(byte_level(pre)).unwrap();
        let ids = t.encode(&text).unwrap();
        prop_assert_eq!(&t.decode(&ids, true).unwrap().replacen("<bos>", "", usize::from(pre == "llama-bpe")), &text);
        prop_assert_eq!(streamed(&t, &ids), t.decode(&ids, false).unwrap());
    }
}
