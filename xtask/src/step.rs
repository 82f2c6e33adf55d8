//! Running other programs: each command line is shown before it runs, each step's time after it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The named steps done so far and how long each took.
pub(crate) struct Steps {
    times: Vec<(String, Duration, bool)>,
}

impl Steps {
    pub(crate) fn new() -> Self {
        Steps { times: Vec::new() }
    }

    /// Runs one step and prints its seconds, also when it fails; an error names the step.
    pub(crate) fn run<T>(&mut self, name: &str, action: impl FnOnce() -> Result<T>) -> Result<T> {
        println!("== {name}");
        let start = Instant::now();
        let outcome = action();
        let elapsed = start.elapsed();
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("== {name}: {verdict}, {:.1} s", elapsed.as_secs_f64());
        self.times.push((name.to_owned(), elapsed, outcome.is_ok()));
        outcome.with_context(|| format!("step `{name}`"))
    }

    /// One line per step and the total. Says nothing when there was at most one step.
    pub(crate) fn print_times(&self) {
        if self.times.len() < 2 {
            return;
        }
        println!("\nseconds");
        for (name, elapsed, ok) in &self.times {
            let mark = if *ok { "" } else { "   FAILED" };
            println!("{:>8.1}  {name}{mark}", elapsed.as_secs_f64());
        }
        let total: Duration = self.times.iter().map(|(_, elapsed, _)| *elapsed).sum();
        println!("{:>8.1}  in all", total.as_secs_f64());
    }
}

/// Starts building a command line; [`Call::run`] and its siblings carry it out.
pub(crate) fn call(program: impl AsRef<OsStr>) -> Call {
    Call { command: Command::new(program) }
}

/// A command line that prints itself before it runs and names itself when it fails.
pub(crate) struct Call {
    command: Command,
}

impl Call {
    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Runs it with our own output streams; an exit status other than 0 is an error.
    pub(crate) fn run(mut self) -> Result<()> {
        println!("$ {}", self.line());
        let status = self.command.stdin(Stdio::null()).status().with_context(|| self.not_started())?;
        self.check(status)
    }

    /// Runs it and returns what it wrote to standard output, which is not shown.
    pub(crate) fn read(mut self) -> Result<String> {
        self.command.stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = self.command.output().with_context(|| self.not_started())?;
        self.check(output.status)?;
        String::from_utf8(output.stdout).with_context(|| format!("`{}` wrote no UTF-8", self.line()))
    }

    /// Runs it, shows its standard output line by line as it comes, and returns it together with the status.
    pub(crate) fn tee(mut self) -> Result<(String, Result<()>)> {
        println!("$ {}", self.line());
        self.command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = self.command.spawn().with_context(|| self.not_started())?;
        let mut text = String::new();
        if let Some(pipe) = child.stdout.take() {
            let mut lines = BufReader::new(pipe);
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line)? > 0 {
                std::io::stdout().write_all(&line)?;
                text.push_str(&String::from_utf8_lossy(&line));
                line.clear();
            }
        }
        let status = child.wait()?;
        Ok((text, self.check(status)))
    }

    /// The command line as a person would type it.
    pub(crate) fn line(&self) -> String {
        let words = std::iter::once(self.command.get_program()).chain(self.command.get_args());
        words.map(|word| shown(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
    }

    fn check(&self, status: ExitStatus) -> Result<()> {
        if !status.success() {
            bail!("`{}` ended with {status}", self.line());
        }
        Ok(())
    }

    fn not_started(&self) -> String {
        format!("`{}` could not be started", self.line())
    }
}

/// A word of a command line as a shell takes it. A whole program given as an argument is left out.
fn shown(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:+,@%".contains(c);
    if word.contains('\n') {
        "...".to_owned()
    } else if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_named_with_its_status() {
        let error = call("sh").args(["-c", "exit 3"]).run().unwrap_err();
        assert_eq!(error.to_string(), "`sh -c 'exit 3'` ended with exit status: 3");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = call("/nonexistent/program").run().unwrap_err();
        assert_eq!(error.to_string(), "`/nonexistent/program` could not be started");
    }

    #[test]
    fn tee_returns_output_and_status_together() {
        let (text, status) = call("sh").args(["-c", "echo one; echo two; exit 1"]).tee().unwrap();
        assert_eq!(text, "one\ntwo\n");
        assert!(status.is_err());
    }

    #[test]
    fn a_failed_step_is_named_and_timed() {
        let mut steps = Steps::new();
        let error = steps.run("lint", || -> Result<()> { bail!("no") }).unwrap_err();
        assert_eq!(format!("{error:#}"), "step `lint`: no");
        assert_eq!(steps.times.len(), 1);
        assert!(!steps.times[0].2);
    }

    #[test]
    fn words_with_blanks_or_quotes_are_quoted() {
        assert_eq!(shown("a b"), "'a b'");
        assert_eq!(shown("it's"), r"'it'\''s'");
        assert_eq!(shown("--tp=8"), "--tp=8");
        assert_eq!(shown("import sys\nprint(1)"), "...");
    }
}
