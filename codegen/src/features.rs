//! Which CPU features generated code may use.
//!
//! Code is generated for the x86-64 baseline plus a subset of [`KNOWN`]: what the psABI's levels x86-64-v3 and x86-64-v4 add to it.
//! AVX2, FMA and F16C are needed (every x86 CPU with AVX2 has them); with the four AVX-512 features of [`WIDE`] vectors
//! have sixteen lanes, else eight. The CPU's model plays no part, so equal features give equal objects.

use pcc_ir::Diagnostic;
use pcc_ir::codegen_protocol::Cpu;
use std::arch::is_x86_feature_detected as has;

/// Names of `is_x86_feature_detected`, names of LLVM, and what each implies among these.
const KNOWN: [(&str, &str, &[&str]); 18] = [
    ("sse3", "sse3", &[]),
    ("ssse3", "ssse3", &["sse3"]),
    ("sse4.1", "sse4.1", &["ssse3"]),
    ("sse4.2", "sse4.2", &["sse4.1"]),
    ("popcnt", "popcnt", &[]),
    ("avx", "avx", &["sse4.2"]),
    ("avx2", "avx2", &["avx"]),
    ("bmi1", "bmi", &[]),
    ("bmi2", "bmi2", &[]),
    ("lzcnt", "lzcnt", &[]),
    ("movbe", "movbe", &[]),
    ("f16c", "f16c", &["avx"]),
    ("fma", "fma", &["avx"]),
    ("avx512f", "avx512f", &["avx2", "fma", "f16c"]),
    ("avx512bw", "avx512bw", &["avx512f"]),
    ("avx512cd", "avx512cd", &["avx512f"]),
    ("avx512dq", "avx512dq", &["avx512f"]),
    ("avx512vl", "avx512vl", &["avx512f"]),
];
const NEEDED: [&str; 3] = ["avx2", "fma", "f16c"];
const WIDE: [&str; 4] = ["avx512f", "avx512bw", "avx512dq", "avx512vl"];

/// A closed set of known features, in the order of the table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Features([bool; KNOWN.len()]);

impl Features {
    /// What a request asks for.
    ///
    /// # Errors
    /// A feature that is not in the table, or one of the needed ones missing.
    pub(crate) fn of(cpu: &Cpu) -> Result<Self, Diagnostic> {
        let features = match cpu {
            Cpu::Native => Self::native(),
            Cpu::Features(names) => Self::named(names)?,
        };
        match NEEDED.iter().find(|f| !features.has(f)) {
            None => Ok(features),
            Some(missing) => {
                Err(Diagnostic::usage(format!("no kernels can be generated for a CPU without {missing}"))
                    .why("kernels use AVX2, FMA and F16C")
                    .help("compile for x86-64-v3 (avx2 bmi1 bmi2 f16c fma lzcnt movbe popcnt) or more"))
            }
        }
    }

    fn native() -> Self {
        let here = [
            has!("sse3"),
            has!("ssse3"),
            has!("sse4.1"),
            has!("sse4.2"),
            has!("popcnt"),
            has!("avx"),
            has!("avx2"),
            has!("bmi1"),
            has!("bmi2"),
            has!("lzcnt"),
            has!("movbe"),
            has!("f16c"),
            has!("fma"),
            has!("avx512f"),
            has!("avx512bw"),
            has!("avx512cd"),
            has!("avx512dq"),
            has!("avx512vl"),
        ];
        Features(here)
    }

    fn named(names: &[String]) -> Result<Self, Diagnostic> {
        let mut set = [false; KNOWN.len()];
        let position = |name: &str| KNOWN.iter().position(|k| k.0 == name);
        let mut pending = vec![];
        for name in names {
            pending.push(position(name).ok_or_else(|| {
                let known: Vec<_> = KNOWN.iter().map(|k| k.0).collect();
                Diagnostic::usage(format!("unknown CPU feature {name:?}"))
                    .help(format!("known: {}", known.join(" ")))
            })?);
        }
        while let Some(i) = pending.pop() {
            if !std::mem::replace(&mut set[i], true) {
                pending.extend(KNOWN[i].2.iter().filter_map(|n| position(n)));
            }
        }
        Ok(Features(set))
    }

    /// Names, as `is_x86_feature_detected` has them.
    pub(crate) fn names(&self) -> Vec<String> {
        KNOWN.iter().zip(self.0).filter(|(_, on)| *on).map(|(k, _)| k.0.to_string()).collect()
    }

    /// LLVM's feature string.
    pub(crate) fn llvm(&self) -> String {
        let on = KNOWN.iter().zip(self.0).map(|(k, on)| format!("{}{}", if on { "+" } else { "-" }, k.1));
        on.collect::<Vec<_>>().join(",")
    }

    /// f32 lanes of a vector.
    pub(crate) fn lanes(&self) -> u32 {
        if WIDE.iter().all(|f| self.has(f)) { 16 } else { 8 }
    }

    fn has(&self, name: &str) -> bool {
        KNOWN.iter().zip(self.0).any(|(k, on)| on && k.0 == name)
    }
}
