//! Good safetensors files, written by the `safetensors` crate, and shards.

use super::{Folder, open};
use crate::weights::Checkpoint;
use crate::weights::gguf::written::f32_bytes;
use ::safetensors::tensor::{Dtype, TensorView as Written, serialize};
use pcc_ir::source::{ParamSource, ReadParams, TensorView};

fn file(tensors: &[(&str, Dtype, &[usize], &[u8])]) -> Vec<u8> {
    let views = tensors.iter().map(|(n, d, s, b)| (*n, Written::new(*d, s.to_vec(), b).unwrap()));
    serialize(views.collect::<Vec<_>>(), None).unwrap()
}

fn counting(n: usize) -> Vec<u8> {
    f32_bytes((0..n).map(|i| i as f32))
}

#[test]
fn all_float_types_and_a_buffer() {
    let f16 = [0x00, 0x3C, 0x00, 0xC1];
    let bytes = file(&[
        ("w", Dtype::F32, &[2, 3], &counting(6)),
        ("h", Dtype::F16, &[2], &f16),
        ("b", Dtype::BF16, &[1], &[0x20, 0xC0]),
        ("ids", Dtype::I64, &[1], &[0; 8]),
        ("scalar", Dtype::F32, &[], &counting(1)),
    ]);
    let c = open("m.safetensors", &bytes).unwrap();
    assert_eq!(c.tensors().map(|t| t.name).collect::<Vec<_>>(), ["b", "h", "ids", "scalar", "w"]);
    let mut out = [0.0; 2];
    c.read_f32("w", &[0..2, 2..3], &mut out).unwrap();
    assert_eq!(out, [2.0, 5.0]);
    c.read_f32("h", std::slice::from_ref(&(0..2)), &mut out).unwrap();
    assert_eq!(out, [1.0, -2.5]);
    c.read_f32("b", std::slice::from_ref(&(0..1)), &mut out[..1]).unwrap();
    assert_eq!(out[0], -2.5);
    c.read_f32("scalar", &[], &mut out[..1]).unwrap();
    assert_eq!(out[0], 0.0);
    let refused = c.read_f32("ids", std::slice::from_ref(&(0..1)), &mut out[..1]).unwrap_err().to_string();
    assert!(refused.contains("I64") && refused.contains("`ids`"), "{refused}");
}

#[test]
fn a_fused_conv1d_weight_read_as_keys() {
    // GPT-2's c_attn [in 2, 3 * hidden 2]: the keys' part as [in, heads 1, head_dim 2].
    let c = open("m.safetensors", &file(&[("c", Dtype::F32, &[2, 6], &counting(12))])).unwrap();
    let view = c.view("c").unwrap().slice(1, 2, 2).unwrap().split(1, &[1, 2]).unwrap();
    let source = ParamSource::tensor(view);
    let mut out = [0.0; 2];
    c.read_param_slice(&source, &[0..2, 0..1, 1..2], &mut out).unwrap();
    assert_eq!(out, [3.0, 9.0]);
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    let c = open("m.safetensors", &file(&[("layer.0.weight", Dtype::F32, &[2, 3], &counting(6))])).unwrap();
    let missing = c.view("layer.1.weight").unwrap_err().to_string();
    assert!(
        missing.contains("`layer.1.weight`") && missing.contains("nearest are `layer.0.weight`"),
        "{missing}"
    );
    let other = ParamSource::tensor(TensorView::whole("layer.0.weight", [3, 2]));
    let mut out = [0.0; 6];
    let refused = c.read_param_slice(&other, &[0..3, 0..2], &mut out).unwrap_err().to_string();
    assert!(refused.contains("[2, 3]") && refused.contains("[3, 2]"), "{refused}");
    assert!(c.read_f32("layer.0.weight", &[0..3, 0..2], &mut out).is_err());
    assert!(c.read_f32("layer.0.weight", &[0..2, 0..2], &mut out).is_err(), "out is too long");
}

#[test]
fn digest_sees_names_types_and_shapes_but_not_values_or_files() {
    let of = |name: &str, dtype, shape: &[usize], fill: u8| {
        open("m.safetensors", &file(&[(name, dtype, shape, &[fill; 24])])).unwrap().header_digest()
    };
    let base = of("w", Dtype::F32, &[2, 3], 0);
    assert_eq!(base, of("w", Dtype::F32, &[2, 3], 1));
    // sha256 of: u64 1, "w", " F32 [2, 3] 24\n" (from Python's hashlib).
    assert_eq!(base, "2e73c27d65eb392b8055ef76662ff80b5c37aa571988b237ca27bab493d960ee");
    let others =
        [of("v", Dtype::F32, &[2, 3], 0), of("w", Dtype::F16, &[4, 3], 0), of("w", Dtype::F32, &[3, 2], 0)];
    assert!(others.iter().all(|o| *o != base));
}

/// Two shards and an index.
fn sharded(map: &str) -> Folder {
    let folder = Folder::new();
    folder.write("a.safetensors", &file(&[("x", Dtype::F32, &[1], &f32_bytes([1.0]))]));
    folder.write("b.safetensors", &file(&[("y", Dtype::F32, &[1], &f32_bytes([2.0]))]));
    folder.write("model.safetensors.index.json", map.as_bytes());
    folder
}

#[test]
fn shards_read_as_one_checkpoint() {
    let folder = sharded(
        r#"{"metadata": {"total_size": 8}, "weight_map": {"y": "b.safetensors", "x": "a.safetensors"}}"#,
    );
    let c = Checkpoint::open(folder.path()).unwrap();
    let mut out = [0.0];
    c.read_f32("y", std::slice::from_ref(&(0..1)), &mut out).unwrap();
    assert_eq!(out, [2.0]);
    let both = file(&[("x", Dtype::F32, &[1], &[0; 4]), ("y", Dtype::F32, &[1], &[0; 4])]);
    assert_eq!(c.header_digest(), open("m.safetensors", &both).unwrap().header_digest());
}

#[test]
fn indexes_that_lie() {
    for (map, word) in [
        (r#"{"weight_map": {"x": "c.safetensors"}}"#, "missing"),
        (r#"{"weight_map": {"x": "../a.safetensors"}}"#, "not inside"),
        (r#"{"weight_map": {"x": "/etc/passwd"}}"#, "not inside"),
        (r#"{"weight_map": {"x": ""}}"#, "not inside"),
        (r#"{"weight_map": {"z": "a.safetensors"}}"#, "`z`"),
        (r#"{"weight_map": {"y": "a.safetensors", "x": "b.safetensors"}}"#, "not in the shard"),
        (r#"{"weight_map": {}}"#, "no tensor"),
        (r#"{"weight_map": 3}"#, "no index"),
        (r#"[[[[[["#, "no index"),
        ("", "no index"),
    ] {
        let refused = Checkpoint::open(sharded(map).path()).unwrap_err().to_string();
        assert!(refused.contains(word), "{map}: {refused}");
    }
    let folder = sharded(r#"{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}"#);
    folder
        .write("b.safetensors", &file(&[("x", Dtype::F32, &[1], &[0; 4]), ("y", Dtype::F32, &[1], &[0; 4])]));
    assert!(Checkpoint::open(folder.path()).unwrap_err().to_string().contains("too"));
}

#[test]
fn folders() {
    let folder = Folder::new();
    assert!(Checkpoint::open(folder.path()).unwrap_err().to_string().contains("no safetensors or GGUF"));
    let one = file(&[("x", Dtype::F32, &[1], &[0; 4])]);
    folder.write("some.safetensors", &one);
    assert!(Checkpoint::open(folder.path()).is_ok());
    folder.write("other.safetensors", &one);
    assert!(Checkpoint::open(folder.path()).unwrap_err().to_string().contains("several"));
    folder.write("model.safetensors", &one);
    assert!(Checkpoint::open(folder.path()).is_ok());
    assert!(Checkpoint::open(&folder.path().join("none.gguf")).is_err());
    assert!(Checkpoint::open(std::path::Path::new("/dev/zero")).is_err());
}
