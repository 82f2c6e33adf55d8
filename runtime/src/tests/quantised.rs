//! A tied embedding whose parameter stays quantised.

use super::fixture::*;
use super::panels::tied;
use crate::{HostTensor, Options, Session};
use pcc_ir::program::*;
use pcc_ir::source::{BlockFormat, BlockRows, ParamSource, ReadParams, TensorView};
use pcc_ir::{Diagnostic, Type};
use std::ops::Range;

const FORMAT: BlockFormat = BlockFormat { group: 16, bits: 4, low: -8, offsets: true, half: false };

/// A table [rows, width] of formulas.
struct Formulas;

impl Formulas {
    fn code(row: usize, k: usize) -> i8 {
        ((row * 7 + k * 5) % 16) as i8 - 8
    }

    fn scale(row: usize, group: usize) -> f32 {
        0.01 + (row % 5) as f32 / 100.0 + group as f32 / 50.0
    }

    fn offset(row: usize, group: usize) -> f32 {
        (row % 3) as f32 / 7.0 - group as f32 / 9.0
    }

    fn value(row: usize, k: usize) -> f32 {
        Self::scale(row, k / 16) * f32::from(Self::code(row, k)) + Self::offset(row, k / 16)
    }
}

impl ReadParams for Formulas {
    fn read_param_slice(&self, _: &ParamSource, _: &[Range<usize>], _: &mut [f32]) -> Result<(), Diagnostic> {
        Err(Diagnostic::internal("expanded values were asked for"))
    }

    fn read_param_blocks(
        &self,
        source: &ParamSource,
        k: &[usize],
        slice: &[Range<usize>],
        rows: Range<usize>,
        out: BlockRows<'_>,
    ) -> Result<(), Diagnostic> {
        assert_eq!((k, slice[1].clone()), (&[1][..], 0..source.shape[1]));
        let groups = source.shape[1] / 16;
        for (i, row) in rows.map(|r| slice[0].start + r).enumerate() {
            for group in 0..groups {
                out.scales[i * groups + group] = Self::scale(row, group);
                out.offsets[i * groups + group] = Self::offset(row, group);
            }
            for k in 0..source.shape[1] {
                out.codes[i * source.shape[1] + k] = Self::code(row, k);
            }
        }
        Ok(())
    }
}

fn program(tp: u32, vocab: usize, width: usize, tokens: usize) -> Program {
    let mut p = tied(mesh(1, 1, tp), vocab, width, tokens);
    let view = TensorView { blocks: Some(FORMAT), ..TensorView::whole("table", [vocab, width]) };
    p.params[0].source = ParamSource::tensor(view);
    p.params[0].storage =
        Storage::Blocks { k: vec![1], n: vec![0], format: FORMAT, groups: width as u64 / 16 };
    p
}

#[test]
fn rows_and_products_of_a_quantised_table() {
    for (tp, vocab, width, tokens) in [(1, 5, 16, 2), (3, 100, 48, 21), (8, 50, 32, 1)] {
        let options = Options { workers: 2, ..Options::default() };
        let p = program(tp, vocab, width, tokens);
        let mut session =
            Session::new(p, Box::new(Functions(vec![])), &Formulas, &options, &|_, _| {}).unwrap();
        let words: Vec<i32> =
            (0..tokens).map(|i| if i == 1 { 1000 } else { (i * 7 % vocab) as i32 }).collect();
        let input = HostTensor::i32([tokens], words.clone());
        let y = session.run("forward", &[("tokens".to_owned(), input)].into_iter().collect(), 1).unwrap();
        for (i, (&word, y)) in words.iter().zip(y["y"].as_f32().unwrap().chunks(vocab)).enumerate() {
            for (v, &found) in y.iter().enumerate() {
                let value = |row, k| f64::from(Formulas::value(row, k));
                let product = |k| value(word as usize, k) * value(v, k);
                let expected: f64 = if word < 1000 { (0..width).map(product).sum() } else { 0.0 };
                assert!((f64::from(found) - expected).abs() < 1e-4, "tp {tp} {i} {v}: {found} {expected}");
            }
        }
    }
}

#[test]
fn blocks_that_lie_are_refused() {
    type Break = fn(&mut LocalParam);
    fn set(p: &mut LocalParam, n: u64, f: BlockFormat) {
        p.storage = Storage::Blocks { k: vec![1], n: vec![0], format: f, groups: n };
    }
    let cases: &[(Break, &str)] = &[
        (|p| set(p, 1, FORMAT), "1 groups of 16 for 32 rows"),
        (|p| set(p, 4, FORMAT), "4 groups"),
        (|p| set(p, u64::MAX, FORMAT), "groups of 16"),
        (|p| set(p, 2, BlockFormat { bits: 8, low: -128, ..FORMAT }), "stored as"),
        (|p| set(p, 2, BlockFormat { group: 0, ..FORMAT }), "stored as"),
        (|p| p.source = ParamSource::zeros([9, 32]), "made"),
        (|p| p.ty = Type::i32([9, 32]), "do not hold"),
        (
            |p| p.storage = Storage::Blocks { k: vec![0], n: vec![1], format: FORMAT, groups: 1 },
            "held in the form",
        ),
        (|p| p.storage = Storage::Dense, "held in the form"),
    ];
    for (change, why) in cases {
        let mut p = program(1, 9, 32, 2);
        assert!(crate::validate::check(&p).is_ok());
        change(&mut p.params[0]);
        let e = crate::validate::check(&p).unwrap_err().to_string();
        assert!(e.contains(why), "{why}: {e}");
    }
}
