//! The NumPy files of the demo, by way of a small Python program, since the demo needs Python anyway to download.

use std::path::Path;

use anyhow::{Context, Result};

use crate::step::{Call, call};

/// How the same array of two files compares.
#[derive(Debug, PartialEq)]
pub(crate) struct Comparison {
    /// Rows along the last dim.
    pub(crate) positions: u64,
    /// The largest absolute difference of two values; none when some value is not finite.
    pub(crate) max_abs_diff: Option<f64>,
    /// Whether the largest value of every row is at the same place.
    pub(crate) same_argmax: bool,
}

/// Writes `tokens`, i32 [1, ids].
pub(crate) fn write_tokens(file: &Path, ids: &[u32]) -> Result<()> {
    script("tokens").args([file]).args(ids.iter().map(u32::to_string)).read().map(drop)
}

/// Compares the f32 array `name` [..., width] of two files. Different shapes are an error.
pub(crate) fn compare(left: &Path, right: &Path, name: &str) -> Result<Comparison> {
    let text = script("compare").args([left, right]).args([name]).read()?;
    let value: serde_json::Value = serde_json::from_str(&text).context("the comparison is no JSON")?;
    Ok(Comparison {
        positions: value["positions"].as_u64().context("the comparison has no `positions`")?,
        max_abs_diff: value["max_abs_diff"].as_f64(),
        same_argmax: value["same_argmax"].as_bool().context("the comparison has no `same_argmax`")?,
    })
}

fn script(what: &str) -> Call {
    call("python3").args(["-c", include_str!("npz.py"), what])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `body` with the names `save(file, shape, values)` and the folder of the files at hand.
    fn with_arrays(test: &str, arrays: &[(&str, &str, &str)], check: impl FnOnce(&Path)) {
        let folder = std::env::temp_dir().join(format!("pcc-npz-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (file, shape, values) in arrays {
            let python = format!(
                "import struct, zipfile\n\
                 header = \"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\\n\".encode()\n\
                 values = {values}\n\
                 data = b'\\x93NUMPY\\x01\\x00' + struct.pack('<H', len(header)) + header\n\
                 data += struct.pack('<%df' % len(values), *values)\n\
                 with zipfile.ZipFile('{}', 'w', zipfile.ZIP_DEFLATED) as archive:\n\
                 \x20   archive.writestr('logits.npy', data)",
                folder.join(file).display()
            );
            call("python3").args(["-c", &python]).read().unwrap();
        }
        check(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_largest_difference_and_the_argmax_are_found() {
        let arrays = [
            ("a", "(2, 3)", "[1, 2, 3, 6, 5, 4]"),
            ("b", "(2, 3)", "[1, 2.5, 3, 6, 5, 4.25]"),
            ("c", "(2, 3)", "[1, 2, 3, 6, 7, 4]"),
        ];
        with_arrays("difference", &arrays, |folder| {
            let close = compare(&folder.join("a"), &folder.join("b"), "logits").unwrap();
            assert_eq!(close, Comparison { positions: 2, max_abs_diff: Some(0.5), same_argmax: true });
            let moved = compare(&folder.join("a"), &folder.join("c"), "logits").unwrap();
            assert_eq!(moved, Comparison { positions: 2, max_abs_diff: Some(2.0), same_argmax: false });
        });
    }

    #[test]
    fn a_nan_or_another_shape_is_not_equal() {
        let arrays =
            [("a", "(1, 2)", "[1, 2]"), ("b", "(1, 2)", "[float('nan'), 2]"), ("c", "(2, 1)", "[1, 2]")];
        with_arrays("nan", &arrays, |folder| {
            let nan = compare(&folder.join("a"), &folder.join("b"), "logits").unwrap();
            assert_eq!(nan.max_abs_diff, None);
            assert!(compare(&folder.join("a"), &folder.join("c"), "logits").is_err());
        });
    }
}
