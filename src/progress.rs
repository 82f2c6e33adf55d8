//! Progress of long work, on a terminal only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

fn hidden(quiet: bool) -> bool {
    quiet || !std::io::stderr().is_terminal()
}

/// A spinner for work of unknown length.
pub fn spinner(quiet: bool) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if hidden(quiet) {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    } else {
        bar.enable_steady_tick(Duration::from_millis(100));
    }
    bar
}

/// A bar over bytes.
pub fn bytes(quiet: bool, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    if hidden(quiet) {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}")
    {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

/// A bar over things that are counted.
pub fn count(quiet: bool, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    if hidden(quiet) {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) =
        ProgressStyle::with_template("{msg} [{bar:30}] {human_pos}/{human_len} {per_sec} {eta}")
    {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}
