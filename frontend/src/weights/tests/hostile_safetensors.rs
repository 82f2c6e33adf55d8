//! Safetensors files that lie.

use super::{open, refusal};
use proptest::prelude::*;

fn file(header: &str, values: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; values]].concat()
}

/// One tensor entry.
fn entry(name: &str, shape: &str, begin: usize, end: usize) -> String {
    format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

fn refused(header: &str, values: usize, word: &str) {
    let text = refusal("m.safetensors", &file(header, values));
    assert!(text.contains(word), "`{word}` is not in: {text}");
}

#[test]
fn header_lengths() {
    for length in [3u64, 100_000_001, 1 << 40, u64::MAX] {
        let text = refusal("m.safetensors", &[&length.to_le_bytes()[..], b"{}"].concat());
        assert!(text.contains(&length.to_string()), "{text}");
    }
    assert!(refusal("m.safetensors", b"").contains("empty"));
    assert!(refusal("m.safetensors", b"1234567").contains("7 bytes"));
    assert!(refusal("m.safetensors", &[&1u64.to_le_bytes()[..], &[0xFF]].concat()).contains("UTF-8"));
}

#[test]
fn header_documents() {
    for (header, word) in [
        ("", "wrong"),
        ("[]", "an object of tensors"),
        (r#"{"w":3}"#, "wrong"),
        (r#"{"w":{"dtype":"F32","shape":[1]}}"#, "data_offsets"),
        (r#"{"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, "wrong"),
        (r#"{"w":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}}"#, "wrong"),
        (r#"{"w":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]}}"#, "wrong"),
        (r#"{"w":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}"#, "at most 8 dims"),
        (r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}}"#, "more"),
    ] {
        refused(header, 4, word);
    }
    refused(&format!("{{{},{}}}", entry("w", "[1]", 0, 4), entry("w", "[1]", 0, 4)), 4, "twice");
    refused(&format!(r#"{{"__metadata__":{}}}"#, "[".repeat(10_000)), 0, "wrong");
}

#[test]
fn offsets() {
    let one = |shape, begin, end| format!("{{{}}}", entry("w", shape, begin, end));
    refused(&one("[1]", 0, 8), 4, "outside");
    refused(&one("[1]", 4, 0), 4, "outside");
    refused(&one("[1]", 0, usize::MAX), 4, "outside");
    refused(&one("[2]", 0, 4), 4, "takes 8 bytes");
    refused(&one("[0]", 0, 0), 0, "zero dim");
    refused(&one("[4294967296,4294967296]", 0, 4), 4, "overflows");
    refused(&one("[9223372036854775807]", 0, 4), 4, "overflows");
    refused(&one("[1]", 4, 8), 8, "hole after the header");
    refused(&one("[1]", 0, 4), 8, "4 bytes after the last tensor");
    let two = |b, e| format!("{{{},{}}}", entry("a", "[2]", 0, 8), entry("b", "[1]", b, e));
    refused(&two(4, 8), 8, "`b` overlaps a");
    refused(&two(12, 16), 16, "`b` leaves a hole after a");
    assert!(open("m.safetensors", &file(&two(8, 12), 12)).is_ok());
}

#[test]
fn an_unknown_dtype_matters_only_when_used() {
    let odd = r#"{"w":{"dtype":"Q3","shape":[5],"data_offsets":[0,3]}}"#;
    let c = open("m.safetensors", &file(odd, 3)).unwrap();
    let refused = c.read_f32("w", std::slice::from_ref(&(0..1)), &mut [0.0]).unwrap_err().to_string();
    assert!(refused.contains("Q3"), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Any bytes changed anywhere: an error or a readable file, never a panic.
    #[test]
    fn edited_bytes(edits in prop::collection::vec((any::<u16>(), any::<u8>()), 1..5)) {
        let header = format!("{{{},{}}}", entry("a", "[2]", 0, 8), entry("b", "[1,1]", 8, 12));
        let mut bytes = file(&header, 12);
        for (at, value) in edits {
            let at = at as usize % bytes.len();
            bytes[at] = value;
        }
        if let Ok(c) = open("m.safetensors", &bytes) {
            for t in c.tensors() {
                let slice: Vec<_> = t.shape.iter().map(|_| 0..1).collect();
                let _ = c.read_f32(t.name, &slice, &mut [0.0]);
            }
        }
    }
}
