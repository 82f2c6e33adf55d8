//! The loop over requests.

use crate::{build, llvm};
use pcc_ir::Diagnostic;
use pcc_ir::codegen_protocol::{Reply, Request};
use std::io::{BufRead, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Longest request, in bytes.
const LONGEST: u64 = 1 << 28;

/// Makes LLVM ready in the background.
pub fn start() {
    std::thread::spawn(llvm::initialise);
}

/// Answers every request until the input ends. A request that is malformed, or that cannot be met, is answered with an error.
///
/// # Errors
/// The input cannot be read or the output written.
pub fn serve(mut input: impl BufRead, mut output: impl Write) -> std::io::Result<()> {
    loop {
        let mut line = vec![];
        if input.by_ref().take(LONGEST).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if line.len() as u64 == LONGEST && line.last() != Some(&b'\n') {
            answer(&mut output, Err(Diagnostic::input(format!("request longer than {LONGEST} bytes"))))?;
            return Ok(());
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let result = serde_json::from_slice::<Request>(&line)
            .map_err(|e| Diagnostic::input("malformed request to pcc-codegen").why(e.to_string()))
            .and_then(|request| {
                // A bug of ours must reach the user as a message, not as a dead helper.
                catch_unwind(AssertUnwindSafe(|| build::build(&request)))
                    .unwrap_or_else(|_| Err(Diagnostic::internal("pcc-codegen panicked")))
            });
        answer(&mut output, result.map(Reply::Built))?;
    }
}

fn answer(output: &mut impl Write, result: Result<Reply, Diagnostic>) -> std::io::Result<()> {
    let reply = result.unwrap_or_else(|error| Reply::Failed { error });
    serde_json::to_writer(&mut *output, &reply)?;
    output.write_all(b"\n")?;
    output.flush()
}
