//! Changes inputs at random, keeping their outer form: a changed JSON file is still JSON, so that most changes get past the parser.

use crate::rng::Rng;
use serde_json::{Map, Value};

/// What an input looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Json,
    Text,
    Bytes,
    /// A length, JSON of that length, and bytes: safetensors.
    Headed,
}

/// Numbers at which things go wrong.
const NUMBERS: [i64; 24] = [
    0,
    1,
    -1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    16,
    31,
    64,
    100,
    255,
    4096,
    65536,
    i32::MAX as i64,
    u32::MAX as i64,
    1 << 40,
    (1 << 53) + 1,
    1 << 62,
    i64::MAX,
    i64::MIN,
];

/// A changed copy of the input; the same for the same seed.
pub fn mutate(form: Form, data: &[u8], seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let count = rng.pick(&[1, 1, 1, 2, 2, 3, 5]);
    match form {
        Form::Json => json_bytes(data, count, &mut rng),
        Form::Text => text(data, count, &mut rng),
        Form::Bytes => bytes(data.to_vec(), count, &mut rng),
        Form::Headed => headed(data, count, &mut rng),
    }
}

fn json_bytes(data: &[u8], count: usize, rng: &mut Rng) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(data) else {
        return bytes(data.to_vec(), count, rng);
    };
    if rng.chance(4) {
        return bytes(data.to_vec(), count, rng);
    }
    for _ in 0..count {
        json(&mut value, rng);
    }
    serde_json::to_vec(&value).unwrap_or_else(|_| data.to_vec())
}

fn headed(data: &[u8], count: usize, rng: &mut Rng) -> Vec<u8> {
    let length = data.first_chunk().map(|b| u64::from_le_bytes(*b) as usize);
    let header = length.and_then(|n| data.get(8..8usize.checked_add(n)?));
    match header.filter(|_| rng.chance(80)) {
        None => bytes(data.to_vec(), count, rng),
        Some(header) => {
            let made = json_bytes(header, count, rng);
            [&(made.len() as u64).to_le_bytes()[..], &made, &data[8 + header.len()..]].concat()
        }
    }
}

/// One change of a document.
fn json(document: &mut Value, rng: &mut Rng) {
    let nodes = count(document);
    let donor = {
        let mut at = rng.below(nodes);
        node(document, &mut at).map(|v| v.clone()).unwrap_or_default()
    };
    let mut at = rng.below(nodes);
    let Some(target) = node(document, &mut at) else { return };
    match target {
        _ if rng.chance(8) => *target = donor,
        Value::Number(n) => {
            let old = n.as_i64().unwrap_or_default();
            *target = match rng.below(8) {
                0..=3 => rng.pick(&NUMBERS).into(),
                4 => old.wrapping_add(1).into(),
                5 => old.wrapping_sub(1).into(),
                6 => rng.pick(&[0.5, -0.0, 1e-300, 1e308, 3.5e38, -1.5, 1e19]).into(),
                _ => donor,
            };
        }
        Value::String(s) => {
            let copy = std::mem::take(s);
            *s = match (rng.below(6), donor) {
                (0..=1, Value::String(other)) => other,
                (2, _) => String::new(),
                (3, _) => copy.chars().rev().collect(),
                _ => String::from_utf8_lossy(&text(copy.as_bytes(), 1, rng)).into_owned(),
            };
        }
        Value::Array(list) => change_list(list, donor, rng),
        Value::Object(map) => change_map(map, donor, rng),
        Value::Bool(b) => *b = !*b,
        Value::Null => *target = donor,
    }
}

fn change_list(list: &mut Vec<Value>, donor: Value, rng: &mut Rng) {
    let (i, j) = (rng.below(list.len()), rng.below(list.len()));
    match rng.below(7) {
        0 if !list.is_empty() => drop(list.remove(i)),
        1 if !list.is_empty() => list.insert(j, list[i].clone()),
        2 if !list.is_empty() => list.swap(i, j),
        3 if !list.is_empty() => list.truncate(i),
        4 if !list.is_empty() => list[i] = list[j].clone(),
        _ => list.insert(rng.below(list.len() + 1), donor),
    }
}

fn change_map(map: &mut Map<String, Value>, donor: Value, rng: &mut Rng) {
    let keys: Vec<String> = map.keys().cloned().collect();
    if keys.is_empty() {
        return;
    }
    let (key, other) = (rng.pick(&keys), rng.pick(&keys));
    match rng.below(5) {
        0 => drop(map.remove(&key)),
        1 => drop(map.insert(key, donor)),
        2 => {
            let value = map[&other].clone();
            map.insert(key, value);
        }
        3 => {
            let value = map.remove(&key).unwrap_or_default();
            map.insert(other, value);
        }
        _ => {
            let value = map[&key].clone();
            map.insert(format!("{key}x"), value);
        }
    }
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}

/// The node of a number in the order of the text.
fn node<'v>(value: &'v mut Value, at: &mut usize) -> Option<&'v mut Value> {
    if *at == 0 {
        return Some(value);
    }
    *at -= 1;
    match value {
        Value::Array(list) => list.iter_mut().find_map(|v| node(v, at)),
        Value::Object(map) => map.values_mut().find_map(|v| node(v, at)),
        _ => None,
    }
}

/// Changes of words, numbers and lines.
fn text(data: &[u8], count: usize, rng: &mut Rng) -> Vec<u8> {
    let text = String::from_utf8_lossy(data).into_owned();
    let mut words: Vec<String> = words(&text);
    for _ in 0..count {
        if words.is_empty() {
            return bytes(data.to_vec(), 1, rng);
        }
        let (i, j) = (rng.below(words.len()), rng.below(words.len()));
        match rng.below(9) {
            0..=2 => {
                let numbers: Vec<usize> = (0..words.len())
                    .filter(|&w| words[w].starts_with(|c: char| c.is_ascii_digit()))
                    .collect();
                let Some(&w) = numbers.get(rng.below(numbers.len())) else { continue };
                words[w] = match rng.chance(40) {
                    true => rng.pick(&NUMBERS).to_string(),
                    false => words[numbers[rng.below(numbers.len())]].clone(),
                };
            }
            3 => words[i] = words[j].clone(),
            4 => drop(words.remove(i)),
            5 => words.insert(i, words[j].clone()),
            6 => change_lines(&mut words, rng),
            7 => {
                words[i] = String::from_utf8_lossy(&bytes(words[i].clone().into_bytes(), 1, rng)).into_owned()
            }
            _ => words.swap(i, j),
        }
    }
    words.concat().into_bytes()
}

/// Removes, repeats or moves a line.
fn change_lines(words: &mut Vec<String>, rng: &mut Rng) {
    let text = words.concat();
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    let (i, j) = (rng.below(lines.len()), rng.below(lines.len()));
    match rng.below(3) {
        0 => drop(lines.remove(i)),
        1 => lines.insert(i, lines[j]),
        _ => lines.swap(i, j),
    }
    *words = self::words(&lines.concat());
}

/// Words, numbers and single other characters.
fn words(text: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut last = ' ';
    for c in text.chars() {
        let joins = |c: char| c.is_ascii_alphanumeric() || c == '_';
        match out.last_mut() {
            Some(word) if joins(c) && joins(last) => word.push(c),
            _ => out.push(c.to_string()),
        }
        last = c;
    }
    out
}

fn bytes(mut data: Vec<u8>, count: usize, rng: &mut Rng) -> Vec<u8> {
    for _ in 0..count {
        let at = rng.below(data.len());
        let length = rng.within(1, 16).min(data.len() - at.min(data.len()));
        match rng.below(9) {
            0 if !data.is_empty() => data[at] ^= 1 << rng.below(8),
            1 if !data.is_empty() => data[at] = rng.next() as u8,
            2 => write(&mut data, at, &(rng.pick(&NUMBERS) as u32).to_le_bytes()),
            3 => write(&mut data, at, &rng.pick(&NUMBERS).to_le_bytes()),
            4 => write(&mut data, at, &[rng.pick(&NUMBERS) as u8]),
            5 => drop(data.drain(at..at + length)),
            6 => {
                let piece = data[at..at + length].to_vec();
                let to = rng.below(data.len() + 1);
                data.splice(to..to, piece);
            }
            7 => data.truncate(at),
            _ => {
                let piece = data[at..at + length].to_vec();
                let to = rng.below(data.len());
                write(&mut data, to, &piece);
            }
        }
    }
    data
}

fn write(data: &mut [u8], at: usize, bytes: &[u8]) {
    for (to, from) in data.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_json_is_nearly_always_json_and_changed() {
        let seed = br#"{"a": [1, 2, {"b": "f32[4,8]"}], "c": null, "d": "x"}"#;
        let made: Vec<Vec<u8>> = (0..200).map(|s| mutate(Form::Json, seed, s)).collect();
        assert_eq!(made, (0..200).map(|s| mutate(Form::Json, seed, s)).collect::<Vec<_>>());
        let json = made.iter().filter(|m| serde_json::from_slice::<Value>(m).is_ok()).count();
        assert!(json > 180, "{json}");
        assert!(made.iter().collect::<std::collections::HashSet<_>>().len() > 100);
    }

    #[test]
    fn every_form_takes_any_bytes() {
        for form in [Form::Json, Form::Text, Form::Bytes, Form::Headed] {
            for data in [
                &b""[..],
                b"\xff",
                b"\x02\0\0\0\0\0\0\0{}..",
                b"\xff\xff\xff\xff\xff\xff\xff\xff{",
                b"a 1\nb",
            ] {
                (0..200).for_each(|seed| drop(mutate(form, data, seed)));
            }
        }
    }
}
