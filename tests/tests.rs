//! All integration tests in one binary: file tests of passes, and the command line as a user sees it.

mod cli;
mod filetests;
mod pipeline;
