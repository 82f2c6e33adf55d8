//! Good GGUF files.

use super::open;
use crate::weights::gguf::names;
use crate::weights::gguf::written::{GgufFile, f32_bytes};
use crate::weights::{Checkpoint, ElementType, GgufValue, Quantised};
use pcc_ir::source::{BlockFormat, BlockRows, ParamSource, ReadParams, TensorView};

/// Two heads of 4 rows over 3 inputs; the stored row r holds 10 r, 10 r + 1, 10 r + 2.
fn rows() -> Vec<u8> {
    f32_bytes((0..8).flat_map(|r| (0..3).map(move |c| (10 * r + c) as f32)))
}

fn llama() -> GgufFile {
    let q8: Vec<u8> = [0x00, 0x3C].into_iter().chain(0..32).collect();
    GgufFile::of("llama")
        .u32("llama.attention.head_count", 2)
        .u32("llama.attention.head_count_kv", 1)
        .tensor("blk.0.attn_q.weight", &[3, 8], 0, &rows())
        .tensor("blk.0.attn_v.weight", &[3, 8], 0, &rows())
        .tensor("token_embd.weight", &[32, 1], 8, &q8)
        .tensor("blk.0.attn_k.bias", &[4], 0, &f32_bytes([0.0, 1.0, 2.0, 3.0]))
}

fn read_all(c: &Checkpoint, published: &str) -> (Vec<usize>, Vec<f32>) {
    let source = ParamSource::tensor(c.view(published).unwrap());
    source.validate().unwrap();
    let slice: Vec<_> = source.shape.iter().map(|&d| 0..d).collect();
    let mut out = vec![0.0; source.elements()];
    c.read_param_slice(&source, &slice, &mut out).unwrap();
    (source.shape, out)
}

#[test]
fn shapes_are_outermost_first_and_values_as_stored() {
    let c = open("m.gguf", &llama().bytes()).unwrap();
    let info = c.tensor("blk.0.attn_q.weight").unwrap();
    assert_eq!((info.shape, info.element.name()), (&[8, 3][..], "F32"));
    let mut out = [0.0; 4];
    c.read_f32("blk.0.attn_q.weight", &[3..5, 1..3], &mut out).unwrap();
    assert_eq!(out, [31.0, 32.0, 41.0, 42.0]);
    c.read_f32("token_embd.weight", &[0..1, 5..9], &mut out).unwrap();
    assert_eq!(out, [5.0, 6.0, 7.0, 8.0]);
}

#[test]
fn q_and_k_of_llama_return_to_the_published_row_order() {
    let c = open("m.gguf", &llama().bytes()).unwrap();
    let (shape, q) = read_all(&c, "model.layers.0.self_attn.q_proj.weight");
    // Published row (h, half, i) is stored row (h, i, half).
    let expected: Vec<f32> =
        [0, 2, 1, 3, 4, 6, 5, 7].iter().flat_map(|r| (0..3).map(move |c| (10 * r + c) as f32)).collect();
    assert_eq!((shape, q), (vec![8, 3], expected));
    assert_eq!(read_all(&c, "model.layers.0.self_attn.k_proj.bias").1, [0.0, 2.0, 1.0, 3.0]);
    // v is stored as published.
    let v: Vec<f32> = (0..8).flat_map(|r| (0..3).map(move |c| (10 * r + c) as f32)).collect();
    assert_eq!(read_all(&c, "model.layers.0.self_attn.v_proj.weight").1, v);
}

#[test]
fn qwen_rows_are_as_published() {
    let file = GgufFile::of("qwen2").tensor("blk.0.attn_q.weight", &[3, 8], 0, &rows());
    let c = open("m.gguf", &file.bytes()).unwrap();
    assert_eq!(read_all(&c, "model.layers.0.self_attn.q_proj.weight").1[3], 10.0);
}

#[test]
fn kv_heads_default_to_heads_and_must_fit() {
    let file = GgufFile::of("llama").u32("llama.attention.head_count", 2).tensor(
        "blk.0.attn_k.weight",
        &[1, 8],
        0,
        &f32_bytes((0..8).map(|r| r as f32)),
    );
    let c = open("m.gguf", &file.bytes()).unwrap();
    let (_, k) = read_all(&c, "model.layers.0.self_attn.k_proj.weight");
    assert_eq!(k, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    for heads in [0, 3, 8] {
        let file = GgufFile::of("llama").u32("llama.attention.head_count", heads).tensor(
            "blk.0.attn_k.weight",
            &[1, 8],
            0,
            &[0; 32],
        );
        let c = open("m.gguf", &file.bytes()).unwrap();
        assert!(c.view("model.layers.0.self_attn.k_proj.weight").is_err(), "{heads}");
    }
}

#[test]
fn other_architectures_are_refused_by_name() {
    let file = GgufFile::of("mamba").tensor("token_embd.weight", &[2], 0, &[0; 8]);
    let c = open("m.gguf", &file.bytes()).unwrap();
    let refused = c.view("model.embed_tokens.weight").unwrap_err().to_string();
    assert!(refused.contains("mamba") && refused.contains("llama, qwen2, qwen3"), "{refused}");
}

#[test]
fn names_go_both_ways() {
    for (gguf, published) in [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.12.ffn_norm.weight", "model.layers.12.post_attention_layernorm.weight"),
        ("blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias"),
        ("blk.3.attn_k_norm.weight", "model.layers.3.self_attn.k_norm.weight"),
    ] {
        assert_eq!(names::to_gguf(published).as_deref(), Some(gguf));
        assert_eq!(names::to_published(gguf).as_deref(), Some(published));
    }
    for odd in
        ["rope_freqs.weight", "blk.x.attn_q.weight", "blk.0.ssm.weight", "output", "", "blk.0.attn_q.scale"]
    {
        assert_eq!(names::to_published(odd), None, "{odd}");
    }
}

#[test]
fn keys_of_every_type() {
    let file = GgufFile::new()
        .key("u8", 0, &[200])
        .key("i8", 1, &[0xFF])
        .key("u16", 2, &[1, 1])
        .key("i16", 3, &[0xFE, 0xFF])
        .u32("u32", u32::MAX)
        .key("i32", 5, &(-5i32).to_le_bytes())
        .key("f32", 6, &1.5f32.to_le_bytes())
        .bool("bool", true)
        .str("string", "Gr\u{fc}\u{df}e")
        .key("u64", 10, &7u64.to_le_bytes())
        .key("i64", 11, &(-7i64).to_le_bytes())
        .key("f64", 12, &0.1f64.to_le_bytes())
        .strings("strings", &["a", ""])
        .i32s("ints", &[-1, 2])
        .f32s("floats", &[0.5])
        .array("bools", 7, &[vec![1], vec![0]])
        // An array of two arrays of u8.
        .array("nested", 9, &[0u8, 1].map(|v| [&0u32.to_le_bytes()[..], &1u64.to_le_bytes(), &[v]].concat()));
    let c = open("m.gguf", &file.bytes()).unwrap();
    let meta = c.gguf().unwrap();
    let ints =
        [("u8", 200), ("i8", -1), ("u16", 257), ("i16", -2), ("u32", 4294967295), ("i32", -5), ("u64", 7)];
    for (key, value) in ints {
        assert_eq!(meta.get(key), Some(&GgufValue::Int(value)), "{key}");
    }
    assert_eq!(meta.float("f32").unwrap(), Some(1.5));
    assert_eq!(meta.float("f64").unwrap(), Some(0.1));
    assert_eq!(meta.bool("bool").unwrap(), Some(true));
    assert_eq!(meta.str("string").unwrap(), Some("Gr\u{fc}\u{df}e"));
    assert_eq!(meta.strings("strings").unwrap().unwrap(), ["a", ""]);
    assert_eq!(meta.ints("ints").unwrap().unwrap(), [-1, 2]);
    assert_eq!(meta.floats("floats").unwrap().unwrap(), [0.5]);
    assert_eq!(meta.get("bools"), Some(&GgufValue::Bools(vec![true, false])));
    let nested = vec![GgufValue::Ints(vec![0]), GgufValue::Ints(vec![1])];
    assert_eq!(meta.get("nested"), Some(&GgufValue::Arrays(nested)));
    assert_eq!(meta.uint("absent").unwrap(), None);
    let wrong = meta.uint("string").unwrap_err().to_string();
    assert!(wrong.contains("`string`") && wrong.contains("is a string where an integer"), "{wrong}");
    assert!(meta.uint("i64").unwrap_err().to_string().contains("negative"));
}

#[test]
fn version_two_and_another_alignment() {
    let mut file = GgufFile::of("llama").u32("general.alignment", 64);
    file.version = 2;
    file.alignment = 64;
    let file = file.tensor("a", &[1], 0, &f32_bytes([3.0])).tensor("b", &[1], 0, &f32_bytes([4.0]));
    let c = open("m.gguf", &file.bytes()).unwrap();
    let mut out = [0.0];
    c.read_f32("b", std::slice::from_ref(&(0..1)), &mut out).unwrap();
    assert_eq!(out, [4.0]);
}

#[test]
fn types_not_decoded_matter_only_when_used() {
    let file = GgufFile::of("llama")
        .tensor("iq4", &[256], 23, &[0; 136])
        .tensor("b", &[1], 0, &f32_bytes([4.0]))
        .tensor("odd", &[3], 4711, &[0; 9])
        .tensor("after", &[1], 0, &f32_bytes([5.0]));
    let c = open("m.gguf", &file.bytes()).unwrap();
    let mut out = [0.0];
    for (name, value) in [("b", 4.0), ("after", 5.0)] {
        c.read_f32(name, std::slice::from_ref(&(0..1)), &mut out).unwrap();
        assert_eq!(out, [value]);
    }
    for (name, kind) in [("iq4", "IQ4_XS"), ("odd", "4711")] {
        let refused = c.read_f32(name, std::slice::from_ref(&(0..1)), &mut out).unwrap_err().to_string();
        assert!(refused.contains(kind) && refused.contains("Q4_1"), "{refused}");
    }
}

/// Random blocks of every type beside what the `gguf` Python package decodes them to.
#[test]
fn quantised_blocks_equal_the_reference_implementation() {
    let c = open("blocks.gguf", include_bytes!("../../../tests/data/quantised/blocks.gguf")).unwrap();
    for kind in Quantised::ALL.into_iter().filter(|&k| k != Quantised::Q8_K) {
        let name = kind.name();
        let info = c.tensor(name).unwrap();
        assert_eq!((info.element, info.shape), (&ElementType::Quantised(kind), &[3, 512][..]));
        let mut expected = vec![0.0f32; 3 * 512];
        c.read_f32(&format!("{name}.expected"), &[0..3, 0..512], &mut expected).unwrap();
        assert!(expected.iter().any(|v| v.abs() > 65504.0) && expected.contains(&0.0), "{name}: extremes");
        let check = |rows: std::ops::Range<usize>, cols: std::ops::Range<usize>| {
            let mut out = vec![f32::NAN; rows.len() * cols.len()];
            c.read_f32(name, &[rows.clone(), cols.clone()], &mut out).unwrap();
            let wanted = rows.clone().flat_map(|r| expected[r * 512..][cols.clone()].iter());
            assert!(out.iter().eq(wanted), "{name} {rows:?} {cols:?}");
        };
        check(0..3, 0..512);
        for cols in [0..1, 5..9, 30..34, 31..300, 255..257, 250..512, 511..512] {
            check(1..3, cols);
        }
        // A column: elements of different rows.
        let view = TensorView::whole(name, [3, 512]).transpose().unwrap();
        let mut out = vec![f32::NAN; 3 * 40];
        c.read_param_slice(&ParamSource::tensor(view), &[240..280, 0..3], &mut out).unwrap();
        let wanted = (240..280).flat_map(|col| [0, 1, 2].map(|row| expected[row * 512 + col]));
        assert!(out.into_iter().eq(wanted), "{name}, transposed");
    }
}

/// Groups read as they are stored have the values of the decoded slice, to the bit, whatever is cut.
#[test]
fn groups_hold_the_values() {
    let c = open("blocks.gguf", include_bytes!("../../../tests/data/quantised/blocks.gguf")).unwrap();
    for kind in Quantised::ALL {
        let Some(format) = kind.format() else { continue };
        let whole = TensorView { blocks: Some(format), ..TensorView::whole(kind.name(), [3, 512]) };
        // [heads 2, d 256, rows 3]: dims 0 and 1 run along the stored rows.
        let view = whole.split(1, &[2, 256]).unwrap().permute(&[1, 2, 0]).unwrap();
        let source = ParamSource::tensor(view.clone());
        source.validate().unwrap();
        for slice in
            [[0..2, 0..256, 0..3], [1..2, 0..256, 1..3], [0..1, 43..86, 0..2], [1..2, 250..256, 2..3]]
        {
            let lens: Vec<usize> = slice.iter().map(|r| r.len()).collect();
            let (run, rows) = (lens[0] * lens[1], lens[2]);
            let mut values = vec![0.0; run * rows];
            c.read_param_slice(&source, &slice, &mut values).unwrap();
            let span = view.group_span(&[0, 1], &slice, &lens).unwrap();
            let group = format.group as usize;
            let mut codes = vec![0; span.groups * group * rows];
            let (mut scales, mut offsets) = (vec![0.0; span.groups * rows], vec![0.0; span.groups * rows]);
            // Rows one by one, last first: any range of rows can be asked for.
            for r in (0..rows).rev() {
                let part = r * span.groups..(r + 1) * span.groups;
                let out = BlockRows {
                    codes: &mut codes[part.start * group..part.end * group],
                    scales: &mut scales[part.clone()],
                    offsets: &mut offsets[part],
                };
                c.read_param_blocks(&source, &[0, 1], &slice, r..r + 1, out).unwrap();
            }
            for (i, &value) in values.iter().enumerate() {
                let at = i % rows * span.groups * group + span.phase + i / rows;
                let (code, g) = (codes[at], at / group);
                let within = if format.bits == 4 { (0..16).contains(&(code - format.low)) } else { true };
                assert!(within && (format.offsets || offsets[g] == 0.0), "{kind:?}");
                assert_eq!(scales[g] * f32::from(code) + offsets[g], value, "{kind:?} {slice:?} {i}");
                if format.half {
                    let exact = |x: f32| half::f16::from_f32(x).to_f32() == x;
                    assert!(exact(scales[g]) && exact(offsets[g]));
                }
            }
        }
        // What the program says of the tensor must be so; and no row lies outside.
        let (mut codes, mut one, mut other) = (vec![0; 512], vec![0.0; 512], vec![0.0; 512]);
        let n = 512 / format.group as usize;
        let mut ask = |source: &ParamSource, rows: std::ops::Range<usize>| {
            let out = BlockRows { codes: &mut codes, scales: &mut one[..n], offsets: &mut other[..n] };
            c.read_param_blocks(source, &[0, 1], &[0..2, 0..256, 0..3], rows, out)
        };
        assert!(ask(&source, 2..3).is_ok());
        assert!(ask(&source, 3..4).is_err() && ask(&source, 1..3).is_err());
        let lying = BlockFormat { half: !format.half, ..format };
        let lying = ParamSource::tensor(TensorView { blocks: Some(lying), ..view });
        assert!(ask(&lying, 2..3).unwrap_err().to_string().contains("not in the form"));
    }
}
