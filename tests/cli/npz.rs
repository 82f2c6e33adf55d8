//! Inputs and outputs of `pcc run`.

use npyz::WriterBuilder;
use npyz::npz::{NpzArchive, NpzWriter};
use std::path::{Path, PathBuf};

pub fn write_i32(path: &Path, arrays: &[(&str, &[u64], Vec<i32>)]) {
    write_mixed(path, arrays, &[]);
}

/// Arrays of integers and of floats.
pub fn write_mixed(path: &Path, integers: &[(&str, &[u64], Vec<i32>)], floats: &[(&str, &[u64], Vec<f32>)]) {
    let mut npz = NpzWriter::create(path).expect("a temporary folder can be written");
    integers.iter().for_each(|(name, shape, data)| put(&mut npz, name, shape, data));
    floats.iter().for_each(|(name, shape, data)| put(&mut npz, name, shape, data));
}

fn put<T: npyz::AutoSerialize + Copy>(
    npz: &mut NpzWriter<std::io::BufWriter<std::fs::File>>,
    name: &str,
    shape: &[u64],
    data: &[T],
) {
    let array = npz.array(name, Default::default()).expect("an array");
    let mut array = array.default_dtype().shape(shape).begin_nd().expect("an array");
    array.extend(data.iter().copied()).expect("an array's elements");
    array.finish().expect("an array");
}

pub fn write_f32(path: &Path, name: &str, shape: &[u64], data: Vec<f32>) {
    write_mixed(path, &[], &[(name, shape, data)]);
}

pub fn read_f32(path: &Path, name: &str) -> (Vec<u64>, Vec<f32>) {
    let mut npz = NpzArchive::open(path).expect("an output");
    let array = npz.by_name(name).expect("an output").unwrap_or_else(|| panic!("no array `{name}`"));
    (array.shape().to_vec(), array.into_vec::<f32>().expect("f32"))
}

pub fn read_i32(path: &Path, name: &str) -> (Vec<u64>, Vec<i32>) {
    let mut npz = NpzArchive::open(path).expect("an output");
    let array = npz.by_name(name).expect("an output").unwrap_or_else(|| panic!("no array `{name}`"));
    (array.shape().to_vec(), array.into_vec::<i32>().expect("i32"))
}

/// `rows` rows of `seq` token ids below 101, from a fixed recurrence.
pub fn tokens(rows: usize, seq: usize) -> Vec<i32> {
    let mut x: u32 = 12345;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 8) as i32 % 101
    };
    (0..rows * seq).map(|_| next()).collect()
}

/// A file with `tokens` [rows, seq].
pub fn token_file(folder: &Path, rows: usize, seq: usize) -> PathBuf {
    let path = folder.join(format!("tokens-{rows}x{seq}.npz"));
    write_i32(&path, &[("tokens", &[rows as u64, seq as u64], tokens(rows, seq))]);
    path
}
