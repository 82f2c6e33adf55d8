//! An opened checkpoint: its tensors, their digest, and reading them.

use super::gguf::{self, names};
use super::mapping::Mapping;
use super::read::{read_blocks, read_view};
use super::{ElementType, GgufMeta, Stored, bad_file, index, safetensors};
use pcc_ir::Diagnostic;
use pcc_ir::source::{BlockRows, ParamSource, ReadParams, TensorView, Values, check_slice};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Tensors named in one message before the rest is only counted.
const LISTED: usize = 8;

/// What is known of a tensor without reading its values.
#[derive(Clone, Copy, Debug)]
pub struct TensorInfo<'a> {
    /// Name in the file.
    pub name: &'a str,
    pub element: &'a ElementType,
    /// Outermost dim first, whatever the file's order.
    pub shape: &'a [usize],
    /// The file that holds the values.
    pub file: &'a Path,
}

/// An opened checkpoint, memory-mapped. Reading is `&self` and safe from many threads.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    files: Vec<Mapping>,
    /// Tensors by name, with the position of their file.
    tensors: BTreeMap<String, (usize, Stored)>,
    meta: Option<GgufMeta>,
}

impl Checkpoint {
    /// Opens a `.safetensors` file, a `.gguf` file, a `model.safetensors.index.json`, or a folder with one of them.
    pub fn open(path: &Path) -> Result<Self, Diagnostic> {
        let file = if path.is_dir() { find_in_folder(path)? } else { path.to_path_buf() };
        if file.extension().is_some_and(|e| e == "json") {
            return Self::open_sharded(&file);
        }
        let mapping = Mapping::open(&file)?;
        let (meta, stored) = if gguf::is_gguf(mapping.bytes()) {
            let (meta, stored) = gguf::read_header(&file, mapping.bytes())?;
            (Some(meta), stored)
        } else {
            (None, safetensors::read_header(&file, mapping.bytes())?)
        };
        let mut this = Self { path: file, files: Vec::new(), tensors: BTreeMap::new(), meta };
        this.add_file(mapping, stored)?;
        Ok(this)
    }

    fn open_sharded(path: &Path) -> Result<Self, Diagnostic> {
        let index = index::read_index(path)?;
        let mut this =
            Self { path: path.to_path_buf(), files: Vec::new(), tensors: BTreeMap::new(), meta: None };
        for shard in &index.shards {
            let mapping = Mapping::open(shard)?;
            let stored = safetensors::read_header(shard, mapping.bytes())?;
            this.add_file(mapping, stored)?;
        }
        for (name, &shard) in &index.shard_of {
            if this.tensors.get(name).is_none_or(|(file, _)| *file != shard) {
                let named = index.shards.get(shard).map(|p| p.display().to_string()).unwrap_or_default();
                return Err(bad_file(
                    path,
                    format!("tensor `{name}` is not in the shard `{named}` it names"),
                ));
            }
        }
        Ok(this)
    }

    fn add_file(&mut self, mapping: Mapping, stored: Vec<Stored>) -> Result<(), Diagnostic> {
        let file = self.files.len();
        for tensor in stored {
            if let Some((other, _)) = self.tensors.get(&tensor.name) {
                let other = self.files.get(*other).unwrap_or(&mapping).path().display().to_string();
                let why = format!("tensor `{}` is in `{other}` too", tensor.name);
                return Err(bad_file(mapping.path(), why));
            }
            self.tensors.insert(tensor.name.clone(), (file, tensor));
        }
        self.files.push(mapping);
        Ok(())
    }

    /// The file that was opened: the GGUF or safetensors file, or the index.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The keys of a GGUF file; `None` for safetensors.
    pub fn gguf(&self) -> Option<&GgufMeta> {
        self.meta.as_ref()
    }

    /// All tensors, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo<'_>> {
        self.tensors.values().filter_map(|(file, t)| self.info(*file, t))
    }

    /// A tensor by its name in the file.
    pub fn tensor(&self, name: &str) -> Option<TensorInfo<'_>> {
        let (file, t) = self.tensors.get(name)?;
        self.info(*file, t)
    }

    fn info<'a>(&'a self, file: usize, t: &'a Stored) -> Option<TensorInfo<'a>> {
        let file = self.files.get(file)?.path();
        Some(TensorInfo { name: &t.name, element: &t.element, shape: &t.shape, file })
    }

    /// SHA-256, in hex, over the sorted names, types, shapes and sizes: two checkpoints of one digest can serve the
    /// same artifact. It does not depend on the values or on how tensors are dealt to files.
    pub fn header_digest(&self) -> String {
        let mut hash = Sha256::new();
        for (name, (_, t)) in &self.tensors {
            // The length keeps a name from running into what follows it.
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name.as_bytes());
            hash.update(format!(" {} {:?} {}\n", t.element, t.shape, t.bytes.len()));
        }
        hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Names in the published (Hugging Face) convention; a GGUF tensor outside it keeps its own.
    pub fn published_names(&self) -> impl Iterator<Item = String> {
        let gguf = self.meta.is_some();
        self.tensors.keys().map(move |name| match gguf {
            true => names::to_published(name).unwrap_or_else(|| name.clone()),
            false => name.clone(),
        })
    }

    /// Whether a tensor of this published name is there.
    pub fn contains(&self, published: &str) -> bool {
        self.stored_name(published).is_some_and(|name| self.tensors.contains_key(&name))
    }

    fn stored_name(&self, published: &str) -> Option<String> {
        if self.meta.is_some() { names::to_gguf(published) } else { Some(published.to_string()) }
    }

    /// The tensor of a published name in its published shape and order of elements, whatever the file's own. The
    /// families build a parameter's view from this one.
    pub fn view(&self, published: &str) -> Result<TensorView, Diagnostic> {
        let stored = self.stored_name(published).and_then(|name| self.tensors.get_key_value(&name));
        let Some((name, (_, tensor))) = stored else {
            return Err(self.missing(published));
        };
        let mut whole = TensorView::whole(name.clone(), tensor.shape.clone());
        whole.blocks = tensor.element.format();
        match &self.meta {
            Some(meta) => names::published_view(meta, whole),
            None => Ok(whole),
        }
    }

    /// Reads a slice, one range per dim of the stored shape, of a tensor by its name in the file.
    pub fn read_f32(&self, name: &str, slice: &[Range<usize>], out: &mut [f32]) -> Result<(), Diagnostic> {
        let Some((_, tensor)) = self.tensors.get(name) else {
            return Err(self.missing(name));
        };
        let whole = TensorView::whole(name, tensor.shape.clone());
        self.read_view(&whole, slice, out)
    }

    /// Reads a slice of a view.
    fn read_view(
        &self,
        view: &TensorView,
        slice: &[Range<usize>],
        out: &mut [f32],
    ) -> Result<(), Diagnostic> {
        let (tensor, data) = self.values_of(view)?;
        if check_slice(&view.shape(), slice)? != out.len() {
            let what = format!("slice {slice:?} read into {} elements", out.len());
            return Err(self.place(view, Diagnostic::internal(what)));
        }
        read_view(&tensor.element, data, view, slice, out).ok_or_else(|| self.outside(view))?;
        self.was_read(view, tensor.element.stored_bytes(out.len()));
        Ok(())
    }

    fn was_read(&self, view: &TensorView, bytes: usize) {
        let file = self.tensors.get(&view.tensor).and_then(|(file, _)| self.files.get(*file));
        if let Some(mapping) = file {
            mapping.done_with(bytes);
        }
    }

    /// The tensor behind a view, which is checked, and its bytes.
    fn values_of(&self, view: &TensorView) -> Result<(&Stored, &[u8]), Diagnostic> {
        let Some((file, tensor)) = self.tensors.get(&view.tensor) else {
            return Err(self.missing(&view.tensor));
        };
        if view.file_shape != tensor.shape {
            let why = format!("it has shape {:?} where {:?} is needed", tensor.shape, view.file_shape);
            return Err(self.place(view, Diagnostic::input("the weights are not of this model").why(why)));
        }
        if let ElementType::Other { name, .. } = &tensor.element {
            let what = format!("the tensor's element type {name} is not supported");
            return Err(self.place(
                view,
                Diagnostic::input(what).help(
                    "supported: F32, F16, BF16, and in GGUF Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, Q8_K",
                ),
            ));
        }
        view.check()?;
        let mapping = self.files.get(*file).ok_or_else(|| self.outside(view))?;
        mapping.check_length()?;
        let data = mapping.bytes().get(tensor.bytes.clone()).ok_or_else(|| self.outside(view))?;
        Ok((tensor, data))
    }

    fn place(&self, view: &TensorView, d: Diagnostic) -> Diagnostic {
        d.at(format!("{}, tensor `{}`", self.path.display(), view.tensor))
    }

    fn outside(&self, view: &TensorView) -> Diagnostic {
        self.place(view, Diagnostic::internal("a checked view reaches outside its tensor"))
    }

    /// Reads groups of a quantised tensor, as [`ReadParams::read_param_blocks`] says.
    fn read_blocks(
        &self,
        view: &TensorView,
        k: &[usize],
        slice: &[Range<usize>],
        rows: Range<usize>,
        out: BlockRows<'_>,
    ) -> Result<(), Diagnostic> {
        let (tensor, data) = self.values_of(view)?;
        check_slice(&view.shape(), slice)?;
        let ElementType::Quantised(kind) = tensor.element else {
            let why = format!("it is stored as {}, not quantised", tensor.element);
            let what = Diagnostic::input("the weights are not of this model").why(why);
            return Err(self.place(view, what));
        };
        if kind.format() != view.blocks {
            let why = format!("it is stored as {kind:?}, not in the form the program was compiled for");
            return Err(self.place(view, Diagnostic::input("the weights are not of this model").why(why)));
        }
        let elements = out.codes.len();
        read_blocks(kind, data, view, k, slice, rows, out).ok_or_else(|| self.outside(view))?;
        self.was_read(view, tensor.element.stored_bytes(elements));
        Ok(())
    }

    /// "There is no such tensor", with the names most like it.
    fn missing(&self, name: &str) -> Diagnostic {
        let mut close: Vec<(usize, String)> =
            self.published_names().map(|n| (likeness(&n, name), n)).filter(|(l, _)| *l > 4).collect();
        close.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        let close: Vec<String> = close.into_iter().take(3).map(|(_, n)| format!("`{n}`")).collect();
        let missing = Diagnostic::input(format!("the checkpoint has no tensor `{name}`"))
            .at(self.path.display().to_string())
            .why(format!("it holds {} tensors", self.tensors.len()));
        if close.is_empty() { missing } else { missing.help(format!("the nearest are {}", close.join(", "))) }
    }
}

impl ReadParams for Checkpoint {
    fn read_param_slice(
        &self,
        source: &ParamSource,
        slice: &[Range<usize>],
        out: &mut [f32],
    ) -> Result<(), Diagnostic> {
        match &source.values {
            Values::Tensor(view) => self.read_view(view, slice, out),
            Values::Constant(_) | Values::Random(_) => source.fill(slice, out).map(|_| ()),
        }
    }

    fn read_param_blocks(
        &self,
        source: &ParamSource,
        k: &[usize],
        slice: &[Range<usize>],
        rows: Range<usize>,
        out: BlockRows<'_>,
    ) -> Result<(), Diagnostic> {
        match &source.values {
            Values::Tensor(view) => self.read_blocks(view, k, slice, rows, out),
            Values::Constant(_) | Values::Random(_) => {
                Err(Diagnostic::internal("quantised blocks were asked of values that are made, not stored"))
            }
        }
    }
}

/// Lists names for a message: the first few and how many more.
pub fn list_names<S: AsRef<str>>(names: &[S]) -> String {
    let shown: Vec<String> = names.iter().take(LISTED).map(|n| format!("`{}`", n.as_ref())).collect();
    match names.len().saturating_sub(LISTED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Letters two names share at their beginning and end.
fn likeness(a: &str, b: &str) -> usize {
    let start = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    let end = a.bytes().rev().zip(b.bytes().rev()).take_while(|(x, y)| x == y).count();
    (start + end).min(a.len().max(b.len()))
}

/// The checkpoint of a folder: an index, `model.safetensors`, or the only safetensors or GGUF file.
fn find_in_folder(folder: &Path) -> Result<PathBuf, Diagnostic> {
    for name in ["model.safetensors.index.json", "model.safetensors"] {
        if folder.join(name).is_file() {
            return Ok(folder.join(name));
        }
    }
    let entries = std::fs::read_dir(folder).map_err(|e| bad_file(folder, e.to_string()))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "safetensors" || e == "gguf"))
        .collect();
    found.sort();
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(bad_file(folder, "the folder has no safetensors or GGUF file")
            .help("weights in other formats (.bin, .pt, .h5) must be converted to safetensors")),
        several => {
            let names: Vec<_> = several.iter().map(|p| p.display().to_string()).collect();
            Err(bad_file(folder, format!("the folder has several weight files: {}", list_names(&names)))
                .help("name one of them"))
        }
    }
}
