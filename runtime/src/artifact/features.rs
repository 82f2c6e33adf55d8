//! Whether this machine has the CPU features that kernels were compiled for.

use pcc_ir::Diagnostic;
use pcc_ir::program::Target;

/// # Errors
/// The kernels are for another kind of device, or use features that this CPU lacks; names them.
pub(super) fn check(target: &Target) -> Result<(), Diagnostic> {
    if target.name != "cpu" {
        return Err(Diagnostic::input(format!("the artifact is for {}, not for a CPU", target.name)).help(
            "run it on GPUs (--device cuda) or simulated ones (--device cuda-sim), or compile it with --target cpu",
        ));
    }
    let lacking: Vec<&str> =
        target.features.iter().map(String::as_str).filter(|f| detect(f) != Some(true)).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    Err(Diagnostic::input("this CPU cannot run the artifact's kernels")
        .why(format!("it lacks {}", lacking.join(", ")))
        .help("compile the model on this machine"))
}

macro_rules! detect {
    ($name:expr, $($feature:tt),*) => {
        match $name {
            $($feature => Some(is_x86_feature_detected!($feature)),)*
            _ => None,
        }
    };
}

/// Whether the CPU has a feature; `None` when the name is not known.
fn detect(name: &str) -> Option<bool> {
    detect!(
        name,
        "sse",
        "sse2",
        "sse3",
        "ssse3",
        "sse4.1",
        "sse4.2",
        "popcnt",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "bmi1",
        "bmi2",
        "lzcnt",
        "movbe",
        "adx",
        "aes",
        "pclmulqdq",
        "vaes",
        "vpclmulqdq",
        "gfni",
        "sha",
        "avx512f",
        "avx512cd",
        "avx512bw",
        "avx512dq",
        "avx512vl",
        "avx512ifma",
        "avx512vbmi",
        "avx512vbmi2",
        "avx512vnni",
        "avx512bitalg",
        "avx512vpopcntdq",
        "avx512bf16",
        "avx512vp2intersect",
        "avx512fp16",
        "avxvnni"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_missing_features_are_named() {
        let target = |features: &[&str]| Target {
            name: "cpu".into(),
            features: features.iter().map(|f| (*f).to_owned()).collect(),
            object_digest: String::new(),
        };
        assert!(check(&target(&["sse2"])).is_ok());
        let refused = check(&target(&["sse2", "amx-future"])).unwrap_err();
        assert!(refused.why.unwrap().contains("amx-future"));
        assert!(check(&Target { name: "sm_90".into(), ..target(&[]) }).is_err());
    }
}
