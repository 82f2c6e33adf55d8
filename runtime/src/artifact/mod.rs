//! The artifact directory `NAME.pcc/`: `program.json`, `report.json`, `plan.json` and their checksums, the kernel object, and in
//! `levels.json` what the program was lowered from. No weights.

mod checksums;
mod exchange;
mod features;
mod levels;

pub use levels::Levels;

use crate::kernel_object::KernelObject;
use crate::kernels::KernelSet;
use crate::validate;
use pcc_ir::Diagnostic;
use pcc_ir::gpu::Arch;
use pcc_ir::program::{DeviceKind, Program, Target};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const PROGRAM: &str = "program.json";
const REPORT: &str = "report.json";
const PLAN: &str = "plan.json";
const LEVELS: &str = "levels.json";

/// No program.json is this large, in bytes.
const LARGEST_PROGRAM: u64 = 1 << 30;

/// A loaded and checked artifact.
#[derive(Clone, Debug)]
pub struct Artifact {
    pub dir: PathBuf,
    pub program: Program,
    /// What `pcc inspect` prints.
    pub report: Value,
    /// What `--plan` replays.
    pub plan: Value,
}

/// What goes into an artifact.
pub struct Contents<'a> {
    /// Its `target.object_digest` is filled in by [`Artifact::write`].
    pub program: &'a Program,
    /// The kernel object, or PTX; `None` when the program has no kernels.
    pub kernels: Option<&'a Path>,
    pub report: &'a Value,
    pub plan: &'a Value,
    /// What the program was lowered from, for `pcc verify`.
    pub levels: Option<&'a Levels>,
}

impl Artifact {
    /// Reads an artifact and checks that it is whole and that no instruction can leave its buffers.
    ///
    /// # Errors
    /// Something is missing, truncated, edited, or of another version.
    pub fn load(dir: &Path) -> Result<Self, Diagnostic> {
        check_is_there(dir)?;
        let (program, bytes) = parse_program(&dir.join(PROGRAM))?;
        validate::check(&program.clone().expanded()?)?;
        checksums::check(dir, PROGRAM, &bytes)?;
        check_symbols(&program)?;
        let (report, plan) = (checked_json(dir, REPORT)?, checked_json(dir, PLAN)?);
        let artifact = Self { dir: dir.to_owned(), program, report, plan };
        artifact.check_object()?;
        Ok(artifact)
    }

    /// The report alone, as written with the program that lies beside it.
    ///
    /// # Errors
    /// There is no artifact, or its program or report is missing or was changed.
    pub fn report(dir: &Path) -> Result<Value, Diagnostic> {
        check_is_there(dir)?;
        checksums::check(dir, PROGRAM, &read(&dir.join(PROGRAM))?)?;
        checked_json(dir, REPORT)
    }

    /// Reads the levels that the program was lowered from and checks that each is well formed.
    ///
    /// # Errors
    /// The artifact keeps none, or the file is missing, truncated or edited.
    pub fn levels(&self) -> Result<Levels, Diagnostic> {
        levels::load(&self.dir.join(LEVELS), &self.program)
    }

    /// Loads the kernels into the process.
    ///
    /// # Errors
    /// The machine lacks a CPU feature that the kernels use, or the object cannot be loaded.
    pub fn kernels(&self) -> Result<Box<dyn KernelSet>, Diagnostic> {
        features::check(&self.program.target)?;
        if self.program.kernels.is_empty() {
            return Ok(Box::new(NoKernels));
        }
        self.check_object()?;
        Ok(Box::new(KernelObject::load(&self.object_path(), self.program.kernels.values())?))
    }

    /// The PTX of the kernels.
    ///
    /// # Errors
    /// The artifact is for a CPU, or the file is missing or was changed.
    pub fn ptx(&self) -> Result<String, Diagnostic> {
        if self.program.target.device() != DeviceKind::Gpu {
            return Err(Diagnostic::input(format!(
                "the artifact is for {}, not for a GPU",
                self.program.target.name
            ))
            .help("compile it with --target sm_90, for instance"));
        }
        self.check_object()?;
        let path = self.object_path();
        let bytes = read(&path)?;
        String::from_utf8(bytes).map_err(|e| {
            Diagnostic::input("the artifact is damaged").at(path.display().to_string()).why(e.to_string())
        })
    }

    /// The kernel object's file.
    pub fn object_path(&self) -> PathBuf {
        self.dir.join(object_name(&self.program.target))
    }

    fn check_object(&self) -> Result<(), Diagnostic> {
        if !has_code(&self.program) {
            return Ok(());
        }
        let path = self.object_path();
        let digest = digest(&path).map_err(|e| unreadable(&path, &e))?;
        if digest == self.program.target.object_digest {
            return Ok(());
        }
        Err(Diagnostic::input("the artifact's kernels are not those it was compiled with")
            .at(path.display().to_string())
            .why(format!("its SHA-256 is {digest}, program.json says {}", self.program.target.object_digest))
            .help("compile the model again"))
    }

    /// Writes an artifact beside `dir` and moves it there in one step, replacing an older artifact. On an error nothing is left and
    /// the older one is untouched.
    ///
    /// # Errors
    /// `dir` is something else than an artifact, or writing fails (disk full).
    pub fn write(dir: &Path, contents: &Contents<'_>) -> Result<(), Diagnostic> {
        Self::write_created(dir, contents, &mut |path| fs::create_dir(path))
    }

    /// As [`Artifact::write`]; `create` makes the temporary directory, so that a program that is ended by a signal can know at every
    /// moment whether there is one to remove.
    ///
    /// # Errors
    /// As [`Artifact::write`].
    pub fn write_created(
        dir: &Path,
        contents: &Contents<'_>,
        create: &mut dyn FnMut(&Path) -> io::Result<()>,
    ) -> Result<(), Diagnostic> {
        let failed = |e: io::Error| {
            Diagnostic::run("the artifact cannot be written").at(dir.display().to_string()).why(e.to_string())
        };
        let dir = &target(dir)?;
        let temporary = Temporary::beside(dir, create).map_err(failed)?;
        write_files(&temporary.0, contents).map_err(failed)?;
        temporary.move_to(dir).map_err(failed)
    }
}

/// Kernels of a program that has none.
struct NoKernels;

impl KernelSet for NoKernels {
    fn call(&self, _: &crate::kernels::KernelCall<'_>, _: std::ops::Range<i64>) {}
}

fn write_files(dir: &Path, contents: &Contents<'_>) -> io::Result<()> {
    let mut program = contents.program.clone();
    program.target.object_digest = String::new();
    if let Some(object) = contents.kernels {
        let path = dir.join(object_name(&program.target));
        fs::copy(object, &path)?;
        program.target.object_digest = digest(&path)?;
    }
    let write = |name: &str, bytes: Vec<u8>| -> io::Result<()> {
        let mut file = File::create(dir.join(name))?;
        file.write_all(&bytes)?;
        // A disk that is full may say so only here.
        file.sync_data()
    };
    program.levels_digest = String::new();
    if let Some(levels) = contents.levels {
        let bytes = serde_json::to_vec(levels)?;
        program.levels_digest = digest_of(&bytes);
        write(LEVELS, bytes)?;
    }
    let program = serde_json::to_vec(&program)?;
    let report = serde_json::to_vec_pretty(contents.report)?;
    let plan = serde_json::to_vec_pretty(contents.plan)?;
    write(checksums::CHECKSUMS, checksums::text([&program, &report, &plan]).into_bytes())?;
    write(PROGRAM, program)?;
    write(REPORT, report)?;
    write(PLAN, plan)
}

/// Where an artifact may be written: nothing is there, an artifact, or an empty directory. Links are followed.
fn target(dir: &Path) -> Result<PathBuf, Diagnostic> {
    let refuse =
        |why: &str| Err(Diagnostic::input(why).at(dir.display().to_string()).help("choose another with -o"));
    if !dir.exists() {
        return match dir.file_name() {
            Some(_) => Ok(dir.to_owned()),
            None => refuse("this is no name for an artifact"),
        };
    }
    if !dir.is_dir() {
        return refuse("a file is in the place of the artifact");
    }
    let empty = fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none());
    if !empty && !dir.join(PROGRAM).is_file() {
        return refuse("a directory that is no artifact is in the place of the artifact");
    }
    dir.canonicalize().or_else(|e| refuse(&e.to_string()))
}

/// How often to try to take a place that others take too.
const TRIES: usize = 3;

/// A directory that is removed when dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn beside(dir: &Path, create: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = dir.with_file_name(format!(".{name}.{}-{number}.tmp", std::process::id()));
        create(&path)?;
        Ok(Self(path))
    }

    /// Takes the place of `dir`; what was there goes with the temporary name.
    fn move_to(self, dir: &Path) -> io::Result<()> {
        // Other processes may put their artifacts there at the same time: one that was not there may be now.
        for _ in 0..TRIES {
            if exchange::exchange(&self.0, dir).is_ok() {
                return Ok(());
            }
            match fs::rename(&self.0, dir) {
                Err(_) if dir.exists() => {}
                outcome => return outcome,
            }
        }
        // The file system cannot exchange: two renames, the first undone when the second fails.
        let aside = self.0.with_extension("old");
        fs::rename(dir, &aside)?;
        if let Err(e) = fs::rename(&self.0, dir) {
            fs::rename(&aside, dir)?;
            return Err(e);
        }
        fs::remove_dir_all(&aside)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Gone already when it was moved; otherwise there is no one left to tell.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What the kernels' file is called.
fn object_name(target: &Target) -> String {
    match Arch::parse(&target.name) {
        Some(arch) => format!("kernels.{}.ptx", arch.name()),
        None => "kernels.x86.so".to_owned(),
    }
}

/// Whether the program has a file of kernels: one for GPUs always has, of the library if not its own.
fn has_code(program: &Program) -> bool {
    !program.kernels.is_empty() || program.target.device() == DeviceKind::Gpu
}

fn digest(path: &Path) -> io::Result<String> {
    regular(path)?;
    let (mut file, mut hash, mut buffer) = (File::open(path)?, Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(hash)),
            n => hash.update(&buffer[..n]),
        }
    }
}

/// The size of a regular file. Anything else is refused before it is opened: a pipe can block for ever, a device never end.
fn regular(path: &Path) -> io::Result<u64> {
    let found = fs::metadata(path)?;
    if found.is_file() { Ok(found.len()) } else { Err(io::Error::other("it is not a regular file")) }
}

fn digest_of(bytes: &[u8]) -> String {
    hex(Sha256::new_with_prefix(bytes))
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

fn unreadable(path: &Path, error: &io::Error) -> Diagnostic {
    Diagnostic::input("a file of the artifact cannot be read")
        .at(path.display().to_string())
        .why(error.to_string())
        .help("compile the model again")
}

fn read(path: &Path) -> Result<Vec<u8>, Diagnostic> {
    let size = regular(path).map_err(|e| unreadable(path, &e))?;
    if size > LARGEST_PROGRAM {
        return Err(Diagnostic::input("a file of the artifact is too large")
            .at(path.display().to_string())
            .why(format!("it has {size} bytes, at most {LARGEST_PROGRAM} are sensible")));
    }
    fs::read(path).map_err(|e| unreadable(path, &e))
}

fn malformed(path: &Path, error: &serde_json::Error) -> Diagnostic {
    Diagnostic::input("the artifact is damaged")
        .at(path.display().to_string())
        .why(error.to_string())
        .help("compile the model again")
}

fn check_is_there(dir: &Path) -> Result<(), Diagnostic> {
    if dir.is_dir() {
        return Ok(());
    }
    Err(Diagnostic::input("there is no artifact here")
        .at(dir.display().to_string())
        .why(if dir.exists() { "it is not a directory" } else { "it does not exist" })
        .help("pcc compile writes a directory NAME.pcc"))
}

fn checked_json(dir: &Path, name: &str) -> Result<Value, Diagnostic> {
    let bytes = read(&dir.join(name))?;
    checksums::check(dir, name, &bytes)?;
    serde_json::from_slice(&bytes).map_err(|e| malformed(&dir.join(name), &e))
}

/// Every kernel must have the symbol of its code, or the object's code would be run for another kernel than the checked one.
fn check_symbols(program: &Program) -> Result<(), Diagnostic> {
    let mut wrong = program.kernels.iter().filter(|(_, kernel)| kernel.name != kernel.symbol());
    wrong.next().map_or(Ok(()), |(id, kernel)| {
        Err(Diagnostic::input("the artifact is damaged")
            .at(format!("{PROGRAM}, kernel {id}"))
            .why(format!(
                "`{}` is the name of another kernel: this one's is {}",
                kernel.name,
                kernel.symbol()
            ))
            .help("compile the model again"))
    })
}

/// The program, and the bytes of its file. Looks at the version first: a program of another version may have another form.
fn parse_program(path: &Path) -> Result<(Program, Vec<u8>), Diagnostic> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    let bytes = read(path)?;
    let head: Head = serde_json::from_slice(&bytes).map_err(|e| malformed(path, &e))?;
    validate::check_version(head.version)?;
    let program = serde_json::from_slice(&bytes).map_err(|e| malformed(path, &e))?;
    Ok((program, bytes))
}
