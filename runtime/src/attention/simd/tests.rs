//! Every instruction set against f64.

use super::*;

fn check<V: Simd>() {
    let inputs: Vec<f32> =
        (-2000..=300).map(|i| i as f32 / 10.0).chain([f32::NEG_INFINITY, f32::MIN, -0.0, 1e-6]).collect();
    for x in inputs {
        let mut out = [0f32; 16];
        // SAFETY: the caller has checked the machine; `out` has room for any register.
        let (exp, tanh) = unsafe {
            V::splat(x).exp2().store(out.as_mut_ptr());
            let exp = out[V::LANES - 1];
            V::splat(x / 16.0).tanh().store(out.as_mut_ptr());
            (exp, out[0])
        };
        let wanted = f64::from(x).exp2();
        let least = f64::from(f32::MIN_POSITIVE);
        assert!((f64::from(exp) - wanted).abs() <= wanted * 2e-7 + least, "2^{x}: {exp}");
        assert!(x >= -126.0 || exp == 0.0);
        let wanted = (f64::from(x) / 16.0).tanh();
        assert!((f64::from(tanh) - wanted).abs() <= wanted.abs() * 3e-7, "tanh {}: {tanh}", x / 16.0);
    }
    // SAFETY: as above.
    unsafe {
        let mut out = [0f32; 16];
        V::splat(f32::NAN).exp2().store(out.as_mut_ptr());
        assert!(out[..V::LANES].iter().all(|x| x.is_nan()));
        assert_eq!(V::splat(1.5).sum(), 1.5 * V::LANES as f32);
        let ramp: [f32; 31] = std::array::from_fn(|i| (i * i) as f32);
        let many: Vec<V> = (0..V::LANES).map(|i| V::load(ramp.as_ptr().add(i))).collect();
        assert_eq!((many[2].largest(), many[2].first()), (((V::LANES + 1) * (V::LANES + 1)) as f32, 4.0));
        V::sums(&many).store(out.as_mut_ptr());
        for (i, sum) in out[..V::LANES].iter().enumerate() {
            assert_eq!(*sum, ramp[i..i + V::LANES].iter().sum::<f32>());
        }
        V::splat(2.0).hide_unseen(3, [2; 16].as_ptr(), [3; 16].as_ptr()).store(out.as_mut_ptr());
        assert_eq!(out[0], 2.0);
        for (low, high) in [(3, 9), (-1, 2)] {
            V::splat(2.0).hide_unseen(3, [low; 16].as_ptr(), [high; 16].as_ptr()).store(out.as_mut_ptr());
            assert_eq!(out[0], f32::NEG_INFINITY);
        }
        let block: [f32; 18 * 16] = std::array::from_fn(|i| i as f32);
        let mut turned = [0f32; 17 * 16];
        V::transpose(block.as_ptr(), 18, turned.as_mut_ptr(), 17);
        for (i, j) in (0..V::LANES).flat_map(|i| (0..V::LANES).map(move |j| (i, j))) {
            assert_eq!(turned[j * 17 + i], (i * 18 + j) as f32);
        }
        V::load_bf16([0x3fc0; 16].as_ptr()).store(out.as_mut_ptr());
        assert_eq!(out[V::LANES - 1], 1.5);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
fn check_avx512() {
    check::<Avx512>();
}

#[target_feature(enable = "avx2,fma")]
fn check_avx2() {
    check::<Avx2>();
}

#[test]
fn functions_are_exact_enough_on_every_instruction_set() {
    check::<Portable>();
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the features are there.
        unsafe { check_avx2() };
    }
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
        // SAFETY: the features are there.
        unsafe { check_avx512() };
    }
}
