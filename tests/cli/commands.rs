//! The other commands, and what scripts rely on of their output.

use super::{data, example, fails, folder, json, models, pcc, succeeds};
use serde_json::Value;

/// The fields that DESIGN section 10 promises, in a report.
#[track_caller]
fn check_report(r: &Value, [pp, dp, tp]: [u64; 3]) {
    for field in ["name", "family", "class"] {
        assert!(r["model"][field].is_string(), "model.{field}");
    }
    assert_eq!(r["model"]["parameters"], models::LLAMA_PARAMETERS);
    assert_eq!((r["mode"].as_str(), r["dtype"].as_str()), (Some("infer"), Some("f32")));
    for (axis, n) in [("pp", pp), ("dp", dp), ("cp", 1), ("ep", 1), ("tp", tp)] {
        assert_eq!(r["mesh"][axis], n, "mesh.{axis}");
    }
    assert_eq!(r["devices"], pp * dp * tp);
    assert_eq!(r["entries"], serde_json::json!(["forward", "prefill", "decode"]));
    let stages = r["stages"].as_array().unwrap();
    assert_eq!(stages.len() as u64, pp);
    let mut layers = Vec::new();
    for (i, s) in stages.iter().enumerate() {
        assert_eq!((s["stage"].as_u64(), s["rank"].is_u64()), (Some(i as u64), true));
        layers.extend(s["layers"].as_array().unwrap().iter().map(|l| l.as_u64().unwrap()));
        for field in
            ["parameters", "parameter_bytes_per_device", "peak_memory_bytes_per_device", "flops_per_device"]
        {
            assert!(s[field].as_u64().is_some_and(|n| n > 0), "stages[{i}].{field}");
        }
        for send in s["sends"].as_array().unwrap() {
            assert!(send["to"].is_u64() && send["bytes"].as_u64().is_some_and(|n| n > 0), "{send}");
        }
        assert_eq!(
            s["sends"].as_array().unwrap().is_empty(),
            i as u64 + 1 == pp,
            "all but the last stage send"
        );
        for c in s["collectives"].as_array().unwrap() {
            let kind = c["kind"].as_str().unwrap();
            assert!(
                ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "broadcast"]
                    .contains(&kind)
            );
            assert_eq!(c["phase"], "forward");
            assert!(c["axes"].is_array() && c["count"].is_u64() && c["bytes"].is_u64(), "{c}");
            assert!(c["entry"].is_string() && c["dtype"].is_string() && c["what"].is_string(), "{c}");
        }
    }
    assert_eq!(layers, [0, 1, 2, 3, 4], "every layer in exactly one stage");
    for field in ["name", "micro_batches", "virtual_stages", "bubble_fraction", "peak_in_flight"] {
        assert!(!r["schedule"][field].is_null(), "schedule.{field}");
    }
    assert_eq!(r["schedule"]["peak_in_flight"].as_array().unwrap().len() as u64, pp);
    for field in ["step_time_s", "tokens_per_s_per_device", "mfu", "peak_memory_bytes"] {
        assert!(r["estimate"][field].as_f64().is_some_and(|x| x > 0.0), "estimate.{field}");
    }
    assert!(r["estimate"]["cluster"].is_string());
    assert_eq!(r["verify"]["ok"], true);
    for field in ["values", "functions"] {
        assert!(r["verify"][field].as_u64().is_some_and(|n| n > 0), "verify.{field}");
    }
    assert!(r["compile"]["seconds"].is_f64() && r["compile"]["peak_rss_bytes"].is_u64());
    let passes: Vec<&str> =
        r["compile"]["passes"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    for pass in ["outline", "assign_shardings", "partition", "rewrite_collectives", "lower", "verify"] {
        assert!(passes.contains(&pass), "{pass} is not among {passes:?}");
    }
}

#[test]
fn compile_and_inspect_report_alike() {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    let args = ["compile", &model, "--tp", "2", "--pp", "2", "--seq", "16", "--json", "-o", "a.pcc"];
    let compiled = json(place.path(), &args);
    check_report(&compiled, [2, 1, 2]);
    assert_eq!(json(place.path(), &["inspect", "a.pcc", "--json"]), compiled);
    let text = succeeds(place.path(), &["inspect", "a.pcc"]);
    for word in ["stage 0", "stage 1", "all_reduce", "over tp", "verified"] {
        assert!(text.contains(word), "no {word} in\n{text}");
    }
    // Without -o, the artifact is called as the model.
    succeeds(place.path(), &["compile", &model, "--seq", "16"]);
    assert!(place.path().join("llama.pcc/program.json").is_file());
}

/// Megatron's counts: a layer has 2 all-reduces of b*s*h; with --sp 2 all-gathers and 2 reduce-scatters instead; the embedding adds
/// one (vocab-parallel), and with --sp the head gathers what it reads.
#[test]
fn a_layer_has_megatrons_collectives() {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    let counts = |sp: &[&str]| {
        let args = [&["compile", &model, "--tp", "2", "--seq", "16", "--json"][..], sp].concat();
        let report = json(place.path(), &args);
        let mut counts = std::collections::BTreeMap::new();
        for c in report["stages"][0]["collectives"].as_array().unwrap() {
            if c["entry"] == "forward" {
                assert_eq!(c["bytes"], 4 * 16 * 48, "{c}");
                *counts.entry(c["kind"].as_str().unwrap().to_owned()).or_insert(0) +=
                    c["count"].as_u64().unwrap();
            }
        }
        counts
    };
    let of = |pairs: &[(&str, u64)]| pairs.iter().map(|(k, n)| ((*k).to_owned(), *n)).collect();
    assert_eq!(counts(&[]), of(&[("all_reduce", 2 * 5 + 1)]));
    assert_eq!(counts(&["--sp"]), of(&[("all_gather", 2 * 5 + 1), ("reduce_scatter", 2 * 5 + 1)]));
}

#[test]
fn plans_replay() {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    let args = ["compile", &model, "--tp", "3", "--pp", "2", "--seq", "16", "-o"];
    succeeds(place.path(), &[&args[..], &["first.pcc"]].concat());
    succeeds(place.path(), &[&args[..], &["second.pcc", "--plan", "first.pcc/plan.json"]].concat());
    let read = |name: &str| std::fs::read(place.path().join(name)).unwrap();
    for file in ["program.json", "plan.json", "kernels.x86.so"] {
        assert!(read(&format!("first.pcc/{file}")) == read(&format!("second.pcc/{file}")), "{file} differs");
    }
    // A plan of another mesh is refused.
    let other = [
        "compile",
        &model,
        "--tp",
        "2",
        "--pp",
        "2",
        "--seq",
        "16",
        "--plan",
        "first.pcc/plan.json",
        "-o",
        "x.pcc",
    ];
    fails(place.path(), &other, 1, &["plan"]);
}

#[test]
fn levels_are_printed_and_read_back() {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    let emit = |level: &str| {
        succeeds(place.path(), &["compile", &model, "--tp", "2", "--seq", "8", "--emit", level])
    };
    for (level, words) in [
        ("graph", &["module", "dot_general", "entry \"forward\""][..]),
        ("sharded", &["sharding", "reshard", "partial"]),
        ("local", &["claim", "all_reduce"]),
    ] {
        let text = emit(level);
        for word in words {
            assert!(text.contains(word), "no {word} at level {level}");
        }
        let file = format!("{level}.pcir");
        std::fs::write(place.path().join(&file), &text).unwrap();
        assert!(succeeds(place.path(), &["opt", &file]) == text, "{level} does not round-trip");
    }
    assert!(serde_json::from_str::<Value>(&emit("program")).unwrap().is_object());
    assert!(!place.path().join("llama.pcc").exists());
    // The passes of a compile, one by one.
    let passes = "outline,assign_shardings,partition,rewrite_collectives";
    let local = succeeds(place.path(), &["opt", "graph.pcir", "--pass", passes]);
    assert!(local == emit("local"), "opt and compile differ");
    // Passes in no order that makes sense.
    fails(place.path(), &["opt", "sharded.pcir", "--pass", "outline"], 2, &["`outline`", "have shardings"]);
    fails(place.path(), &["opt", "local.pcir", "--pass", "partition"], 2, &["`partition`", "local module"]);
    // From standard input.
    let mut opt = super::command(place.path(), &["opt", "-"]);
    let stdin = std::fs::File::open(place.path().join("local.pcir")).unwrap();
    let o = super::finish(opt.stdin(stdin).spawn().unwrap(), "opt -");
    assert_eq!((o.code, o.stdout == local), (0, true), "{}", o.stderr);
}

#[test]
fn print_after_and_time_passes_go_to_stderr() {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    let args = [
        "compile",
        &model,
        "--tp",
        "2",
        "--seq",
        "8",
        "--print-after",
        "partition",
        "--time-passes",
        "--json",
    ];
    let o = pcc(place.path(), &args);
    assert_eq!(o.code, 0, "{}", o.stderr);
    assert!(serde_json::from_str::<Value>(&o.stdout).is_ok());
    assert!(o.stderr.contains("// after partition\nmodule") && o.stderr.contains("claim"));
    assert!(o.stderr.lines().any(|l| l.contains(" ms  partition")));
}

#[test]
fn opt_refuses_what_is_no_module() {
    let place = folder();
    let write = |text: &str| std::fs::write(place.path().join("m.pcir"), text).unwrap();
    fails(place.path(), &["opt", "m.pcir"], 1, &["m.pcir"]);
    write("module \"m\" mesh(tp=2)\nfn %0 \"f\" (%0: f32[0]) -> () {}");
    fails(place.path(), &["opt", "m.pcir"], 1, &["m.pcir: line 2, column 19"]);
    write("module \"m\" mesh()\nfn %0 \"f\" (%0: f32[2]) -> (%1) {\n %1: f32[3] = unary(%0) \"neg\"\n}");
    fails(place.path(), &["opt", "m.pcir"], 1, &["m.pcir", "function `f`", "f32[3]"]);
    fails(place.path(), &["opt", "m.pcir", "--pass", "lunch"], 2, &["lunch", "partition"]);
    fails(place.path(), &["opt", "m.pcir", "--pass", "lower"], 2, &["lower"]);
    std::fs::write(place.path().join("m.pcir"), b"module \xff").unwrap();
    fails(place.path(), &["opt", "m.pcir"], 1, &["m.pcir", "UTF-8"]);
    write(&"sum(".repeat(1 << 20));
    fails(place.path(), &["opt", "m.pcir"], 1, &["m.pcir"]);
}

#[test]
fn imported_models_load_back() {
    let place = folder();
    // So few layers that they are not folded.
    let mut config = models::llama();
    config["num_hidden_layers"] = 2.into();
    let model = models::write(place.path(), "llama", &config);
    succeeds(place.path(), &["import", &model, "--seq", "8", "-o", "model.json"]);
    let emit = |m: &str| succeeds(place.path(), &["compile", m, "--seq", "8", "--emit", "graph"]);
    assert_eq!(emit("model.json"), emit(&model));
    // With weights: the numbers of the checkpoint.
    let tiny = data("tiny-gpt2");
    succeeds(place.path(), &["import", tiny.to_str().unwrap(), "--seq", "8", "-o", "gpt2.json"]);
    assert_eq!(emit("gpt2.json"), emit(tiny.to_str().unwrap()));
    fails(place.path(), &["import", &model, "-o", "absent/model.json"], 1, &["absent"]);
    fails(place.path(), &["import", "absent.json", "-o", "m.json"], 1, &["absent.json"]);
}

#[test]
fn schema_is_a_schema() {
    let place = folder();
    let schema = json(place.path(), &["schema"]);
    assert!(schema["$schema"].is_string() && schema["properties"]["functions"].is_object());
    // The examples have no field that it does not have.
    for name in ["mlp.json", "skip.json", "transformer.json"] {
        let model: Value = serde_json::from_str(&std::fs::read_to_string(example(name)).unwrap()).unwrap();
        for key in model.as_object().unwrap().keys() {
            assert!(schema["properties"][key].is_object(), "{key} of {name}");
        }
    }
}

#[test]
fn doctor_finds_a_healthy_machine() {
    let place = folder();
    let o = json(place.path(), &["doctor", "--json"]);
    assert_eq!(o["ok"], true, "{o}");
    assert!(o["findings"].as_array().unwrap().iter().any(|f| f["what"] == "codegen"));
    let mut sick = super::command(place.path(), &["doctor"]);
    let o = super::finish(sick.env("PCC_CODEGEN", "/nowhere/pcc-codegen").spawn().unwrap(), "doctor");
    assert_eq!(o.code, 3, "{}", o.stderr);
    assert!(o.stdout.contains("FAIL codegen"), "{}", o.stdout);
}

#[test]
fn completions_and_help() {
    let place = folder();
    for (shell, word) in [("bash", "_pcc()"), ("zsh", "#compdef pcc"), ("fish", "complete -c pcc")] {
        assert!(succeeds(place.path(), &["completions", shell]).contains(word), "{shell}");
    }
    fails(place.path(), &["completions", "abacus"], 2, &["abacus"]);
    for command in ["compile", "run", "generate", "inspect", "verify", "opt", "import", "schema", "doctor"] {
        assert!(succeeds(place.path(), &["--help"]).contains(command));
        assert!(succeeds(place.path(), &[command, "--help"]).contains("Usage"));
    }
    assert!(succeeds(place.path(), &["--version"]).starts_with("pcc 0."));
}

#[test]
fn verify_checks_an_artifact_again() {
    let place = folder();
    let artifact = models::artifact("llama", &["--tp", "2"]);
    let o = json(place.path(), &["verify", artifact.to_str().unwrap(), "--json"]);
    assert_eq!(o["ok"], true);
}
