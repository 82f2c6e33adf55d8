//! The one renderer of diagnostics.

use miette::{GraphicalReportHandler, GraphicalTheme};
use pcc_ir::{Diagnostic, Fault};
use std::fmt;
use std::io::IsTerminal;

/// A diagnostic as miette sees it: what, then where and why as its causes, then help.
#[derive(Debug)]
struct Rendered {
    what: String,
    cause: Option<Box<Rendered>>,
    help: Option<String>,
}

impl fmt::Display for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Rendered {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_deref().map(|c| c as _)
    }
}

impl miette::Diagnostic for Rendered {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|h| Box::new(h) as _)
    }
}

fn rendered(d: &Diagnostic) -> Rendered {
    let why = d.why.clone().map(|why| Box::new(Rendered { what: why, cause: None, help: None }));
    let place = d.place.as_ref().map(|p| format!("at {p}"));
    let cause = match place {
        Some(what) => Some(Box::new(Rendered { what, cause: why, help: None })),
        None => why,
    };
    let help = match d.fault {
        Fault::Internal => Some("this is a fault of pcc, not of your model: please report it".to_owned()),
        _ => d.help.clone(),
    };
    Rendered { what: d.what.clone(), cause, help }
}

/// Prints a diagnostic to stderr.
pub fn print(d: &Diagnostic) {
    let tty = std::io::stderr().is_terminal();
    let theme = if tty { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
    let handler = GraphicalReportHandler::new_themed(theme).with_width(if tty { 100 } else { 400 });
    let mut text = String::new();
    let label = if d.fault == Fault::Internal { "internal error" } else { "error" };
    match handler.render_report(&mut text, &rendered(d)) {
        Ok(()) => eprintln!("{label}:\n{}", text.trim_end()),
        Err(_) => eprintln!("{label}: {d}"),
    }
}

/// Tells the user something that is no fault.
pub fn notice(text: &str) {
    eprintln!("note: {text}");
}
