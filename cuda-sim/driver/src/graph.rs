//! Events, and streams captured into graphs.

use crate::clock::Lane;
use crate::code::Code;
use crate::state::Turn;
use crate::work::{Request, Ticket, Work};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// An event.
#[derive(Debug)]
pub struct Event {
    pub context: u64,
    /// `CU_EVENT_DISABLE_TIMING` and others.
    pub flags: u32,
    pub recorded: Recorded,
}

/// What an event stands for.
#[derive(Clone, Debug)]
pub enum Recorded {
    Never,
    Work(Ticket),
    /// Steps of a graph that is being captured.
    Captured {
        capture: u64,
        frontier: BTreeSet<usize>,
    },
}

/// A stream's part in a capture.
#[derive(Clone, Debug)]
pub struct Joined {
    pub capture: u64,
    /// Steps that its next one is behind.
    pub frontier: BTreeSet<usize>,
}

/// A graph in the making.
#[derive(Debug)]
pub struct Capture {
    origin: u64,
    mode: u32,
    thread: u64,
    steps: Vec<Step>,
    broken: bool,
}

/// A piece of work of a graph.
#[derive(Clone, Debug)]
pub struct Step {
    context: u64,
    /// The stream it was captured from: names a lane of the graph.
    stream: u64,
    work: Work,
    behind: BTreeSet<usize>,
    what: Arc<str>,
}

#[derive(Debug)]
pub struct Graph {
    pub steps: Arc<[Step]>,
}

/// A graph that can be launched.
#[derive(Debug)]
pub struct Exec {
    pub steps: Arc<[Step]>,
    lanes: BTreeMap<u64, Lane>,
    /// Its last launch: launches of the same graph follow each other.
    last: Ticket,
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = 2;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const THREAD_LOCAL: u32 = 1;

impl Turn {
    /// Adds work to the end of a stream, or to the graph that the stream is captured into.
    pub fn submit(&mut self, stream: u64, work: Work, what: String) -> Result<Ticket, Code> {
        self.submit_over(&[stream], work, what)
    }

    /// Adds one piece of work to the ends of several streams of one context at once.
    pub fn submit_over(&mut self, streams: &[u64], work: Work, what: String) -> Result<Ticket, Code> {
        let &first = streams.first().ok_or(Code::INVALID_VALUE)?;
        let (context, lane) = {
            let stream = self.streams.get(first)?;
            (stream.context, stream.lane)
        };
        self.sound_context(context)?;
        if let Some(capture) = self.capture_of(streams)? {
            return self.append(capture, streams, work, what);
        }
        let mut behind = Vec::new();
        for &stream in streams {
            behind.extend(self.behind(stream)?);
        }
        behind.extend(self.behind_communication(&work));
        let host = self.host.clone();
        let work = self.seal(work);
        let mark = work.clone();
        let what = self.located(first, &what)?;
        let ticket = self.pending.add(Request { context, lane, work, behind, host, what });
        for &stream in streams {
            self.streams.get_mut(stream)?.tail = ticket.clone();
        }
        self.posted(&mark, &ticket);
        self.progress = std::time::Instant::now();
        self.notify();
        Ok(ticket)
    }

    /// What work is, and in which stream, for messages: 0 is a context's own, all others count as they were made.
    fn located(&self, stream: u64, what: &str) -> Result<Arc<str>, Code> {
        let context = self.streams.get(stream)?.context;
        let legacy = self.contexts.get(context)?.legacy == stream;
        let number = if legacy { 0 } else { self.streams.number(stream) };
        Ok(format!("{what} (stream {number})").into())
    }

    /// What the next work of a stream is behind.
    fn behind(&mut self, stream: u64) -> Result<Vec<Ticket>, Code> {
        let of = self.streams.get(stream)?;
        let mut behind = vec![of.tail.clone()];
        if of.blocking {
            let legacy = self.contexts.get(of.context)?.legacy;
            let context = of.context;
            if stream == legacy {
                let others = self.streams.iter().map(|(_, s)| s);
                let others: Vec<_> = others.filter(|s| s.context == context && s.blocking).collect();
                if others.iter().any(|s| s.capture.is_some()) {
                    return Err(Code::STREAM_CAPTURE_IMPLICIT);
                }
                behind.extend(others.iter().map(|s| s.tail.clone()));
            } else {
                behind.push(self.streams.get(legacy)?.tail.clone());
            }
        }
        Ok(behind)
    }

    /// Stands for all that was put into a stream so far.
    pub fn ticket_of(&mut self, stream: u64) -> Result<Ticket, Code> {
        if self.streams.get(stream)?.blocking {
            return self.submit(stream, Work::Nothing, "synchronisation".to_owned());
        }
        Ok(self.streams.get(stream)?.tail.clone())
    }

    /// The capture that streams are part of, all of the same or of none.
    fn capture_of(&mut self, streams: &[u64]) -> Result<Option<u64>, Code> {
        let mut found = None;
        for (index, &stream) in streams.iter().enumerate() {
            let capture = self.streams.get(stream)?.capture.as_ref().map(|joined| joined.capture);
            if index > 0 && capture != found {
                let why = "one operation over streams of which not all are captured into the same graph";
                return Err(self.refuse(Code::STREAM_CAPTURE_MERGE, why));
            }
            found = capture;
        }
        Ok(found)
    }

    fn append(&mut self, id: u64, streams: &[u64], work: Work, what: String) -> Result<Ticket, Code> {
        let refused = match &work {
            Work::HostToDevice { src: crate::work::Source::Bytes(_), .. } => {
                Some("a copy from pageable memory")
            }
            Work::Alloc { .. } | Work::Free { .. } => Some("allocation"),
            _ => None,
        };
        if let Some(kind) = refused {
            self.break_capture(id);
            let why = format!("{kind} while its stream is captured into a graph");
            return Err(self.refuse(Code::STREAM_CAPTURE_UNSUPPORTED, why));
        }
        let mut behind = BTreeSet::new();
        for &stream in streams {
            behind.extend(self.streams.get(stream)?.capture.iter().flat_map(|j| j.frontier.iter().copied()));
        }
        let context = self.streams.get(streams[0])?.context;
        let what = self.located(streams[0], &what)?;
        let capture = self.captures.get_mut(&id).ok_or(Code::INVALID_HANDLE)?;
        if capture.broken {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        capture.steps.push(Step { context, stream: streams[0], work, behind, what });
        let frontier = BTreeSet::from([capture.steps.len() - 1]);
        for &stream in streams {
            self.streams.get_mut(stream)?.capture = Some(Joined { capture: id, frontier: frontier.clone() });
        }
        Ok(Ticket::done_already())
    }

    fn break_capture(&mut self, id: u64) {
        if let Some(capture) = self.captures.get_mut(&id) {
            capture.broken = true;
        }
    }

    /// Refuses what must not be done to a stream that is being captured.
    pub fn refuse_captured(&mut self, stream: u64, what: &str) -> Result<(), Code> {
        let Some(joined) = self.streams.get(stream)?.capture.clone() else { return Ok(()) };
        self.break_capture(joined.capture);
        let why = format!("{what} of a stream that is being captured into a graph");
        Err(self.refuse(Code::STREAM_CAPTURE_UNSUPPORTED, why))
    }

    /// Refuses calls that may wait for the device while this thread (or, in the global mode, any) captures.
    pub fn refuse_while_capturing(&mut self, what: &str) -> Result<(), Code> {
        let here = self.threads.here();
        let forbids = |capture: &Capture| match capture.mode {
            RELAXED => false,
            THREAD_LOCAL => capture.thread == here,
            _ => true,
        };
        let Some((&id, _)) = self.captures.iter().find(|(_, c)| forbids(c)) else { return Ok(()) };
        self.break_capture(id);
        let why = format!("{what} while a stream is being captured into a graph");
        Err(self.refuse(Code::STREAM_CAPTURE_UNSUPPORTED, why))
    }

    /// `cuStreamBeginCapture`.
    pub fn begin_capture(&mut self, stream: u64, mode: u32) -> Result<(), Code> {
        let of = self.streams.get(stream)?;
        let legacy = self.contexts.get(of.context)?.legacy;
        if stream == legacy {
            return Err(self.refuse(Code::STREAM_CAPTURE_UNSUPPORTED, "stream 0 cannot be captured"));
        }
        if of.capture.is_some() || mode > RELAXED {
            return Err(Code::INVALID_VALUE);
        }
        let thread = self.threads.here();
        let id = self.new_lane().0.into();
        self.captures.insert(id, Capture { origin: stream, mode, thread, steps: Vec::new(), broken: false });
        self.streams.get_mut(stream)?.capture = Some(Joined { capture: id, frontier: BTreeSet::new() });
        Ok(())
    }

    /// `cuStreamEndCapture`: the graph's handle.
    pub fn end_capture(&mut self, stream: u64) -> Result<u64, Code> {
        let Some(joined) = self.streams.get(stream)?.capture.clone() else {
            return Err(self.refuse(Code::ILLEGAL_STATE, "the stream is not being captured"));
        };
        let here = self.threads.here();
        let capture = self.captures.get(&joined.capture).ok_or(Code::INVALID_HANDLE)?;
        if capture.origin != stream {
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != RELAXED && capture.thread != here {
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        for (_, other) in self.streams.iter_mut() {
            if other.capture.as_ref().is_some_and(|j| j.capture == joined.capture) {
                other.capture = None;
            }
        }
        let capture = self.captures.remove(&joined.capture).ok_or(Code::INVALID_HANDLE)?;
        if capture.broken {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        if let Some(step) = unjoined(&capture.steps, &joined.frontier) {
            let why =
                format!("captured work that the capture's first stream does not wait for: {}", step.what);
            return Err(self.refuse(Code::STREAM_CAPTURE_UNJOINED, why));
        }
        Ok(self.graphs.insert(Graph { steps: capture.steps.into() }))
    }

    /// `CUstreamCaptureStatus` of a stream: none, active, invalidated.
    pub fn capture_status(&self, stream: u64) -> Result<(u32, u64), Code> {
        let Some(joined) = &self.streams.get(stream)?.capture else { return Ok((0, 0)) };
        let broken = self.captures.get(&joined.capture).is_none_or(|c| c.broken);
        Ok((if broken { 2 } else { 1 }, joined.capture))
    }

    /// `cuGraphInstantiate`.
    pub fn instantiate(&mut self, graph: u64) -> Result<u64, Code> {
        let steps = self.graphs.get(graph)?.steps.clone();
        let mut lanes = BTreeMap::new();
        for step in steps.iter() {
            lanes.entry(step.stream).or_insert_with(|| self.new_lane());
        }
        Ok(self.execs.insert(Exec { steps, lanes, last: Ticket::done_already() }))
    }

    /// `cuGraphLaunch`.
    pub fn launch_graph(&mut self, exec: u64, stream: u64) -> Result<(), Code> {
        let of = self.execs.get(exec)?;
        let (steps, lanes, last) = (of.steps.clone(), of.lanes.clone(), of.last.clone());
        self.refuse_captured(stream, "launch of a graph in a capture")?;
        for step in steps.iter() {
            self.sound_context(step.context)?;
        }
        let mut start = self.behind(stream)?;
        start.push(last);
        let host = self.host.clone();
        let mut tickets: Vec<Ticket> = Vec::with_capacity(steps.len());
        for step in steps.iter() {
            let mut behind: Vec<Ticket> = step.behind.iter().map(|&s| tickets[s].clone()).collect();
            if behind.is_empty() {
                behind.clone_from(&start);
            }
            behind.extend(self.behind_communication(&step.work));
            let lane = lanes.get(&step.stream).copied().ok_or(Code::INVALID_VALUE)?;
            let Step { context, work, what, .. } = step.clone();
            let work = self.seal(work);
            let mark = work.clone();
            let ticket = self.pending.add(Request { context, lane, work, behind, host: host.clone(), what });
            self.posted(&mark, &ticket);
            tickets.push(ticket);
        }
        // The stream goes on behind all of it.
        let mut behind = start;
        behind.extend(tickets);
        let (context, lane) = (self.streams.get(stream)?.context, self.streams.get(stream)?.lane);
        let (work, what) = (Work::Nothing, "end of a graph".into());
        let end = self.pending.add(Request { context, lane, work, behind, host, what });
        self.streams.get_mut(stream)?.tail = end.clone();
        self.execs.get_mut(exec)?.last = end;
        self.progress = std::time::Instant::now();
        self.notify();
        Ok(())
    }

    /// `cuEventRecord`.
    pub fn record(&mut self, event: u64, stream: u64) -> Result<(), Code> {
        if self.events.get(event)?.context != self.streams.get(stream)?.context {
            let why = "an event is recorded in a stream of another context than its own";
            return Err(self.refuse(Code::INVALID_HANDLE, why));
        }
        let joined = self.streams.get(stream)?.capture.clone();
        let recorded = match joined {
            Some(Joined { capture, frontier }) => Recorded::Captured { capture, frontier },
            None => {
                let context = self.streams.get(stream)?.context;
                self.sound_context(context)?;
                Recorded::Work(self.ticket_of(stream)?)
            }
        };
        self.events.get_mut(event)?.recorded = recorded;
        Ok(())
    }

    /// `cuStreamWaitEvent`.
    pub fn wait_event(&mut self, stream: u64, event: u64) -> Result<(), Code> {
        let recorded = self.events.get(event)?.recorded.clone();
        let joined = self.streams.get(stream)?.capture.clone();
        match (recorded, joined) {
            (Recorded::Never, _) => Ok(()),
            (Recorded::Work(_), Some(joined)) => {
                self.break_capture(joined.capture);
                let why = "a captured stream waits for an event of work outside its capture";
                Err(self.refuse(Code::STREAM_CAPTURE_ISOLATION, why))
            }
            (Recorded::Captured { capture, .. }, Some(joined)) if joined.capture != capture => {
                Err(Code::STREAM_CAPTURE_MERGE)
            }
            (Recorded::Captured { capture, frontier }, joined) => {
                if !self.captures.contains_key(&capture) {
                    return Err(self.refuse(Code::INVALID_VALUE, "the event is of a capture that has ended"));
                }
                let mut all = joined.map(|j| j.frontier).unwrap_or_default();
                all.extend(frontier);
                self.streams.get_mut(stream)?.capture = Some(Joined { capture, frontier: all });
                Ok(())
            }
            (Recorded::Work(ticket), None) => {
                let of = self.streams.get(stream)?;
                let (context, lane) = (of.context, of.lane);
                self.sound_context(context)?;
                let mut behind = self.behind(stream)?;
                behind.push(ticket);
                let (host, what) = (self.host.clone(), "wait for an event".into());
                let request = Request { context, lane, work: Work::Nothing, behind, host, what };
                self.streams.get_mut(stream)?.tail = self.pending.add(request);
                Ok(())
            }
        }
    }
}

/// A step that is not before (or in) the frontier.
fn unjoined<'a>(steps: &'a [Step], frontier: &BTreeSet<usize>) -> Option<&'a Step> {
    let mut joined = frontier.clone();
    let mut next: Vec<usize> = frontier.iter().copied().collect();
    while let Some(step) = next.pop() {
        next.extend(steps[step].behind.iter().copied().filter(|&s| joined.insert(s)));
    }
    (0..steps.len()).find(|s| !joined.contains(s)).map(|s| &steps[s])
}
