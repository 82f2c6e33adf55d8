//! Artifacts, with the digests of whoever edited them made right: loading, checking, replaying, running.

use super::execute::run_everywhere;
use super::{accept, modules};
use crate::scratch;
use pcc_ir::kernel::Kernel;
use pcc_passes::driver;
use pcc_passes::plan::Plan;
use pcc_passes::report::Report;
use pcc_passes::twin;
use pcc_passes::verify::{CheckInput, check};
use pcc_runtime::Artifact;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// `{"program": .., "levels": .., "report": .., "plan": ..}`.
pub fn artifact(data: &[u8]) {
    let Ok(mut given) = serde_json::from_slice::<Value>(data) else { return };
    if !given.is_object() {
        return;
    }
    let file = |name: &str, bytes: &[u8]| scratch::file(&format!("artifact/a.pcc/{name}"), bytes);
    let kernels = b"no kernels";
    file("kernels.x86.so", kernels);
    let levels = given["levels"].to_string();
    file("levels.json", levels.as_bytes());
    if let Some(program) = given["program"].as_object_mut() {
        program.insert("levels_digest".into(), digest(levels.as_bytes()).into());
        if let Some(target) = program.get_mut("target").and_then(Value::as_object_mut) {
            target.insert("object_digest".into(), digest(kernels).into());
        }
    }
    if let Some(kernels) = given.pointer_mut("/program/kernels/elems").and_then(Value::as_array_mut) {
        for kernel in kernels {
            if let Ok(known) = serde_json::from_value::<Kernel>(kernel.clone()) {
                // A list is a kernel too, for serde.
                let symbol = known.symbol().into();
                if let Some(name) = kernel.get_mut("name") {
                    *name = symbol;
                }
            }
        }
    }
    let program = given["program"].to_string();
    let texts = [&program, &given["report"].to_string(), &given["plan"].to_string()];
    let line = |(name, text): (&str, &String)| format!("{}  {name}\n", digest(text.as_bytes()));
    let sums: String =
        ["program.json", "report.json", "plan.json"].into_iter().zip(texts).map(line).collect();
    file("SHA256SUMS", sums.as_bytes());
    let path = file("program.json", program.as_bytes());
    let _ = serde_json::from_value::<Report>(given["report"].clone());
    file("report.json", given["report"].to_string().as_bytes());
    file("plan.json", given["plan"].to_string().as_bytes());
    let Some(artifact) = path.parent().and_then(|dir| accept("load", Artifact::load(dir))) else { return };
    run_everywhere(&artifact.program);
    check_levels(&artifact);
}

/// What `pcc verify` does, and `pcc compile --plan`.
fn check_levels(artifact: &Artifact) {
    let Some(levels) = accept("levels", artifact.levels()) else { return };
    let program = &artifact.program;
    let input = CheckInput { graph: &levels.graph, sharded: &levels.sharded, local: &levels.local, program };
    accept("check", check(&input));
    let Some(plan) = accept("plan", Plan::from_json(&artifact.plan.to_string())) else { return };
    accept("twin", twin::twin(&levels.graph, &plan, &program.batch, &program.model));
    if modules::is_compiled(&levels.graph) && plan.mesh.devices() <= 64 {
        let mut options = modules::options(plan.mesh, plan.sp, program.batch, program.model.clone());
        options.plan = Some(plan);
        accept("compile", driver::compile(levels.graph, &options));
    }
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}
