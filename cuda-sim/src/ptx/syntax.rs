//! Statements of PTX text, before any of them is understood.

use super::lex::{Token, tokens};
use super::types::Type;
use crate::Fault;

/// A whole text.
pub(crate) struct Text {
    pub(crate) target: String,
    pub(crate) variables: Vec<Variable>,
    pub(crate) entries: Vec<Entry>,
}

/// A variable of a state space.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    /// `shared`, `global`, `const`, `local` or `param`.
    pub(crate) space: &'static str,
    pub(crate) align: u64,
    /// Bytes; none for an array without extent.
    pub(crate) bytes: Option<u64>,
    /// The bytes it starts with.
    pub(crate) init: Option<Vec<u8>>,
    pub(crate) line: u32,
}

/// A kernel.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) params: Vec<Variable>,
    pub(crate) max_threads: Option<u32>,
    /// Threads of a block, neither more nor fewer.
    pub(crate) threads: Option<u32>,
    pub(crate) body: Vec<Statement>,
}

/// What stands in a body, with its line.
pub(crate) struct Statement {
    pub(crate) kind: Kind,
    pub(crate) line: u32,
}

pub(crate) enum Kind {
    Open,
    Close,
    /// Names of registers; with a count: that many, numbered from 0.
    Registers(Type, Vec<(String, Option<u32>)>),
    Variable(Variable),
    Label(String),
    /// A named list of labels.
    Targets(String, Vec<String>),
    Instruction(Instruction),
}

pub(crate) struct Instruction {
    /// The predicate and whether it is negated.
    pub(crate) guard: Option<(String, bool)>,
    pub(crate) opcode: String,
    pub(crate) operands: Vec<Operand>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    Name(String),
    /// `!p`
    Not(String),
    /// `d|p`
    Pair(String, String),
    Int(u64),
    F32(u32),
    F64(u64),
    Vector(Vec<Operand>),
    /// A name or nothing, and an offset.
    Address(Option<String>, u64),
}

/// Bytes of a variable at most: more than shared memory, local memory of a thread and constant memory have.
const LARGEST: u64 = 1 << 20;

/// Reads a text.
pub(crate) fn parse(text: &str) -> Result<Text, Fault> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0 };
    parser.text()
}

struct Parser {
    tokens: Vec<(Token, u32)>,
    at: usize,
}

impl Parser {
    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.1)
    }

    fn fault(&self, what: impl Into<String>) -> Fault {
        Fault { what: what.into(), at: format!("line {}", self.line()) }
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|t| &t.0)
    }

    fn is(&self, mark: char) -> bool {
        self.peek() == Some(&Token::Mark(mark))
    }

    fn take(&mut self, mark: char) -> bool {
        let found = self.is(mark);
        self.at += usize::from(found);
        found
    }

    fn want(&mut self, mark: char) -> Result<(), Fault> {
        if self.take(mark) { Ok(()) } else { Err(self.fault(format!("`{mark}` is missing"))) }
    }

    fn word(&mut self) -> Result<String, Fault> {
        match self.peek() {
            Some(Token::Word(word)) => {
                let word = word.clone();
                self.at += 1;
                Ok(word)
            }
            _ => Err(self.fault("a name is missing")),
        }
    }

    fn peek_word(&self) -> Option<&str> {
        match self.peek() {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = self.peek_word() == Some(word);
        self.at += usize::from(found);
        found
    }

    fn size(&mut self) -> Result<u64, Fault> {
        match self.peek() {
            Some(&Token::Int(n)) => {
                self.at += 1;
                Ok(n)
            }
            _ => Err(self.fault("a number is missing")),
        }
    }

    fn text(&mut self) -> Result<Text, Fault> {
        let mut text = Text { target: String::new(), variables: Vec::new(), entries: Vec::new() };
        let mut version = false;
        while self.peek().is_some() {
            match self.word()?.as_str() {
                ".version" => {
                    // `7.8` is a number, a word and so on: two tokens.
                    self.size()?;
                    self.word()?;
                    version = true;
                }
                ".target" => text.target = self.word()?,
                ".address_size" => {
                    if self.size()? != 64 {
                        return Err(self.fault("addresses have 64 bits here"));
                    }
                }
                ".visible" | ".extern" | ".weak" => {}
                space @ (".global" | ".const" | ".shared") => {
                    let space = space_of(space);
                    text.variables.push(self.variable(space)?);
                    self.want(';')?;
                }
                ".entry" => text.entries.push(self.entry()?),
                other => {
                    self.at -= 1;
                    return Err(self.fault(format!("unknown directive {other}")));
                }
            }
        }
        if !version || text.target.is_empty() {
            return Err(self.fault("a PTX text says its .version and .target"));
        }
        Ok(text)
    }

    fn entry(&mut self) -> Result<Entry, Fault> {
        let name = self.word()?;
        let mut params = Vec::new();
        if self.take('(') && !self.take(')') {
            loop {
                if !self.take_word(".param") {
                    return Err(self.fault("a parameter starts with .param"));
                }
                params.push(self.variable("param")?);
                if !self.take(',') {
                    break;
                }
            }
            self.want(')')?;
        }
        let (mut max_threads, mut exact) = (None, None);
        while !self.is('{') {
            match self.word()?.as_str() {
                directive @ (".maxntid" | ".reqntid") => {
                    let required = directive == ".reqntid";
                    let mut threads = self.size()?;
                    while self.take(',') {
                        threads = threads.saturating_mul(self.size()?);
                    }
                    let threads = u32::try_from(threads).map_err(|_| self.fault("too many threads"))?;
                    max_threads = Some(threads);
                    exact = if required { Some(threads) } else { exact };
                }
                ".minnctapersm" | ".maxnreg" => {
                    self.size()?;
                }
                other => {
                    self.at -= 1;
                    return Err(self.fault(format!("unknown directive {other}")));
                }
            }
        }
        let body = self.body()?;
        Ok(Entry { name, params, max_threads, threads: exact, body })
    }

    /// What follows the state space: `.align 16 .b8 name[64] = {..}`.
    fn variable(&mut self, space: &'static str) -> Result<Variable, Fault> {
        let (mut align, mut element) = (None, None);
        let line = self.line();
        while let Some(word) = self.peek_word().filter(|w| w.starts_with('.')) {
            let word = word.to_owned();
            self.at += 1;
            match word.as_str() {
                ".align" => align = Some(self.size()?),
                // What a pointer parameter points to, and how that is aligned: promises that a run does not need.
                ".ptr" if space == "param" => {
                    for at in [".global", ".shared", ".local", ".const"] {
                        self.take_word(at);
                    }
                    if self.take_word(".align") {
                        self.size()?;
                    }
                }
                word => {
                    let parsed = Type::parse(&word[1..]);
                    element = Some(parsed.ok_or_else(|| self.fault(format!("unknown directive {word}")))?);
                }
            }
        }
        let element = element.ok_or_else(|| self.fault("a variable has a type"))?;
        let name = self.word()?;
        let size = u64::from(element.bytes());
        let mut bytes = Some(size);
        while self.take('[') {
            if self.take(']') {
                bytes = None;
                continue;
            }
            let extent = self.size()?;
            bytes = bytes.and_then(|b| b.checked_mul(extent)).filter(|&b| b <= LARGEST);
            if bytes.is_none() {
                return Err(self.fault("an array is too large"));
            }
            self.want(']')?;
        }
        let align = align.unwrap_or(size);
        if !align.is_power_of_two() || align > 4096 {
            return Err(self.fault(format!("alignment of {align}")));
        }
        let init = if self.take('=') { Some(self.init(element, bytes)?) } else { None };
        Ok(Variable { name, space, align, bytes, init, line })
    }

    /// Values of an array, or one alone; the rest is zero.
    fn init(&mut self, element: Type, bytes: Option<u64>) -> Result<Vec<u8>, Fault> {
        let bytes = bytes.ok_or_else(|| self.fault("an initialised array is too large"))?;
        let size = usize::from(element.bytes());
        let mut out = Vec::new();
        let list = self.take('{');
        loop {
            let bits = match (self.operand()?, element) {
                (Operand::Int(n), Type::B(_) | Type::U(_) | Type::S(_)) => n,
                (Operand::F32(bits), Type::F32 | Type::B(4)) => bits.into(),
                (Operand::F64(bits), Type::F64 | Type::B(8)) => bits,
                _ => return Err(self.fault("an initial value of another type")),
            };
            out.extend_from_slice(&bits.to_le_bytes()[..size]);
            if !(list && self.take(',')) {
                break;
            }
        }
        if list {
            self.want('}')?;
        }
        if out.len() as u64 > bytes {
            return Err(self.fault("more initial values than the array has elements"));
        }
        out.resize(bytes as usize, 0);
        Ok(out)
    }

    fn body(&mut self) -> Result<Vec<Statement>, Fault> {
        self.want('{')?;
        let mut body = Vec::new();
        let mut depth = 1;
        while depth > 0 {
            let line = self.line();
            let kind = if self.take('{') {
                depth += 1;
                Kind::Open
            } else if self.take('}') {
                depth -= 1;
                Kind::Close
            } else if let Some(kind) = self.statement()? {
                kind
            } else {
                continue;
            };
            body.push(Statement { kind, line });
        }
        body.pop();
        Ok(body)
    }

    fn statement(&mut self) -> Result<Option<Kind>, Fault> {
        let guard = if self.take('@') {
            let not = self.take('!');
            Some((self.word()?, not))
        } else {
            None
        };
        let word = self.word()?;
        if guard.is_none() && self.take(':') {
            if self.take_word(".branchtargets") {
                let mut labels = vec![self.word()?];
                while self.take(',') {
                    labels.push(self.word()?);
                }
                self.want(';')?;
                return Ok(Some(Kind::Targets(word, labels)));
            }
            return Ok(Some(Kind::Label(word)));
        }
        if word.starts_with('.') && guard.is_none() {
            return self.directive(&word);
        }
        let mut operands = Vec::new();
        if !self.is(';') {
            operands.push(self.operand()?);
            while self.take(',') {
                operands.push(self.operand()?);
            }
        }
        self.want(';')?;
        Ok(Some(Kind::Instruction(Instruction { guard, opcode: word, operands })))
    }

    fn directive(&mut self, word: &str) -> Result<Option<Kind>, Fault> {
        let kind = match word {
            ".reg" => {
                let class = self.word()?;
                let class = class.strip_prefix('.').and_then(Type::parse);
                let class = class.ok_or_else(|| self.fault("unknown type of registers"))?;
                let mut names = Vec::new();
                loop {
                    let name = self.word()?;
                    let count = if self.take('<') {
                        let count = self.size()?;
                        self.want('>')?;
                        let count = u32::try_from(count).ok().filter(|&c| c < 1 << 20);
                        Some(count.ok_or_else(|| self.fault("too many registers"))?)
                    } else {
                        None
                    };
                    names.push((name, count));
                    if !self.take(',') {
                        break;
                    }
                }
                Kind::Registers(class, names)
            }
            ".shared" | ".local" => Kind::Variable(self.variable(space_of(word))?),
            ".pragma" => match self.peek() {
                Some(Token::Text(text)) if text == "nounroll" => {
                    self.at += 1;
                    self.want(';')?;
                    return Ok(None);
                }
                _ => return Err(self.fault("unknown .pragma")),
            },
            _ => {
                self.at -= 1;
                return Err(self.fault(format!("unknown directive {word}")));
            }
        };
        self.want(';')?;
        Ok(Some(kind))
    }

    fn operand(&mut self) -> Result<Operand, Fault> {
        if self.take('!') {
            return Ok(Operand::Not(self.word()?));
        }
        if self.take('{') {
            let mut parts = vec![self.operand()?];
            while self.take(',') {
                parts.push(self.operand()?);
            }
            self.want('}')?;
            return Ok(Operand::Vector(parts));
        }
        if self.take('[') {
            let name = match self.peek() {
                Some(Token::Word(_)) => Some(self.word()?),
                _ => None,
            };
            let plus = name.is_none() || self.take('+');
            let offset = if plus || self.is('-') { self.signed()? } else { 0 };
            self.want(']')?;
            return Ok(Operand::Address(name, offset));
        }
        match self.peek() {
            Some(&Token::F32(bits)) => {
                self.at += 1;
                Ok(Operand::F32(bits))
            }
            Some(&Token::F64(bits)) => {
                self.at += 1;
                Ok(Operand::F64(bits))
            }
            Some(Token::Int(_) | Token::Mark('-')) => self.signed().map(Operand::Int),
            _ => {
                let name = self.word()?;
                if self.take('|') { Ok(Operand::Pair(name, self.word()?)) } else { Ok(Operand::Name(name)) }
            }
        }
    }

    fn signed(&mut self) -> Result<u64, Fault> {
        if self.take('-') { Ok(self.size()?.wrapping_neg()) } else { self.size() }
    }
}

fn space_of(directive: &str) -> &'static str {
    match directive {
        ".global" => "global",
        ".const" => "const",
        ".local" => "local",
        _ => "shared",
    }
}
