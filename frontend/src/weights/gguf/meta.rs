//! The keys of a GGUF file: hyper-parameters and the tokenizer.

use super::cursor::Cursor;
use pcc_ir::Diagnostic;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Elements all arrays may have together; the largest vocabularies with their merges need a third of it.
const MAX_ELEMENTS: usize = 1 << 22;
/// Arrays of arrays deeper than this are refused; the specification names no use for any.
const MAX_DEPTH: usize = 4;

/// A value of a key. Integers and floats of all widths are one kind each.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    /// Any integer type; u64 above 2^63 - 1 is refused.
    Int(i64),
    /// f32 (exactly widened) or f64.
    Float(f64),
    Bool(bool),
    String(String),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
    Strings(Vec<String>),
    Arrays(Vec<GgufValue>),
}

impl GgufValue {
    /// The kind in words, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            GgufValue::Int(_) => "an integer",
            GgufValue::Float(_) => "a float",
            GgufValue::Bool(_) => "a bool",
            GgufValue::String(_) => "a string",
            GgufValue::Ints(_) => "an array of integers",
            GgufValue::Floats(_) => "an array of floats",
            GgufValue::Bools(_) => "an array of bools",
            GgufValue::Strings(_) => "an array of strings",
            GgufValue::Arrays(_) => "an array of arrays",
        }
    }
}

/// All keys of a GGUF file. The getters give `None` for an absent key and a diagnostic for one of another type.
#[derive(Clone, Debug, Default)]
pub struct GgufMeta {
    values: BTreeMap<String, GgufValue>,
    path: PathBuf,
}

impl GgufMeta {
    pub(super) fn read(at: &mut Cursor, keys: usize, path: &Path) -> Result<Self, String> {
        let mut values = BTreeMap::new();
        let mut budget = MAX_ELEMENTS;
        for _ in 0..keys {
            let key = at.name("a key's name")?;
            let kind = at.u32()?;
            let value =
                read_value(at, kind, MAX_DEPTH, &mut budget).map_err(|e| format!("key `{key}`: {e}"))?;
            if values.contains_key(&key) {
                return Err(format!("key `{key}` is listed twice"));
            }
            values.insert(key, value);
        }
        Ok(Self { values, path: path.to_path_buf() })
    }

    /// The file the keys come from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.values.get(key)
    }

    /// All keys, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &GgufValue)> {
        self.values.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// `general.architecture`.
    pub fn architecture(&self) -> Result<&str, Diagnostic> {
        self.required("general.architecture", self.str("general.architecture")?)
    }

    pub fn uint(&self, key: &str) -> Result<Option<u64>, Diagnostic> {
        match self.get(key) {
            None => Ok(None),
            Some(&GgufValue::Int(n)) if n >= 0 => Ok(Some(n as u64)),
            Some(GgufValue::Int(n)) => Err(self.wrong(key, format!("{n} is negative"))),
            Some(v) => Err(self.other(key, v, "an integer")),
        }
    }

    /// A finite float, or an integer read as one.
    pub fn float(&self, key: &str) -> Result<Option<f64>, Diagnostic> {
        match self.get(key) {
            None => Ok(None),
            Some(&GgufValue::Float(x)) if !x.is_finite() => {
                Err(self.wrong(key, format!("it is {x}, which is no number to compute with")))
            }
            Some(&GgufValue::Float(x)) => Ok(Some(x)),
            Some(&GgufValue::Int(n)) => Ok(Some(n as f64)),
            Some(v) => Err(self.other(key, v, "a float")),
        }
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>, Diagnostic> {
        match self.get(key) {
            None => Ok(None),
            Some(&GgufValue::Bool(b)) => Ok(Some(b)),
            Some(v) => Err(self.other(key, v, "a bool")),
        }
    }

    pub fn str(&self, key: &str) -> Result<Option<&str>, Diagnostic> {
        match self.get(key) {
            None => Ok(None),
            Some(GgufValue::String(s)) => Ok(Some(s)),
            Some(v) => Err(self.other(key, v, "a string")),
        }
    }

    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, Diagnostic> {
        match self.get(key) {
            None => Ok(None),
            Some(GgufValue::Strings(s)) => Ok(Some(s)),
            Some(v) => Err(self.other(key, v, "an array of strings")),
        }
    }

    pub fn ints(&self, key: &str) -> Result<Option<&[i64]>, Diagnostic> {
        match self.get(key) {
            None => Ok(None),
            Some(GgufValue::Ints(n)) => Ok(Some(n)),
            Some(v) => Err(self.other(key, v, "an array of integers")),
        }
    }

    pub fn floats(&self, key: &str) -> Result<Option<&[f64]>, Diagnostic> {
        match self.get(key) {
            None => Ok(None),
            Some(GgufValue::Floats(x)) => Ok(Some(x)),
            Some(v) => Err(self.other(key, v, "an array of floats")),
        }
    }

    /// Turns an absent key into a diagnostic that names it.
    pub fn required<T>(&self, key: &str, value: Option<T>) -> Result<T, Diagnostic> {
        value.ok_or_else(|| self.wrong(key, "it is missing".into()))
    }

    /// "This key is wrong".
    pub fn wrong(&self, key: &str, why: String) -> Diagnostic {
        Diagnostic::input(format!("the GGUF key `{key}` cannot be used"))
            .at(self.path.display().to_string())
            .why(why)
    }

    fn other(&self, key: &str, value: &GgufValue, wanted: &str) -> Diagnostic {
        self.wrong(key, format!("it is {} where {wanted} is needed", value.kind()))
    }
}

const ARRAY: u32 = 9;
const STRING: u32 = 8;

fn read_value(at: &mut Cursor, kind: u32, depth: usize, budget: &mut usize) -> Result<GgufValue, String> {
    match kind {
        4 => Ok(GgufValue::Int(at.u32()?.into())), // the commonest
        0..=3 | 5 | 10 | 11 => Ok(GgufValue::Int(read_int(at, kind)?)),
        6 | 12 => Ok(GgufValue::Float(read_float(at, kind)?)),
        7 => Ok(GgufValue::Bool(read_bool(at)?)),
        STRING => Ok(GgufValue::String(at.string("its string")?)),
        ARRAY => read_array(at, depth, budget),
        _ => Err(format!("value type {kind} is unknown")),
    }
}

fn read_array(at: &mut Cursor, depth: usize, budget: &mut usize) -> Result<GgufValue, String> {
    let kind = at.u32()?;
    let claimed = at.u64()?;
    // Bytes of the shortest element: an integer's own width, a string's or array's length field.
    let width = match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 | STRING => 8,
        ARRAY => 12,
        _ => return Err(format!("array element type {kind} is unknown")),
    };
    let n = usize::try_from(claimed).ok().filter(|&n| n <= at.left() / width);
    let Some(n) = n else {
        return Err(format!("an array claims {claimed} elements, but only {} bytes follow", at.left()));
    };
    let Some(left) = budget.checked_sub(n) else {
        return Err(format!(
            "an array of {n} elements exceeds the limit of {MAX_ELEMENTS} for the whole file"
        ));
    };
    *budget = left;
    match kind {
        6 | 12 => (0..n).map(|_| read_float(at, kind)).collect::<Result<_, _>>().map(GgufValue::Floats),
        7 => (0..n).map(|_| read_bool(at)).collect::<Result<_, _>>().map(GgufValue::Bools),
        STRING => (0..n).map(|_| at.string("a string")).collect::<Result<_, _>>().map(GgufValue::Strings),
        ARRAY if depth == 0 => Err(format!("arrays are nested deeper than {MAX_DEPTH}")),
        ARRAY => {
            (0..n).map(|_| read_array(at, depth - 1, budget)).collect::<Result<_, _>>().map(GgufValue::Arrays)
        }
        _ => (0..n).map(|_| read_int(at, kind)).collect::<Result<_, _>>().map(GgufValue::Ints),
    }
}

fn read_int(at: &mut Cursor, kind: u32) -> Result<i64, String> {
    Ok(match kind {
        0 => u8::from_le_bytes(at.array()?).into(),
        1 => i8::from_le_bytes(at.array()?).into(),
        2 => u16::from_le_bytes(at.array()?).into(),
        3 => i16::from_le_bytes(at.array()?).into(),
        4 => u32::from_le_bytes(at.array()?).into(),
        5 => i32::from_le_bytes(at.array()?).into(),
        11 => i64::from_le_bytes(at.array()?),
        _ => {
            let n = at.u64()?;
            i64::try_from(n).map_err(|_| format!("{n} is beyond the integers supported"))?
        }
    })
}

fn read_float(at: &mut Cursor, kind: u32) -> Result<f64, String> {
    Ok(if kind == 6 { f32::from_le_bytes(at.array()?).into() } else { f64::from_le_bytes(at.array()?) })
}

fn read_bool(at: &mut Cursor) -> Result<bool, String> {
    match at.array()? {
        [0] => Ok(false),
        [1] => Ok(true),
        [b] => Err(format!("a bool has the value {b}")),
    }
}
