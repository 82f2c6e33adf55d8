//! Runs the commands that the documents show, so that they cannot go stale.
//!
//! A fenced block marked `console` or `sh` is run unless its mark goes on with `no-run`. In a `console` block the lines
//! that start with `$ ` are commands (a trailing `\` continues one) and the rest is their output: every line of it must come, in
//! this order, but for times and errors of rounding, and for what a line of `...` leaves out. A `sh` block is commands only. Every command must end with status 0. HTML comments right before a block, which a reader of
//! the page never sees, demand more: `<!-- shows: TEXT -->` that the block's output has TEXT in it, `<!-- exit: 1 -->`
//! that its last command ends with that status instead.
//!
//! All blocks of one document run in one scratch folder, which has the project's `examples`, with `pcc` on the PATH.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::project::Project;
use crate::step::Steps;

const DOCUMENTS: [&str; 2] = ["README.md", "CONTRIBUTING.md"];

/// Longer than any command shown should take, on a busy machine.
const SECONDS_PER_COMMAND: &str = "180";

pub(crate) fn run(project: &Project, steps: &mut Steps) -> Result<()> {
    steps.run("readme", || {
        project.cargo(["build", "--quiet"]).run()?;
        let target = project.target_dir()?;
        let mut commands = 0;
        for document in DOCUMENTS {
            let text = std::fs::read_to_string(project.root.join(document))
                .with_context(|| format!("cannot read {document}"))?;
            let scratch = target.join("readme").join(document.trim_end_matches(".md"));
            prepare(&scratch, &project.root)?;
            let place = Place { scratch: &scratch, programs: &target.join("debug") };
            for block in blocks(&text)? {
                commands += block.run(&place).with_context(|| format!("{document}, line {}", block.line))?;
            }
        }
        println!("{commands} commands ran as shown");
        Ok(())
    })
}

/// An empty scratch folder with a link to the project's examples.
fn prepare(scratch: &Path, root: &Path) -> Result<()> {
    if scratch.exists() {
        std::fs::remove_dir_all(scratch).with_context(|| format!("cannot empty {}", scratch.display()))?;
    }
    std::fs::create_dir_all(scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
    let examples = root.join("examples");
    if examples.is_dir() {
        std::os::unix::fs::symlink(examples, scratch.join("examples"))?;
    }
    Ok(())
}

/// Where commands run and where they find `pcc`.
struct Place<'a> {
    scratch: &'a Path,
    programs: &'a Path,
}

/// A block of a document that is to be run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Block {
    /// Of its fence, counted from 1.
    line: usize,
    commands: Vec<String>,
    /// Lines of a `console` block that the output must have, in order.
    lines: Vec<String>,
    /// Texts that the output must have in it.
    shows: Vec<String>,
    /// The exit status of the last command.
    exit: i32,
}

impl Block {
    /// Runs the commands one after another and returns how many there were.
    fn run(&self, place: &Place) -> Result<usize> {
        let mut output = String::new();
        for (index, command) in self.commands.iter().enumerate() {
            println!("$ {command}");
            let expected = if index + 1 == self.commands.len() { self.exit } else { 0 };
            let (status, text) = place.shell(command)?;
            if status != Some(expected) {
                let status = status.map_or("a signal".to_owned(), |code| format!("status {code}"));
                bail!("`{command}` ended with {status}, not {expected}:\n{text}");
            }
            output.push_str(&text);
        }
        if let Some(missing) = self.shows.iter().find(|text| !output.contains(text.as_str())) {
            bail!("the output has no `{missing}` in it:\n{output}");
        }
        if let Some(line) = self.missing_line(&output) {
            bail!("after the lines before it, the output has no `{line}`:\n{output}");
        }
        Ok(self.commands.len())
    }

    /// The first line that does not follow those before it.
    fn missing_line(&self, output: &str) -> Option<&str> {
        let mut printed = output.lines().map(timeless);
        self.lines.iter().map(String::as_str).find(|&line| {
            let line = timeless(line);
            !printed.any(|p| p == line)
        })
    }
}

/// A line without what differs from run to run: numbers before a unit of time, and those of rounding, which have an exponent.
fn timeless(line: &str) -> String {
    let words: Vec<&str> = line.trim_end().split(' ').collect();
    let is_number = |w: &str| w.starts_with(|c: char| c.is_ascii_digit());
    let unit = |w: &str| matches!(w.trim_end_matches([',', ';', '.']), "s" | "ms");
    let changes = |i: usize, w: &str| {
        let w = w.trim_start_matches('(');
        is_number(w) && (w.contains("e-") || words.get(i + 1).is_some_and(|next| unit(next)))
    };
    let kept = words.iter().enumerate().map(|(i, w)| if changes(i, w) { "_" } else { w });
    kept.collect::<Vec<_>>().join(" ")
}

impl Place<'_> {
    /// The exit code and the output, standard error included, of a command line under a time limit.
    fn shell(&self, command: &str) -> Result<(Option<i32>, String)> {
        let path = std::env::var("PATH").unwrap_or_default();
        let output = Command::new("timeout")
            .args([SECONDS_PER_COMMAND, "bash", "-c", &format!("exec 2>&1\n{command}")])
            .current_dir(self.scratch)
            .env("PATH", format!("{}:{path}", self.programs.display()))
            .stdin(Stdio::null())
            .output()
            .context("`timeout` could not be started")?;
        Ok((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
    }
}

/// The blocks of a document that are to be run, in order.
fn blocks(text: &str) -> Result<Vec<Block>> {
    let mut found = Vec::new();
    let mut next = Block::default();
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        if let Some(mark) = line.strip_prefix("```") {
            let body: Vec<&str> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| !line.starts_with("```")).collect();
            let mut block = std::mem::take(&mut next);
            block.line = index + 1;
            block.commands = match mark.split_whitespace().collect::<Vec<_>>().as_slice() {
                ["console"] => {
                    block.lines = shown(&body);
                    prompted(&body)
                }
                ["sh"] => joined(body.iter().copied()),
                ["console" | "sh", "no-run"] => continue,
                ["console" | "sh", flags @ ..] => bail!("line {}: unknown mark {flags:?}", index + 1),
                _ => continue,
            };
            found.push(block);
        } else if let Some(demand) =
            line.trim().strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"))
        {
            next.demand(demand).with_context(|| format!("line {}", index + 1))?;
        } else if !line.trim().is_empty() {
            // A comment belongs to the block right after it only.
            next = Block::default();
        }
    }
    Ok(found)
}

impl Block {
    fn demand(&mut self, text: &str) -> Result<()> {
        match text.split_once(": ") {
            Some(("shows", shown)) => self.shows.push(shown.to_owned()),
            Some(("exit", code)) => {
                self.exit = code.parse().with_context(|| format!("no exit status: {code}"))?
            }
            _ => {}
        }
        Ok(())
    }
}

/// The commands of a `console` block.
fn prompted(body: &[&str]) -> Vec<String> {
    let mut continued = false;
    let lines = body.iter().filter_map(|line| {
        let command =
            line.strip_prefix("$ ").or_else(|| continued.then(|| line.strip_prefix("> ").unwrap_or(line)))?;
        continued = command.ends_with('\\');
        Some(command)
    });
    joined(lines)
}

/// The lines of a `console` block that are output.
fn shown(body: &[&str]) -> Vec<String> {
    let mut continued = false;
    let is_output = |line: &&&str| {
        let command = line.starts_with("$ ") || continued;
        continued = command && line.ends_with('\\');
        !command && !line.trim().is_empty() && line.trim() != "..."
    };
    body.iter().filter(is_output).map(|line| (*line).to_owned()).collect()
}

/// Puts lines that a backslash continues together, and leaves out blank lines and comments.
fn joined<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut commands = Vec::new();
    let mut open = String::new();
    for line in lines {
        if let Some(start) = line.strip_suffix('\\') {
            open.push_str(start);
            continue;
        }
        open.push_str(line);
        let command = std::mem::take(&mut open);
        if !command.trim().is_empty() && !command.trim_start().starts_with('#') {
            commands.push(command.trim().to_owned());
        }
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_text(text: &str) -> Result<usize> {
        let scratch = std::env::temp_dir();
        let place = Place { scratch: &scratch, programs: Path::new("/nonexistent") };
        blocks(text)?.iter().map(|block| block.run(&place)).sum()
    }

    #[test]
    fn output_is_as_shown_but_for_times() {
        let shown = |line: &str| {
            run_text(&format!(
                "```console\n$ echo 'a b'; echo '2 stages in 0.12 s, off by 1.5e-6 (2e-7)'\n{line}\n```\n"
            ))
        };
        assert!(shown("a b\n2 stages in 9.9 s, off by 3e-8 (1.1e-9)").is_ok());
        assert!(shown("...\n2 stages in 9.9 s, off by 3e-8 (1.1e-9)").is_ok());
        for wrong in
            ["3 stages in 0.12 s, off by 1.5e-6 (2e-7)", "2 stages in 0.12 s, off by 1.5e-6 (2e-7)\na b", "a"]
        {
            let error = format!("{:#}", shown(wrong).unwrap_err());
            assert!(error.contains("the output has no"), "{error}");
        }
    }

    #[test]
    fn only_marked_blocks_are_taken() {
        let text = "```console\n$ echo a \\\n  b\na b\n$ echo c\n```\n```sh\n# why\necho d\n```\n```sh no-run\nfalse\n```\n\
                    ```text\nfalse\n```\n";
        let commands: Vec<_> = blocks(text).unwrap().into_iter().map(|block| block.commands).collect();
        assert_eq!(commands, [vec!["echo a   b", "echo c"], vec!["echo d"]]);
    }

    #[test]
    fn a_failing_command_fails_the_document() {
        let error = run_text("```sh\ntrue\nsh -c 'echo why; exit 4'\n```").unwrap_err().to_string();
        assert!(error.contains("ended with status 4, not 0:\nwhy"), "{error}");
        assert_eq!(run_text("```sh\ntrue\n```\n```console\n$ echo x\n```").unwrap(), 2);
    }

    #[test]
    fn demanded_output_and_status_are_checked() {
        assert!(run_text("<!-- shows: 32 devices -->\n```sh\necho 31 devices\n```").is_err());
        assert!(run_text("<!-- shows: 32 devices -->\n\n```sh\necho 32 devices >&2\n```").is_ok());
        assert!(run_text("<!-- exit: 1 -->\n```sh\ntrue\n```").is_err());
        assert!(run_text("<!-- exit: 1 -->\n```sh\nfalse\n```").is_ok());
        // Words in between: the comment is not about this block.
        assert!(run_text("<!-- exit: 1 -->\nwords\n```sh\ntrue\n```").is_ok());
    }

    #[test]
    fn an_unknown_mark_is_an_error() {
        assert!(blocks("```sh norun\ntrue\n```").is_err());
    }
}
