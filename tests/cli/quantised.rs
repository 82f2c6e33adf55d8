//! Models whose weights stay quantised in memory compute what the same models compute with the values they stand for.

use super::{fails, folder, json, npz, succeeds};
use pcc_frontend::weights::{Checkpoint, Quantised};
use std::path::Path;

/// A tensor: name, dims (innermost first, as GGUF lists them), type, bytes.
type Tensor = (String, Vec<usize>, u32, Vec<u8>);

const F32: u32 = 0;
/// GGUF's numbers of the quantised types.
const KINDS: [(Quantised, u32); 10] = [
    (Quantised::Q4_0, 2),
    (Quantised::Q4_1, 3),
    (Quantised::Q5_0, 6),
    (Quantised::Q5_1, 7),
    (Quantised::Q8_0, 8),
    (Quantised::Q2_K, 10),
    (Quantised::Q3_K, 11),
    (Quantised::Q4_K, 12),
    (Quantised::Q5_K, 13),
    (Quantised::Q6_K, 14),
];

fn number(kind: Quantised) -> u32 {
    KINDS.iter().find(|k| k.0 == kind).unwrap().1
}

/// Byte positions of a block's f16 scales.
fn scales(kind: Quantised) -> &'static [usize] {
    match kind {
        Quantised::Q4_0 | Quantised::Q5_0 | Quantised::Q8_0 => &[0],
        Quantised::Q2_K => &[80, 82],
        Quantised::Q3_K => &[108],
        Quantised::Q6_K => &[208],
        _ => &[0, 2],
    }
}

/// Bytes without a pattern.
struct Noise(u64);

impl Noise {
    fn byte(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 56) as u8
    }

    fn blocks(&mut self, kind: Quantised, dims: &[usize]) -> Vec<u8> {
        let (per_block, size) = kind.block();
        let mut out = Vec::new();
        for _ in 0..dims.iter().product::<usize>() / per_block {
            let mut block: Vec<u8> = (0..size).map(|_| self.byte()).collect();
            for &at in scales(kind) {
                // An f16 of either sign between 2^-10 and 2^-8.
                block[at + 1] = (self.byte() & 0x80) | 0x14 | (self.byte() & 7);
            }
            out.extend(block);
        }
        out
    }
}

/// A llama of one layer; rows of 256 where types need them, and of 320 where three devices cut blocks. `tied` leaves the head out.
fn tensors(seed: u64, rotate: usize, tied: bool) -> Vec<Tensor> {
    let mut noise = Noise(seed);
    let mut next = rotate;
    let mut out: Vec<Tensor> = Vec::new();
    let mut quantised = |name: &str, dims: [usize; 2]| {
        let fits = |kind: Quantised| dims[0].is_multiple_of(kind.block().0);
        let kinds: Vec<_> = KINDS.iter().filter(|k| fits(k.0)).collect();
        let kind = kinds[next % kinds.len()].0;
        next += 1;
        out.push((format!("{name}.weight"), dims.to_vec(), number(kind), noise.blocks(kind, &dims)));
    };
    quantised("token_embd", [256, 70]);
    quantised("blk.0.attn_q", [256, 256]);
    quantised("blk.0.attn_k", [256, 128]);
    quantised("blk.0.attn_v", [256, 128]);
    quantised("blk.0.attn_output", [256, 256]);
    quantised("blk.0.ffn_gate", [256, 320]);
    quantised("blk.0.ffn_up", [256, 320]);
    quantised("blk.0.ffn_down", [320, 256]);
    if !tied {
        quantised("output", [256, 70]);
    }
    for norm in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"] {
        let ones = [1.0f32; 256].iter().flat_map(|x| x.to_le_bytes()).collect();
        out.push((format!("{norm}.weight"), vec![256], F32, ones));
    }
    out
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn write(path: &Path, tensors: &[Tensor]) {
    write_with(path, tensors, 1e-5, 70);
}

fn write_with(path: &Path, tensors: &[Tensor], eps: f32, vocab: u32) {
    let number = |name: &str, n: u32| {
        [string(&format!("llama.{name}")), 4u32.to_le_bytes().to_vec(), n.to_le_bytes().to_vec()].concat()
    };
    let keys = [
        [string("general.architecture"), 8u32.to_le_bytes().to_vec(), string("llama")].concat(),
        number("block_count", 1),
        number("context_length", 64),
        number("embedding_length", 256),
        number("feed_forward_length", 320),
        number("attention.head_count", 4),
        number("attention.head_count_kv", 2),
        number("vocab_size", vocab),
        [
            string("llama.attention.layer_norm_rms_epsilon"),
            6u32.to_le_bytes().to_vec(),
            eps.to_le_bytes().to_vec(),
        ]
        .concat(),
    ];
    let counts = [tensors.len() as u64, keys.len() as u64];
    let mut file =
        [b"GGUF", &3u32.to_le_bytes()[..], &counts[0].to_le_bytes(), &counts[1].to_le_bytes()].concat();
    file.extend(keys.concat());
    let mut values = Vec::new();
    for (name, dims, kind, bytes) in tensors {
        file.extend(string(name));
        file.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|&d| file.extend((d as u64).to_le_bytes()));
        file.extend(kind.to_le_bytes());
        file.extend((values.len() as u64).to_le_bytes());
        values.extend(bytes);
        values.resize(values.len().next_multiple_of(32), 0);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    std::fs::write(path, [file, values].concat()).unwrap();
}

/// The same model in f32.
fn decoded(path: &Path, tensors: &[Tensor]) -> Vec<Tensor> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let one = |(name, dims, ..): &Tensor| {
        let slice: Vec<_> = dims.iter().rev().map(|&d| 0..d).collect();
        let mut values = vec![0.0; dims.iter().product()];
        checkpoint.read_f32(name, &slice, &mut values).unwrap();
        (name.clone(), dims.clone(), F32, values.iter().flat_map(|x| x.to_le_bytes()).collect())
    };
    tensors.iter().map(one).collect()
}

/// Logits of a model file on a mesh.
fn logits(folder: &Path, file: &str, mesh: &[&str]) -> Vec<f32> {
    succeeds(folder, &[&["compile", file, "--seq", "12", "--batch", "2", "-o", "m.pcc"], mesh].concat());
    npz::write_i32(&folder.join("in.npz"), &[("tokens", &[2, 9], (0..18).map(|i| i * 7 % 70).collect())]);
    succeeds(folder, &["run", "m.pcc", "--input", "in.npz", "--output", "out.npz"]);
    npz::read_f32(&folder.join("out.npz"), "logits").1
}

#[test]
fn quantised_weights_compute_what_their_values_do() {
    let place = folder();
    for (round, mesh) in [(0, ["--tp", "1"]), (3, ["--tp", "3"]), (5, ["--tp", "8"]), (7, ["--pp", "3"])] {
        let tied = round % 2 == 0;
        let all = tensors(11 + round as u64, round, tied);
        write(&place.path().join("q.gguf"), &all);
        write(&place.path().join("f.gguf"), &decoded(&place.path().join("q.gguf"), &all));
        let wanted = logits(place.path(), "f.gguf", &mesh);
        let full = bytes(place.path());
        let got = logits(place.path(), "q.gguf", &mesh);
        let kept = bytes(place.path());
        let largest = wanted.iter().fold(0f32, |m, x| m.max(x.abs()));
        assert!(largest > 0.1 && largest.is_finite(), "{mesh:?}: logits up to {largest}");
        for (i, (g, w)) in got.iter().zip(&wanted).enumerate() {
            assert!((g - w).abs() <= 1e-4 * largest, "{mesh:?} {i}: {g} where {w} is right");
        }
        assert!(3 * kept < full, "{mesh:?}: {kept} of {full} bytes");
        succeeds(place.path(), &["verify", "m.pcc", "--numeric"]);
    }
}

/// What a device holds of the weights of `m.pcc`, stages together.
fn bytes(folder: &Path) -> u64 {
    let report = json(folder, &["inspect", "m.pcc", "--json"]);
    let stages = report["stages"].as_array().unwrap();
    stages.iter().map(|s| s["parameter_bytes_per_device"].as_u64().unwrap()).sum()
}

/// In bf16 they would be three times larger.
#[test]
fn quantised_weights_stay_so_beside_bf16() {
    let place = folder();
    let all = tensors(5, 1, false);
    write(&place.path().join("q.gguf"), &all);
    let wanted = logits(place.path(), "q.gguf", &["--tp", "3"]);
    let kept = bytes(place.path());
    let got = logits(place.path(), "q.gguf", &["--tp", "3", "--dtype", "bf16"]);
    assert_eq!(bytes(place.path()), kept);
    // Products of quantised weights are those of f32; attention rounds to 8 digits.
    let largest = wanted.iter().fold(0f32, |m, x| m.max(x.abs()));
    assert!(
        got.iter().zip(&wanted).all(|(g, w)| (g - w).abs() < 0.03 * largest),
        "{got:?} where {wanted:?} is right"
    );
    assert!(got != wanted, "attention is in bf16");
    succeeds(place.path(), &["verify", "--numeric", "m.pcc"]);
}

#[test]
fn keys_that_say_nothing_or_contradict_the_tensors_are_refused() {
    let (place, all) = (folder(), tensors(3, 0, true));
    for eps in [f32::NAN, f32::INFINITY] {
        write_with(&place.path().join("m.gguf"), &all, eps, 70);
        let words = ["llama.attention.layer_norm_rms_epsilon", "no number"];
        fails(place.path(), &["compile", "m.gguf", "-o", "m.pcc"], 1, &words);
    }
    write_with(&place.path().join("m.gguf"), &all, 1e-5, 71);
    fails(place.path(), &["compile", "m.gguf", "-o", "m.pcc"], 1, &["llama.vocab_size", "71", "70 rows"]);
}
