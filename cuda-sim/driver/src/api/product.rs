//! What the stand-in for cuBLASLt calls (`blas.rs`).

use super::{Handle, array, call, text};
use crate::blas::{Product, bytes};
use crate::code::Code;
use crate::mutant::Kind;
use crate::work::Work;
use std::ffi::c_char;
use std::sync::Arc;

/// Puts a product into its stream.
#[unsafe(no_mangle)]
pub extern "C" fn pcc_sim_product(product: *const Product) -> Code {
    call(|turn| {
        let mut product = *array(product, 1)?.first().ok_or(Code::INVALID_VALUE)?;
        let Product { a, b, c, d, .. } = product;
        if [a, b, c, d].iter().any(|m| bytes(m.dtype).is_none() || m.leading < m.rows) {
            return Err(turn.refuse(Code::INVALID_VALUE, "a product of matrices that are none"));
        }
        let stream: Handle = turn.current_stream(product.stream)?;
        product.stream = stream;
        if turn.is_mutant(Kind::SkipProduct, stream) {
            return Ok(());
        }
        let what = format!("product of {} x {} by cuBLASLt", d.rows, d.cols);
        turn.submit(stream, Work::Product(Arc::new(product)), what)?;
        turn.run_some();
        Ok(())
    })
}

/// Ends the current context: a library was called in a way that the real one would not forgive, or not the same way in all versions.
#[unsafe(no_mangle)]
pub extern "C" fn pcc_sim_misuse(why: *const c_char) -> Code {
    call(|turn| {
        let (why, context) = (text(why)?, turn.context()?);
        turn.fault(context, Code::LAUNCH_FAILED, &why);
        Ok(())
    })
}
