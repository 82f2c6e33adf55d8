//! Random nests of branches and loops, their parts laid out in random order, against each thread run by itself.

use super::harness::{Random, Run};

/// Registers of a program: `%r10..`.
const REGISTERS: u64 = 5;

enum Statement {
    /// `d = a op b`
    Set(u64, &'static str, u64, u64),
    If(Condition, Vec<Statement>, Vec<Statement>),
    /// At most so many rounds, and an end before that under a condition.
    Loop(u32, Condition, Vec<Statement>),
    /// The thread ends.
    Leave(Condition),
}

/// Whether the bits of a register under a mask are all zero.
struct Condition(u64, u32);

fn draw(random: &mut Random, depth: u32) -> Vec<Statement> {
    let register = |random: &mut Random| random.next() % REGISTERS;
    let condition = |random: &mut Random| {
        Condition(random.next() % REGISTERS, [1, 2, 3, 4, 12, 7][random.next() as usize % 6])
    };
    (0..1 + random.next() % 4)
        .map(|_| match random.next() % 8 {
            0 | 1 if depth > 0 => {
                let other =
                    if random.next().is_multiple_of(2) { Vec::new() } else { draw(random, depth - 1) };
                Statement::If(condition(random), draw(random, depth - 1), other)
            }
            2 | 3 if depth > 0 => {
                Statement::Loop(1 + random.next() as u32 % 5, condition(random), draw(random, depth - 1))
            }
            4 if random.next().is_multiple_of(4) => {
                Statement::Leave(Condition(random.next() % REGISTERS, 31))
            }
            _ => {
                let op = ["add.u32", "xor.b32", "sub.u32", "mul.lo.u32"][random.next() as usize % 4];
                Statement::Set(register(random), op, register(random), register(random))
            }
        })
        .collect()
}

/// Runs one thread; `false`: it has left.
fn evaluate(statements: &[Statement], r: &mut [u32]) -> bool {
    let holds = |c: &Condition, r: &[u32]| r[c.0 as usize] & c.1 == 0;
    statements.iter().all(|statement| match statement {
        Statement::Set(d, op, a, b) => {
            let (a, b) = (r[*a as usize], r[*b as usize]);
            r[*d as usize] = match *op {
                "add.u32" => a.wrapping_add(b),
                "xor.b32" => a ^ b,
                "sub.u32" => a.wrapping_sub(b),
                _ => a.wrapping_mul(b),
            };
            true
        }
        Statement::If(c, then, other) => evaluate(if holds(c, r) { then } else { other }, r),
        Statement::Loop(most, c, body) => {
            for _ in 0..*most {
                if holds(c, r) {
                    break;
                }
                if !evaluate(body, r) {
                    return false;
                }
            }
            true
        }
        Statement::Leave(c) => !holds(c, r),
    })
}

/// Parts of a kernel, each with a label and a branch at its end.
struct Parts {
    done: Vec<String>,
    open: String,
    labels: u32,
    counters: u32,
}

impl Parts {
    fn label(&mut self) -> String {
        self.labels += 1;
        format!("L{}", self.labels)
    }

    fn close(&mut self, to: &str, next: &str) {
        let part = std::mem::replace(&mut self.open, format!("{next}: "));
        self.done.push(format!("{part} bra {to};\n"));
    }

    fn test(&mut self, c: &Condition, to: &str) {
        self.open +=
            &format!("and.b32 %r40, %r{}, {}; setp.eq.u32 %p1, %r40, 0; @%p1 bra {to};", 10 + c.0, c.1);
    }

    fn emit(&mut self, statements: &[Statement]) {
        for statement in statements {
            match statement {
                Statement::Set(d, op, a, b) => {
                    self.open += &format!("{op} %r{}, %r{}, %r{};", 10 + d, 10 + a, 10 + b)
                }
                Statement::If(c, then, other) => {
                    let (yes, no, end) = (self.label(), self.label(), self.label());
                    self.test(c, &yes);
                    self.close(&no, &no);
                    self.emit(other);
                    self.close(&end, &yes);
                    self.emit(then);
                    self.close(&end, &end);
                }
                Statement::Loop(most, c, body) => {
                    let (head, inside, end) = (self.label(), self.label(), self.label());
                    self.counters += 1;
                    let n = 50 + self.counters % 30;
                    self.open += &format!("mov.u32 %r{n}, 0;");
                    self.close(&head, &head);
                    self.open += &format!("setp.ge.u32 %p2, %r{n}, {most}; @%p2 bra {end};");
                    self.test(c, &end);
                    self.close(&inside, &inside);
                    self.emit(body);
                    self.open += &format!("add.u32 %r{n}, %r{n}, 1;");
                    self.close(&head, &end);
                }
                Statement::Leave(c) => self.test(c, "OUT"),
            }
        }
    }
}

#[test]
fn threads_do_what_each_would_alone() {
    let count: u64 = std::env::var("RANDOM_CONTROL").map_or(60, |n| n.parse().unwrap());
    for seed in 0..count {
        let mut random = Random(seed * 7919 + 3);
        let program = draw(&mut random, 4);
        let mut parts = Parts { done: Vec::new(), open: String::new(), labels: 0, counters: 0 };
        for n in 0..REGISTERS {
            parts.open += &format!("mad.lo.u32 %r{}, %r1, {}, {};", 10 + n, 2 * n + 1, n * 5);
        }
        parts.emit(&program);
        parts.close("OUT", "X");
        if parts.counters > 30 {
            continue;
        }
        // The first part stays in front.
        for n in (2..parts.done.len()).rev() {
            let other = 1 + random.next() as usize % n;
            parts.done.swap(n, other);
        }
        let stores: String = (1..REGISTERS).map(|n| format!("xor.b32 %r10, %r10, %r{};", 10 + n)).collect();
        let body = format!("{} OUT: {stores} st.global.u32 [%rd5], %r10;", parts.done.concat());
        let mut run = Run::new(&body, 64);
        run.seed = seed;
        let got = run.words(&[], 64).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{body}"));
        for (thread, got) in got.into_iter().enumerate() {
            let mut r: Vec<u32> =
                (0..REGISTERS as u32).map(|n| thread as u32 * (2 * n + 1) + n * 5).collect();
            evaluate(&program, &mut r);
            let want = r.iter().fold(0, |all, x| all ^ x);
            assert_eq!(got, want, "seed {seed}, thread {thread}\n{body}");
        }
    }
}
