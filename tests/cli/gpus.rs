//! Programs for GPUs, on simulated ones: the same results as on the CPU, with the code that GPUs would run.

use super::models::{self, artifact};
use super::{Outcome, check_failure, command, fails, finish, folder, json, npz, succeeds};
use pcc_ir::gpu::gemm::GemmPath;
use pcc_ir::gpu::{LibraryKernel, epilogue_of, library};
use pcc_ir::program::{Program, Step};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// What is asked of f32, relative to the largest value; and of bf16, on average.
pub const F32: f64 = 2e-5;
pub const BF16_MEAN: f64 = 1e-2;

pub const MESH: [&str; 4] = ["--tp", "4", "--pp", "2"];

/// The outputs of an entry on 2 rows of 6 tokens.
fn outputs(place: &Path, artifact: &Path, output: &str, args: &[&str]) -> Vec<f32> {
    let input = npz::token_file(place, 2, 6);
    let (input, artifact) = (input.to_str().unwrap(), artifact.to_str().unwrap());
    succeeds(place, &[&["run", artifact, "--input", input, "--output", "out.npz"], args].concat());
    npz::read_f32(&place.join("out.npz"), output).1
}

/// The largest difference relative to the largest value, and the mean one relative to the mean value.
pub fn distance(got: &[f32], want: &[f32]) -> (f64, f64) {
    assert_eq!(got.len(), want.len());
    assert!(got.iter().all(|x| x.is_finite()));
    let differences = got.iter().zip(want).map(|(a, b)| f64::from((a - b).abs()));
    let sizes = want.iter().map(|b| f64::from(b.abs()));
    let largest = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
    let relative = largest(&mut differences.clone()) / largest(&mut sizes.clone());
    (relative, differences.sum::<f64>() / sizes.sum::<f64>())
}

/// Compares a model on simulated GPUs with the CPU.
fn equals_the_cpu(model: &str, output: &str, sizes: &[&str], run: &[&str]) {
    let place = folder();
    let compiled = |target: &str, dtype: &str| {
        artifact(model, &[&MESH, sizes, &["--target", target, "--dtype", dtype]].concat())
    };
    let want = outputs(place.path(), &compiled("cpu", "f32"), output, run_on_cpu(run));
    let gpus = [&["--device", "cuda-sim"], run].concat();
    let f32 = distance(&outputs(place.path(), &compiled("sm_90", "f32"), output, &gpus), &want);
    assert!(f32.0 <= F32, "{model}: f32 is off by {f32:?}");
    let want = outputs(place.path(), &compiled("cpu", "bf16"), output, run_on_cpu(run));
    let bf16 = distance(&outputs(place.path(), &compiled("sm_90", "bf16"), output, &gpus), &want);
    assert!(bf16.1 <= BF16_MEAN, "{model}: bf16 is off by {bf16:?}");
}

/// Without what is about GPUs.
fn run_on_cpu<'a>(run: &'a [&'a str]) -> &'a [&'a str] {
    run.iter().position(|a| *a == "--ranks-per-device").map_or(run, |at| &run[..at])
}

#[test]
fn a_llama_on_eight_simulated_gpus_equals_the_cpu() {
    equals_the_cpu("llama", "logits", &["--seq", "8"], &["--entry", "forward"]);
}

/// The gate of an MLP is applied where the product is made, on each path that products take.
#[test]
fn elementwise_kernels_run_inside_products() {
    // Micro-batches of one row and of two, of which each has its products.
    let cases = [
        ("8", "2", "f32", GemmPath::Few),
        ("64", "2", "f32", GemmPath::Simt),
        ("64", "2", "bf16", GemmPath::Mma),
        ("8", "1", "bf16", GemmPath::Few),
        ("64", "1", "f32", GemmPath::Simt),
        ("64", "1", "bf16", GemmPath::Mma),
    ];
    for (seq, micro_batches, dtype, path) in cases {
        let sizes = ["--seq", seq, "--batch", "2", "--micro-batches", micro_batches, "--dtype", dtype];
        let compiled = |target| artifact("llama", &[&sizes[..], &["--target", target]].concat());
        let made = compiled("sm_90");
        let text = std::fs::read_to_string(made.join("program.json")).unwrap();
        let program: Program = serde_json::from_str(&text).unwrap();
        let fused = library(&program).into_iter().filter(|k| match k {
            LibraryKernel::Gemm(gemm) => gemm.epilogue.is_some() && gemm.path == path,
            _ => false,
        });
        let ptx = std::fs::read_to_string(made.join("kernels.sm_90.ptx")).unwrap();
        let symbols: Vec<String> = fused.map(|k| k.symbol()).collect();
        assert!(!symbols.is_empty(), "{path:?}");
        assert!(symbols.iter().all(|s| ptx.contains(&format!(".entry {s}("))), "{symbols:?}");
        let place = folder();
        let run = |made: &Path, device| {
            let args = ["--entry", "forward", "--device", device];
            outputs(place.path(), made, "logits", &args)
        };
        let off = distance(&run(&made, "cuda-sim"), &run(&compiled("cpu"), "cpu"));
        assert!(if dtype == "f32" { off.0 <= F32 } else { off.1 <= BF16_MEAN }, "{path:?}: {off:?}");
    }
}

/// A product with enough tiles for Hopper's warpgroups, of each way in which a matrix can lie.
#[test]
fn large_products_on_hopper_equal_the_cpu() {
    let place = folder();
    let graph = r#"{
        "pcc": 1, "name": "large",
        "params": [{"name": "w", "type": "f32[72,2048]"}, {"name": "v", "type": "f32[2048,72]"}],
        "functions": [{
            "name": "main",
            "args": [{"name": "x", "type": "f32[1024,72]"}, {"name": "w", "type": "f32[72,2048]"}, {"name": "v", "type": "f32[2048,72]"}],
            "body": [
                {"op": {"dot_general": {"lhs_contract": [1], "rhs_contract": [0]}}, "in": ["x", "w"], "out": ["h"]},
                {"op": {"dot_general": {"lhs_contract": [1], "rhs_contract": [1]}}, "in": ["x", "v"], "out": ["i"]},
                {"op": "add", "in": ["h", "i"], "out": ["y"]}
            ],
            "results": ["y"]
        }],
        "entries": [{"name": "forward", "function": "main", "args": [{"input": "x"}, {"param": "w"}, {"param": "v"}], "results": ["y"]}]
    }"#;
    std::fs::write(place.path().join("large.json"), graph).unwrap();
    let values: Vec<f32> = (0..1024 * 72).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
    npz::write_f32(&place.path().join("in.npz"), "x", &[1024, 72], values);
    let run = |target: &str, device: &str| {
        let args = ["compile", "large.json", "--target", target, "--dtype", "bf16", "-o", target];
        succeeds(place.path(), &args);
        let args = ["run", target, "--input", "in.npz", "--output", "out.npz", "--device", device];
        succeeds(place.path(), &args);
        npz::read_f32(&place.path().join("out.npz"), "y").1
    };
    let off = distance(&run("sm_90a", "cuda-sim"), &run("cpu", "cpu"));
    assert!(off.1 <= BF16_MEAN, "{off:?}");
    let ptx = std::fs::read_to_string(place.path().join("sm_90a/kernels.sm_90a.ptx")).unwrap();
    assert!(ptx.contains("m64n256k16") && ptx.contains(".entry pcc_gemm_wgmma_"));
}

/// What ran inside a product is not launched again: the run has as many launches as that leaves, one left out being noticed up to the last.
#[test]
fn kernels_inside_products_are_not_launched() {
    let sizes = ["--seq", "64", "--batch", "2", "--micro-batches", "2", "--dtype", "f32"];
    let made = artifact("llama", &[&sizes[..], &["--target", "sm_90"]].concat());
    let text = std::fs::read_to_string(made.join("program.json")).unwrap();
    let program: Program = serde_json::from_str(&text).unwrap();
    let entry = program.entries.iter().find(|e| e.name == "forward").unwrap();
    let (mut launches, mut inside) = (0, 0);
    for step in &entry.stages[0].steps {
        let Step::Call { func, .. } = step else { panic!("one device sends nothing") };
        let func = &program.funcs[*func as usize];
        launches += func.instrs.len();
        inside += (0..func.instrs.len()).filter(|&at| epilogue_of(&program, func, at).is_some()).count();
    }
    assert_eq!(inside, 15, "the gate and two residual sums of each layer");
    let place = folder();
    let run = |mutant: Option<usize>| {
        let input = npz::token_file(place.path(), 2, 6);
        let args = ["run", made.to_str().unwrap(), "--input", input.to_str().unwrap(), "--output", "out.npz"];
        let args = [&args[..], &["--entry", "forward", "--device", "cuda-sim"]].concat();
        let mut command = command(place.path(), &args);
        command.envs(mutant.map(|n| ("PCC_SIM_MUTANT", format!("skip-launch:0:{n}"))));
        let outcome = finish(command.spawn().expect("pcc starts"), &format!("{mutant:?}"));
        (outcome.code == 0).then(|| npz::read_f32(&place.path().join("out.npz"), "logits").1)
    };
    let whole = run(None);
    assert!(whole.is_some());
    // Of two micro-batches.
    let last = 2 * (launches - inside) - 1;
    assert!(run(Some(last)) != whole && run(Some(last + 1)) == whole);
}

#[test]
fn a_gpt2_on_eight_simulated_gpus_equals_the_cpu() {
    equals_the_cpu("gpt2", "logits", &["--seq", "8"], &["--entry", "forward"]);
}

#[test]
fn a_bert_on_eight_simulated_gpus_equals_the_cpu() {
    equals_the_cpu("bert", "last_hidden_state", &["--seq", "8"], &[]);
}

/// Collectives by copies and reductions; all ranks of the plan on one device, and on two.
#[test]
fn ranks_that_share_a_gpu_equal_the_cpu() {
    for each in ["8", "4"] {
        equals_the_cpu(
            "llama",
            "logits",
            &["--seq", "8"],
            &["--entry", "forward", "--ranks-per-device", each],
        );
    }
}

/// More micro-batches than a link has buffers: they are used again, by ranks with a GPU each and by ranks that share one.
#[test]
fn many_micro_batches_equal_the_cpu() {
    let place = folder();
    let input = npz::token_file(place.path(), 5, 6);
    let sizes =
        ["--tp", "2", "--pp", "3", "--seq", "8", "--batch", "5", "--micro-batches", "5", "--dtype", "f32"];
    let run = |target: &str, more: &[&str]| {
        let made = artifact("llama", &[&sizes[..], &["--target", target]].concat());
        let args = ["run", made.to_str().unwrap(), "--input", input.to_str().unwrap(), "--output", "out.npz"];
        succeeds(place.path(), &[&args[..], &["--entry", "forward"], more].concat());
        npz::read_f32(&place.path().join("out.npz"), "logits").1
    };
    let want = run("cpu", &[]);
    for more in [&["--device", "cuda-sim"][..], &["--device", "cuda-sim", "--ranks-per-device", "6"]] {
        assert!(distance(&run("sm_90", more), &want).0 <= F32, "{more:?}");
    }
}

/// Sequence parallelism gathers and scatters uneven pieces; replicas have groups of their own.
#[test]
fn other_collectives_and_replicas_equal_the_cpu() {
    let place = folder();
    let run = ["--entry", "forward"];
    for mesh in [&["--tp", "4", "--sp"][..], &["--tp", "3", "--sp", "--pp", "2"], &["--dp", "2", "--tp", "3"]]
    {
        let compiled = |target: &str| {
            let sizes = ["--seq", "7", "--batch", "2", "--dtype", "f32", "--target", target];
            artifact("llama", &[mesh, &sizes].concat())
        };
        let want = outputs(place.path(), &compiled("cpu"), "logits", &run);
        for more in [&["--device", "cuda-sim"][..], &["--device", "cuda-sim", "--ranks-per-device", "6"]] {
            let got = outputs(place.path(), &compiled("sm_80"), "logits", &[more, &run].concat());
            assert!(distance(&got, &want).0 <= F32, "{mesh:?} {more:?}: {:?}", distance(&got, &want));
        }
    }
}

/// Decoding runs the same step again and again: the second is recorded, the others are launched from the recording.
#[test]
fn text_is_generated_as_on_the_cpu() {
    let place = folder();
    let tokenizer = models::tokenizer(place.path());
    let tokens = |mesh: &[&str], target: &str, more: &[&str]| {
        let made =
            artifact("llama", &[mesh, &["--seq", "16", "--target", target, "--dtype", "f32"]].concat());
        let made = made.to_str().unwrap();
        let args = [
            "generate",
            made,
            "--json",
            "--tokenizer",
            &tokenizer,
            "--prompt",
            "w5 w7 w11",
            "--max-tokens",
            "6",
        ];
        json(place.path(), &[&args[..], more].concat())["tokens"].clone()
    };
    let want = tokens(&MESH, "cpu", &[]);
    assert_eq!(want.as_array().unwrap().len(), 6);
    for mesh in [&MESH[..], &["--tp", "1"]] {
        assert_eq!(tokens(mesh, "sm_90", &["--device", "cuda-sim"]), want, "{mesh:?}");
    }
}

/// Few queries over many keys: blocks take ranges of them, and what these give is joined, on tensor cores and without.
#[test]
fn ranges_of_keys_are_joined_as_on_the_cpu() {
    let place = folder();
    // Twelve queries of a kv head, of which a CPU would not split the keys.
    let graph = r#"{
        "pcc": 1, "name": "decode",
        "params": [{"name": "q", "type": "f32[1,1,2,12,16]"}, {"name": "v", "type": "f32[1,700,2,16]"}],
        "functions": [{
            "name": "main",
            "args": [{"name": "k", "type": "f32[1,700,2,16]"}, {"name": "q", "type": "f32[1,1,2,12,16]"}, {"name": "v", "type": "f32[1,700,2,16]"}],
            "body": [
                {"op": {"iota": {"type": "i32[1,1]", "dim": 1}}, "in": [], "out": ["at"]},
                {"op": {"iota": {"type": "i32[1,700]", "dim": 1}}, "in": [], "out": ["keys"]},
                {"op": {"attention": {"scale": 30.0}}, "in": ["q", "k", "v", "at", "keys"], "out": ["y"]}
            ],
            "results": ["y"]
        }],
        "entries": [{"name": "forward", "function": "main", "args": [{"input": "k"}, {"param": "q"}, {"param": "v"}], "results": ["y"]}]
    }"#;
    std::fs::write(place.path().join("decode.json"), graph).unwrap();
    let values: Vec<f32> = (0..700 * 32).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
    npz::write_f32(&place.path().join("in.npz"), "k", &[1, 700, 2, 16], values);
    for (dtype, kernel) in [("f32", "pcc_attention_simt_split_"), ("bf16", "pcc_attention_few_split_")] {
        let run = |target: &str, device: &str| {
            let out = format!("{target}.{dtype}");
            succeeds(
                place.path(),
                &["compile", "decode.json", "--target", target, "--dtype", dtype, "-o", &out],
            );
            let args = ["run", &out, "--input", "in.npz", "--output", "out.npz", "--device", device];
            succeeds(place.path(), &args);
            npz::read_f32(&place.path().join("out.npz"), "y").1
        };
        let off = distance(&run("sm_90", "cuda-sim"), &run("cpu", "cpu"));
        assert!(if dtype == "f32" { off.0 <= F32 } else { off.1 <= BF16_MEAN }, "{dtype}: {off:?}");
        let ptx = std::fs::read_to_string(place.path().join(format!("sm_90.{dtype}/kernels.sm_90.ptx")));
        let ptx = ptx.unwrap();
        assert!(ptx.contains(kernel) && ptx.contains("pcc_attention_join_"), "{dtype}");
    }
}

/// Decoding behind a long prompt: of the ranges of 2048 keys the run has some, and each step has one key more.
#[test]
fn text_behind_a_long_prompt_is_generated_as_on_the_cpu() {
    let place = folder();
    let tokenizer = models::tokenizer(place.path());
    let mut config = models::llama();
    config["num_hidden_layers"] = 2.into();
    config["max_position_embeddings"] = 2048.into();
    let model = models::write(place.path(), "long", &config);
    let prompt: Vec<String> = (0..254).map(|i| format!("w{}", i * 7 % 101)).collect();
    let prompt = prompt.join(" ");
    let tokens = |target: &str, device: &str| {
        let args = ["compile", &model, "--seq", "2048", "--target", target, "--dtype", "f32", "-o", target];
        succeeds(place.path(), &args);
        let args = ["generate", target, "--json", "--tokenizer", &tokenizer, "--prompt", &prompt];
        let args = [&args[..], &["--max-tokens", "5", "--device", device]].concat();
        json(place.path(), &args)["tokens"].clone()
    };
    let want = tokens("cpu", "cpu");
    assert_eq!(want.as_array().unwrap().len(), 5);
    assert_eq!(tokens("sm_90", "cuda-sim"), want);
    let ptx = std::fs::read_to_string(place.path().join("sm_90/kernels.sm_90.ptx")).unwrap();
    assert!(ptx.contains("pcc_attention_simt_split_"));
}

/// Work that nothing orders runs in any order.
#[test]
fn results_do_not_depend_on_the_order_of_streams() {
    let place = folder();
    let flags = ["--seq", "8", "--target", "sm_90", "--dtype", "f32", "--sampler", "host"];
    let made = artifact("llama", &[&MESH[..], &flags].concat());
    let input = npz::token_file(place.path(), 2, 6);
    let run = |seed: &str| {
        let args = ["run", made.to_str().unwrap(), "--input", input.to_str().unwrap(), "--output", "out.npz"];
        let args = [&args[..], &["--entry", "prefill", "--device", "cuda-sim"]].concat();
        let o = with(place.path(), &args, &[("PCC_SIM_SEED", seed)]);
        assert_eq!(o.code, 0, "seed {seed}: {}", o.stderr);
        npz::read_f32(&place.path().join("out.npz"), "logits").1
    };
    let first = run("1");
    ["2", "3", "4"].iter().for_each(|seed| assert_eq!(run(seed), first, "seed {seed}"));
}

/// The simulated machine has as many GPUs as a program needs.
#[test]
fn more_than_eight_simulated_gpus_equal_the_cpu() {
    let place = folder();
    let sizes = ["--tp", "6", "--pp", "2", "--seq", "8", "--batch", "2", "--dtype", "f32", "--target"];
    let compiled = |target: &str| artifact("llama", &[&sizes[..], &[target]].concat());
    let want = outputs(place.path(), &compiled("cpu"), "logits", &["--entry", "forward"]);
    let run = ["--entry", "forward", "--device", "cuda-sim"];
    let got = outputs(place.path(), &compiled("sm_100a"), "logits", &run);
    assert!(distance(&got, &want).0 <= F32, "{:?}", distance(&got, &want));
}

/// As a launcher starts them: replicas, each a process with a machine of its own. The first one writes what all have made.
#[test]
fn processes_of_a_launcher_run_a_rank_each() {
    let place = folder();
    let sizes = ["--dp", "2", "--seq", "8", "--batch", "2", "--dtype", "f32", "--target"];
    let compiled = |target: &str| artifact("llama", &[&sizes[..], &[target]].concat());
    let want = outputs(place.path(), &compiled("cpu"), "logits", &["--entry", "forward"]);
    let (gpu, input) = (compiled("sm_90"), npz::token_file(place.path(), 2, 6));
    let args = ["run", gpu.to_str().unwrap(), "--input", input.to_str().unwrap(), "--output", "both.npz"];
    let args = [&args[..], &["--entry", "forward", "--device", "cuda-sim", "--patience", "60"]].concat();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let start = |rank: &str, size: &str| {
        let mut command = command(place.path(), &args);
        let variables = [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", size), ("MASTER_PORT", &port)];
        command.envs(variables).env("MASTER_ADDR", "127.0.0.1").spawn().expect("pcc starts")
    };
    let (first, second) = (start("0", "2"), start("1", "2"));
    let (first, second) = (finish(first, "rank 0"), finish(second, "rank 1"));
    assert_eq!((first.code, second.code), (0, 0), "{}{}", first.stderr, second.stderr);
    assert!(first.stdout.contains("forward on 2 row(s)") && second.stdout.is_empty());
    let got = npz::read_f32(&place.path().join("both.npz"), "logits").1;
    assert!(distance(&got, &want).0 <= F32, "{:?}", distance(&got, &want));
    let alone = finish(start("0", "3"), "rank 0 of 3");
    check_failure(&alone, "rank 0 of 3", 4, &["3 processes were started for 2 ranks"]);
    let variables = [("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2")];
    let together = artifact("llama", &["--tp", "2", "--seq", "8", "--dtype", "f32", "--target", "sm_90"]);
    let sim = ["--device", "cuda-sim"];
    refused(&together, &sim, &variables, 2, &["several processes cannot exchange data"]);
    let sharing = [&sim[..], &["--ranks-per-device", "2"]].concat();
    refused(&together, &sharing, &variables, 2, &["--ranks-per-device", "2 processes"]);
}

/// Runs a command with variables of the simulator.
pub fn with(place: &Path, args: &[&str], variables: &[(&str, &str)]) -> Outcome {
    let mut command = command(place, args);
    command.envs(variables.iter().copied());
    finish(command.spawn().expect("pcc starts"), &format!("pcc {}", args.join(" ")))
}

fn refused(made: &Path, more: &[&str], variables: &[(&str, &str)], code: i32, words: &[&str]) {
    let place = folder();
    let input = npz::token_file(place.path(), 2, 6);
    let args = ["run", made.to_str().unwrap(), "--input", input.to_str().unwrap(), "--entry", "forward"];
    let args = [&args[..], more].concat();
    let outcome = with(place.path(), &args, variables);
    check_failure(&outcome, &format!("pcc {} {variables:?}", args.join(" ")), code, words);
}

#[test]
fn what_cannot_run_is_refused_with_what_is_missing() {
    let gpus =
        artifact("llama", &[&MESH[..], &["--seq", "8", "--target", "sm_90", "--dtype", "f32"]].concat());
    let cpu = artifact("llama", &["--seq", "8"]);
    let sim = ["--device", "cuda-sim"];
    refused(&cpu, &sim, &[], 1, &["the artifact is for cpu", "--target sm_90"]);
    refused(&gpus, &["--device", "cpu"], &[], 1, &["the artifact is for sm_90", "--device cuda-sim"]);
    refused(&gpus, &sim, &[("PCC_SIM_DEVICES", "3")], 4, &["8 ranks", "3 GPU(s)", "--ranks-per-device 3"]);
    refused(&gpus, &sim, &[("PCC_SIM_CAPABILITY", "8.0")], 1, &["sm_90", "8.0", "--target sm_80"]);
    let little = [("PCC_SIM_MEMORY", "40000")];
    refused(&gpus, &sim, &little, 4, &["rank 0 needs", "GPU 0", "weights", "caches", "activations"]);
    refused(&gpus, &sim, &[("PCC_CUDA_SIM", "/nowhere")], 4, &["simulated GPU is not there", "/nowhere"]);
    refused(&gpus, &["--device", "cuda-sim", "--trace", "t.json"], &[], 2, &["--trace"]);
    refused(&cpu, &["--ranks-per-device", "2"], &[], 2, &["--ranks-per-device"]);
}

/// On a machine with CUDA there is nothing to be seen here.
#[test]
fn without_cuda_the_message_says_so() {
    // The loader finds no library of the system's in a search path of its own.
    let found = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/cuda/lib64"]
        .iter()
        .any(|dir| Path::new(dir).join("libcuda.so.1").exists());
    if found {
        return;
    }
    let gpus =
        artifact("llama", &[&MESH[..], &["--seq", "8", "--target", "sm_90", "--dtype", "f32"]].concat());
    for device in [&[][..], &["--device", "cuda"]] {
        refused(&gpus, device, &[], 4, &["no CUDA driver", "libcuda.so", "--device cuda-sim"]);
    }
}

#[test]
fn unknown_architectures_are_refused() {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    for target in ["sm_70", "sm_999", "gpu"] {
        fails(
            place.path(),
            &["compile", &model, "--target", target],
            2,
            &[target, "sm_80, sm_90, sm_90a, sm_100a"],
        );
    }
}

/// An artifact whose program and PTX were edited by someone who knows the digests.
fn forged(made: &Path, place: &Path, edit: impl Fn(&mut serde_json::Value, &mut String)) -> PathBuf {
    let copy = models::copied(made, place);
    let (program_path, ptx_path) = (copy.join("program.json"), copy.join("kernels.sm_90.ptx"));
    let mut program = serde_json::from_str(&std::fs::read_to_string(&program_path).unwrap()).unwrap();
    let mut ptx = std::fs::read_to_string(&ptx_path).unwrap();
    edit(&mut program, &mut ptx);
    let digest: String = Sha256::digest(&ptx).iter().map(|b| format!("{b:02x}")).collect();
    program["target"]["object_digest"] = digest.into();
    std::fs::write(&ptx_path, ptx).unwrap();
    std::fs::write(&program_path, program.to_string()).unwrap();
    models::sign(&copy);
    copy
}

/// Nothing that a program or PTX says may let a GPU, or the driver, leave the memory that was planned.
#[test]
fn forged_artifacts_are_refused() {
    type Edit = fn(&mut serde_json::Value, &mut String);
    let made =
        artifact("llama", &[&MESH[..], &["--seq", "8", "--target", "sm_90", "--dtype", "f32"]].concat());
    let edits: [(&str, Edit); 6] =
        [
            ("parameters", |_, ptx| {
                *ptx = ptx
                    .replacen(".entry", ".entry x(.param .b64 y)\n{ ret; }\n.visible .entry", 1)
                    .replacen("_param_0,", "_param_0, .param .b64 z,", 1)
            }),
            ("kernels", |_, ptx| ptx.clear()),
            ("kernels", |_, ptx| ptx.truncate(ptx.len() / 2)),
            ("damaged", |program, _| program["funcs"][0]["shared_bytes"] = 64.into()),
            ("damaged", |program, _| {
                let launch = |i: &serde_json::Value| i["kind"]["kernel"].is_object();
                let instrs = program["funcs"][0]["instrs"].as_array_mut().unwrap();
                let at = instrs.iter().position(launch).unwrap();
                let extents = instrs[at]["kind"]["kernel"]["extents"].as_array_mut().unwrap();
                *extents.last_mut().unwrap() = 0.into();
            }),
            ("damaged", |program, _| program["funcs"][0]["instrs"][0]["once"] = true.into()),
        ];
    for (word, edit) in edits {
        let place = folder();
        let copy = forged(&made, place.path(), edit);
        refused(&copy, &["--device", "cuda-sim"], &[], 1, &[word]);
    }
}

/// A driver reads the text of an artifact: edited, it is not run.
#[test]
fn edited_kernels_are_refused() {
    let place = folder();
    let made =
        artifact("llama", &[&MESH[..], &["--seq", "8", "--target", "sm_90", "--dtype", "f32"]].concat());
    let copy = models::copied(&made, place.path());
    let path = copy.join("kernels.sm_90.ptx");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("add", "sub", 1)).unwrap();
    refused(&copy, &["--device", "cuda-sim"], &[], 1, &["kernels are not those it was compiled with"]);
}
