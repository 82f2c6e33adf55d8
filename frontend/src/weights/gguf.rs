//! GGUF files, versions 2 and 3, little-endian.
//!
//! Layout: `GGUF`, u32 version, u64 tensor count, u64 key count, the keys ([`GgufMeta`]), the tensor records
//! (name, u32 rank, u64 dims innermost first, u32 type, u64 offset), padding to `general.alignment` (32 if
//! absent), then the values; each tensor's offset is from there and a multiple of the alignment.
//! Source: the GGUF specification in the ggml repository, docs/gguf.md.

mod cursor;
mod meta;
pub mod names;
#[cfg(test)]
pub(crate) mod written;

pub use meta::{GgufMeta, GgufValue};

use super::{ElementType, Quantised, Stored, bad_file};
use cursor::Cursor;
use pcc_ir::Diagnostic;
use pcc_ir::source::element_count;
use std::collections::HashSet;
use std::path::Path;

/// Greatest rank of the format.
const MAX_RANK: usize = 4;
/// Keys and records of the largest vocabularies take some 20 MB; a sparse file could claim any length.
const MAX_HEADER: usize = 128 << 20;
/// Bytes of the shortest key (length, one letter, type, one byte) and tensor record (length, letter, rank, type, offset).
const MIN_KEY: usize = 8 + 1 + 4 + 1;
const MIN_RECORD: usize = 8 + 1 + 4 + 4 + 8;

/// Whether a file starts as GGUF does.
pub(super) fn is_gguf(file: &[u8]) -> bool {
    file.starts_with(b"GGUF")
}

/// Reads and checks everything before the values.
pub(super) fn read_header(path: &Path, file: &[u8]) -> Result<(GgufMeta, Vec<Stored>), Diagnostic> {
    let head = file.get(..MAX_HEADER).unwrap_or(file);
    let bad = |why: String| bad_file(path, why);
    let mut at = Cursor::new(head);
    at.take(4).map_err(bad)?;
    let version = at.u32().map_err(bad)?;
    if !(2..=3).contains(&version) {
        let big = if (2..=3).contains(&version.swap_bytes()) { " (it is big-endian)" } else { "" };
        return Err(bad(format!("GGUF version {version}{big} is not supported; versions 2 and 3 are")));
    }
    let tensors = at.count("tensors").map_err(bad)?;
    let keys = at.count("keys").map_err(bad)?;
    // The counts must fit what is left before anything is reserved for them.
    let needed =
        tensors.checked_mul(MIN_RECORD).zip(keys.checked_mul(MIN_KEY)).and_then(|(t, k)| t.checked_add(k));
    if needed.is_none_or(|n| n > at.left()) {
        let left = at.left();
        return Err(bad(format!(
            "it claims {tensors} tensors and {keys} keys, but only {left} bytes follow"
        )));
    }
    let meta = GgufMeta::read(&mut at, keys, path).map_err(bad)?;
    let alignment = alignment(&meta)?;
    let mut records = Vec::with_capacity(tensors);
    let mut seen = HashSet::with_capacity(tensors);
    for _ in 0..tensors {
        let record = read_record(&mut at).map_err(bad)?;
        if !seen.insert(record.name.clone()) {
            return Err(bad(format!("tensor `{}` is listed twice", record.name)));
        }
        records.push(record);
    }
    let values = at.position().next_multiple_of(alignment);
    let stored = place_tensors(records, values, alignment, file.len()).map_err(bad)?;
    Ok((meta, stored))
}

fn alignment(meta: &GgufMeta) -> Result<usize, Diagnostic> {
    match meta.uint("general.alignment")? {
        None => Ok(32),
        Some(n) if n.is_power_of_two() && n <= 1 << 20 => Ok(n as usize),
        Some(n) => Err(meta.wrong("general.alignment", format!("{n} is not a power of two up to 1048576"))),
    }
}

/// A tensor record before its place is checked.
struct Record {
    name: String,
    element: ElementType,
    shape: Vec<usize>,
    offset: u64,
}

fn read_record(at: &mut Cursor) -> Result<Record, String> {
    let name = at.name("a tensor's name")?;
    let of = |why: String| format!("tensor `{name}`: {why}");
    let rank = at.u32().map_err(of)? as usize;
    if rank > MAX_RANK {
        return Err(of(format!("rank {rank} is beyond the format's {MAX_RANK}")));
    }
    let mut shape = Vec::with_capacity(rank);
    for _ in 0..rank {
        let dim = at.u64().map_err(of)?;
        shape.push(usize::try_from(dim).map_err(|_| of(format!("a dim of {dim} overflows")))?);
    }
    shape.reverse();
    if element_count(&shape).is_none() {
        return Err(of(format!("its shape {shape:?} has a zero dim or overflows")));
    }
    let element = element_type(at.u32().map_err(of)?);
    let offset = at.u64().map_err(of)?;
    Ok(Record { name, element, shape, offset })
}

/// Checks that every tensor lies aligned inside the file and that, in file order, each starts where the one before
/// it ends, padded to the alignment.
fn place_tensors(
    mut records: Vec<Record>,
    values: usize,
    alignment: usize,
    file: usize,
) -> Result<Vec<Stored>, String> {
    records.sort_by_key(|r| r.offset);
    let mut stored = Vec::with_capacity(records.len());
    // Where the next tensor must start, and after what. Unknown after a tensor of unknown size.
    let mut expected = Some(values);
    let mut before = "the header".to_string();
    for r in records {
        let of = |why: String| format!("tensor `{}`: {why}", r.name);
        let start = usize::try_from(r.offset).ok().and_then(|o| o.checked_add(values));
        let Some(start) = start.filter(|&s| s <= file) else {
            return Err(of(format!("its offset {} is outside the file of {file} bytes", r.offset)));
        };
        if !start.is_multiple_of(alignment) {
            return Err(of(format!(
                "its offset {} is not a multiple of the alignment {alignment}",
                r.offset
            )));
        }
        match expected {
            Some(e) if start < e => return Err(of(format!("it overlaps {before}"))),
            Some(e) if start > e => return Err(of(format!("it leaves a hole after {before}"))),
            _ => {}
        }
        let end = match r.element.block() {
            None => start,
            Some(_) => {
                let bytes = r.element.bytes(&r.shape).map_err(of)?;
                let end = start.checked_add(bytes).filter(|&e| e <= file);
                end.ok_or_else(|| {
                    of(format!(
                        "its {bytes} bytes at {start} reach beyond the file of {file}; is it complete?"
                    ))
                })?
            }
        };
        expected = r.element.block().map(|_| end.next_multiple_of(alignment));
        before = format!("`{}`", r.name);
        stored.push(Stored { name: r.name, element: r.element, shape: r.shape, bytes: start..end });
    }
    Ok(stored)
}

/// Types by number, with elements and bytes of a block; those not decoded are known by name and size so that the
/// tensors after them can be placed.
fn element_type(number: u32) -> ElementType {
    let other = |name: &'static str, elements, bytes| ElementType::Other {
        name: name.into(),
        block: Some((elements, bytes)),
    };
    match number {
        0 => ElementType::F32,
        1 => ElementType::F16,
        2 => ElementType::Quantised(Quantised::Q4_0),
        3 => ElementType::Quantised(Quantised::Q4_1),
        6 => ElementType::Quantised(Quantised::Q5_0),
        7 => ElementType::Quantised(Quantised::Q5_1),
        8 => ElementType::Quantised(Quantised::Q8_0),
        9 => other("Q8_1", 32, 36),
        10 => ElementType::Quantised(Quantised::Q2_K),
        11 => ElementType::Quantised(Quantised::Q3_K),
        12 => ElementType::Quantised(Quantised::Q4_K),
        13 => ElementType::Quantised(Quantised::Q5_K),
        14 => ElementType::Quantised(Quantised::Q6_K),
        15 => ElementType::Quantised(Quantised::Q8_K),
        16 => other("IQ2_XXS", 256, 66),
        17 => other("IQ2_XS", 256, 74),
        18 => other("IQ3_XXS", 256, 98),
        19 => other("IQ1_S", 256, 50),
        20 => other("IQ4_NL", 32, 18),
        21 => other("IQ3_S", 256, 110),
        22 => other("IQ2_S", 256, 82),
        23 => other("IQ4_XS", 256, 136),
        24 => other("I8", 1, 1),
        25 => other("I16", 1, 2),
        26 => other("I32", 1, 4),
        27 => other("I64", 1, 8),
        28 => other("F64", 1, 8),
        29 => other("IQ1_M", 256, 56),
        30 => ElementType::BF16,
        34 => other("TQ1_0", 256, 54),
        35 => other("TQ2_0", 256, 66),
        39 => other("MXFP4", 32, 17),
        _ => ElementType::Other { name: format!("GGUF type {number}").into(), block: None },
    }
}
