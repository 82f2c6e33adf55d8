//! What memory tells and refuses.

use super::{Element, Memory, Reduction};
use half::bf16;

fn what<T: std::fmt::Debug>(result: Result<T, crate::Fault>) -> String {
    result.unwrap_err().what
}

#[test]
fn bytes_come_back_and_unwritten_ones_are_named() {
    let memory = Memory::new();
    let a = memory.alloc(1, 11).unwrap();
    assert_eq!(a % 256, 0);
    assert_eq!(memory.device_of(a + 10), Some(1));
    assert_eq!(memory.device_of(a + 11), None);
    memory.write(a + 1, &[1, 2, 3, 4, 5, 6, 7]).unwrap();
    assert_eq!(memory.read(a + 1, 7).unwrap(), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(memory.read(a + 3, 2).unwrap(), [3, 4]);
    assert!(what(memory.read(a, 3)).contains("offset 0 of the 11 bytes"));
    assert!(what(memory.read(a + 4, 7)).contains("offset 8 of the 11 bytes"));
    memory.set(a, 9, 11).unwrap();
    assert_eq!(memory.read(a, 11).unwrap(), [9; 11]);
    memory.poison(a + 5, 1).unwrap();
    assert!(what(memory.read(a, 11)).contains("offset 5"));
}

#[test]
fn ranges_outside_allocations_are_refused() {
    let memory = Memory::new();
    let a = memory.alloc(0, 64).unwrap();
    let b = memory.alloc(0, 64).unwrap();
    assert!(b - a >= 64 + 4096);
    assert!(what(memory.write(a + 60, &[0; 5])).contains("offset 60 of the 64 bytes"));
    assert!(what(memory.set(a + 64, 0, 1)).contains("offset 64 of the 64 bytes"));
    assert!(what(memory.read(7, 1)).contains("nothing is allocated"));
    memory.free(a).unwrap();
    assert!(what(memory.read(a, 1)).contains("freed"));
    assert!(what(memory.free(a)).contains("freed already"));
    assert!(what(memory.free(b + 8)).contains("no allocation"));
    assert!(memory.alloc(0, 64).unwrap() > b);
    assert!(what(memory.alloc(0, 0)).contains("no bytes"));
    assert!(what(memory.alloc(0, u64::MAX)).contains("used up"));
}

#[test]
fn copies_carry_poison_along() {
    let memory = Memory::new();
    let a = memory.alloc(0, 16).unwrap();
    let b = memory.alloc(1, 16).unwrap();
    memory.write(a, &[1, 2, 3]).unwrap();
    memory.write(a + 4, &[5; 12]).unwrap();
    memory.set(b, 0, 16).unwrap();
    memory.copy(b + 1, a, 15).unwrap();
    assert_eq!(memory.read(b, 4).unwrap(), [0, 1, 2, 3]);
    assert_eq!(memory.read(b + 5, 11).unwrap(), [5; 11]);
    assert!(what(memory.read(b, 5)).contains("offset 4"));
    assert!(what(memory.copy(b, b + 4, 8)).contains("overlap"));
}

#[test]
fn reductions_round_to_their_type() {
    let memory = Memory::new();
    let put = |x: &[f32]| {
        let bytes: Vec<u8> = x.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
        let at = memory.alloc(0, bytes.len() as u64).unwrap();
        memory.write(at, &bytes).unwrap();
        at
    };
    let (a, b, c) = (put(&[256.0, 1.5, -2.0]), put(&[1.0, 2.5, 7.0]), put(&[1.0, -1.0, 1.0]));
    let dst = memory.alloc(0, 6).unwrap();
    let got = |reduction| {
        memory.reduce(dst, &[a, b, c], 3, Element::BF16, reduction).unwrap();
        let bytes = memory.read(dst, 6).unwrap();
        bytes.chunks(2).map(|x| bf16::from_le_bytes([x[0], x[1]]).to_f32()).collect::<Vec<_>>()
    };
    // 257 is no bf16: 8 bits of it are kept, ties to even.
    assert_eq!(got(Reduction::Sum), [256.0, 3.0, 6.0]);
    assert_eq!(got(Reduction::Max), [256.0, 2.5, 7.0]);
    assert_eq!(got(Reduction::Min), [1.0, -1.0, -2.0]);
    assert_eq!(got(Reduction::Product), [256.0, -3.75, -14.0]);
    assert_eq!(got(Reduction::Average), [85.5, 1.0, 2.0]);
    memory.poison(b + 2, 1).unwrap();
    memory.reduce(dst, &[a, b, c], 3, Element::BF16, Reduction::Sum).unwrap();
    assert!(memory.read(dst, 2).is_ok());
    assert!(what(memory.read(dst, 4)).contains("offset 2"));
    assert!(what(memory.reduce(dst + 1, &[a], 1, Element::BF16, Reduction::Sum)).contains("misaligned"));
}

#[test]
fn integers_reduce_with_their_sign() {
    let memory = Memory::new();
    let a = memory.alloc(0, 4).unwrap();
    let b = memory.alloc(0, 4).unwrap();
    memory.write(a, &(-7i32).to_le_bytes()).unwrap();
    memory.write(b, &3i32.to_le_bytes()).unwrap();
    let got = |element, reduction| {
        let dst = memory.alloc(0, 4).unwrap();
        memory.reduce(dst, &[a, b], 1, element, reduction).unwrap();
        i32::from_le_bytes(memory.read(dst, 4).unwrap().try_into().unwrap())
    };
    assert_eq!(got(Element::I32, Reduction::Max), 3);
    assert_eq!(got(Element::U32, Reduction::Max), -7);
    assert_eq!(got(Element::I32, Reduction::Average), -2);
    assert_eq!(got(Element::I32, Reduction::Product), -21);
}

#[test]
fn every_alignment_copies_the_same() {
    let memory = Memory::new();
    let bytes: Vec<u8> = (1..=40).collect();
    for offset in 0..5u64 {
        for len in 0..12u64 {
            for from in 0..5u64 {
                let (a, b) = (memory.alloc(0, 64).unwrap(), memory.alloc(0, 64).unwrap());
                memory.write(a + from, &bytes[..len as usize]).unwrap();
                memory.set(b, 99, 64).unwrap();
                memory.copy(b + offset, a + from, len).unwrap();
                let mut want = vec![99; 64];
                want[offset as usize..][..len as usize].copy_from_slice(&bytes[..len as usize]);
                assert_eq!(memory.read(b, 64).unwrap(), want);
                // One byte that was never written lies behind.
                memory.copy(b + offset, a + from, len + 1).unwrap();
                assert_eq!(memory.read(b, offset + len).unwrap(), want[..(offset + len) as usize]);
                assert!(what(memory.read(b, 64)).contains(&format!("offset {} of", offset + len)));
            }
        }
    }
}
