use super::is_unseen;
use crate::text::parse;
use crate::verifier::verify;

fn shows(text: &str) -> bool {
    let module = parse(text).unwrap_or_else(|d| panic!("{d}"));
    verify(&module).unwrap_or_else(|d| panic!("{d}"));
    is_unseen(&module)
}

/// One layer over `x`: `keys` makes the positions of keys, %5, out of those of queries, %3, and of the mask, %1; `after` follows the
/// attention's result, %6, of the same shape as what it gives.
fn layer(keys: &str, causal: bool, after: &str, result: usize) -> String {
    format!(
        r#"module "m" mesh()
fn %0 "layer" (%0: f32[2,8,1,1,4], %1: i32[2,8]) -> (%{result}) {{
  %2: f32[2,8,1,4] = reshape(%0) [2,8,1,4]
  %3: i32[2,8] = iota() {{"ty":{{"dtype":"i32","shape":[2,8]}},"dim":1}}
{keys}
  %6: f32[2,8,1,1,4] = attention(%0, %2, %2, %3, %5) {{"scale":1.0,"causal":{causal}}}
{after}
}}
fn %1 "main" (%0: f32[2,8,1,1,4] "x" labels (batch, seq, _, _, _), %1: i32[2,8] "mask" labels (batch, seq)) -> (%3) {{
  %2: f32[2,8,1,1,4] = call(%0, %1) fn %0
  %3: f32[2,8,1,1,4] = call(%2, %1) fn %0
}}
entry "forward" fn %1 (input "x", input "mask") -> ("y") alias [] weight 1
"#
    )
}

const IOTA: &str = "  %4: i32[2,8] = iota() {\"ty\":{\"dtype\":\"i32\",\"shape\":[2,8]},\"dim\":1}\n  %5: i32[2,8] = reshape(%4) [2,8]";

#[test]
fn a_causal_attention_sees_no_later_position() {
    assert!(shows(&layer(IOTA, true, "", 6)));
    assert!(!shows(&layer(IOTA, false, "", 6)));
    // Keys that count along the rows, or that count from elsewhere.
    assert!(!shows(&layer(&IOTA.replace("\"dim\":1", "\"dim\":0"), true, "", 6)));
    let shifted = "  %4: i32[2,8] = constant() {\"ty\":{\"dtype\":\"i32\",\"shape\":[2,8]},\"value\":{\"splat\":-1.0}}\n  %5: i32[2,8] = binary(%3, %4) \"add\"";
    assert!(!shows(&layer(shifted, true, "", 6)));
}

/// The graph of a bidirectional encoder, with what it does to its mask.
fn masked(compare: &str, operands: &str) -> String {
    let text = layer("KEYS", false, "", 6);
    let keys = format!(
        r#"  %4: i32[2,8] = constant() {{"ty":{{"dtype":"i32","shape":[2,8]}},"value":{{"splat":0.0}}}}
  %7: i32[2,8] = constant() {{"ty":{{"dtype":"i32","shape":[2,8]}},"value":{{"splat":-1.0}}}}
  %8: bool[2,8] = compare(%1, %4) "{compare}"
  %5: i32[2,8] = select({operands})"#
    );
    text.replace("KEYS", &keys)
}

#[test]
fn a_mask_hides_keys_where_inputs_are_zeros() {
    assert!(shows(&masked("ne", "%8, %3, %7")));
    assert!(shows(&masked("eq", "%8, %7, %3")));
    // The other way round; a mask that is not used is `IOTA` above.
    assert!(!shows(&masked("eq", "%8, %3, %7")));
}

#[test]
fn nothing_else_mixes_positions() {
    let pooled = r#"  %7: f32[2,1,1,4] = reduce(%6) {"kind":"sum","dims":[1]}
  %8: f32[2,8,1,1,4] = broadcast(%7) {"shape":[2,8,1,1,4],"dims":[0,2,3,4]}
  %9: f32[2,8,1,1,4] = binary(%6, %8) "add""#;
    assert!(!shows(&layer(IOTA, true, pooled, 9)));
    let alike = pooled.replace("\"dims\":[1]}", "\"dims\":[2]}").replace("f32[2,1,1,4]", "f32[2,8,1,4]");
    assert!(shows(&layer(IOTA, true, &alike.replace("[0,2,3,4]", "[0,1,3,4]"), 9)));
    let turned = r#"  %7: f32[2,4,1,1,4] = slice(%6) {"start":[0,4,0,0,0],"limit":[2,8,1,1,4]}
  %8: f32[2,4,1,1,4] = slice(%6) {"start":[0,0,0,0,0],"limit":[2,4,1,1,4]}
  %9: f32[2,8,1,1,4] = concat(%7, %8) 1"#;
    assert!(!shows(&layer(IOTA, true, turned, 9)));
}

/// The last token's row of `x`, at an index made by `index`.
fn last(index: &str) -> String {
    format!(
        r#"module "m" mesh()
fn %0 "head" (%0: f32[2,8,4], %1: i32[2]) -> (%4) {{
  %2: i32[2] = constant() {{"ty":{{"dtype":"i32","shape":[2]}},"value":{{"splat":1.0}}}}
  %3: i32[2] = {index}
  %4: f32[2,4] = gather(%0, %3) {{"batch":1}}
}}
fn %1 "main" (%0: f32[2,8,4] "x" labels (batch, seq, _), %1: i32[2] "lengths" labels (batch)) -> (%2) {{
  %2: f32[2,4] = call(%0, %1) fn %0
}}
entry "prefill" fn %1 (input "x", input "lengths") -> ("y") alias [] weight 1
"#
    )
}

#[test]
fn rows_are_looked_up_within_the_lengths() {
    assert!(shows(&last("binary(%1, %2) \"sub\"")));
    assert!(!shows(&last("binary(%1, %2) \"add\"")));
    assert!(!shows(&last("reshape(%1) [2]")));
    assert!(!shows(&last("reshape(%2) [2]")));
    assert!(!shows(&last("binary(%1, %2) \"sub\"").replace("\"lengths\"", "\"rows\"")));
}

/// A cache that `prefill` fills from `start` on and that `decode` attends to.
fn cached(start: f64, causal: bool, queries: &str, output: &str) -> String {
    format!(
        r#"module "m" mesh()
state %0 "cache" : f32[2,8,1,4]
fn %0 "fill" (%0: f32[2,8,1,4], %1: f32[2,8,1,4]) -> (%3) {{
  %2: i32[2] = constant() {{"ty":{{"dtype":"i32","shape":[2]}},"value":{{"splat":{start:?}}}}}
  %3: f32[2,8,1,4] = update(%1, %0, %2) {{"batch":1}}
}}
fn %1 "step" (%0: f32[2,1,1,4], %1: i32[2], %2: f32[2,8,1,4]) -> (%7, %3) {{
  %3: f32[2,8,1,4] = update(%2, %0, %1) {{"batch":1}}
  %4: i32[2,8] = iota() {{"ty":{{"dtype":"i32","shape":[2,8]}},"dim":1}}
  %5: i32[2,1] = reshape(%1) [2,1]
  %6: f32[2,1,1,1,4] = reshape(%0) [2,1,1,1,4]
  %7: f32[2,1,1,1,4] = attention(%6, %3, %3, %5, %4) {{"scale":1.0,"causal":{causal}}}
}}
fn %2 "main" (%0: f32[2,8,1,4] "x" labels (batch, seq, _, _), %1: f32[2,8,1,4]) -> (%2) {{
  %2: f32[2,8,1,4] = call(%0, %1) fn %0
}}
fn %3 "next" (%0: f32[2,1,1,4] "x" labels (batch, _, _, _), %1: i32[2] "positions" labels (batch), %2: f32[2,8,1,4]) -> (%3, %4{output}) {{
  %3: f32[2,1,1,1,4], %4: f32[2,8,1,4] = call(%0, %1, %2) fn %1
}}
entry "prefill" fn %2 (input "x", state %0) -> ("cache") alias [(1, 0)] weight 1
entry "decode" fn %3 (input "x", input "{queries}", state %0) -> ("y", "cache") alias [(2, 1)] weight 1
"#
    )
}

#[test]
fn caches_are_read_up_to_the_next_position() {
    assert!(shows(&cached(0.0, true, "positions", "")));
    assert!(!shows(&cached(1.0, true, "positions", "")), "position 0 was never written");
    assert!(!shows(&cached(0.0, false, "positions", "")));
    assert!(!shows(&cached(0.0, true, "places", "")));
    // The host reads all of an output.
    let read = cached(0.0, true, "positions", ", %4")
        .replace("\"cache\") alias [(2, 1)]", "\"cache\", \"held\") alias [(2, 1)]");
    assert!(!shows(&read));
}
