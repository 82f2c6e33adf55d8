//! What a user is told when something is wrong. One type for every crate; the binary renders it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Whose fault it is; decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The model, plan, weights or input is wrong (exit code 1).
    Input,
    /// The command line is wrong (exit code 2).
    Usage,
    /// A check failed: verify, numeric mismatch (exit code 3).
    Check,
    /// Failed while running: dead rank, device, disk (exit code 4).
    Run,
    /// pcc itself is wrong (exit code 3; says so and asks for a report).
    Internal,
}

impl Fault {
    pub fn exit_code(self) -> i32 {
        match self {
            Fault::Input => 1,
            Fault::Usage => 2,
            Fault::Check | Fault::Internal => 3,
            Fault::Run => 4,
        }
    }
}

/// One clear message: what, where in the user's model or command, why, and the nearest things that work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostic {
    pub fault: Fault,
    /// What is wrong, one sentence without a full stop.
    pub what: String,
    /// Where: a file, a JSON path, a tensor or layer name, a flag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Why it is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The nearest things that work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl Diagnostic {
    pub fn new(fault: Fault, what: impl Into<String>) -> Self {
        Self { fault, what: what.into(), place: None, why: None, help: None }
    }

    pub fn input(what: impl Into<String>) -> Self {
        Self::new(Fault::Input, what)
    }

    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(Fault::Usage, what)
    }

    pub fn check(what: impl Into<String>) -> Self {
        Self::new(Fault::Check, what)
    }

    pub fn run(what: impl Into<String>) -> Self {
        Self::new(Fault::Run, what)
    }

    pub fn internal(what: impl Into<String>) -> Self {
        Self::new(Fault::Internal, what)
    }

    pub fn at(mut self, place: impl Into<String>) -> Self {
        self.place = Some(place.into());
        self
    }

    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(place) = &self.place {
            write!(f, " (at {place})")?;
        }
        if let Some(why) = &self.why {
            write!(f, ": {why}")?;
        }
        if let Some(help) = &self.help {
            write!(f, "; {help}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostic {}
