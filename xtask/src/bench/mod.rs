//! Every figure pcc claims, measured: `cargo xtask bench [--peers] [compile|gpt2|smollm2|devices|memory]...`
//!
//! A figure is a ratio within one run. What is compared takes turns, round by round, and the best round of each counts, since other
//! work on the machine can only slow a program down. Nothing here passes or fails.

mod compile;
mod devices;
mod gpt2;
mod limits;
mod memory;
mod peers;
mod smollm2;
mod table;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::project::Project;
use crate::step::{Call, Steps, call};
use peers::Peers;
use table::Table;

/// A group of benchmarks: its name, what it measures, and how.
type Group = (&'static str, fn(&Bench<'_>, &mut Table) -> Result<()>);

const GROUPS: [Group; 5] = [
    ("compile", compile::run),
    ("gpt2", gpt2::run),
    ("smollm2", smollm2::run),
    ("devices", devices::run),
    ("memory", memory::run),
];

/// What the benchmarks share.
struct Bench<'p> {
    project: &'p Project,
    pcc: PathBuf,
    /// Models, inputs and artifacts.
    folder: PathBuf,
    /// Other engines, when asked for.
    peers: Option<Peers>,
}

/// Runs the groups named in `arguments` (all when none is), beside other engines with `--peers`.
pub(crate) fn run(project: &Project, steps: &mut Steps, arguments: &[String]) -> Result<()> {
    let mut with_peers = false;
    let mut chosen = Vec::new();
    for argument in arguments {
        match GROUPS.iter().find(|(name, _)| name == argument) {
            Some(group) => chosen.push(*group),
            None if argument == "--peers" => with_peers = true,
            None => {
                let names: Vec<&str> = GROUPS.iter().map(|(name, _)| *name).collect();
                bail!("there is no benchmark `{argument}`: give --peers and any of {}", names.join(", "));
            }
        }
    }
    if chosen.is_empty() {
        chosen.extend(GROUPS);
    }
    steps.run("build pcc (release)", || {
        project.cargo(["build", "--release", "--package", "pcc", "--package", "pcc-codegen"]).run()
    })?;
    let cache = project.cache_dir()?;
    let peers = match with_peers {
        true => Some(steps.run("install the other engines", || Peers::install(&cache))?),
        false => None,
    };
    let folder = cache.join("bench");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let bench = Bench { project, pcc: project.target_dir()?.join("release/pcc"), folder, peers };
    let mut table = Table::default();
    for (name, measure) in chosen {
        steps.run(name, || measure(&bench, &mut table))?;
    }
    print!("\n{table}");
    let file = bench.folder.join("bench.json");
    std::fs::write(&file, table.json()).with_context(|| format!("cannot write {}", file.display()))?;
    println!("\nalso in {}", file.display());
    Ok(())
}

impl Bench<'_> {
    fn pcc(&self, subcommand: &str) -> Call {
        call(&self.pcc).args([subcommand]).dir(&self.folder)
    }

    fn script(&self, name: &str) -> PathBuf {
        self.project.root.join("benches/peers").join(name)
    }

    /// A script of benches/peers, run by a Python.
    fn python(&self, python: &Path, name: &str) -> Call {
        call(python).args([self.script(name)])
    }

    /// `pcc SUBCOMMAND ...` under measure.py: seconds, cpu_seconds and peak_bytes of the whole command.
    fn measured(&self, subcommand: &str) -> Call {
        self.python(Path::new("python3"), "measure.py").args([&self.pcc]).args([subcommand]).dir(&self.folder)
    }

    /// Writes a model configuration and returns its path.
    fn config(&self, name: &str, config: &Value) -> Result<PathBuf> {
        let path = self.folder.join(format!("{name}.json"));
        std::fs::write(&path, config.to_string())
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Writes i32 arrays `name:shape:values` to an .npz file and returns its path.
    fn input(&self, name: &str, arrays: &[&str]) -> Result<PathBuf> {
        let path = self.folder.join(format!("{name}.npz"));
        self.python(Path::new("python3"), "write_npz.py").args([&path]).args(arrays).read()?;
        Ok(path)
    }

    /// Compiles a model, quietly.
    fn compile(&self, model: &Path, name: &str, flags: &[&str]) -> Result<PathBuf> {
        let artifact = self.folder.join(format!("{name}.pcc"));
        self.pcc("compile").args([model]).args(flags).args(["--json", "-o"]).args([&artifact]).read()?;
        Ok(artifact)
    }

    /// Runs an entry some times; the seconds of its fastest step.
    fn run_entry(&self, artifact: &Path, entry: &str, input: &Path, times: u32) -> Result<f64> {
        let outcome = json(
            self.pcc("run")
                .args([artifact])
                .args(["--json", "--entry", entry, "--steps", &times.to_string(), "--input"])
                .args([input]),
        )?;
        let steps = outcome["seconds"]["steps"].as_array().context("run gave no steps")?;
        let least = steps.iter().filter_map(Value::as_f64).fold(f64::INFINITY, f64::min);
        Ok(least)
    }
}

/// What a command wrote, as JSON.
fn json(command: Call) -> Result<Value> {
    let text = command.read()?;
    serde_json::from_str(&text).context("no JSON was written")
}

/// A number of a JSON object.
fn number(value: &Value, field: &str) -> Result<f64> {
    value[field].as_f64().with_context(|| format!("no number `{field}` in {value}"))
}

/// The smallest of a JSON list of numbers.
fn least(value: &Value, field: &str) -> Result<f64> {
    let list = value[field].as_array().with_context(|| format!("no list `{field}` in {value}"))?;
    Ok(list.iter().filter_map(Value::as_f64).fold(f64::INFINITY, f64::min))
}

/// The best of several rounds, of several programs that take turns.
struct Best<const N: usize>([f64; N]);

impl<const N: usize> Best<N> {
    fn of(rounds: usize, mut round: impl FnMut(usize) -> Result<f64>) -> Result<Self> {
        let mut best = [f64::INFINITY; N];
        for _ in 0..rounds {
            for (who, best) in best.iter_mut().enumerate() {
                *best = best.min(round(who)?);
            }
        }
        Ok(Self(best))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_round_of_each_counts_and_they_take_turns() {
        let mut order = Vec::new();
        let times = [[3.0, 9.0], [2.0, 10.0]];
        let best = Best::<2>::of(2, |who| {
            order.push(who);
            Ok(times[(order.len() - 1) / 2][who])
        })
        .unwrap();
        assert_eq!(order, [0, 1, 0, 1]);
        assert_eq!(best.0, [2.0, 9.0]);
    }

    #[test]
    fn missing_numbers_are_named() {
        let value: Value = serde_json::from_str(r#"{"seconds": [3.0, 1.5, 2.0], "peak": 7}"#).unwrap();
        assert_eq!(least(&value, "seconds").unwrap(), 1.5);
        assert_eq!(number(&value, "peak").unwrap(), 7.0);
        assert!(number(&value, "speed").unwrap_err().to_string().contains("`speed`"));
    }
}
