//! A Rust file split into code, comments and strings, line by line, with its test code marked, so that a rule about
//! code is not triggered by prose and a rule about the library not by its tests.

/// A Rust file as the checks see it. All three lists have one entry per line of the file.
pub(crate) struct Source {
    /// The code: comments are gone, strings and characters are empty but keep their quotes.
    pub(crate) code: Vec<String>,
    /// The text of the comments that lie on the line.
    pub(crate) comments: Vec<String>,
    /// Whether the line belongs to an item under `#[cfg(test)]` or `#[test]`.
    pub(crate) test: Vec<bool>,
    /// Names of modules declared as `#[cfg(test)] mod NAME;`: their files are test code.
    pub(crate) test_modules: Vec<String>,
}

impl Source {
    pub(crate) fn parse(text: &str) -> Self {
        let (code, comments) = Lexer::new(text).split();
        let joined = code.join("\n");
        let (test, test_modules) = test_lines(&joined, code.len());
        Source { code, comments, test, test_modules }
    }

    /// Whether a comment that starts with `word` stands on line `index`, or in the comment lines right above it.
    pub(crate) fn has_comment(&self, index: usize, word: &str) -> bool {
        let marked = |line: usize| self.comments[line].trim_start_matches(['/', '!', ' ']).starts_with(word);
        if marked(index) {
            return true;
        }
        let only_comment =
            |line: &usize| self.code[*line].trim().is_empty() && !self.comments[*line].is_empty();
        (0..index).rev().take_while(only_comment).any(marked)
    }
}

/// Walks over the characters of a file and sorts them into code and comments.
struct Lexer<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    code: Vec<String>,
    comments: Vec<String>,
    previous: char,
}

impl<'a> Lexer<'a> {
    fn new(text: &'a str) -> Self {
        Lexer {
            rest: text.chars().peekable(),
            code: vec![String::new()],
            comments: vec![String::new()],
            previous: ' ',
        }
    }

    fn split(mut self) -> (Vec<String>, Vec<String>) {
        while let Some(c) = self.rest.next() {
            match c {
                '/' if self.rest.peek() == Some(&'/') => self.line_comment(),
                '/' if self.rest.peek() == Some(&'*') => self.block_comment(),
                '"' => self.string(0, true),
                'r' if !is_word(self.previous) || matches!(self.previous, 'b' | 'c') => {
                    self.maybe_raw_string()
                }
                '\'' => self.character_or_lifetime(),
                _ => self.push_code(c),
            }
        }
        (self.code, self.comments)
    }

    fn push_code(&mut self, c: char) {
        self.previous = c;
        push(&mut self.code, &mut self.comments, c, false);
    }

    fn push_comment(&mut self, c: char) {
        push(&mut self.code, &mut self.comments, c, true);
    }

    fn line_comment(&mut self) {
        self.push_comment('/');
        while let Some(c) = self.rest.next_if(|c| *c != '\n') {
            self.push_comment(c);
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        let mut last = '/';
        // Rust's block comments nest.
        for c in self.rest.by_ref() {
            push(&mut self.code, &mut self.comments, c, true);
            match (last, c) {
                ('/', '*') => (depth, last) = (depth + 1, ' '),
                ('*', '/') => (depth, last) = (depth - 1, ' '),
                _ => last = c,
            }
            if depth == 0 {
                break;
            }
        }
        self.previous = ' ';
    }

    /// Skips a string whose opening quote has been read; `hashes` of them close a raw one.
    fn string(&mut self, hashes: usize, escapes: bool) {
        self.push_code('"');
        while let Some(c) = self.rest.next() {
            match c {
                '\\' if escapes => self.escaped_character(),
                '\n' => self.push_code('\n'),
                '"' if self.closes(hashes) => break,
                _ => {}
            }
        }
        self.push_code('"');
    }

    /// Skips what a backslash in a string escapes; a line that ends in one still ends.
    fn escaped_character(&mut self) {
        if self.rest.next() == Some('\n') {
            self.push_code('\n');
        }
    }

    /// Whether the `hashes` that close a raw string come next; takes them if so.
    fn closes(&mut self, hashes: usize) -> bool {
        let mut ahead = self.rest.clone();
        if (0..hashes).all(|_| ahead.next() == Some('#')) {
            self.rest = ahead;
            return true;
        }
        false
    }

    fn maybe_raw_string(&mut self) {
        let mut ahead = self.rest.clone();
        let mut hashes = 0;
        while ahead.next_if_eq(&'#').is_some() {
            hashes += 1;
        }
        if ahead.next() == Some('"') {
            self.rest = ahead;
            self.string(hashes, false);
        } else {
            self.push_code('r');
        }
    }

    fn character_or_lifetime(&mut self) {
        let mut ahead = self.rest.clone();
        let first = ahead.next();
        let is_character = first == Some('\\') || ahead.next() == Some('\'');
        self.push_code('\'');
        if !is_character {
            return;
        }
        let mut escaped = false;
        for c in self.rest.by_ref() {
            if c == '\'' && !escaped {
                break;
            }
            escaped = c == '\\' && !escaped;
        }
        self.push_code('\'');
    }
}

fn push(code: &mut Vec<String>, comments: &mut Vec<String>, c: char, comment: bool) {
    if c == '\n' {
        code.push(String::new());
        comments.push(String::new());
        return;
    }
    let lines = if comment { comments } else { code };
    if let Some(line) = lines.last_mut() {
        line.push(c);
    }
}

pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Marks the lines of every item that is compiled for tests only, and names the test modules kept in other files.
fn test_lines(code: &str, lines: usize) -> (Vec<bool>, Vec<String>) {
    let mut test = vec![code.contains("#![cfg(test)]"); lines];
    let mut modules = Vec::new();
    for attribute in ["#[cfg(test)]", "#[cfg(any(test", "#[test]"] {
        for (start, _) in code.match_indices(attribute) {
            let after = start + attribute.len();
            let end = after + item_length(&code[after..]);
            let line_of = |offset: usize| code[..offset].matches('\n').count();
            test[line_of(start)..=line_of(end)].fill(true);
            modules.extend(declared_module(&code[after..end]));
        }
    }
    (test, modules)
}

/// The bytes up to the end of the item that starts in `code`: its matching brace, or a semicolon before any brace.
fn item_length(code: &str) -> usize {
    let mut depth = 0_usize;
    for (offset, c) in code.char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && c == '}' {
                    return offset;
                }
            }
            ';' if depth == 0 => return offset,
            _ => {}
        }
    }
    code.len()
}

/// NAME, when the item is `mod NAME` and ends without a body.
fn declared_module(item: &str) -> Option<String> {
    let name = item.split("mod ").nth(1)?.trim();
    (!name.is_empty() && name.chars().all(is_word)).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        Source::parse(text).code.join("\n")
    }

    #[test]
    fn comments_and_strings_are_no_code() {
        assert_eq!(code("a // b\nc /* d /* e */ f */ g"), "a \nc  g");
        assert_eq!(code(r#"f("a \" b") + 'x' + '\''"#), r#"f("") + '' + ''"#);
        assert_eq!(code("r#\"a \" b\"# ; br\"\\\" ; r#type"), "\"\" ; b\"\" ; r#type");
        assert_eq!(code("\"one\ntwo\" x"), "\"\n\" x");
    }

    #[test]
    fn a_lifetime_is_no_character() {
        assert_eq!(code("fn f<'a>(x: &'a str) { '\"' }"), "fn f<'a>(x: &'a str) { '' }");
    }

    #[test]
    fn items_under_cfg_test_are_test_lines() {
        let source = Source::parse("fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() { {} }\n}\nfn c() {}");
        assert_eq!(source.test, [false, true, true, true, true, false]);
    }

    #[test]
    fn a_test_module_in_its_own_file_is_named() {
        let source = Source::parse("#[cfg(test)]\nmod mutations;\nmod plain;\nfn f() { let x = [1; 2]; }");
        assert_eq!(source.test_modules, ["mutations"]);
        assert_eq!(source.test, [true, true, false, false]);
    }

    #[test]
    fn a_comment_counts_on_its_line_or_right_above() {
        let source = Source::parse("x(); // invariant: a\n// invariant: b\n// more\ny();\nz();");
        assert!(source.has_comment(0, "invariant:"));
        assert!(source.has_comment(3, "invariant:"));
        assert!(!source.has_comment(4, "invariant:"));
    }
}
