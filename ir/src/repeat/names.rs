//! Names of stacks: the number of the layer left open.

/// A name with a place for a number: `before{first+step}after`, element k has the number `first + k * step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Template<'a> {
    pub before: &'a str,
    pub first: u32,
    pub step: u32,
    pub after: &'a str,
}

impl<'a> Template<'a> {
    /// Reads a name; `None` when it has no such place, or other braces.
    pub fn parse(name: &'a str) -> Option<Self> {
        let (before, rest) = name.split_once('{')?;
        let (inside, after) = rest.split_once('}')?;
        if [before, after].iter().any(|s| s.contains(['{', '}'])) {
            return None;
        }
        let (first, step) = inside.split_once('+')?;
        Some(Self { before, first: number(first)?, step: number(step)?, after })
    }

    /// The number of an element; `None` when it is too large.
    pub fn number(&self, k: u32) -> Option<u32> {
        self.first.checked_add(self.step.checked_mul(k)?)
    }

    /// The name of an element.
    pub fn element(&self, k: u32) -> String {
        let number = u64::from(self.first) + u64::from(self.step) * u64::from(k);
        format!("{}{number}{}", self.before, self.after)
    }
}

/// Written without sign or leading zeros, so that different texts are different numbers.
fn number(text: &str) -> Option<u32> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'));
    text.parse().ok().filter(|_| plain)
}

/// The place for a number in a name.
pub fn place(first: usize, step: usize) -> String {
    format!("{{{first}+{step}}}")
}

/// The name of an element of a stack; a name without a place for a number is every element's.
pub fn element(name: &str, k: u32) -> String {
    Template::parse(name).map_or_else(|| name.to_owned(), |t| t.element(k))
}

/// Names in the order of a table, each with the count of its stack: which is used for two things, if any.
pub fn repeated<'a>(names: impl Iterator<Item = (&'a str, Option<u32>)> + Clone) -> Option<&'a str> {
    use std::collections::{HashMap, HashSet};
    let mut seen = HashSet::new();
    let mut stacks: HashMap<(&str, &str), Vec<(Template<'a>, u32)>> = HashMap::new();
    for (name, count) in names.clone() {
        if !seen.insert(name) {
            return Some(name);
        }
        if let (Some(t), Some(count)) = (Template::parse(name), count) {
            let same = stacks.entry((t.before, t.after)).or_default();
            if same.iter().any(|other| meet(*other, (t, count))) {
                return Some(name);
            }
            same.push((t, count));
        }
    }
    if stacks.is_empty() {
        return None;
    }
    // A plain name that an element of a stack has: tried for every number in it.
    let in_stack = |name: &str| {
        let bytes = name.as_bytes();
        let digit = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
        let starts = (0..bytes.len()).filter(|&i| digit(i) && (i == 0 || !digit(i - 1)));
        starts.into_iter().any(|start| {
            let end = (start..=bytes.len()).find(|&i| !digit(i)).unwrap_or(bytes.len());
            let Some(n) = number(&name[start..end]) else { return false };
            let same = stacks.get(&(&name[..start], &name[end..])).map(Vec::as_slice).unwrap_or_default();
            let one = Template { before: "", first: n, step: 0, after: "" };
            same.iter().any(|&stack| meet(stack, (one, 1)))
        })
    };
    names.filter(|n| n.1.is_none()).map(|n| n.0).find(|n| in_stack(n))
}

/// Whether two progressions have a number in common.
fn meet(a: (Template<'_>, u32), b: (Template<'_>, u32)) -> bool {
    let has = |(t, n): (Template<'_>, u32), number: u32| match (number.checked_sub(t.first), t.step) {
        (None, _) => false,
        (Some(d), 0) => d == 0,
        (Some(d), step) => d % step == 0 && d / step < n,
    };
    // Of one step, they meet in the first number of the later one or nowhere.
    if a.0.step == b.0.step && a.0.step > 0 {
        let (low, high) = if a.0.first <= b.0.first { (a, b) } else { (b, a) };
        return has(low, high.0.first);
    }
    let (shorter, longer) = if a.1 <= b.1 { (a, b) } else { (b, a) };
    (0..shorter.1).filter_map(|k| shorter.0.number(k)).any(|n| has(longer, n))
}
