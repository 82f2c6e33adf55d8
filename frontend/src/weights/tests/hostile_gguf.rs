//! GGUF files that lie.

use super::{Folder, open, refusal};
use crate::weights::Checkpoint;
use crate::weights::gguf::written::{GgufFile, f32_bytes, string};
use proptest::prelude::*;

fn refused(file: &GgufFile, words: &[&str]) {
    let text = refusal("m.gguf", &file.bytes());
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

fn with(change: impl FnOnce(&mut GgufFile)) -> GgufFile {
    let mut file = GgufFile::of("llama").tensor("t", &[2], 0, &f32_bytes([1.0, 2.0]));
    change(&mut file);
    file
}

#[test]
fn counts() {
    for count in [2, 1 << 20, 1 << 40, u64::MAX] {
        refused(&with(|f| f.tensor_count = Some(count)), &["tensor"]);
        let text = refusal("m.gguf", &with(|f| f.key_count = Some(count)).bytes());
        assert!(!text.is_empty());
    }
    refused(&with(|f| f.version = 1), &["version 1", "2 and 3"]);
    refused(&with(|f| f.version = 3u32.swap_bytes()), &["big-endian"]);
}

#[test]
fn keys() {
    let huge = u64::MAX.to_le_bytes();
    let of = |kind: u32, value: &[u8]| GgufFile::new().key("k", kind, value);
    refused(&of(13, &[0; 8]), &["`k`", "type 13"]);
    refused(&of(8, &huge), &["`k`", "18446744073709551615"]);
    refused(&of(8, &string([0xFF, 0xFE])), &["UTF-8"]);
    refused(&of(7, &[2]), &["bool"]);
    refused(&of(10, &huge), &["beyond"]);
    refused(&of(9, &[&4u32.to_le_bytes()[..], &huge].concat()), &["array", "elements"]);
    refused(&of(9, &[&99u32.to_le_bytes()[..], &huge].concat()), &["element type 99"]);
    refused(&GgufFile::new().key([0xC3, 0x28], 4, &[0; 4]), &["UTF-8"]);
    refused(&GgufFile::new().u32("k", 1).u32("k", 1), &["`k`", "twice"]);
}

#[test]
fn deep_and_long_arrays() {
    // A hundred arrays, each the only element of the one before.
    let level = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
    refused(&GgufFile::new().key("k", 9, &level.repeat(100)), &["nested"]);
    let many = vec![0u8; (4 << 20) + 1];
    let head = [&0u32.to_le_bytes()[..], &(many.len() as u64).to_le_bytes()].concat();
    refused(&GgufFile::new().key("k", 9, &[head, many].concat()), &["limit"]);
}

#[test]
fn alignment() {
    for alignment in [0, 3, 48, u32::MAX] {
        refused(&with(|_| ()).u32("general.alignment", alignment), &["general.alignment", "power of two"]);
    }
    refused(&with(|_| ()).str("general.alignment", "32"), &["general.alignment", "a string"]);
}

#[test]
fn tensors() {
    let record = |dims: &[u64], kind, offset| GgufFile::new().record("t", dims, kind, offset);
    refused(&record(&[1; 5], 0, 0), &["`t`", "rank 5"]);
    refused(&record(&[0, 3], 0, 0), &["`t`", "zero dim"]);
    refused(&record(&[u64::MAX, u64::MAX], 0, 0), &["`t`", "overflows"]);
    refused(&record(&[1 << 32, 1 << 32], 0, 0), &["`t`", "overflows"]);
    refused(&record(&[1 << 57], 0, 0), &["`t`", "beyond the file"]);
    refused(&record(&[31], 8, 0), &["`t`", "whole blocks of 32"]);
    refused(&record(&[32, 8], 12, 0), &["`t`", "whole blocks of 256"]);
    refused(&record(&[256, 1 << 40], 14, 0), &["`t`", "beyond the file"]);
    refused(&record(&[1 << 31, 1 << 31], 14, 0), &["`t`", "overflows"]);
    refused(&GgufFile::new().tensor("t", &[256], 13, &[0; 175]), &["`t`", "beyond the file"]);
    refused(&record(&[2], 0, u64::MAX), &["`t`", "outside the file"]);
    refused(&record(&[2], 0, 1 << 20), &["`t`", "outside the file"]);
    refused(&GgufFile::new().record([0xFF], &[2], 0, 0), &["UTF-8"]);
    let two = || GgufFile::new().tensor("a", &[8], 0, &[0; 32]).tensor("b", &[24], 0, &[0; 96]);
    refused(&two().record("a", &[8], 0, 0), &["`a`", "twice"]);
    refused(&two().record("c", &[8], 0, 0), &["overlaps"]);
    refused(&two().record("c", &[8], 0, 33), &["multiple of the alignment"]);
    refused(&GgufFile::new().record("c", &[8], 0, 32).tensor("d", &[8], 0, &[0; 32]), &["`c`"]);
    let hole = GgufFile::new().tensor("a", &[8], 0, &[0; 96]).record("c", &[8], 0, 64);
    refused(&hole, &["`c`", "hole after `a`"]);
}

#[test]
fn every_truncation_is_refused() {
    let whole = with(|_| ()).u32("x", 1).strings("s", &["a", "b"]).bytes();
    assert!(open("m.gguf", &whole).is_ok());
    for n in 0..whole.len() {
        assert!(open("m.gguf", &whole[..n]).is_err(), "{n} of {}", whole.len());
    }
}

#[test]
fn a_file_that_shrinks_after_opening_is_an_error() {
    let folder = Folder::new();
    let path = folder.write("m.gguf", &with(|_| ()).bytes());
    let c = Checkpoint::open(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(40).unwrap();
    let mut out = [0.0; 2];
    let refused = c.read_f32("t", std::slice::from_ref(&(0..2)), &mut out).unwrap_err();
    assert!(refused.what.contains("truncated"), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Any bytes changed anywhere: an error or a readable file, never a panic.
    #[test]
    fn edited_bytes(edits in prop::collection::vec((any::<u16>(), any::<u8>()), 1..6)) {
        let mut bytes = with(|_| ()).u32("llama.attention.head_count", 1).strings("s", &["a", "b"]).bytes();
        for (at, value) in edits {
            let at = at as usize % bytes.len();
            bytes[at] = value;
        }
        if let Ok(c) = open("m.gguf", &bytes) {
            for t in c.tensors() {
                let slice: Vec<_> = t.shape.iter().map(|_| 0..1).collect();
                let _ = c.read_f32(t.name, &slice, &mut [0.0]);
            }
        }
    }
}
