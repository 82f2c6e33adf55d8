//! NumPy .npz files as maps of host tensors.

mod read;

pub use read::read;

use npyz::WriterBuilder;
use npyz::npz::NpzWriter;
use npyz::zip::write::FileOptions;
use npyz::zip::{CompressionMethod, DateTime};
use pcc_ir::Diagnostic;
use pcc_runtime::{HostData, HostTensor};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

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
