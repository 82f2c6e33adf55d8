//! Shardings in plan files, as one string each: `[{dp:(1)2}, {}, {tp:(1)8}] partial{tp:(1)8 sum}`.

use pcc_ir::{AxisRef, ReduceKind, Sharding};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// A sharding that serialises as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
struct Text(Sharding);

impl From<Text> for String {
    fn from(Text(s): Text) -> String {
        let axes = |axes: &Vec<AxisRef>| axes.iter().map(AxisRef::to_string).collect::<Vec<_>>().join(",");
        let dims: Vec<String> = s.dims.iter().map(|d| format!("{{{}}}", axes(d))).collect();
        let mut text = format!("[{}]", dims.join(", "));
        if !s.partial.is_empty() {
            let partial: Vec<String> = s.partial.iter().map(|(a, k)| format!("{a} {}", k.name())).collect();
            text += &format!(" partial{{{}}}", partial.join(","));
        }
        text
    }
}

impl TryFrom<String> for Text {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no sharding; write [{{dp:(1)2}}, {{}}] partial{{tp:(1)8 sum}}");
        let (dims, rest) = text.strip_prefix('[').and_then(|t| t.split_once(']')).ok_or_else(wrong)?;
        let braced =
            |t: &str| t.trim().strip_prefix('{').and_then(|t| t.strip_suffix('}')).map(str::to_owned);
        let items = |t: &str| -> Vec<String> {
            t.split(',').map(|i| i.trim().to_owned()).filter(|i| !i.is_empty()).collect()
        };
        let mut s = Sharding { dims: Vec::new(), partial: Vec::new() };
        for dim in
            dims.split_inclusive('}').map(|d| d.trim_start_matches([',', ' '])).filter(|d| !d.is_empty())
        {
            let inner = braced(dim).ok_or_else(wrong)?;
            s.dims.push(items(&inner).into_iter().map(AxisRef::try_from).collect::<Result<_, _>>()?);
        }
        if !rest.trim().is_empty() {
            let inner = rest.trim().strip_prefix("partial").and_then(braced).ok_or_else(wrong)?;
            for item in items(&inner) {
                let (axis, kind) = item.split_once(' ').ok_or_else(wrong)?;
                let kinds = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min];
                let kind = kinds.into_iter().find(|k| k.name() == kind.trim()).ok_or_else(wrong)?;
                s.partial.push((AxisRef::try_from(axis.to_owned())?, kind));
            }
        }
        Ok(Self(s))
    }
}

/// For fields of one sharding.
pub mod one {
    use super::*;

    pub fn serialize<S: Serializer>(s: &Sharding, to: S) -> Result<S::Ok, S::Error> {
        Text(s.clone()).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Sharding, D::Error> {
        Ok(Text::deserialize(from)?.0)
    }
}

/// For fields of several.
pub mod many {
    use super::*;

    pub fn serialize<S: Serializer>(list: &[Sharding], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(list.iter().map(|s| String::from(Text(s.clone()))))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Sharding>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        texts.into_iter().map(|t| Text::try_from(t).map(|t| t.0).map_err(D::Error::custom)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_and_nonsense_is_refused() {
        for text in
            ["[]", "[{}]", "[{dp:(1)2}, {}, {tp:(1)2,tp:(2)4}]", "[{}] partial{tp:(1)3 sum,tp:(3)3 max}"]
        {
            let read = Text::try_from(text.to_owned()).unwrap();
            assert_eq!(String::from(read), text);
        }
        for text in [
            "",
            "[",
            "[tp]",
            "[{tp}]",
            "[{}] partly{}",
            "[{}] partial{tp:(1)8}",
            "[{}] partial{tp:(1)8 avg}",
            "[{tp:(0)8}]",
        ] {
            assert!(Text::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
