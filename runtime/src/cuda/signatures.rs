//! Whether the PTX of an artifact takes the parameters that it will be given: the driver reads as many as the text says, whatever was passed.

use pcc_ir::Diagnostic;
use pcc_ir::gpu::library;
use pcc_ir::program::Program;
use std::collections::HashMap;

/// Checks every kernel that the program launches.
///
/// # Errors
/// One is missing, or takes another number of parameters, or others than of 8 bytes.
pub(super) fn check(program: &Program, ptx: &str) -> Result<(), Diagnostic> {
    let entries = entries(ptx);
    let fused = program.kernels.values().map(|k| {
        let (rank, accesses) = (k.rank as usize, k.accesses.len());
        (k.name.clone(), accesses + rank + accesses * rank + k.scalars as usize)
    });
    let library = library(program).into_iter().map(|k| (k.symbol(), k.params()));
    for (name, count) in fused.chain(library) {
        let why = match entries.get(name.as_str()) {
            None => "it is not there".to_owned(),
            Some(None) => "its parameters are not numbers of 8 bytes".to_owned(),
            Some(Some(found)) if *found != count => format!("it takes {found} parameters, not {count}"),
            Some(Some(_)) => continue,
        };
        return Err(Diagnostic::input("the artifact's kernels are damaged")
            .at(format!("kernel {name} of the PTX"))
            .why(why)
            .help("compile the model again"));
    }
    Ok(())
}

/// Every entry's number of parameters, if all of them are of 8 bytes and it is written as LLVM writes it.
fn entries(ptx: &str) -> HashMap<&str, Option<usize>> {
    let mut found = HashMap::new();
    for text in ptx.split(".entry").skip(1) {
        let Some((name, rest)) = text.split_once('(') else { continue };
        let params = rest.split_once(')').and_then(|(list, _)| parameters(list));
        // Defined twice, it is nothing to rely on.
        let name = name.trim();
        let known = found.contains_key(name);
        found.insert(name, if known { None } else { params });
    }
    found
}

fn parameters(list: &str) -> Option<usize> {
    if list.trim().is_empty() {
        return Some(0);
    }
    let mut count = 0;
    for one in list.split(',') {
        let mut words = one.split_whitespace();
        let eight = [".b64", ".u64", ".s64", ".f64"];
        if words.next() != Some(".param") || !words.next().is_some_and(|w| eight.contains(&w)) {
            return None;
        }
        // Attributes of pointers, then the name: anything else, a comment or an array, is not what LLVM writes.
        let plain = |w: &str| w.chars().all(|c| c.is_ascii_alphanumeric() || "._$".contains(c));
        if !words.all(plain) {
            return None;
        }
        count += 1;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_counted_as_the_driver_reads_them() {
        let list = "\n\t.param .u64 .ptr .global .align 16 k_param_0,\n\t.param .b64 k_param_1\n";
        assert_eq!(parameters(list), Some(2));
        assert_eq!(parameters(""), Some(0));
        for other in [".param .b32 a", ".param .b64 a[4]", ".param .b64 a /* , */", ".reg .b64 a"] {
            assert_eq!(parameters(other), None, "{other}");
        }
        let ptx = ".visible .entry a(.param .b64 x)\n{ }\n.entry b()\n{ }\n.entry b()\n{ }";
        assert_eq!(entries(ptx), HashMap::from([("a", Some(1)), ("b", None)]));
    }
}
