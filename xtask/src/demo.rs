//! Set-up to generated text in one command: a real model, partitioned over 32 virtual devices, and shown to be the same
//! function as the unpartitioned one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::model::{self, Fetched};
use crate::project::Project;
use crate::step::{Call, Steps, call};
use crate::{npz, setup};

/// The partitioned mesh: 8 x 4 = 32 devices.
const PARTITIONED: [&str; 4] = ["--tp", "8", "--pp", "4"];
const WHOLE: [&str; 4] = ["--tp", "1", "--pp", "1"];

/// The most by which two f32 logits of a text may differ. Summing in another order moves them by a fifth of that. (Ids that
/// make no text can move them more: rounding is amplified where the model was never trained.)
const TOLERANCE: f64 = 3e-4;

const PROMPT: &str = "The three laws of thermodynamics say that";
const NEW_TOKENS: &str = "24";

/// Input of a model without a tokenizer: ids that every vocabulary of 64 or more has.
const TOKENS: [u32; 16] = [1, 9, 4, 7, 30, 2, 17, 40, 8, 33, 5, 21, 60, 3, 12, 28];

pub(crate) fn run(project: &Project, steps: &mut Steps) -> Result<()> {
    setup::run(project, steps)?;
    steps.run("build pcc (release)", || {
        let packages = ["pcc", "pcc-codegen", "pcc-sim-cuda", "pcc-sim-nccl", "pcc-sim-blaslt"];
        let packages = packages.iter().flat_map(|p| ["--package", p]);
        project.cargo(["build", "--release"].into_iter().chain(packages)).run()
    })?;
    let cache = project.cache_dir()?;
    let model = steps.run("fetch SmolLM2-135M", || Subject::choose(project, &cache))?;
    let demo = Demo { pcc: project.target_dir()?.join("release/pcc"), folder: cache.join("demo"), model };
    demo.run(steps)
}

/// The model that the demo compiles.
struct Subject {
    file: PathBuf,
    /// Whether text can be turned into its tokens and back.
    has_tokenizer: bool,
    /// The rows to compile for: a model.json fixes them.
    batch: &'static str,
}

impl Subject {
    fn choose(project: &Project, cache: &Path) -> Result<Self> {
        match model::fetch(cache)? {
            Fetched::Model(file) => Ok(Subject { file, has_tokenizer: true, batch: "1" }),
            Fetched::Offline => {
                println!(
                    "There seems to be no network. The demo goes on with examples/transformer.json, a small \
                     transformer whose weights are drawn from a seed."
                );
                Ok(Subject {
                    file: project.root.join("examples/transformer.json"),
                    has_tokenizer: false,
                    batch: "2",
                })
            }
        }
    }
}

struct Demo {
    pcc: PathBuf,
    folder: PathBuf,
    model: Subject,
}

impl Demo {
    fn run(&self, steps: &mut Steps) -> Result<()> {
        if self.folder.exists() {
            std::fs::remove_dir_all(&self.folder)
                .with_context(|| format!("cannot empty {}", self.folder.display()))?;
        }
        std::fs::create_dir_all(&self.folder)
            .with_context(|| format!("cannot create {}", self.folder.display()))?;
        let partitioned = self.folder.join("tp8-pp4.pcc");
        let whole = self.folder.join("whole.pcc");
        steps.run("compile for 32 devices", || self.compile(&PARTITIONED, &partitioned))?;
        steps.run("inspect", || self.pcc("inspect").args([&partitioned]).run())?;
        if self.model.has_tokenizer {
            steps.run("generate on 32 virtual devices", || self.generate(&partitioned).run())?;
        }
        steps.run("compile unpartitioned", || self.compile(&WHOLE, &whole))?;
        let mut shown = Vec::new();
        let mut tokens = TOKENS.to_vec();
        if self.model.has_tokenizer {
            tokens = steps.run("compare generated tokens", || self.compare_tokens(&partitioned, &whole))?;
            shown.push(format!("the {NEW_TOKENS} tokens generated from \"{PROMPT}\" are the same"));
        }
        shown.push(steps.run("compare logits", || self.compare_logits(&tokens, &partitioned, &whole))?);
        println!("\n{} on 32 devices is the same function as on one:", self.model.file.display());
        shown.iter().for_each(|line| println!("  {line}"));
        println!("The artifacts are in {}", self.folder.display());
        Ok(())
    }

    fn pcc(&self, subcommand: &str) -> Call {
        call(&self.pcc).args([subcommand]).dir(&self.folder)
    }

    fn compile(&self, mesh: &[&str], artifact: &Path) -> Result<()> {
        self.pcc("compile")
            .args([&self.model.file])
            .args(mesh)
            .args(["--batch", self.model.batch, "--micro-batches", "1", "-o"])
            .args([artifact])
            .run()
    }

    fn generate(&self, artifact: &Path) -> Call {
        self.pcc("generate").args([artifact]).args(["--prompt", PROMPT, "--max-tokens", NEW_TOKENS])
    }

    /// What was found, in words.
    fn compare_logits(&self, ids: &[u32], partitioned: &Path, whole: &Path) -> Result<String> {
        let tokens = self.folder.join("tokens.npz");
        npz::write_tokens(&tokens, ids)?;
        let outputs = [self.folder.join("logits-32.npz"), self.folder.join("logits-1.npz")];
        for (artifact, output) in [partitioned, whole].into_iter().zip(&outputs) {
            self.pcc("run")
                .args([artifact])
                .args(["--input"])
                .args([&tokens])
                .args(["--output"])
                .args([output])
                .run()?;
        }
        let found = npz::compare(&outputs[0], &outputs[1], "logits")?;
        let Some(difference) = found.max_abs_diff else { bail!("some logit is not a finite number") };
        if difference > TOLERANCE || !found.same_argmax {
            bail!(
                "the logits of the partitioned model differ by up to {difference:.1e} ({TOLERANCE:.0e} is allowed); \
                 the likeliest tokens are the same: {}",
                found.same_argmax
            );
        }
        Ok(format!(
            "logits at {} positions differ by at most {difference:.1e}; the likeliest token is the same everywhere",
            found.positions
        ))
    }

    /// The tokens of the prompt and of what both generate from it.
    fn compare_tokens(&self, partitioned: &Path, whole: &Path) -> Result<Vec<u32>> {
        let answer = |artifact: &Path| -> Result<serde_json::Value> {
            let text = self.generate(artifact).args(["--json"]).read()?;
            serde_json::from_str(&text).context("generate wrote no JSON")
        };
        let (on_32, on_1) = (answer(partitioned)?, answer(whole)?);
        let ids = |answer: &serde_json::Value, field: &str| -> Result<Vec<u32>> {
            serde_json::from_value(answer[field].clone())
                .with_context(|| format!("generate gave no `{field}`"))
        };
        let (generated, expected) = (ids(&on_32, "tokens")?, ids(&on_1, "tokens")?);
        if generated != expected {
            bail!("32 devices generate {generated:?}, one device generates {expected:?}");
        }
        Ok([ids(&on_32, "prompt_tokens")?, generated].concat())
    }
}
