//! Tokens of the text form, and errors with line and column.

use crate::diagnostic::Diagnostic;

/// Reads a text from left to right.
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Skips white space and `//` comments.
    pub fn skip(&mut self) {
        loop {
            let trimmed = self.rest().trim_start();
            self.at = self.text.len() - trimmed.len();
            if !trimmed.starts_with("//") {
                return;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    pub fn at_end(&mut self) -> bool {
        self.skip();
        self.rest().is_empty()
    }

    /// An error here, with what was expected.
    pub fn error(&self, expected: &str) -> Diagnostic {
        // The place is that of the next token, not of the white space before it.
        let rest = self.rest().trim_start();
        let before = &self.text[..self.text.len() - rest.len()];
        let line = before.matches('\n').count() + 1;
        let column = before.len() - before.rfind('\n').map_or(0, |i| i + 1) + 1;
        let found: String = rest.chars().take_while(|c| *c != '\n').take(24).collect();
        let found = if found.is_empty() { "the end".to_owned() } else { format!("`{found}`") };
        Diagnostic::input("the text is no module")
            .at(format!("line {line}, column {column}"))
            .why(format!("expected {expected}, found {found}"))
    }

    /// Takes `symbol` if it comes next.
    pub fn eat(&mut self, symbol: &str) -> bool {
        self.skip();
        let next = self.rest().starts_with(symbol);
        // A word must end where it ends.
        let word = symbol.ends_with(|c: char| c.is_ascii_alphanumeric());
        let longer = self.rest()[if next { symbol.len() } else { 0 }..]
            .starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        if next && !(word && longer) {
            self.at += symbol.len();
            return true;
        }
        false
    }

    pub fn expect(&mut self, symbol: &str) -> Result<(), Diagnostic> {
        if self.eat(symbol) { Ok(()) } else { Err(self.error(&format!("`{symbol}`"))) }
    }

    /// A word of letters, digits and `_`.
    pub fn word(&mut self) -> Result<&'a str, Diagnostic> {
        self.skip();
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        if end == 0 {
            return Err(self.error("a name"));
        }
        self.at += end;
        Ok(&rest[..end])
    }

    pub fn number<T: std::str::FromStr>(&mut self) -> Result<T, Diagnostic> {
        self.skip();
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_ascii_digit() || "+-.eE".contains(c))).unwrap_or(rest.len());
        match rest[..end].parse() {
            Ok(n) => {
                self.at += end;
                Ok(n)
            }
            Err(_) => Err(self.error("a number")),
        }
    }

    /// `%7`.
    pub fn id(&mut self) -> Result<u32, Diagnostic> {
        self.expect("%")?;
        let error = self.error("a number below 2^31");
        self.number::<u32>().ok().filter(|&n| n < 1 << 31).ok_or(error)
    }

    /// A JSON value.
    pub fn json(&mut self) -> Result<serde_json::Value, Diagnostic> {
        self.skip();
        let mut stream = serde_json::Deserializer::from_str(self.rest()).into_iter::<serde_json::Value>();
        match stream.next() {
            Some(Ok(value)) => {
                self.at += stream.byte_offset();
                Ok(value)
            }
            Some(Err(e)) => Err(self.error("JSON").help(e.to_string())),
            None => Err(self.error("JSON")),
        }
    }

    /// A quoted string.
    pub fn string(&mut self) -> Result<String, Diagnostic> {
        self.skip();
        if !self.rest().starts_with('"') {
            return Err(self.error("a quoted string"));
        }
        match self.json()? {
            serde_json::Value::String(s) => Ok(s),
            _ => Err(self.error("a quoted string")),
        }
    }

    pub fn next_is(&mut self, symbol: &str) -> bool {
        self.skip();
        self.rest().starts_with(symbol)
    }

    /// Items between `open` and `close`, separated by commas.
    pub fn list<T>(
        &mut self,
        open: &str,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Result<T, Diagnostic>,
    ) -> Result<Vec<T>, Diagnostic> {
        self.expect(open)?;
        let mut items = Vec::new();
        if self.eat(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.eat(close) {
                return Ok(items);
            }
            self.expect(",")?;
        }
    }
}
