//! Talks to the `pcc-codegen` executable: started early, so that LLVM's start-up overlaps the passes, and handed the kernels when they
//! are ready. Whatever happens to it (missing, crashed, stuck, talking nonsense) becomes a diagnostic.

use pcc_ir::Diagnostic;
use pcc_ir::codegen_protocol::{Built, Cpu, Gpu, Reply, Request};
use pcc_ir::kernel::Kernel;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// The executable's name, and the variable that says where it is.
const NAME: &str = "pcc-codegen";
const VARIABLE: &str = "PCC_CODEGEN";
/// How long to wait for code: far beyond what a kernel takes (milliseconds) on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(120);
const PATIENCE_PER_KERNEL: Duration = Duration::from_secs(2);
/// Signals that come from outside: hang-up, interrupt, kill (when memory is short, too), terminate.
const KILLS: [i32; 4] = [1, 2, 9, 15];
/// What is kept of the helper's stderr.
const STDERR_KEPT: u64 = 16 << 10;

/// A running helper; it is ended when this is dropped.
pub struct CodegenClient {
    child: Child,
    stdin: Option<ChildStdin>,
    replies: Receiver<Vec<u8>>,
    complaints: Receiver<String>,
}

impl CodegenClient {
    /// Starts the helper: `$PCC_CODEGEN`, or the one next to this executable, or the first in `$PATH`.
    ///
    /// # Errors
    /// There is none, or it cannot be started.
    pub fn spawn() -> Result<Self, Diagnostic> {
        Self::spawn_command(Command::new(find()?))
    }

    fn spawn_command(mut command: Command) -> Result<Self, Diagnostic> {
        let program = PathBuf::from(command.get_program());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| cannot_start(&program).why(e.to_string()))?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(cannot_start(&program).why("it has no pipes"));
        };
        let (reply, replies) = channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout).split(b'\n');
            while let Some(Ok(line)) = lines.next() {
                if reply.send(line).is_err() {
                    break;
                }
            }
        });
        let (complain, complaints) = channel();
        std::thread::spawn(move || {
            let mut stderr = BufReader::new(stderr);
            let mut text = vec![];
            let _ = stderr.by_ref().take(STDERR_KEPT).read_to_end(&mut text);
            // The rest is read and dropped, so that the helper never blocks on it.
            let _ = std::io::copy(&mut stderr, &mut std::io::sink());
            let _ = complain.send(String::from_utf8_lossy(&text).trim().to_owned());
        });
        Ok(CodegenClient { child, stdin: Some(stdin), replies, complaints })
    }

    /// Generates the kernels for this machine's CPU into the shared object `out`, or for a GPU into PTX.
    ///
    /// # Errors
    /// What the helper says is wrong, or what became of it.
    pub fn build(self, kernels: &[Kernel], gpu: Option<Gpu>, out: &Path) -> Result<Built, Diagnostic> {
        let count = kernels.len() + gpu.as_ref().map_or(0, |g| g.library.len());
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.build_within(kernels, gpu, out, PATIENCE + PATIENCE_PER_KERNEL.saturating_mul(count))
    }

    fn build_within(
        mut self,
        kernels: &[Kernel],
        gpu: Option<Gpu>,
        out: &Path,
        patience: Duration,
    ) -> Result<Built, Diagnostic> {
        let path = |p: &Path| p.to_str().map(str::to_owned);
        let request = Request {
            kernels: kernels.to_vec(),
            cpu: Cpu::Native,
            gpu,
            out: path(out).ok_or_else(|| {
                Diagnostic::input("the output path is not UTF-8").at(out.display().to_string())
            })?,
            cache: cache_folder().as_deref().and_then(path),
        };
        let mut line = serde_json::to_vec(&request)
            .map_err(|e| Diagnostic::internal("kernels cannot be written as JSON").why(e.to_string()))?;
        line.push(b'\n');
        if let Some(mut stdin) = self.stdin.take() {
            // In a thread: a helper that does not read must not hold us up. A failure shows as the missing reply.
            std::thread::spawn(move || stdin.write_all(&line));
        }
        let reply = match self.replies.recv_timeout(patience) {
            Ok(reply) => reply,
            Err(RecvTimeoutError::Disconnected) => return Err(self.death()),
            Err(RecvTimeoutError::Timeout) => {
                return Err(Diagnostic::run(format!("{NAME} gave no answer in {} s", patience.as_secs())));
            }
        };
        match serde_json::from_slice(&reply) {
            Ok(Reply::Built(built)) if built.symbols.len() == kernels.len() => Ok(built),
            Ok(Reply::Built(built)) => {
                Err(nonsense().why(format!("{} symbols for {} kernels", built.symbols.len(), kernels.len())))
            }
            Ok(Reply::Failed { error }) => Err(error),
            Err(error) => Err(nonsense().why(error.to_string())),
        }
    }

    /// Why the helper went away without an answer.
    fn death(&mut self) -> Diagnostic {
        let (status, killed) = match self.child.wait() {
            Ok(status) => (status.to_string(), status.signal().is_some_and(|s| KILLS.contains(&s))),
            Err(error) => (error.to_string(), false),
        };
        let said = self.complaints.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
        let what = format!("{NAME} ended without an answer ({status})");
        let died = match killed {
            true => Diagnostic::run(what)
                .help("something ended it, for instance the system when memory was short: try again"),
            false => Diagnostic::internal(what),
        };
        if said.is_empty() { died } else { died.why(format!("it said: {said}")) }
    }
}

impl Drop for CodegenClient {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is waited for, so that no zombie stays.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn cannot_start(program: &Path) -> Diagnostic {
    Diagnostic::run(format!("{NAME} cannot be started")).at(program.display().to_string())
}

fn nonsense() -> Diagnostic {
    Diagnostic::internal(format!("{NAME} gave a malformed answer")).help(format!(
        "{NAME} and pcc must be of one version: is ${VARIABLE} or $PATH leading to an old one?"
    ))
}

/// Where the executable is.
fn find() -> Result<PathBuf, Diagnostic> {
    if let Some(program) = std::env::var_os(VARIABLE).filter(|v| !v.is_empty()) {
        return Ok(program.into());
    }
    let sibling = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(NAME)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = sibling.into_iter().chain(std::env::split_paths(&path).map(|folder| folder.join(NAME)));
    candidates.into_iter().find(|p| p.is_file()).ok_or_else(|| {
        Diagnostic::run(format!("{NAME}, which generates kernels, was not found"))
            .why(format!("it is neither next to pcc nor in $PATH, and ${VARIABLE} is not set"))
            .help(format!("cargo build --release -p {NAME}"))
    })
}

/// Folder of generated objects: `kernels` in `$PCC_CACHE`, or in `pcc` of the user's cache folder.
fn cache_folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let folder = variable("PCC_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|c| c.join("pcc")))
        .or_else(|| variable("HOME").map(|h| h.join(".cache/pcc")))?;
    Some(folder.join("kernels"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcc_ir::Fault;

    /// Asks a helper that is a shell script for no kernels.
    fn ask(script: &str, patience: Duration) -> Result<Built, Diagnostic> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        CodegenClient::spawn_command(command)?.build_within(&[], None, Path::new("out.so"), patience)
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn an_answer_is_read() {
        let built = ask(
            r#"read line; echo '{"ok":true,"symbols":[],"features":["avx2"],"object_digest":"d","generated":0,"cached":0,"seconds":{}}'"#,
            LONG,
        );
        assert_eq!(built.unwrap().features, ["avx2"]);
    }

    #[test]
    fn its_errors_are_passed_on() {
        let error = ask(r#"read line; echo '{"error":{"fault":"run","what":"no linker was found"}}'"#, LONG)
            .unwrap_err();
        assert_eq!((error.fault, error.what.as_str()), (Fault::Run, "no linker was found"));
    }

    #[test]
    fn a_crash_is_told_with_its_last_words() {
        let error = ask("echo LLVM ERROR: cannot select >&2; kill -ABRT $$", LONG).unwrap_err();
        assert_eq!(error.fault, Fault::Internal);
        let text = error.to_string();
        assert!(text.contains("signal: 6") && text.contains("cannot select"), "{text}");
    }

    #[test]
    fn who_is_killed_is_not_at_fault() {
        let error = ask("read line; kill -9 $$", LONG).unwrap_err();
        assert_eq!(error.fault, Fault::Run);
        assert!(error.to_string().contains("signal: 9"), "{error}");
    }

    #[test]
    fn nonsense_is_refused() {
        let error = ask("read line; echo hello", LONG).unwrap_err();
        assert!(error.what.contains("malformed answer"), "{error}");
        let error = ask(
            r#"read line; echo '{"ok":true,"symbols":["a"],"features":[],"object_digest":"d","generated":0,"cached":0,"seconds":{}}'"#,
            LONG,
        );
        assert!(error.unwrap_err().to_string().contains("1 symbols for 0 kernels"));
    }

    #[test]
    fn a_stuck_helper_is_given_up() {
        let error = ask("exec sleep 60", Duration::from_millis(100)).unwrap_err();
        assert!(error.what.contains("gave no answer"), "{error}");
    }

    #[test]
    fn a_missing_helper_is_named() {
        let error = CodegenClient::spawn_command(Command::new("/nowhere/pcc-codegen")).err().unwrap();
        assert!(error.to_string().contains("/nowhere/pcc-codegen"), "{error}");
    }
}
