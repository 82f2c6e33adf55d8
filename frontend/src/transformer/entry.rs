//! Puts functions together: the chain of calls that makes up an entry, with its inputs, parameters and states.

use super::fold::{Place, fold};
use super::func::Built;
use super::{Capacity, Layer, Transformer, Weight};
use crate::naming::Naming;
use pcc_ir::graph::{Entry, Label, Role};
use pcc_ir::repeat::Repeat;
use pcc_ir::{Diagnostic, Func, FuncId, Module, Op, Param, ParamId, State, StateId, Type, ValueId};
use std::collections::HashMap;

/// A module, and what each of its parameters is.
#[derive(Clone, Debug)]
pub struct Network {
    pub module: Module,
    /// One per parameter: its role and logical shape, and the layers it belongs to.
    pub weights: Vec<(Weight, Place)>,
}

/// A function of the module, ready to be called.
#[derive(Clone, Debug)]
pub(super) struct Callee {
    id: FuncId,
    weights: Vec<Weight>,
    results: Vec<Type>,
}

/// The functions of an entry's layers: equal layers share one.
pub(super) struct LayerFuncs<'a> {
    known: Vec<(&'a Layer, Callee)>,
}

impl<'a> LayerFuncs<'a> {
    pub(super) fn new() -> Self {
        Self { known: Vec::new() }
    }

    /// The function of a layer; `build` makes it from the module and its name, which starts with `entry`.
    pub(super) fn get(
        &mut self,
        network: &mut NetworkBuilder,
        layer: &'a Layer,
        entry: &str,
        build: impl FnOnce(&NetworkBuilder, String) -> Result<Built, Diagnostic>,
    ) -> Result<Callee, Diagnostic> {
        if let Some((_, callee)) = self.known.iter().find(|(l, _)| *l == layer) {
            return Ok(callee.clone());
        }
        let name = match self.known.len() {
            0 => format!("{entry}.layer"),
            n => format!("{entry}.layer.{n}"),
        };
        let built = build(network, name)?;
        let callee = network.add_func(built);
        self.known.push((layer, callee.clone()));
        Ok(callee)
    }
}

/// The module under construction.
pub(super) struct NetworkBuilder<'a> {
    pub(super) model: &'a Transformer,
    pub(super) naming: &'a Naming,
    pub(super) capacity: Capacity,
    module: Module,
    weights: Vec<(Weight, Place)>,
    params: HashMap<(String, Place), ParamId>,
    states: HashMap<String, StateId>,
}

impl<'a> NetworkBuilder<'a> {
    pub(super) fn new(model: &'a Transformer, name: &str, naming: &'a Naming, capacity: Capacity) -> Self {
        Self {
            model,
            naming,
            capacity,
            module: Module { name: name.to_owned(), ..Module::default() },
            weights: Vec::new(),
            params: HashMap::new(),
            states: HashMap::new(),
        }
    }

    pub(super) fn add_func(&mut self, built: Built) -> Callee {
        let results = built.func.results.iter().map(|&r| built.func.ty(r).clone()).collect();
        Callee { id: self.module.funcs.push(built.func), weights: built.weights, results }
    }

    /// The parameter of a role in a layer, or the stack of those in many, made at its first use.
    fn param(&mut self, weight: &Weight, place: Place) -> ParamId {
        let place = if self.naming.in_layer(&weight.role) { place } else { Place::Outside };
        let key = (weight.role.clone(), place);
        if let Some(&id) = self.params.get(&key) {
            return id;
        }
        let name = self.naming.name(&weight.role, place);
        let source = weight.without_checkpoint(self.capacity.seed, &name);
        let ty = Type::f32(weight.shape.clone());
        let id = self.module.params.push(Param { name, ty, source, sharding: None, stack: place.stack() });
        self.weights.push((weight.clone(), place));
        self.params.insert(key, id);
        id
    }

    fn state(&mut self, name: String, ty: &Type, stack: Option<u32>) -> StateId {
        let states = &mut self.module.states;
        *self
            .states
            .entry(name.clone())
            .or_insert_with(|| states.push(State { name, ty: ty.clone(), sharding: None, stack }))
    }

    /// Adds the parameters no entry uses, and ends the module.
    pub(super) fn finish(mut self) -> Network {
        for weight in &self.model.unused {
            self.param(weight, Place::Outside);
        }
        Network { module: self.module, weights: self.weights }
    }
}

/// An entry function under construction.
pub(super) struct EntryBuilder {
    name: String,
    func: Func,
    roles: Vec<(ValueId, Role)>,
    params: HashMap<ParamId, ValueId>,
    /// New value, argument and name of each state.
    new_states: Vec<(ValueId, ValueId, String)>,
    repeats: Vec<Repeat>,
}

impl EntryBuilder {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            func: Func::new(name),
            roles: Vec::new(),
            params: HashMap::new(),
            new_states: Vec::new(),
            repeats: Vec::new(),
        }
    }

    pub(super) fn input(&mut self, ty: Type, name: &str, labels: &[Option<Label>]) -> ValueId {
        let v = self.func.arg(ty, name);
        self.func.values[v].labels = labels.to_vec();
        self.roles.push((v, Role::Input(name.to_owned())));
        v
    }

    /// The argument for a parameter, made at its first use.
    fn param(&mut self, network: &mut NetworkBuilder, weight: &Weight, place: Place) -> ValueId {
        let id = network.param(weight, place);
        if let Some(&v) = self.params.get(&id) {
            return v;
        }
        let param = &network.module.params[id];
        let v = self.func.arg(param.ty.clone(), &*param.name);
        self.roles.push((v, Role::Param(id)));
        self.params.insert(id, v);
        v
    }

    /// Calls a function with the given chain values and inputs; its weights are those of `place`. Each `(name, type)` of
    /// `states`, each used once in an entry, is passed last, and its new value is among the last results; the other results are returned.
    pub(super) fn call(
        &mut self,
        network: &mut NetworkBuilder,
        callee: &Callee,
        inputs: &[ValueId],
        place: Place,
        states: Vec<(String, Type)>,
    ) -> Vec<ValueId> {
        let mut args = inputs.to_vec();
        for weight in &callee.weights {
            args.push(self.param(network, weight, place));
        }
        let mut held = Vec::new();
        for (name, ty) in states {
            let id = network.state(name.clone(), &ty, place.stack());
            let v = self.func.arg(ty, name.clone());
            self.roles.push((v, Role::State(id)));
            self.func.values[v].labels = vec![Some(Label::Batch), None, None, None];
            args.push(v);
            held.push((v, name));
        }
        let loc = place.number().map_or_else(String::new, |i| network.naming.layer_module(&i));
        let mut results = self.func.push(Op::Call(callee.id), args, callee.results.clone(), &loc);
        let new = results.split_off(results.len().saturating_sub(held.len()));
        self.new_states.extend(new.into_iter().zip(held).map(|(new, (old, name))| (new, old, name)));
        results
    }

    /// The places that the layers are called for next, in order; equal ones are folded.
    pub(super) fn places(&mut self, layers: &[Layer]) -> Vec<Place> {
        let folded = fold(layers);
        let here = self.func.insts.len();
        let repeat = |&(at, calls, count): &(usize, usize, u32)| Repeat { first: here + at, calls, count };
        self.repeats.extend(folded.repeats.iter().map(repeat));
        folded.places
    }

    /// Adds the entry to the module: arguments are inputs, then parameters, then states; results `outputs`, then states.
    pub(super) fn finish(mut self, network: &mut NetworkBuilder, outputs: &[(&str, ValueId)]) {
        self.roles.sort_by_key(|(_, role)| match role {
            Role::Input(_) => 0,
            Role::Param(_) => 1,
            Role::State(_) => 2,
        });
        self.func.args = self.roles.iter().map(|(v, _)| *v).collect();
        self.func.results =
            outputs.iter().map(|(_, v)| *v).chain(self.new_states.iter().map(|s| s.0)).collect();
        let position: HashMap<ValueId, usize> =
            self.func.args.iter().enumerate().map(|(i, &v)| (v, i)).collect();
        let alias =
            |(i, s): (usize, &(ValueId, ValueId, String))| Some((*position.get(&s.1)?, outputs.len() + i));
        let aliases = self.new_states.iter().enumerate().filter_map(alias).collect();
        let states = self.new_states.iter().map(|s| s.2.clone());
        let results = outputs.iter().map(|(name, _)| (*name).to_owned()).chain(states).collect();
        crate::canonical::renumber(&mut self.func);
        let args = self.roles.into_iter().map(|(_, role)| role).collect();
        let (func, repeats) = (network.module.funcs.push(self.func), self.repeats);
        network.module.entries.push(Entry {
            name: self.name,
            func,
            args,
            results,
            aliases,
            weight: 1.0,
            repeats,
        });
    }
}
