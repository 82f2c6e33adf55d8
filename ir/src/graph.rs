//! Modules, functions, instructions and values: one data structure for the graph, sharded and local levels.
//!
//! A function is a list of instructions in execution order, each defining its results once (SSA). A module has
//! global tables of parameters and states; an *entry* says which arguments of its function are inputs, parameters or states.

use crate::mesh::Mesh;
use crate::ops::Op;
use crate::repeat::Repeat;
use crate::sharding::{Claim, Sharding};
use crate::source::ParamSource;
use crate::types::Type;
use cranelift_entity::{PrimaryMap, entity_impl};
use serde::{Deserialize, Serialize};

macro_rules! entity {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(u32);
        entity_impl!($name, $prefix);
    };
}
pub(crate) use entity;

entity!(/** A value of one function. */ ValueId, "v");
entity!(/** A function of a module. */ FuncId, "fn");
entity!(/** A parameter (weight tensor) of a module. */ ParamId, "param");
entity!(/** A state tensor (KV cache) of a module. */ StateId, "state");

/// Index of an instruction in [`Func::insts`].
pub type InstId = usize;

/// Logical name of a dim, given by the frontend on the dims of inputs; the solver follows it through the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Label {
    /// Rows of a batch: split by dp.
    Batch,
    /// Positions of a sequence: split by tp under sequence parallelism.
    Seq,
}

/// A value: its type, and what each level adds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// Global type at the graph and sharded levels, local type at the local level.
    pub ty: Type,
    /// Name for people (`x`, `attn_out`); printed, not significant.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Logical names of dims, where known (empty when none is).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<Option<Label>>,
    /// Sharded level: how the value is placed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharding: Option<Sharding>,
    /// Local level: what global value this local value stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
}

impl Value {
    pub fn new(ty: Type) -> Self {
        Self { ty, name: String::new(), labels: Vec::new(), sharding: None, claim: None }
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inst {
    pub op: Op,
    pub args: Vec<ValueId>,
    pub results: Vec<ValueId>,
    /// Where in the user's model this comes from (`self_attn.q_proj`), for messages.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub loc: String,
}

/// A function: SSA over tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Func {
    pub name: String,
    pub args: Vec<ValueId>,
    pub results: Vec<ValueId>,
    pub insts: Vec<Inst>,
    pub values: PrimaryMap<ValueId, Value>,
}

impl Func {
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Adds an argument.
    pub fn arg(&mut self, ty: Type, name: impl Into<String>) -> ValueId {
        let v = self.values.push(Value { name: name.into(), ..Value::new(ty) });
        self.args.push(v);
        v
    }

    /// Adds a value without a definition (the caller makes an instruction define it).
    pub fn value(&mut self, ty: Type) -> ValueId {
        self.values.push(Value::new(ty))
    }

    /// Adds an instruction with results of the given types.
    pub fn push(&mut self, op: Op, args: Vec<ValueId>, types: Vec<Type>, loc: &str) -> Vec<ValueId> {
        let results: Vec<_> = types.into_iter().map(|t| self.value(t)).collect();
        self.insts.push(Inst { op, args, results: results.clone(), loc: loc.to_owned() });
        results
    }

    pub fn ty(&self, v: ValueId) -> &Type {
        &self.values[v].ty
    }
}

/// What an argument of an entry function is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Given by the user at each call, under this name.
    Input(String),
    Param(ParamId),
    State(StateId),
}

/// What a user calls: `forward`, or `prefill` and `decode`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub name: String,
    pub func: FuncId,
    /// One per argument of the function.
    pub args: Vec<Role>,
    /// Name of each result (`logits`); a result that is a new state has the state's name.
    pub results: Vec<String>,
    /// `(argument, result)` pairs: the result is the new value of the argument, a state. Equal type and sharding.
    pub aliases: Vec<(usize, usize)>,
    /// Weight of this entry's cost when shardings are chosen for all entries together.
    pub weight: f64,
    /// Calls of the function that stand for many, in order; the function then consists of calls only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repeats: Vec<Repeat>,
}

/// A weight tensor. Its type is the logical one of the model (`q_proj [hidden, kv, group, head_dim]`), not the file's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Param {
    /// Unique; for messages, plans and reports (`model.layers.3.self_attn.q_proj.weight`).
    pub name: String,
    pub ty: Type,
    pub source: ParamSource,
    /// One sharding per artifact (sharded level on).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharding: Option<Sharding>,
    /// How many parameters this one stands for, one a repetition; its name and its source's then leave the layer's number open
    /// ([`crate::repeat`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<u32>,
}

/// A tensor kept between calls (KV cache), zero at the start. One copy per micro-batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub name: String,
    pub ty: Type,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharding: Option<Sharding>,
    /// How many states this one stands for, as for parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<u32>,
}

/// A whole model at some level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Module {
    pub name: String,
    pub mesh: Mesh,
    pub funcs: PrimaryMap<FuncId, Func>,
    pub params: PrimaryMap<ParamId, Param>,
    pub states: PrimaryMap<StateId, State>,
    pub entries: Vec<Entry>,
}

impl Module {
    /// Number of scalars in all parameters, each parameter once.
    pub fn parameters(&self) -> u64 {
        let all = |p: &Param| (p.ty.elements() as u64).saturating_mul(p.stack.unwrap_or(1).into());
        self.params.values().map(all).fold(0, u64::saturating_add)
    }

    pub fn func_named(&self, name: &str) -> Option<FuncId> {
        self.funcs.iter().find(|(_, f)| f.name == name).map(|(id, _)| id)
    }
}
