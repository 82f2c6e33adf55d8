//! The header of a safetensors file.
//!
//! Format: u64 header length n, n bytes of JSON `{name: {dtype, shape, data_offsets: [begin, end]}}` with an
//! optional `__metadata__`, then the values. Read here rather than by the `safetensors` crate, which drops all but the last
//! of two tensors with one name, refuses a whole file for one unknown dtype, and does not bound ranks.

use super::{ElementType, MAX_RANK, Stored, bad_file};
use pcc_ir::Diagnostic;
use pcc_ir::source::element_count;
use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::path::Path;

/// The format's own limit of a header.
const MAX_HEADER: usize = 100_000_000;

/// Reads and checks the header of a mapped file.
pub(super) fn read_header(path: &Path, file: &[u8]) -> Result<Vec<Stored>, Diagnostic> {
    let bad = |why: String| bad_file(path, why);
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(bad(format!("{} bytes are too few for a safetensors file", file.len())));
    };
    let length = u64::from_le_bytes(*length);
    let header = usize::try_from(length).ok().filter(|&n| n <= MAX_HEADER).and_then(|n| rest.get(..n));
    let Some(header) = header else {
        return Err(bad(format!(
            "its header claims {length} bytes, but the file has {} after the length and the format allows \
             {MAX_HEADER}; is it a safetensors or GGUF file, and complete?",
            rest.len()
        )));
    };
    let text = std::str::from_utf8(header).map_err(|e| bad(format!("its header is not UTF-8: {e}")))?;
    let entries: Header = serde_json::from_str(text).map_err(|e| bad(format!("its header is wrong: {e}")))?;
    let (start, values) = (8 + header.len(), rest.len() - header.len());
    let mut tensors = Vec::with_capacity(entries.0.len());
    for (name, entry) in entries.0 {
        let [begin, end] = entry.data_offsets;
        let place = |why: String| bad_file(path, why).at(format!("{}, tensor `{name}`", path.display()));
        let element = element_type(&entry.dtype);
        if element_count(&entry.shape.0).is_none() {
            return Err(place(format!("its shape {:?} has a zero dim or overflows", entry.shape.0)));
        }
        if begin > end || end > values {
            return Err(place(format!("its bytes {begin}..{end} are outside the {values} bytes of values")));
        }
        // An unknown dtype has no known size; it is refused when the tensor is used.
        if element.block().is_some() {
            let needed = element.bytes(&entry.shape.0).map_err(place)?;
            if needed != end - begin {
                let shape = entry.shape.0;
                return Err(place(format!(
                    "{element} of shape {shape:?} takes {needed} bytes, but bytes {begin}..{end} are given"
                )));
            }
        }
        tensors.push(Stored { name, element, shape: entry.shape.0, bytes: start + begin..start + end });
    }
    check_cover(path, &mut tensors, start..file.len())?;
    Ok(tensors)
}

/// The values must be covered without overlap or hole, as the format demands.
fn check_cover(path: &Path, tensors: &mut [Stored], values: Range<usize>) -> Result<(), Diagnostic> {
    tensors.sort_by_key(|t| (t.bytes.start, t.bytes.end));
    let (mut reached, mut before) = (values.start, "the header");
    for t in tensors.iter() {
        if t.bytes.start != reached {
            let kind = if t.bytes.start < reached { "overlaps" } else { "leaves a hole after" };
            return Err(bad_file(path, format!("tensor `{}` {kind} {before}", t.name)));
        }
        (reached, before) = (t.bytes.end, &t.name);
    }
    if reached != values.end {
        let extra = values.end - reached;
        return Err(bad_file(path, format!("{extra} bytes after the last tensor belong to none")));
    }
    Ok(())
}

fn element_type(dtype: &str) -> ElementType {
    let other = |name: &'static str, bytes| ElementType::Other { name: name.into(), block: Some((1, bytes)) };
    match dtype {
        "F32" => ElementType::F32,
        "F16" => ElementType::F16,
        "BF16" => ElementType::BF16,
        "F64" => other("F64", 8),
        "I64" => other("I64", 8),
        "U64" => other("U64", 8),
        "I32" => other("I32", 4),
        "U32" => other("U32", 4),
        "I16" => other("I16", 2),
        "U16" => other("U16", 2),
        "I8" => other("I8", 1),
        "U8" => other("U8", 1),
        "BOOL" => other("BOOL", 1),
        "F8_E4M3" => other("F8_E4M3", 1),
        "F8_E5M2" => other("F8_E5M2", 1),
        _ => ElementType::Other { name: dtype.to_string().into(), block: None },
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorEntry {
    dtype: String,
    shape: Shape,
    data_offsets: [usize; 2],
}

/// A shape of bounded rank, so that a header of millions of dims is refused before it is stored.
struct Shape(Vec<usize>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Dims;
        impl<'de> Visitor<'de> for Dims {
            type Value = Shape;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MAX_RANK} dims")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut dims = Vec::new();
                while let Some(d) = seq.next_element()? {
                    if dims.len() == MAX_RANK {
                        return Err(A::Error::invalid_length(MAX_RANK + 1, &self));
                    }
                    dims.push(d);
                }
                Ok(Shape(dims))
            }
        }
        d.deserialize_seq(Dims)
    }
}

/// The header's tensors; a name listed twice is an error, which a map type would hide.
struct Header(Vec<(String, TensorEntry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let (mut entries, mut seen) = (Vec::new(), HashSet::new());
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format!("`{name}` is listed twice")));
                    }
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Header(entries))
            }
        }
        d.deserialize_map(Entries)
    }
}
