//! Handles: what callers hold in place of pointers to objects.

use crate::code::Code;
use std::collections::BTreeMap;

/// Objects of one kind by handle. Handles are never used twice, so one of a destroyed object is found out, and those of another kind too.
#[derive(Debug)]
pub struct Table<T> {
    /// Marks handles of this kind; no address of the host or a device looks like it.
    tag: u64,
    next: u64,
    items: BTreeMap<u64, T>,
}

impl<T> Table<T> {
    /// Each table has a `kind` of its own, from 1.
    pub fn new(kind: u8) -> Self {
        Self { tag: 0x5c << 56 | u64::from(kind) << 48, next: 1, items: BTreeMap::new() }
    }

    pub fn insert(&mut self, item: T) -> u64 {
        let handle = self.tag | self.next;
        self.next += 1;
        self.items.insert(handle, item);
        handle
    }

    /// Which object of its kind a handle is, from 1 in the order in which they were made.
    pub fn number(&self, handle: u64) -> u64 {
        handle & !self.tag
    }

    pub fn get(&self, handle: u64) -> Result<&T, Code> {
        self.items.get(&handle).ok_or(Code::INVALID_HANDLE)
    }

    pub fn get_mut(&mut self, handle: u64) -> Result<&mut T, Code> {
        self.items.get_mut(&handle).ok_or(Code::INVALID_HANDLE)
    }

    pub fn remove(&mut self, handle: u64) -> Result<T, Code> {
        self.items.remove(&handle).ok_or(Code::INVALID_HANDLE)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.items.iter().map(|(&handle, item)| (handle, item))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        self.items.iter_mut().map(|(&handle, item)| (handle, item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_other_kinds_and_of_the_past_are_refused() {
        let (mut a, mut b) = (Table::new(1), Table::new(2));
        let one = a.insert("one");
        assert_eq!(b.insert("other") & 0xff, one & 0xff);
        assert_eq!(b.get(one), Err(Code::INVALID_HANDLE));
        assert_eq!(a.remove(one), Ok("one"));
        let two = a.insert("two");
        assert_eq!((a.get(one), a.get(two)), (Err(Code::INVALID_HANDLE), Ok(&"two")));
    }
}
