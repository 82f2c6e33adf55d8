//! Reading JSON files that may be anything: bounded in size and depth, UTF-8 only, no key twice.

use pcc_ir::Diagnostic;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::cell::Cell;
use std::fmt;
use std::path::Path;

/// Largest file that is read: the largest models known need under 4 MiB.
const MAX_BYTES: u64 = 64 << 20;

/// Most values a file may have: they take far more memory than their text.
const MAX_VALUES: usize = 1 << 22;

/// Reads a file of JSON.
///
/// # Errors
/// A file that cannot be read, is larger than 64 MiB, is not UTF-8, not JSON, nested deeper than 128, or has an object with
/// one key twice; each with the file, and the line and column where there is one.
pub(crate) fn read(path: &Path) -> Result<Value, Diagnostic> {
    let place = path.display().to_string();
    let bad = |what: &str, why: String| Diagnostic::input(what).at(place.clone()).why(why);
    let meta = std::fs::metadata(path).map_err(|e| bad("the file cannot be read", e.to_string()))?;
    if !meta.is_file() {
        return Err(bad("the file cannot be read", "it is not a regular file".into()));
    }
    if meta.len() > MAX_BYTES {
        let why = format!("it has {} bytes, and a model description at most {MAX_BYTES}", meta.len());
        return Err(bad("the file is too large", why));
    }
    let bytes = std::fs::read(path).map_err(|e| bad("the file cannot be read", e.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        bad("the file is not UTF-8 text", format!("byte {at} starts no character"))
    })?;
    parse(&text).map_err(|d| d.at(place))
}

/// Parses a text of JSON under the same limits.
pub(crate) fn parse(text: &str) -> Result<Value, Diagnostic> {
    let budget = Cell::new(MAX_VALUES);
    let mut parser = serde_json::Deserializer::from_str(text);
    let value = Strict(&budget).deserialize(&mut parser).and_then(|v| parser.end().map(|()| v));
    value.map_err(|e| {
        let what = if e.is_eof() { "the JSON ends too early" } else { "the file is not valid JSON" };
        Diagnostic::input(what).why(e.to_string())
    })
}

/// Reads a value in which no object has one key twice, and counts values down.
#[derive(Clone, Copy)]
struct Strict<'b>(&'b Cell<usize>);

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        match self.0.get().checked_sub(1) {
            Some(left) => self.0.set(left),
            None => return Err(D::Error::custom(format!("it has more than {MAX_VALUES} values"))),
        }
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(v) = seq.next_element_seed(self)? {
            list.push(v);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format!("the key `{key}` is there twice")));
            }
            let value = map.next_value_seed(self)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}
