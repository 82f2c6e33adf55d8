//! The threads of the caller.

use crate::state::Turn;
use crate::work::Ticket;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is known of a thread.
#[derive(Debug, Default)]
pub struct Thread {
    pub name: String,
    /// What it waits for, if it does.
    pub waits: Option<(Ticket, String)>,
    pub ended: bool,
}

/// All threads that ever called.
#[derive(Debug, Default)]
pub struct Threads {
    known: BTreeMap<u64, Thread>,
}

impl Threads {
    /// The calling thread's number; it is known from now on.
    pub fn here(&mut self) -> u64 {
        LOCAL.with(|local| {
            let named = || Thread { name: local.name(), ..Thread::default() };
            self.known.entry(local.id).or_insert_with(named);
            local.id
        })
    }

    /// Notes what the calling thread waits for.
    pub fn wait(&mut self, waits: Option<(Ticket, String)>) {
        let id = self.here();
        if let Some(thread) = self.known.get_mut(&id) {
            thread.waits = waits;
        }
    }

    /// Whether a thread waits for something that is not done.
    pub fn is_stuck(&self, id: u64) -> bool {
        let waits = self.known.get(&id).and_then(|thread| thread.waits.as_ref());
        waits.is_some_and(|(ticket, _)| !ticket.is_done())
    }

    /// The name of a thread and what it does.
    pub fn describe(&self, id: u64) -> String {
        let Some(thread) = self.known.get(&id) else { return "an unknown thread".to_owned() };
        let does = match (&thread.waits, thread.ended) {
            (_, true) => "has ended",
            (Some((_, what)), _) => what,
            _ => "is busy elsewhere",
        };
        format!("thread {}: {does}", thread.name)
    }

    fn end(&mut self, id: u64) {
        if let Some(thread) = self.known.get_mut(&id) {
            thread.ended = true;
        }
    }
}

/// What a thread keeps for itself.
struct Local {
    id: u64,
    /// Contexts pushed; the last is current.
    contexts: RefCell<Vec<u64>>,
    /// What the last fault or refusal that it met said.
    message: RefCell<String>,
    /// Whether it runs a host function of a stream, which may not call CUDA.
    in_host_call: Cell<bool>,
}

impl Local {
    fn name(&self) -> String {
        // A library has a standard library of its own, to which threads that others started have no names; the system knows them.
        let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap_or_default();
        format!("{} `{}`", self.id, name.trim())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let mut turn = Turn::take();
        turn.threads.end(self.id);
        turn.notify();
    }
}

thread_local! {
    static LOCAL: Local = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Local { id, contexts: RefCell::default(), message: RefCell::default(), in_host_call: Cell::new(false) }
    };
}

/// Changes or reads the calling thread's stack of contexts.
pub fn contexts<R>(f: impl FnOnce(&mut Vec<u64>) -> R) -> R {
    LOCAL.with(|local| f(&mut local.contexts.borrow_mut()))
}

/// The current context of the calling thread.
pub fn current() -> Option<u64> {
    contexts(|all| all.last().copied()).filter(|&context| context != 0)
}

/// Keeps what a fault or refusal that the calling thread met said.
pub fn said(message: &str) {
    LOCAL.with(|local| message.clone_into(&mut local.message.borrow_mut()));
}

/// What the last fault or refusal that the calling thread met said; empty if it met none.
pub fn message() -> String {
    LOCAL.with(|local| local.message.borrow().clone())
}

/// Runs a host function of a stream.
pub fn host_call(f: impl FnOnce()) {
    LOCAL.with(|local| {
        local.in_host_call.set(true);
        f();
        local.in_host_call.set(false);
    });
}

/// Whether the calling thread runs a host function of a stream.
pub fn in_host_call() -> bool {
    LOCAL.with(|local| local.in_host_call.get())
}
