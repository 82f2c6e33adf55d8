//! Writes GGUF files for tests, by the specification and independently of the reader.

/// A file being put together. Every part can be made to lie.
pub(crate) struct GgufFile {
    pub(crate) version: u32,
    pub(crate) tensor_count: Option<u64>,
    pub(crate) key_count: Option<u64>,
    pub(crate) alignment: usize,
    keys: Vec<Vec<u8>>,
    records: Vec<Vec<u8>>,
    values: Vec<u8>,
}

/// A u64 length and the bytes.
pub(crate) fn string(s: impl AsRef<[u8]>) -> Vec<u8> {
    let s = s.as_ref();
    [&(s.len() as u64).to_le_bytes(), s].concat()
}

impl GgufFile {
    pub(crate) fn new() -> Self {
        let (keys, records, values) = (Vec::new(), Vec::new(), Vec::new());
        Self { version: 3, tensor_count: None, key_count: None, alignment: 32, keys, records, values }
    }

    /// A model of architecture `arch`.
    pub(crate) fn of(arch: &str) -> Self {
        Self::new().str("general.architecture", arch)
    }

    pub(crate) fn key(mut self, name: impl AsRef<[u8]>, kind: u32, value: &[u8]) -> Self {
        self.keys.push([&string(name)[..], &kind.to_le_bytes(), value].concat());
        self
    }

    pub(crate) fn u32(self, name: &str, value: u32) -> Self {
        self.key(name, 4, &value.to_le_bytes())
    }

    pub(crate) fn bool(self, name: &str, value: bool) -> Self {
        self.key(name, 7, &[u8::from(value)])
    }

    pub(crate) fn str(self, name: &str, value: &str) -> Self {
        self.key(name, 8, &string(value))
    }

    /// An array of `elements`, already encoded, of the given element type.
    pub(crate) fn array(self, name: &str, kind: u32, elements: &[Vec<u8>]) -> Self {
        let head = [&kind.to_le_bytes()[..], &(elements.len() as u64).to_le_bytes()].concat();
        self.key(name, 9, &[head, elements.concat()].concat())
    }

    pub(crate) fn strings<S: AsRef<str>>(self, name: &str, values: &[S]) -> Self {
        let elements: Vec<Vec<u8>> = values.iter().map(|s| string(s.as_ref())).collect();
        self.array(name, 8, &elements)
    }

    pub(crate) fn i32s(self, name: &str, values: &[i32]) -> Self {
        self.array(name, 5, &values.iter().map(|v| v.to_le_bytes().to_vec()).collect::<Vec<_>>())
    }

    pub(crate) fn f32s(self, name: &str, values: &[f32]) -> Self {
        self.array(name, 6, &values.iter().map(|v| v.to_le_bytes().to_vec()).collect::<Vec<_>>())
    }

    /// A tensor, dims innermost first as in the file, placed after those before it.
    pub(crate) fn tensor(mut self, name: &str, dims: &[u64], kind: u32, data: &[u8]) -> Self {
        let padded = self.values.len().next_multiple_of(self.alignment);
        self.values.resize(padded, 0);
        let offset = self.values.len() as u64;
        self.values.extend(data);
        self.record(name, dims, kind, offset)
    }

    /// A tensor's record alone.
    pub(crate) fn record(mut self, name: impl AsRef<[u8]>, dims: &[u64], kind: u32, offset: u64) -> Self {
        let mut record = string(name);
        record.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|d| record.extend(d.to_le_bytes()));
        record.extend(kind.to_le_bytes());
        record.extend(offset.to_le_bytes());
        self.records.push(record);
        self
    }

    /// Everything before the values, unpadded.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.records.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        self.keys.iter().chain(&self.records).for_each(|part| out.extend(part));
        out
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.values);
        out
    }
}

/// The bytes of f32 values.
pub(crate) fn f32_bytes(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}
