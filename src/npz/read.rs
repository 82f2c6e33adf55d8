//! Reading: files that somebody else may have written.

use npyz::npz::array_name_from_file_name;
use npyz::zip::ZipArchive;
use npyz::{DType, Deserialize, NpyFile, Order, TypeChar};
use pcc_ir::Diagnostic;
use pcc_runtime::{HostData, HostTensor};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::path::Path;

/// Most elements one array may have: 2^31.
const MAX_ELEMENTS: u64 = 1 << 31;
/// Longest header of an array, bytes; NumPy reads no longer one either.
const MAX_HEADER: u64 = 10_000;
/// Deepest nesting in a header; plain arrays have 2.
const MAX_DEPTH: usize = 16;

/// Reads every array of the file.
///
/// # Errors
/// A file that cannot be read, or an array that is damaged or of a type pcc does not take.
pub fn read(path: &Path) -> Result<BTreeMap<String, HostTensor>, Diagnostic> {
    let file = path.display().to_string();
    let damaged = |e: std::io::Error| {
        Diagnostic::input("cannot read the .npz file")
            .at(&file)
            .why(e.to_string())
            .help("it holds an array an input, by name: `numpy.savez(\"in.npz\", tokens=tokens)` writes one")
    };
    // A pipe cannot be read from its end, where the list of arrays is; and opening one can block for ever.
    if !std::fs::metadata(path).map_err(damaged)?.is_file() {
        return Err(damaged(std::io::Error::other("it is not a regular file")));
    }
    let opened = File::open(path).map(BufReader::new).map_err(damaged)?;
    let mut archive = ZipArchive::new(opened).map_err(|e| damaged(e.into()))?;
    let files: Vec<String> = archive.file_names().map(str::to_owned).collect();
    let mut out = BTreeMap::new();
    for (file_name, name) in files.iter().filter_map(|f| Some((f, array_name_from_file_name(f)?))) {
        let place = format!("array `{name}` of {file}");
        let unreadable = |e: std::io::Error| damaged(e).at(&place);
        let mut stored = archive.by_name(file_name).map_err(|e| unreadable(e.into()))?;
        let header = header(&mut stored).map_err(unreadable)?;
        let array = NpyFile::new(Cursor::new(header).chain(stored)).map_err(unreadable)?;
        out.insert(name.to_owned(), read_array(array).map_err(|d| d.at(&place))?);
    }
    Ok(out)
}

/// The bytes of an array before its elements. The library would allocate what they say of their length, and follow any nesting.
fn header(from: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(8).read_to_end(&mut bytes)?;
    let width = if bytes.get(6) == Some(&1) { 2 } else { 4 };
    let mut length = [0; 8];
    from.read_exact(&mut length[..width])?;
    bytes.extend(&length[..width]);
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER {
        let why = format!("the header of an array has {length} bytes; at most {MAX_HEADER} are read");
        return Err(std::io::Error::other(why));
    }
    let start = bytes.len();
    from.take(length).read_to_end(&mut bytes)?;
    let mut depth = 0usize;
    for byte in &bytes[start..] {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(std::io::Error::other(format!(
                "the header of an array nests deeper than {MAX_DEPTH}"
            )));
        }
    }
    Ok(bytes)
}

fn read_array<R: Read>(array: NpyFile<R>) -> Result<HostTensor, Diagnostic> {
    if array.order() != Order::C && array.shape().len() > 1 {
        return Err(Diagnostic::input("an array in Fortran order").help("save numpy.ascontiguousarray(x)"));
    }
    let mut elements: u64 = 1;
    for &n in array.shape() {
        elements = elements.checked_mul(n).filter(|&n| n <= MAX_ELEMENTS).ok_or_else(|| {
            Diagnostic::input(format!("an array of shape {:?} is too large", array.shape()))
        })?;
    }
    let shape: Vec<usize> = array.shape().iter().map(|&n| n as usize).collect();
    let DType::Plain(ty) = array.dtype() else {
        return Err(Diagnostic::input("a structured array").help("save plain f32, i32 or i64 arrays"));
    };
    let text = ty.to_string();
    let data = match (ty.type_char(), ty.num_bytes()) {
        (TypeChar::Float, Some(4)) => HostData::F32(elements_of(array, elements)?),
        (TypeChar::Float, Some(8)) => HostData::F64(elements_of(array, elements)?),
        (TypeChar::Int, Some(4)) => HostData::I32(elements_of(array, elements)?),
        (TypeChar::Int, Some(8)) => HostData::I64(elements_of(array, elements)?),
        (TypeChar::Bool, _) => HostData::Bool(elements_of(array, elements)?),
        _ => {
            return Err(Diagnostic::input(format!("an array of NumPy type `{text}`"))
                .help("float32, float64, int32, int64 and bool arrays are taken"));
        }
    };
    Ok(HostTensor { shape, data })
}

/// Reads element by element: a file shorter than its header says ends with an error, not with a huge allocation.
fn elements_of<T: Deserialize, R: Read>(array: NpyFile<R>, elements: u64) -> Result<Vec<T>, Diagnostic> {
    let mut out = Vec::with_capacity(elements.min(1 << 20) as usize);
    let reader =
        array.data::<T>().map_err(|e| Diagnostic::input("an array cannot be read").why(e.to_string()))?;
    for x in reader {
        out.push(x.map_err(|e| Diagnostic::input("an array ends early").why(e.to_string()))?);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The start of an array's file: version, and a header that says it has `length` bytes.
    fn start(version: u8, length: u32, text: &[u8]) -> Vec<u8> {
        let width = if version == 1 { 2 } else { 4 };
        [b"\x93NUMPY", &[version, 0][..], &length.to_le_bytes()[..width], text].concat()
    }

    #[test]
    fn a_header_of_a_plain_array_is_taken_whole() {
        let text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";
        for version in [1, 2, 3] {
            let bytes = start(version, text.len() as u32, text);
            let file = [&bytes[..], &[7; 8]].concat();
            assert_eq!(header(&mut &file[..]).unwrap(), bytes);
        }
    }

    #[test]
    fn a_header_that_lies_about_its_length_takes_no_memory() {
        let why = header(&mut &start(2, u32::MAX, b"{}")[..]).unwrap_err().to_string();
        assert!(why.contains("4294967295 bytes"), "{why}");
        let why = header(&mut &start(2, 5000, &[b'('; 5000])[..]).unwrap_err().to_string();
        assert!(why.contains("nests deeper"), "{why}");
        assert!(header(&mut &b"\x93NUM"[..]).is_err());
    }
}
