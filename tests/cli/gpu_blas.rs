//! Products by cuBLASLt, or what stands in for it: whole models give what they give on the CPU, and what stands behind a product goes with it.

use super::gpus::{BF16_MEAN, F32, MESH, distance, with};
use super::models::artifact;
use super::{folder, npz};
use pcc_ir::gpu::blas_epilogue_of;
use pcc_ir::program::{InstrKind, Program, Step};
use std::path::Path;

/// More rows than our own kernel keeps for itself: as many as compiled for, and fewer, so that the rows of a batch do not follow each other.
const SEQS: [usize; 2] = [24, 19];

/// The output of a run on 2 rows, or what it says if it fails.
fn output(
    made: &Path,
    (output, seq): (&str, usize),
    more: &[&str],
    variables: &[(&str, &str)],
) -> Result<Vec<f32>, String> {
    let place = folder();
    let input = npz::token_file(place.path(), 2, seq);
    let args = ["run", made.to_str().unwrap(), "--input", input.to_str().unwrap(), "--output", "out.npz"];
    let outcome = with(place.path(), &[&args[..], more].concat(), variables);
    match outcome.code {
        0 => Ok(npz::read_f32(&place.path().join("out.npz"), output).1),
        _ => Err(outcome.stderr),
    }
}

fn compiled(model: &str, mesh: &[&str], target: &str, dtype: &str) -> std::path::PathBuf {
    let sizes = ["--seq", "24", "--batch", "2", "--target", target, "--dtype", dtype];
    artifact(model, &[mesh, &sizes].concat())
}

fn equals_the_cpu(model: &str, name: &str, run: &[&str]) {
    let alone = ["--tp", "1", "--micro-batches", "2"];
    for mesh in [&[&MESH[..], &alone[2..]].concat()[..], &alone, &alone[..2]] {
        for (dtype, most) in [("f32", F32), ("bf16", BF16_MEAN)] {
            let gpus = [&["--device", "cuda-sim"], run].concat();
            let (cpu, gpu) = (compiled(model, mesh, "cpu", dtype), compiled(model, mesh, "sm_90", dtype));
            for seq in SEQS {
                let want = output(&cpu, (name, seq), run, &[]).unwrap();
                let got = output(&gpu, (name, seq), &gpus, &[("PCC_SIM_BLASLT", "on")]).unwrap();
                let off = distance(&got, &want);
                let off = if dtype == "f32" { off.0 } else { off.1 };
                assert!(off <= most, "{model} {mesh:?} {dtype} {seq}: off by {off}");
            }
        }
    }
}

#[test]
fn a_llama_with_cublaslt_equals_the_cpu() {
    equals_the_cpu("llama", "logits", &["--entry", "forward"]);
}

#[test]
fn a_gpt2_with_cublaslt_equals_the_cpu() {
    equals_the_cpu("gpt2", "logits", &["--entry", "forward"]);
}

#[test]
fn a_bert_with_cublaslt_equals_the_cpu() {
    equals_the_cpu("bert", "last_hidden_state", &[]);
}

/// Counts of what one device runs: products, kernels, and kernels of a form that cuBLASLt has.
fn counts(made: &Path, entry: &str) -> [usize; 3] {
    let text = std::fs::read_to_string(made.join("program.json")).unwrap();
    let program: Program = serde_json::from_str(&text).unwrap();
    let entry = program.entries.iter().find(|e| e.name == entry).unwrap();
    let mut counts = [0; 3];
    for step in &entry.stages[0].steps {
        let Step::Call { func, .. } = step else { panic!("one device sends nothing") };
        let func = &program.funcs[*func as usize];
        for (at, instr) in func.instrs.iter().enumerate() {
            let product = matches!(instr.kind, InstrKind::Gemm(_));
            counts[usize::from(!product)] += 1;
            counts[2] += usize::from(blas_epilogue_of(&program, func, at).is_some());
        }
    }
    counts
}

/// As many products and launches as there should be, one left out being noticed up to the last.
fn check_counts(model: &str, dtype: &str, fused: usize, micro_batches: usize) {
    let micro = micro_batches.to_string();
    let made = compiled(model, &["--tp", "1", "--micro-batches", &micro], "sm_90", dtype);
    let [products, kernels, of_form] = counts(&made, "forward");
    assert_eq!(of_form, fused, "{model} {dtype}: {products} products, {kernels} kernels");
    let run = |mutant: Option<String>| {
        let on = [("PCC_SIM_BLASLT", "on"), ("PCC_SIM_MUTANT", mutant.as_deref().unwrap_or(""))];
        output(&made, ("logits", SEQS[1]), &["--entry", "forward", "--device", "cuda-sim"], &on)
    };
    let whole = run(None);
    assert!(whole.is_ok(), "{whole:?}");
    for (kind, count) in [("skip-product", products), ("skip-launch", kernels - fused)] {
        let count = micro_batches * count;
        assert!(run(Some(format!("{kind}:0:{}", count - 1))) != whole, "{model} {dtype}: the last {kind}");
        assert!(run(Some(format!("{kind}:0:{count}"))) == whole, "{model} {dtype}: more than {count} {kind}");
    }
}

/// In each of GPT-2's three layers: q, k, v and gelu with a bias, two residual sums with one; in bf16, where a bias is of another type than what
/// is multiplied next, the residual sums. In each of llama's five: the residual sums.
#[test]
fn what_stands_behind_products_goes_with_them() {
    for micro_batches in [1, 2] {
        check_counts("gpt2", "f32", 18, micro_batches);
        check_counts("gpt2", "bf16", 6, micro_batches);
        check_counts("llama", "f32", 10, micro_batches);
        check_counts("llama", "bf16", 10, micro_batches);
    }
}
