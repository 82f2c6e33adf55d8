//! The targets under libFuzzer, all in one program: `PCC_FUZZ_TARGET` names the one to run. `cargo xtask fuzz` builds and starts it.
#![no_main]

use pcc_fuzz::{Target, mutate};
use std::sync::OnceLock;

fn target() -> &'static Target {
    static TARGET: OnceLock<&Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        // libfuzzer-sys ends the process at any panic, and some are caught: tokenizers' on malformed files, for one.
        // A run of millions must not print each panic that is caught, and libFuzzer's own hook would end it; where one is, `PCC_FUZZ_PANICS`
        // shows.
        let shows = std::env::var_os("PCC_FUZZ_PANICS").is_some();
        std::panic::set_hook(Box::new(move |panic| {
            if shows {
                eprintln!("{panic}");
            }
        }));
        let name = std::env::var("PCC_FUZZ_TARGET").unwrap_or_default();
        Target::find(&name).unwrap_or_else(|| {
            eprintln!("PCC_FUZZ_TARGET={name:?} is no target");
            std::process::exit(2)
        })
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Err(why) = target().run(data) {
        eprintln!("finding: {why}");
        std::process::abort();
    }
});

libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    // Half of the time libFuzzer's own, which tries the constants that the code compares with.
    if seed.is_multiple_of(2) {
        return libfuzzer_sys::fuzzer_mutate(data, size, max_size);
    }
    let made = mutate::mutate(target().form, &data[..size], u64::from(seed));
    let length = made.len().min(max_size);
    data[..length].copy_from_slice(&made[..length]);
    length
});
