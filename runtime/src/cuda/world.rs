//! One process a GPU, as torchrun, srun and mpirun start them: which rank a process is, and what processes tell each other beside NCCL.
//!
//! Rank 0 listens at the master's address; every other process keeps one connection to it. Over those go the names of NCCL's communicators, at the
//! start, what each rank has of the outputs, after every run, and whatever ends a rank. A connection that ends, ends the run.

use super::control::{Control, Stopped, lock};
use pcc_ir::Diagnostic;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Which process this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct World {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Which of the processes of its machine.
    pub(super) local: usize,
    /// Host and port of rank 0.
    master: String,
}

/// Rank, size and local rank, as launchers name them.
const LAUNCHERS: [[&str; 3]; 4] = [
    ["RANK", "WORLD_SIZE", "LOCAL_RANK"],
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
    ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"],
];
/// Where rank 0 listens when nobody says.
const PORT: &str = "29577";

impl World {
    /// From the environment; `None` where no launcher started several processes.
    ///
    /// # Errors
    /// Variables that contradict each other, or say too little.
    pub(super) fn find(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Diagnostic> {
        let number = |name: &str| get(name).and_then(|s| s.trim().parse::<usize>().ok());
        for [rank, size, local] in LAUNCHERS {
            // Batch systems set the size for what they run once, too: a rank of its own has every process they start.
            let (Some(rank_number), Some(count)) = (number(rank), number(size)) else { continue };
            if count <= 1 {
                continue;
            }
            if rank_number >= count {
                return Err(Diagnostic::usage(format!("{rank} is {rank_number}, {size} is {count}"))
                    .why("ranks count from 0")
                    .help("start the processes with torchrun, srun or mpirun"));
            }
            let Some(local) = number(local) else {
                return Err(Diagnostic::usage(format!("{local} is not set, but {rank} is"))
                    .why("it says which GPU of its machine a process has")
                    .help(format!("set {local} to 0, 1, .. on each machine")));
            };
            let host = get("MASTER_ADDR").or_else(|| get("SLURM_LAUNCH_NODE_IPADDR"));
            let host = host.unwrap_or_else(|| "127.0.0.1".to_owned());
            let port = get("MASTER_PORT").unwrap_or_else(|| PORT.to_owned());
            return Ok(Some(Self {
                rank: rank_number,
                size: count,
                local,
                master: format!("{host}:{port}"),
            }));
        }
        Ok(None)
    }
}

/// A frame is a kind, a length, and as many bytes.
const DATA: u8 = 0;
const FAILURE: u8 = 1;
/// Longest frame: outputs of one rank. More is a stranger's.
const LONGEST: u64 = 1 << 36;
/// Begins every connection, so that strangers are told apart.
const GREETING: &[u8; 8] = b"pccrank1";

/// What arrives at one end of a connection.
struct Line {
    stream: Arc<Mutex<TcpStream>>,
    frames: Receiver<Vec<u8>>,
}

/// All processes of a run.
pub(super) struct Assembly {
    rank: usize,
    size: usize,
    /// Of rank 0: to ranks 1, 2, ..; of others: to rank 0.
    lines: Vec<Line>,
    control: Arc<Control>,
}

impl Assembly {
    /// Meets the other processes. `program` names what they run.
    ///
    /// # Errors
    /// They do not come in time, run something else, or nobody can listen or connect.
    pub(super) fn meet(
        world: &World,
        program: &str,
        patience: Duration,
        control: &Arc<Control>,
    ) -> Result<Self, Diagnostic> {
        let broken = |e: std::io::Error| {
            Diagnostic::run(format!("rank {} of {} cannot meet the others", world.rank, world.size))
                .at(world.master.clone())
                .why(e.to_string())
                .help("MASTER_ADDR and MASTER_PORT name a free port of the machine of rank 0")
        };
        let streams = match world.rank {
            0 => accept(world, program, patience).map_err(broken)?,
            _ => vec![connect(world, program, patience).map_err(broken)?],
        };
        let lines = streams.into_iter().enumerate().map(|(i, stream)| {
            let peer = if world.rank == 0 { i + 1 } else { 0 };
            line(stream, peer, control.clone()).map_err(broken)
        });
        let (rank, size) = (world.rank, world.size);
        Ok(Self { rank, size, lines: lines.collect::<Result<_, _>>()?, control: control.clone() })
    }

    /// What rank 0 has, on every rank.
    pub(super) fn share(&self, own: &[u8]) -> Result<Vec<u8>, Diagnostic> {
        if self.rank == 0 {
            self.lines.iter().try_for_each(|l| self.send(l, DATA, own))?;
            return Ok(own.to_vec());
        }
        self.lines.first().map_or_else(|| Ok(own.to_vec()), |l| self.receive(l))
    }

    /// What every rank has, in their order, on every rank.
    pub(super) fn gather(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, Diagnostic> {
        let mut all = vec![own];
        if self.rank == 0 {
            for l in &self.lines {
                all.push(self.receive(l)?);
            }
            for bytes in &all {
                self.lines.iter().try_for_each(|l| self.send(l, DATA, bytes))?;
            }
            return Ok(all);
        }
        let Some(l) = self.lines.first() else { return Ok(all) };
        self.send(l, DATA, &all[0])?;
        (0..self.size).map(|_| self.receive(l)).collect()
    }

    /// Tells the others why this rank ends.
    pub(super) fn tell_failure(&self, why: &Diagnostic) {
        for l in &self.lines {
            // Whoever has gone already needs no word.
            let _ = self.send(l, FAILURE, why.to_string().as_bytes());
        }
    }

    fn send(&self, l: &Line, kind: u8, bytes: &[u8]) -> Result<(), Diagnostic> {
        let mut stream = lock(&l.stream);
        write_frame(&mut stream, kind, bytes).map_err(|e| self.lost(&e.to_string()))
    }

    fn receive(&self, l: &Line) -> Result<Vec<u8>, Diagnostic> {
        loop {
            match l.frames.recv_timeout(Duration::from_millis(50)) {
                Ok(bytes) => return Ok(bytes),
                Err(RecvTimeoutError::Timeout) if self.control.go_on().is_ok() => {}
                Err(_) => return Err(self.lost("the connection ended")),
            }
        }
    }

    fn lost(&self, why: &str) -> Diagnostic {
        self.control.failure().unwrap_or_else(|| {
            Diagnostic::run(format!("rank {} lost another rank", self.rank))
                .why(why.to_owned())
                .help("its own message, if it gave one, says more")
        })
    }
}

fn other(why: impl Into<String>) -> std::io::Error {
    std::io::Error::other(why.into())
}

/// What a process says first: who it is, of how many, and what it runs.
fn greeting(world: &World, program: &str) -> Vec<u8> {
    let mut text = GREETING.to_vec();
    text.extend((world.rank as u64).to_le_bytes());
    text.extend((world.size as u64).to_le_bytes());
    text.extend(program.as_bytes());
    text
}

/// Rank 0: a connection to each of the others, in order.
fn accept(world: &World, program: &str, patience: Duration) -> std::io::Result<Vec<TcpStream>> {
    let (start, listener) = (Instant::now(), TcpListener::bind(&world.master)?);
    listener.set_nonblocking(true)?;
    let mut found: Vec<Option<TcpStream>> = (1..world.size).map(|_| None).collect();
    while let Some(missing) = found.iter().position(Option::is_none) {
        if start.elapsed() > patience {
            return Err(other(format!("rank {} did not come in {} s", missing + 1, patience.as_secs())));
        }
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            Err(e) => return Err(e),
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let own = greeting(world, program);
        // A stranger, or one that says nothing, is let go.
        let Ok((DATA, said)) = read_frame(&mut stream, own.len() as u64 + 64) else { continue };
        let Some((theirs, rest)) = said.split_at_checked(GREETING.len()) else { continue };
        let (Some((rank, rest)), true) = (rest.split_first_chunk::<8>(), theirs == GREETING) else {
            continue;
        };
        let rank = usize::try_from(u64::from_le_bytes(*rank)).unwrap_or(usize::MAX);
        if rest != &own[GREETING.len() + 8..] {
            let why = format!("rank {rank} runs another artifact, or counts another number of ranks");
            let _ = write_frame(&mut stream, FAILURE, why.as_bytes());
            return Err(other(why));
        }
        match rank.checked_sub(1).and_then(|i| found.get_mut(i)) {
            Some(place @ None) => {
                write_frame(&mut stream, DATA, GREETING)?;
                *place = Some(stream);
            }
            _ => return Err(other(format!("two processes say that they are rank {rank}"))),
        }
    }
    Ok(found.into_iter().flatten().collect())
}

/// Another rank: the connection to rank 0, which may start later.
fn connect(world: &World, program: &str, patience: Duration) -> std::io::Result<TcpStream> {
    let start = Instant::now();
    let mut stream = loop {
        let addresses = world.master.to_socket_addrs()?;
        let mut tried = addresses.map(|a| TcpStream::connect_timeout(&a, Duration::from_secs(2)));
        match tried.find_map(Result::ok) {
            Some(stream) => break stream,
            None if start.elapsed() > patience => return Err(other("rank 0 does not answer")),
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    write_frame(&mut stream, DATA, &greeting(world, program))?;
    stream.set_read_timeout(Some(patience))?;
    match read_frame(&mut stream, 1 << 16)? {
        (DATA, said) if said == GREETING => Ok(stream),
        (_, said) => Err(other(String::from_utf8_lossy(&said).into_owned())),
    }
}

/// Reads a connection for as long as it lasts; its end, or a word of failure, ends the run.
fn line(stream: TcpStream, peer: usize, control: Arc<Control>) -> std::io::Result<Line> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(None)?;
    let mut reading = stream.try_clone()?;
    let (frame, frames): (Sender<Vec<u8>>, _) = channel();
    let ended = move |why: String| {
        let _: Stopped = control.fail_by(Diagnostic::run(format!("rank {peer} has ended")).why(why), true);
    };
    std::thread::Builder::new().name(format!("pcc-line-{peer}")).spawn(move || {
        loop {
            match read_frame(&mut reading, LONGEST) {
                Ok((DATA, bytes)) => {
                    if frame.send(bytes).is_err() {
                        return;
                    }
                }
                Ok((_, why)) => ended(String::from_utf8_lossy(&why).into_owned()),
                Err(e) => return ended(format!("its connection ended: {e}")),
            }
        }
    })?;
    Ok(Line { stream: Arc::new(Mutex::new(stream)), frames })
}

fn write_frame(stream: &mut TcpStream, kind: u8, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(&[kind])?;
    stream.write_all(&(bytes.len() as u64).to_le_bytes())?;
    stream.write_all(bytes)
}

/// Memory grows with what arrives, not with what is announced.
fn read_frame(stream: &mut TcpStream, longest: u64) -> std::io::Result<(u8, Vec<u8>)> {
    let (mut kind, mut length) = ([0], [0; 8]);
    stream.read_exact(&mut kind)?;
    stream.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > longest {
        return Err(other(format!("a message of {length} bytes")));
    }
    let mut bytes = Vec::new();
    stream.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == length { Ok((kind[0], bytes)) } else { Err(other("a message that ends early")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn find(variables: &[(&str, &str)]) -> Result<Option<World>, Diagnostic> {
        World::find(|name| variables.iter().find(|v| v.0 == name).map(|v| v.1.to_owned()))
    }

    #[test]
    fn launchers_are_known_by_their_variables() {
        assert_eq!(find(&[]).unwrap(), None);
        assert_eq!(find(&[("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")]).unwrap(), None);
        let torchrun = [
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "a"),
            ("MASTER_PORT", "9"),
        ];
        let want = World { rank: 3, size: 4, local: 1, master: "a:9".to_owned() };
        assert_eq!(find(&torchrun).unwrap(), Some(want));
        let slurm = [
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_LAUNCH_NODE_IPADDR", "b"),
        ];
        assert_eq!(find(&slurm).unwrap().unwrap().master, format!("b:{PORT}"));
        assert!(find(&[("RANK", "4"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0")]).is_err());
        assert!(find(&[("RANK", "1"), ("WORLD_SIZE", "4")]).unwrap_err().what.contains("LOCAL_RANK"));
    }

    fn control() -> Arc<Control> {
        Arc::new(Control::new(Arc::new(AtomicBool::new(false)), Duration::from_secs(20)))
    }

    /// A port that was free a moment ago.
    fn worlds(size: usize) -> Vec<World> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let world = |rank| World { rank, size, local: rank, master: format!("127.0.0.1:{port}") };
        (0..size).map(world).collect()
    }

    #[test]
    fn what_ranks_have_reaches_all() {
        std::thread::scope(|scope| {
            for world in worlds(3) {
                scope.spawn(move || {
                    let all = Assembly::meet(&world, "p", Duration::from_secs(20), &control()).unwrap();
                    let own = vec![world.rank as u8; 1000 * (world.rank + 1)];
                    assert_eq!(all.share(&own).unwrap(), vec![0; 1000]);
                    for _ in 0..3 {
                        let want: Vec<Vec<u8>> = (0..3).map(|r| vec![r; 1000 * (r as usize + 1)]).collect();
                        assert_eq!(all.gather(own.clone()).unwrap(), want);
                    }
                });
            }
        });
    }

    #[test]
    fn a_rank_that_ends_or_runs_something_else_ends_the_others() {
        let pair = worlds(2);
        std::thread::scope(|scope| {
            let first = pair[0].clone();
            scope.spawn(move || {
                let all = Assembly::meet(&first, "p", Duration::from_secs(20), &control()).unwrap();
                let lost = all.gather(vec![1]).unwrap_err();
                assert!(lost.to_string().contains("out of memory"), "{lost}");
            });
            let all = Assembly::meet(&pair[1], "p", Duration::from_secs(20), &control()).unwrap();
            all.tell_failure(&Diagnostic::run("out of memory"));
        });
        let pair = worlds(2);
        std::thread::scope(|scope| {
            let first = pair[0].clone();
            scope.spawn(move || {
                assert!(Assembly::meet(&first, "p", Duration::from_secs(20), &control()).is_err());
            });
            let refused = Assembly::meet(&pair[1], "q", Duration::from_secs(20), &control());
            assert!(refused.err().unwrap().to_string().contains("another artifact"));
        });
        let late = Assembly::meet(&worlds(2)[0], "p", Duration::from_millis(50), &control());
        assert!(late.err().unwrap().to_string().contains("rank 1 did not come"));
    }
}
