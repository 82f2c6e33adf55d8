//! Numbers of the tensors that the rows of a table stand for.

use super::MOST;

/// A table whose rows may be stacks, unfolded to tensors with numbers. Stacks of equal count that follow one another are unfolded
/// together, element by element, so that the tensors of a layer stay together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbering {
    /// First tensor of each row, and how far apart its elements are.
    rows: Vec<(u32, u32)>,
    groups: Vec<Group>,
    len: u32,
}

/// Rows of one count in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    row: u32,
    rows: u32,
    base: u32,
    count: u32,
}

impl Numbering {
    /// The numbering of a table, given the count of each row that is a stack.
    ///
    /// # Errors
    /// A stack of nothing, or more than [`MOST`] tensors in all.
    pub fn new(stacks: impl Iterator<Item = Option<u32>>) -> Result<Self, String> {
        let mut groups: Vec<Group> = Vec::new();
        let mut stacked = false;
        let mut row: u32 = 0;
        for stack in stacks {
            let count = stack.unwrap_or(1);
            match groups.last_mut() {
                Some(g) if g.count == count && stacked == stack.is_some() => g.rows += 1,
                _ => groups.push(Group { row, rows: 1, base: 0, count }),
            }
            stacked = stack.is_some();
            row = row.checked_add(1).filter(|&n| n <= MOST).ok_or("the table is too long")?;
        }
        let mut out = Self { rows: Vec::with_capacity(row as usize), groups, len: 0 };
        for g in &mut out.groups {
            g.base = out.len;
            let all = g.rows.checked_mul(g.count).and_then(|n| out.len.checked_add(n));
            out.len = all
                .filter(|&n| g.count > 0 && n <= MOST)
                .ok_or_else(|| format!("a stack of {} makes the table empty or too long", g.count))?;
            out.rows.extend((0..g.rows).map(|r| (g.base + r, g.rows)));
        }
        Ok(out)
    }

    /// How many tensors there are.
    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of an element of a row; of a row that is no stack, element 0 is the tensor itself.
    pub fn number(&self, row: u32, element: u32) -> u32 {
        self.rows.get(row as usize).map_or(u32::MAX, |&(base, stride)| base + stride * element)
    }

    /// The row and element of a number.
    pub fn origin(&self, number: u32) -> Option<(u32, u32)> {
        let at = self.groups.partition_point(|g| g.base <= number).checked_sub(1)?;
        let g = self.groups.get(at).filter(|_| number < self.len)?;
        let inside = number - g.base;
        Some((g.row + inside % g.rows, inside / g.rows))
    }
}
