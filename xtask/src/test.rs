//! Everything CI runs, quickest to fail first. One cargo profile serves all of it, so that nothing is built twice.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::project::Project;
use crate::step::Steps;
use crate::{kernels, readme, setup, tidy};

/// The time allowed for all of it on two cores, starting from nothing.
const LIMIT_SECONDS: u64 = 15 * 60;

pub(crate) fn run(project: &Project, steps: &mut Steps) -> Result<()> {
    let start = Instant::now();
    setup::run(project, steps)?;
    steps.run("fmt", || project.cargo(["fmt", "--all", "--check"]).run())?;
    tidy::run(project, steps)?;
    steps.run("clippy", || {
        project.cargo(["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"]).run()
    })?;
    // `pcc` starts `pcc-codegen`, which `cargo test` builds only as a test of its own.
    steps.run("build", || project.cargo(["build", "--workspace", "--quiet"]).run())?;
    let ptx = kernels::folder(project)?;
    let counts = steps.run("cargo test", || cargo_test(project, &ptx))?;
    steps.run("ptxas", || kernels::gate(project, &ptx))?;
    readme::run(project, steps)?;
    println!("\nall of it in {} s of the {LIMIT_SECONDS} s allowed", start.elapsed().as_secs());
    println!("{} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.ignored);
    Ok(())
}

/// How many tests ran, summed over all test binaries.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: usize,
    failed: usize,
    ignored: usize,
}

fn cargo_test(project: &Project, ptx: &Path) -> Result<Counts> {
    // Without --no-fail-fast the first failing crate would hide the others.
    let test = project.cargo(["test", "--workspace", "--quiet", "--no-fail-fast"]);
    let (output, status) = test.env(kernels::FOLDER, ptx).tee()?;
    let counts = Counts::read(&output);
    if let Err(error) = status {
        bail!("{error}: {} passed, {} failed", counts.passed, counts.failed);
    }
    if counts.passed == 0 {
        bail!("no test ran");
    }
    Ok(counts)
}

impl Counts {
    /// Sums the `test result: ok. 3 passed; 0 failed; 1 ignored; ...` lines.
    fn read(output: &str) -> Self {
        let mut counts = Counts::default();
        for line in output.lines().filter_map(|line| line.split("test result: ").nth(1)) {
            for part in line.split([';', '.']) {
                let mut words = part.split_whitespace();
                let (Some(number), Some(what)) =
                    (words.next().and_then(|word| word.parse::<usize>().ok()), words.next())
                else {
                    continue;
                };
                match what {
                    "passed" => counts.passed += number,
                    "failed" => counts.failed += number,
                    "ignored" => counts.ignored += number,
                    _ => {}
                }
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_added_up() {
        let output = "\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s\n\
                      noise 9 passed\n\
                      test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.25s\n";
        assert_eq!(Counts::read(output), Counts { passed: 7, failed: 2, ignored: 1 });
        assert_eq!(Counts::read("no tests here"), Counts::default());
    }
}
