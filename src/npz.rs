//! NumPy .npz files as maps of host tensors.

use npyz::npz::{NpzArchive, NpzWriter};
use npyz::zip::write::FileOptions;
use npyz::zip::{CompressionMethod, DateTime};
use npyz::{DType, Deserialize, NpyFile, Order, TypeChar, WriterBuilder};
use pcc_ir::Diagnostic;
use pcc_runtime::{HostData, HostTensor};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Most elements one array may have: 2^31.
const MAX_ELEMENTS: u64 = 1 << 31;

/// Reads every array of the file.
///
/// # Errors
/// A file that cannot be read, or an array that is damaged or of a type pcc does not take.
pub fn read(path: &Path) -> Result<BTreeMap<String, HostTensor>, Diagnostic> {
    let file = path.display().to_string();
    let damaged =
        |e: std::io::Error| Diagnostic::input("cannot read the .npz file").at(&file).why(e.to_string());
    // A pipe cannot be read from its end, where the list of arrays is; and opening one can block for ever.
    if !std::fs::metadata(path).map_err(damaged)?.is_file() {
        return Err(damaged(std::io::Error::other("it is not a regular file")));
    }
    let mut archive = NpzArchive::open(path).map_err(damaged)?;
    let names: Vec<String> = archive.array_names().map(str::to_owned).collect();
    let mut out = BTreeMap::new();
    for name in names {
        let place = format!("array `{name}` of {file}");
        let array = archive.by_name(&name).map_err(|e| damaged(e).at(&place))?;
        let array = array.ok_or_else(|| Diagnostic::input("an array has gone").at(&place))?;
        out.insert(name, read_array(array).map_err(|d| d.at(&place))?);
    }
    Ok(out)
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

/// Writes arrays to a file of this name, aside first and then renamed.
///
/// # Errors
/// The file cannot be written (fault: run).
pub fn write(path: &Path, arrays: &BTreeMap<String, HostTensor>) -> Result<(), Diagnostic> {
    crate::artifact_output::write_aside(path, |aside| {
        let file = File::create(aside)?;
        let mut npz = NpzWriter::new(BufWriter::new(FailsOnce { file, failed: false }));
        for (name, tensor) in arrays {
            match &tensor.data {
                HostData::F32(v) => add(&mut npz, name, &tensor.shape, v)?,
                HostData::F64(v) => add(&mut npz, name, &tensor.shape, v)?,
                HostData::I32(v) => add(&mut npz, name, &tensor.shape, v)?,
                HostData::I64(v) => add(&mut npz, name, &tensor.shape, v)?,
                HostData::Bool(v) => add(&mut npz, name, &tensor.shape, v)?,
            }
        }
        let file = npz.zip_writer().finish().map_err(std::io::Error::from)?;
        let FailsOnce { file, failed } = file.into_inner().map_err(|e| e.into_error())?;
        if failed { Err(std::io::Error::other("a write failed")) } else { file.sync_all() }
    })
}

/// A file that reports its first failed write and ignores all that follow: the zip writer tries once more when it is dropped,
/// and would print what it then meets.
struct FailsOnce {
    file: File,
    failed: bool,
}

impl Write for FailsOnce {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.failed {
            return Ok(bytes.len());
        }
        let written = self.file.write(bytes);
        self.failed = written.as_ref().is_err_and(|e| e.kind() != std::io::ErrorKind::Interrupted);
        written
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

impl Seek for FailsOnce {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.file.seek(to)
    }
}

fn add<T, W>(npz: &mut NpzWriter<W>, name: &str, shape: &[usize], data: &[T]) -> std::io::Result<()>
where
    T: npyz::AutoSerialize + Clone,
    W: std::io::Write + std::io::Seek,
{
    let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
    // Stored with a fixed date: equal arrays give equal files.
    let options = FileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(DateTime::default())
        .large_file(true);
    let mut writer = npz.array(name, options)?.default_dtype().shape(&shape).begin_nd()?;
    writer.extend(data.iter())?;
    writer.finish()
}
