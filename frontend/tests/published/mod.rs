//! The cases of tests/data/transformers: a checkpoint written out of its formula, inputs, and what transformers computes.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub const ROWS: usize = 2;
/// Tokens that greedy decoding adds to a prompt, which is the rest of row 0.
#[allow(dead_code)]
pub const NEW: usize = 3;

pub struct Case {
    doc: Value,
    pub seq: usize,
    /// i32 `[ROWS, seq]` each.
    pub inputs: BTreeMap<String, Vec<i32>>,
    /// Name of the output.
    pub output: String,
    /// Its values at the last `kept` positions, row-major over `[ROWS, kept, width]`.
    pub values: Vec<f64>,
    pub kept: usize,
    pub width: usize,
    /// What follows the prompt.
    #[allow(dead_code)]
    pub greedy: Option<Vec<i32>>,
}

fn folder() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = if here.ends_with("frontend") { here.to_owned() } else { here.join("frontend") };
    root.join("tests/data/transformers")
}

fn numbers<T>(v: &Value, number: impl Fn(&Value) -> Option<T> + Copy) -> Vec<T> {
    match v {
        Value::Array(list) => list.iter().flat_map(|v| numbers(v, number)).collect(),
        v => number(v).into_iter().collect(),
    }
}

/// Names of all cases.
pub fn names() -> Vec<String> {
    let files = std::fs::read_dir(folder()).unwrap().map(|f| f.unwrap().path());
    let mut names: Vec<_> = files.map(|f| f.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

pub fn read(name: &str) -> Case {
    let text = std::fs::read_to_string(folder().join(format!("{name}.json"))).unwrap();
    let doc: Value = serde_json::from_str(&text).unwrap();
    let int = |v: &Value| v.as_i64().and_then(|i| i32::try_from(i).ok());
    let inputs: BTreeMap<_, _> =
        doc["inputs"].as_object().unwrap().iter().map(|(k, v)| (k.clone(), numbers(v, int))).collect();
    let seq = inputs["tokens"].len() / ROWS;
    let kept = seq.min(9);
    let greedy = doc.get("greedy").map(|v| numbers(v, int));
    let output = doc["output"].as_str().unwrap().to_owned();
    let values = numbers(&doc["values"], Value::as_f64);
    let width = values.len() / (ROWS * kept);
    Case { doc, seq, inputs, output, values, kept, width, greedy }
}

/// Element i of tensor t before scaling, in [-1, 1).
fn hashed(t: usize, i: usize) -> f64 {
    let h = (i as u32 + 1).wrapping_add(t as u32 * 65_537).wrapping_mul(0x9e37_79b1);
    let h = (h ^ h >> 15).wrapping_mul(0x85eb_ca77);
    f64::from((h ^ h >> 13) >> 8) / f64::from(1 << 23) - 1.0
}

impl Case {
    /// What is kept of values over all positions.
    pub fn last<T: Copy>(&self, values: &[T]) -> Vec<T> {
        let rows = values.chunks(self.seq * self.width);
        rows.flat_map(|row| &row[(self.seq - self.kept) * self.width..]).copied().collect()
    }

    /// Writes the config as transformers saves it.
    #[allow(dead_code)]
    pub fn write_saved_config(&self, folder: &Path) {
        std::fs::write(folder.join("config.json"), self.doc["saved"].to_string()).unwrap();
    }

    /// Writes config.json and model.safetensors.
    pub fn write(&self, folder: &Path) {
        std::fs::write(folder.join("config.json"), self.doc["config"].to_string()).unwrap();
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (t, tensor) in self.doc["tensors"].as_array().unwrap().iter().enumerate() {
            let (name, shape) = (tensor[0].as_str().unwrap(), numbers(&tensor[1], Value::as_u64));
            let (around, scale) = (tensor[2].as_f64().unwrap(), tensor[3].as_f64().unwrap());
            let start = data.len();
            for i in 0..shape.iter().product::<u64>() as usize {
                data.extend(((around + scale * hashed(t, i)) as f32).to_le_bytes());
            }
            let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
            header.insert(name.to_owned(), entry);
        }
        let header = Value::Object(header).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(data);
        std::fs::write(folder.join("model.safetensors"), file).unwrap();
    }
}
