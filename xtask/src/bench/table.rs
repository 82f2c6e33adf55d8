//! What was measured, as a table for people and as JSON.

use std::fmt;

use serde_json::{Value, json};

/// One figure: ours, what it is held against, and the ratio.
struct Row {
    group: &'static str,
    what: String,
    ours: f64,
    unit: &'static str,
    other: Option<(String, f64)>,
    /// The ratio as the claim has it.
    ratio: Option<(f64, &'static str)>,
}

/// All figures of a run, in order.
#[derive(Default)]
pub(super) struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// A figure with nothing beside it.
    pub(super) fn alone(
        &mut self,
        group: &'static str,
        what: impl Into<String>,
        ours: f64,
        unit: &'static str,
    ) {
        self.rows.push(Row { group, what: what.into(), ours, unit, other: None, ratio: None });
    }

    /// A time beside a limit or an own other time, to be as small as possible against it: `ours / other`.
    pub(super) fn against(
        &mut self,
        group: &'static str,
        what: impl Into<String>,
        ours: f64,
        unit: &'static str,
        other: (&str, f64),
        goal: &'static str,
    ) {
        let ratio = Some((ours / other.1, goal));
        let other = Some((other.0.to_owned(), other.1));
        self.rows.push(Row { group, what: what.into(), ours, unit, other, ratio });
    }

    /// A time beside another engine's: how many times faster we are, `other / ours`.
    pub(super) fn faster(
        &mut self,
        group: &'static str,
        what: impl Into<String>,
        ours: f64,
        unit: &'static str,
        other: (&str, f64),
        goal: &'static str,
    ) {
        let ratio = Some((other.1 / ours, goal));
        let other = Some((other.0.to_owned(), other.1));
        self.rows.push(Row { group, what: what.into(), ours, unit, other, ratio });
    }

    pub(super) fn json(&self) -> String {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|r| {
                json!({
                    "group": r.group, "what": r.what, "pcc": r.ours, "unit": r.unit,
                    "other": r.other.as_ref().map(|(name, value)| json!({"name": name, "value": value})),
                    "ratio": r.ratio.map(|(ratio, _)| ratio), "goal": r.ratio.map(|(_, goal)| goal),
                })
            })
            .collect();
        format!("{:#}\n", Value::from(rows))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|r| r.what.len()).max().unwrap_or(0);
        for row in &self.rows {
            write!(f, "{:<8} {:<width$} {:>9.4} {:<4}", row.group, row.what, row.ours, row.unit)?;
            if let Some((name, value)) = &row.other {
                write!(f, "  {name} {value:.4}")?;
            }
            if let Some((ratio, goal)) = row.ratio {
                write!(f, "  ratio {ratio:.2} (goal {goal})")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_point_the_way_the_claim_does() {
        let mut table = Table::default();
        table.against("g", "cost", 3.0, "s", ("limit", 2.0), "<= 1.3");
        table.faster("g", "speed", 3.0, "s", ("peer", 6.0), ">= 1.15");
        table.alone("g", "alone", 1.0, "s");
        let rows: Value = serde_json::from_str(&table.json()).unwrap();
        assert_eq!(rows[0]["ratio"], 1.5);
        assert_eq!(rows[1]["ratio"], 2.0);
        assert!(rows[2]["ratio"].is_null());
        assert!(table.to_string().contains("peer 6.0000  ratio 2.00 (goal >= 1.15)"));
    }
}
