//! Random rounds of collectives, messages and copies on several ranks, streams and communicators, all properly ordered: what comes out is what
//! comes out one after another.

use crate::machine::{device, last_fault, seeded};
use cudarc::driver::{CudaStream, DevicePtr, result};
use cudarc::nccl::result as nccl;
use cudarc::nccl::sys::{ncclComm_t, ncclDataType_t::ncclInt32, ncclRedOp_t, ncclUniqueId};
use std::ffi::c_void;
use std::sync::Arc;

const RANKS: usize = 4;
/// Elements of a rank's memory.
const N: usize = 64;
/// Elements that an operation has of each rank.
const PART: usize = 8;

struct Random(u64);

impl Random {
    /// Knuth's MMIX generator; the high bits are good enough here.
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Copy,
    Reduce {
        in_place: bool,
    },
    Gather,
    Scatter,
    Broadcast {
        root: usize,
    },
    /// Each member sends to the next, as a group.
    Round,
    /// The first member sends to the last, without a group.
    Message,
}

/// A step that all ranks take. Members of the communicator read at `from` and write at `to`, which are apart.
#[derive(Clone, Copy, Debug)]
struct Step {
    kind: Kind,
    /// 0 for all ranks, 1 for pairs of neighbours.
    communicator: usize,
    from: usize,
    to: usize,
    stream: usize,
}

fn steps(random: &mut Random) -> Vec<Step> {
    let step = |_| {
        let communicator = random.below(2);
        let kind = match random.below(8) {
            0 => Kind::Copy,
            1 => Kind::Reduce { in_place: true },
            2 => Kind::Reduce { in_place: false },
            3 => Kind::Gather,
            4 => Kind::Scatter,
            5 => Kind::Broadcast { root: random.below(2) },
            6 => Kind::Round,
            _ => Kind::Message,
        };
        // Reads are in one half and writes in the other, each large enough for a part of every rank.
        let half = random.below(2) * N / 2;
        let (from, to) = (half, N / 2 - half);
        Step { kind, communicator, from, to, stream: random.below(2) }
    };
    (0..24).map(step).collect()
}

/// The ranks of a rank's communicator, in order.
fn members(rank: usize, communicator: usize) -> Vec<usize> {
    if communicator == 0 { (0..RANKS).collect() } else { vec![rank / 2 * 2, rank / 2 * 2 + 1] }
}

fn initial(rank: usize) -> Vec<i32> {
    (0..N as i32).map(|i| i * 10 + rank as i32 * 1000).collect()
}

/// All memories after the steps, one after another.
fn reference(steps: &[Step]) -> Vec<Vec<i32>> {
    let mut all: Vec<Vec<i32>> = (0..RANKS).map(initial).collect();
    for Step { kind, communicator, from, to, .. } in steps {
        let before = all.clone();
        for (rank, memory) in all.iter_mut().enumerate() {
            let members = members(rank, *communicator);
            let own = members.iter().position(|&m| m == rank).unwrap();
            let part = |of: usize, at: usize| before[of][at..at + PART].to_vec();
            let sum = |at: usize| -> Vec<i32> {
                (at..at + PART)
                    .map(|i| members.iter().fold(0, |s: i32, &m| s.wrapping_add(before[m][i])))
                    .collect()
            };
            let mut write =
                |at: usize, values: Vec<i32>| memory[at..at + values.len()].copy_from_slice(&values);
            match *kind {
                Kind::Copy => write(*to, part(rank, *from)),
                Kind::Reduce { in_place: true } => write(*from, sum(*from)),
                Kind::Reduce { in_place: false } => write(*to, sum(*from)),
                Kind::Gather => write(*to, members.iter().flat_map(|&m| part(m, *from)).collect()),
                Kind::Scatter => write(*to, sum(*from + own * PART)),
                Kind::Broadcast { root } => write(*to, part(members[root], *from)),
                Kind::Round => write(*to, part(members[(own + members.len() - 1) % members.len()], *from)),
                Kind::Message if own + 1 == members.len() => write(*to, part(members[0], *from)),
                Kind::Message => {}
            }
        }
    }
    all
}

/// One rank's communicators, and where its memory is.
struct Rank {
    rank: usize,
    communicators: [ncclComm_t; 2],
    memory: u64,
}

impl Rank {
    fn take(&self, step: &Step, stream: &CudaStream) -> Result<(), nccl::NcclError> {
        let Step { kind, communicator, from, to, .. } = *step;
        let at = |element: usize| (self.memory + 4 * element as u64) as *mut c_void;
        let (from, to) = (at(from), at(to));
        let (comm, sum) = (self.communicators[communicator], ncclRedOp_t::ncclSum);
        let members = members(self.rank, communicator);
        let own = members.iter().position(|&m| m == self.rank).unwrap();
        let raw = stream.cu_stream().cast();
        // SAFETY: all ranges lie in the rank's memory, which stays until its streams are done; the communicator lives.
        unsafe {
            match kind {
                Kind::Copy => {
                    let (to, from) = (to as u64, from as u64);
                    result::memcpy_dtod_async(to, from, 4 * PART, stream.cu_stream()).unwrap();
                }
                Kind::Reduce { in_place } => {
                    let to = if in_place { from } else { to };
                    nccl::all_reduce(from, to, PART, ncclInt32, sum, comm, raw)?;
                }
                Kind::Gather => {
                    nccl::all_gather(from, to, PART, ncclInt32, comm, raw)?;
                }
                Kind::Scatter => {
                    nccl::reduce_scatter(from, to, PART, ncclInt32, sum, comm, raw)?;
                }
                Kind::Broadcast { root } => {
                    nccl::broadcast(from, to, PART, ncclInt32, root as i32, comm, raw)?;
                }
                Kind::Round => {
                    let n = members.len();
                    nccl::group_start()?;
                    nccl::send(from, PART, ncclInt32, ((own + 1) % n) as i32, comm, raw)?;
                    nccl::recv(to, PART, ncclInt32, ((own + n - 1) % n) as i32, comm, raw)?;
                    nccl::group_end()?;
                }
                Kind::Message if own == 0 => {
                    nccl::send(from, PART, ncclInt32, members.len() as i32 - 1, comm, raw)?;
                }
                Kind::Message if own + 1 == members.len() => {
                    nccl::recv(to, PART, ncclInt32, 0, comm, raw)?;
                }
                Kind::Message => {}
            }
        }
        Ok(())
    }
}

/// Runs the steps as one rank, its streams ordered by events where the stream changes.
fn run(rank: usize, ids: [ncclUniqueId; 3], steps: &[Step]) -> Vec<i32> {
    let (context, stream) = device(rank);
    let streams: [Arc<CudaStream>; 2] = [stream.clone(), context.new_stream().unwrap()];
    let memory = stream.clone_htod(&initial(rank)).unwrap();
    let join = |id: ncclUniqueId, size: usize, number: usize| {
        let mut comm = std::ptr::null_mut();
        // SAFETY: the communicator is written before it is read.
        unsafe { nccl::comm_init_rank(&mut comm, size as i32, id, number as i32) }.unwrap();
        comm
    };
    let communicators = [join(ids[0], RANKS, rank), join(ids[1 + rank / 2], 2, rank % 2)];
    let own = Rank { rank, communicators, memory: memory.device_ptr(&stream).0 };
    let mut last = 0;
    for step in steps {
        if step.stream != last {
            streams[step.stream].join(&streams[last]).unwrap();
            last = step.stream;
        }
        own.take(step, &streams[last]).unwrap_or_else(|_| panic!("{step:?}: {}", last_fault()));
    }
    streams[last].synchronize().unwrap_or_else(|e| panic!("{e}: {}", last_fault()));
    for comm in own.communicators {
        // SAFETY: destroyed once.
        unsafe { nccl::comm_destroy(comm) }.unwrap();
    }
    stream.clone_dtoh(&memory).unwrap()
}

#[test]
fn ordered_rounds_come_out_as_one_after_another() {
    seeded("rounds::ordered_rounds_come_out_as_one_after_another", || {
        let seed: u64 = std::env::var("PCC_SIM_SEED").unwrap().parse().unwrap();
        for number in 0..20 {
            let steps = steps(&mut Random(seed << 32 | number));
            let ids = [(); 3].map(|()| nccl::get_uniqueid().unwrap());
            let found: Vec<Vec<i32>> = std::thread::scope(|scope| {
                let start = |rank| {
                    let steps = &steps;
                    scope.spawn(move || run(rank, ids, steps))
                };
                let threads: Vec<_> = (0..RANKS).map(start).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(found, reference(&steps), "{steps:?}");
        }
    });
}
