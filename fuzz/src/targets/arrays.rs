//! Inputs of `pcc run`: a .npz file, read and given to a small model.

use super::execute::{open, run_given};
use super::{accept, modules};
use crate::scratch;
use pcc_frontend::{LoadOptions, load};
use pcc_ir::Mesh;
use pcc_ir::program::{BatchPlan, Program};
use pcc_passes::driver::{Options, compile};
use std::sync::OnceLock;

#[path = "../../../src/npz/read.rs"]
mod read;

/// A .npz file; or else one array of one, whose checksum the archive then has right.
pub fn npz(data: &[u8]) {
    let bytes = if data.starts_with(b"PK") { data.to_vec() } else { archive("x", data) };
    let path = scratch::file("npz/in.npz", &bytes);
    let Some(arrays) = accept("read", read::read(&path)) else { return };
    for array in arrays.values() {
        assert_eq!(array.shape.iter().product::<usize>(), array.data.len(), "an array of another size");
    }
    run_given(&mut open(program().clone()), &arrays);
}

/// The example, over two devices of two stages.
fn program() -> &'static Program {
    static PROGRAM: OnceLock<Program> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let path = scratch::file("npz/mlp.json", include_bytes!("../../../examples/mlp.json"));
        let options = LoadOptions { batch_rows: 8, seq: None, weights: None, seed: 0 };
        let model = super::demand("the example", load(&path, &options));
        let mesh = Mesh { tp: 2, ..Mesh::default() };
        let batch = BatchPlan { batch: 8, replicas: 1, micro_batches: 1 };
        let options: Options = modules::options(mesh, false, batch, model.info);
        super::demand("the example", compile(model.module, &options)).program
    })
}

/// An archive of one stored file `NAME.npy`.
pub fn archive(name: &str, data: &[u8]) -> Vec<u8> {
    use npyz::zip::{CompressionMethod, ZipWriter, write::FileOptions};
    use std::io::Write;
    let mut zip = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = FileOptions::default().compression_method(CompressionMethod::Stored);
    let written = zip.start_file(format!("{name}.npy"), options).is_ok() && zip.write_all(data).is_ok();
    match zip.finish() {
        Ok(cursor) if written => cursor.into_inner(),
        _ => Vec::new(),
    }
}
