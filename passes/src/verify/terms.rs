//! What values of a sharded function are equal, and terms over them in one normal form.
//!
//! Values get *numbers*: a reshard has the number of its operand, and equal ops on equal numbers have equal numbers. A *form* is a
//! linear combination of numbers; sums, differences and negations are expanded, so that rearranged sums have equal forms.

use pcc_ir::ops::{BinaryKind, UnaryKind};
use pcc_ir::{Func, Inst, Op, Term, Type, ValueId};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// A class of equal values of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Number(u32);

/// Coefficients of numbers, none of them 0.
pub(super) type Form = BTreeMap<Number, i64>;

/// Sums of more terms than this are not expanded further.
const MOST_TERMS: usize = 256;

/// What makes the values of a number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    Arg,
    /// Instruction and which of its results.
    Inst(usize, usize),
}

pub(super) struct Terms<'a> {
    func: &'a Func,
    number: HashMap<ValueId, Number>,
    origin: Vec<Origin>,
    forms: Vec<Rc<Form>>,
}

impl<'a> Terms<'a> {
    pub(super) fn new(func: &'a Func) -> Self {
        let mut terms = Self { func, number: HashMap::new(), origin: Vec::new(), forms: Vec::new() };
        for &v in &func.args {
            let n = terms.add(Origin::Arg, None);
            terms.number.insert(v, n);
        }
        let mut known: HashMap<(&str, Vec<Number>), Vec<usize>> = HashMap::new();
        for (at, inst) in func.insts.iter().enumerate() {
            let args: Vec<Number> = inst.args.iter().filter_map(|v| terms.number.get(v).copied()).collect();
            if let (Op::Reshard(_), Some(&n), Some(&r)) = (&inst.op, args.first(), inst.results.first()) {
                terms.number.insert(r, n);
                continue;
            }
            let alike = known.entry((inst.op.name(), args)).or_default();
            let first = alike.iter().map(|&i| &func.insts[i]).find(|i| i.op == inst.op);
            let numbers: Vec<Number> = match first {
                Some(first) => first.results.iter().filter_map(|r| terms.number.get(r).copied()).collect(),
                None => {
                    alike.push(at);
                    let form = terms.linear(inst);
                    (0..inst.results.len()).map(|r| terms.add(Origin::Inst(at, r), form.clone())).collect()
                }
            };
            terms.number.extend(inst.results.iter().copied().zip(numbers));
        }
        terms
    }

    fn add(&mut self, origin: Origin, form: Option<Form>) -> Number {
        let n = Number(self.origin.len() as u32);
        self.origin.push(origin);
        self.forms.push(Rc::new(form.unwrap_or_else(|| Form::from([(n, 1)]))));
        n
    }

    /// The form of the result of a linear op.
    fn linear(&self, inst: &Inst) -> Option<Form> {
        let args: Vec<&Form> =
            inst.args.iter().map(|&v| self.of(v).map(Rc::as_ref)).collect::<Option<_>>()?;
        combine(&inst.op, &args)
    }

    /// The form of a value of the function; `None` when it has no such value.
    pub(super) fn of(&self, v: ValueId) -> Option<&Rc<Form>> {
        self.number.get(&v).map(|n| &self.forms[n.0 as usize])
    }

    pub(super) fn origin(&self, v: ValueId) -> Option<Origin> {
        self.number.get(&v).map(|n| self.origin[n.0 as usize])
    }

    /// Form and global type of a term, or what is wrong with it.
    pub(super) fn resolve(&self, term: &Term) -> Result<(Rc<Form>, &'a Type), String> {
        if let Term::Value(v) = term {
            let form = self.of(*v).ok_or_else(|| format!("the sharded function has no value {v}"))?;
            return Ok((form.clone(), self.func.ty(*v)));
        }
        let mut sum = Form::new();
        let mut ty: Option<&Type> = None;
        let mut open = vec![term];
        while let Some(term) = open.pop() {
            match term {
                Term::Sum(terms) => open.extend(terms),
                Term::Value(v) => {
                    let form = self.of(*v).ok_or_else(|| format!("the sharded function has no value {v}"))?;
                    add_scaled(&mut sum, form, 1).ok_or("it sums a value too often")?;
                    if *ty.get_or_insert(self.func.ty(*v)) != self.func.ty(*v) {
                        return Err("it sums values of different types".to_owned());
                    }
                }
            }
        }
        ty.map(|ty| (Rc::new(sum), ty)).ok_or_else(|| "it sums nothing".to_owned())
    }

    /// A form for people.
    pub(super) fn text(&self, form: &Form) -> String {
        let name = |n: &Number| {
            let v = match self.origin[n.0 as usize] {
                Origin::Inst(at, r) => self.func.insts[at].results[r],
                Origin::Arg => self.func.args[n.0 as usize],
            };
            match self.func.values[v].name.as_str() {
                "" => v.to_string(),
                name => format!("`{name}` ({v})"),
            }
        };
        let part = |(n, c): (&Number, &i64)| match c {
            1 => name(n),
            c => format!("{c} x {}", name(n)),
        };
        let parts: Vec<_> = form.iter().map(part).collect();
        if parts.is_empty() { "zero".to_owned() } else { parts.join(" + ") }
    }
}

/// Adds a multiple of a form; `None` when a coefficient gets too large.
fn add_scaled(to: &mut Form, form: &Form, scale: i64) -> Option<()> {
    for (&n, &c) in form {
        let sum = to.entry(n).or_insert(0);
        *sum = sum.checked_add(c.checked_mul(scale)?)?;
        if *sum == 0 {
            to.remove(&n);
        }
    }
    Some(())
}

/// The form that a linear op makes of the forms of its operands; `None` for other ops and for forms too large.
pub(super) fn combine(op: &Op, args: &[&Form]) -> Option<Form> {
    let scales: &[i64] = match op {
        Op::Binary(BinaryKind::Add) => &[1, 1],
        Op::Binary(BinaryKind::Sub) => &[1, -1],
        Op::Unary(UnaryKind::Neg) => &[-1],
        _ => return None,
    };
    if scales.len() != args.len() || args.iter().map(|a| a.len()).sum::<usize>() > MOST_TERMS {
        return None;
    }
    let mut sum = Form::new();
    for (form, &scale) in args.iter().zip(scales) {
        add_scaled(&mut sum, form, scale)?;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcc_ir::{Diagnostic, Sharding};

    #[test]
    fn rearranged_sums_are_equal_and_others_are_not() -> Result<(), Diagnostic> {
        let mut f = Func::new("f");
        let [x, y, z] = ["x", "y", "z"].map(|n| f.arg(Type::f32([2]), n));
        let xy = f.add(x, y)?;
        let left = f.add(xy, z)?;
        let yz = f.add(z, y)?;
        let right = f.add(yz, x)?;
        let less = f.binary(BinaryKind::Sub, left, y)?;
        let negated = f.unary(UnaryKind::Neg, y)?;
        let same = f.add(left, negated)?;
        let moved = f.one(Op::Reshard(Sharding::replicated(1)), &[left])?;
        let (p, q) = (f.mul(x, y)?, f.mul(x, y)?);
        let r = f.mul(y, x)?;
        let terms = Terms::new(&f);
        assert_eq!(terms.of(left), terms.of(right));
        assert_eq!(terms.of(less), terms.of(same));
        assert_eq!(terms.of(moved), terms.of(left));
        assert_eq!(terms.of(p), terms.of(q));
        assert_ne!(terms.of(p), terms.of(r));
        assert_ne!(terms.of(less), terms.of(left));
        let sum = |vs: &[ValueId]| Term::Sum(vs.iter().map(|&v| Term::Value(v)).collect());
        let form = |t: &Term| terms.resolve(t).map(|r| r.0);
        assert_eq!(form(&sum(&[z, x, y])).ok().as_ref(), terms.of(right));
        assert_eq!(form(&Term::Sum(vec![sum(&[z, x]), Term::Value(y)])).ok().as_ref(), terms.of(right));
        assert_ne!(form(&sum(&[z, x, y, y])).ok().as_ref(), terms.of(right));
        assert!(form(&sum(&[])).is_err());
        // A value doubled 70 times does not fit a coefficient: it stays what it is.
        let mut g = Func::new("g");
        let mut v = g.arg(Type::f32([2]), "v");
        let first = v;
        for _ in 0..70 {
            v = g.add(v, v)?;
        }
        let terms = Terms::new(&g);
        assert_ne!(terms.of(v), terms.of(first));
        Ok(())
    }
}
