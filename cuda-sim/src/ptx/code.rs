//! Kernels made ready to run: registers are slots, labels are indices, names are addresses.
//!
//! A slot holds one value a lane of a warp, zero-extended to 64 bits, and one poison bit for each of its bytes. Immediates and special registers are
//! slots too, so that every operand is one.

use std::sync::Arc;

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;
/// A slot's values.
pub(crate) type Values = [u64; LANES];
/// A slot's poison: bit i of a lane is set if byte i of its value was never given a value.
pub(crate) type Poison = [u8; LANES];
/// Index of a slot.
pub(crate) type Slot = u32;

pub(crate) type One = fn(&mut Values, &Values);
pub(crate) type Two = fn(&mut Values, &Values, &Values);
pub(crate) type Three = fn(&mut Values, &Values, &Values, &Values);

/// Where shared memory starts: a GPU of capability 9 keeps the first KiB to itself.
pub(crate) const SHARED_START: u64 = 1024;
/// Where local memory of a thread starts.
pub(crate) const LOCAL_START: u64 = 256;
/// Generic addresses of shared and of local memory.
pub(crate) const SHARED_WINDOW: u64 = 0x1000_0000_0000;
pub(crate) const LOCAL_WINDOW: u64 = 0x2000_0000_0000;
/// Bytes of a window.
pub(crate) const WINDOW: u64 = 1 << 32;
/// Addresses of initialised variables of a module.
pub(crate) const DATA_START: u64 = 0x6000_0000_0000;

/// What a kernel runs.
#[derive(Debug)]
pub(crate) struct Code {
    pub(crate) instructions: Vec<Instruction>,
    /// The whole PTX text, for messages.
    pub(crate) text: Arc<str>,
    pub(crate) slots: usize,
    pub(crate) constants: Vec<(Slot, u64)>,
    pub(crate) specials: Vec<(Slot, Special)>,
    pub(crate) shared: Vec<Region>,
    /// Where dynamic shared memory starts.
    pub(crate) dynamic: u64,
    pub(crate) uses_dynamic: bool,
    /// Bytes of local memory of a thread, and its variables.
    pub(crate) local: Vec<Region>,
    pub(crate) data: Arc<Vec<Data>>,
    pub(crate) params: Vec<Region>,
    /// Bytes of the smallest write to shared and to global memory, to which races are tracked.
    pub(crate) shared_grain: u8,
    pub(crate) global_grain: u8,
}

/// Where a variable lies in its state space.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) name: String,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

/// An initialised variable of the module.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) name: String,
    pub(crate) start: u64,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Instruction {
    pub(crate) op: Op,
    /// Lanes whose predicate is (`false`: is not) this take part.
    pub(crate) guard: Option<(Slot, bool)>,
    pub(crate) line: u32,
    /// 0 for what the decoder added to an instruction of the text.
    pub(crate) counts: u8,
    /// Whether it is no `wgmma` and names a register that holds sums of one.
    pub(crate) names_sums: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    Lane,
    Warp,
    Warps,
    /// Lanes that are: equal, less, not greater, greater, not less.
    MaskEq,
    MaskLt,
    MaskLe,
    MaskGt,
    MaskGe,
    DynamicShared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    /// `.const`: variables of the module only.
    Data,
}

/// A slot's value plus an offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) base: Slot,
    pub(crate) offset: u64,
}

/// How poison of a byte passes through logic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logic {
    /// A zero byte in one operand hides poison in the other.
    And,
    /// Likewise of a byte of ones; in predicates one bit.
    Or(u8),
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shift {
    Left,
    Right,
    /// Right, the sign fills.
    Signed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VoteMode {
    All,
    Any,
    Uniform,
    Ballot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    F16,
    BF16,
}

/// One step. `bytes` is the width of the result.
#[derive(Debug)]
pub(crate) enum Op {
    /// Any poison in an operand makes the result poison.
    One {
        f: One,
        d: Slot,
        a: Slot,
        bytes: u8,
    },
    Two {
        f: Two,
        d: Slot,
        a: Slot,
        b: Slot,
        bytes: u8,
    },
    Three {
        f: Three,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
        bytes: u8,
    },
    /// Like `Two`; the result is poison where b is zero, since PTX leaves it open.
    Divide {
        f: Two,
        d: Slot,
        a: Slot,
        b: Slot,
        bytes: u8,
    },
    Logic {
        logic: Logic,
        d: Slot,
        a: Slot,
        b: Slot,
    },
    Shift {
        f: Two,
        shift: Shift,
        d: Slot,
        a: Slot,
        b: Slot,
        bytes: u8,
    },
    Permute {
        d: Slot,
        a: Slot,
        b: Slot,
        selector: Slot,
    },
    Lop3 {
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
        table: u8,
    },
    /// The low bytes, zero-extended.
    Move {
        d: Slot,
        a: Slot,
        bytes: u8,
    },
    /// `a` where the predicate is true, else `b`.
    Select {
        d: Slot,
        a: Slot,
        b: Slot,
        p: Slot,
        bytes: u8,
    },
    /// The first part lowest; `bytes` is the width of one.
    Pack {
        d: Slot,
        parts: Box<[Slot]>,
        bytes: u8,
    },
    Unpack {
        parts: Box<[Option<Slot>]>,
        a: Slot,
        bytes: u8,
    },
    /// `signed`: extended to `width` bytes.
    Param {
        d: Box<[(Option<Slot>, u8)]>,
        offset: u64,
        bytes: u8,
        signed: bool,
    },
    Load {
        space: Space,
        d: Box<[(Option<Slot>, u8)]>,
        at: Address,
        bytes: u8,
        signed: bool,
        constant: bool,
    },
    Store {
        space: Space,
        s: Box<[Slot]>,
        at: Address,
        bytes: u8,
    },
    Atomic {
        space: Space,
        d: Option<Slot>,
        at: Address,
        a: Slot,
        b: Slot,
        bytes: u8,
        f: fn(u64, u64, u64) -> u64,
    },
    CopyAsync {
        to: Address,
        from: Address,
        bytes: u8,
        have: Option<Slot>,
    },
    Commit,
    /// Waits until at most so many groups of copies are under way.
    Wait {
        groups: u32,
    },
    LoadMatrix {
        d: Box<[Slot]>,
        at: Address,
        transposed: bool,
    },
    Mma {
        d: [Slot; 4],
        a: Box<[Slot]>,
        b: Box<[Slot]>,
        c: [Slot; 4],
        half: Half,
    },
    Wgmma(Box<Wgmma>),
    /// Orders accesses to the registers of sums before products that begin later.
    WgmmaFence,
    WgmmaCommit,
    /// Waits until at most so many groups of products are under way.
    WgmmaWait {
        groups: u32,
    },
    /// What the thread has written to shared memory can be read by products of warpgroups.
    ProxyFence,
    Branch {
        to: u32,
        uniform: bool,
    },
    Table {
        index: Slot,
        to: Box<[u32]>,
    },
    Exit,
    /// `trap`: the kernel gives up.
    Trap,
    Barrier {
        id: Slot,
        threads: Option<Slot>,
        waits: bool,
    },
    WarpSync {
        mask: Slot,
    },
    Shuffle {
        mode: ShuffleMode,
        d: Slot,
        p: Option<Slot>,
        a: Slot,
        b: Slot,
        c: Slot,
        mask: Slot,
    },
    Vote {
        mode: VoteMode,
        d: Slot,
        p: Slot,
        negated: bool,
        mask: Slot,
    },
    /// A reduction of 32-bit values over the lanes of the mask.
    Reduce {
        f: fn(u32, u32) -> u32,
        d: Slot,
        a: Slot,
        mask: Slot,
    },
    /// Which lanes have the same value; with `all`: all lanes if all have it, else none, and a predicate that says so.
    Match {
        d: Slot,
        a: Slot,
        all: bool,
        p: Option<Slot>,
        mask: Slot,
    },
    ActiveMask {
        d: Slot,
    },
    /// Orders memory accesses of one thread, which here never pass each other.
    Fence,
}

/// `wgmma.mma_async` of depth 16 with f32 sums: both matrices in shared memory.
#[derive(Debug)]
pub(crate) struct Wgmma {
    /// Columns of the product.
    pub(crate) n: u32,
    pub(crate) half: Half,
    pub(crate) d: Box<[Slot]>,
    /// Descriptors of a and b.
    pub(crate) descriptors: [Slot; 2],
    /// Whether sums are added to, a predicate.
    pub(crate) adds: Slot,
    /// Whether a and b are negated.
    pub(crate) negative: [bool; 2],
    /// Whether a is M-major, b N-major; else they are K-major.
    pub(crate) transposed: [bool; 2],
}

/// Poison of all bytes of a width.
pub(crate) fn whole(bytes: u8) -> u8 {
    ((1u16 << bytes) - 1) as u8
}

/// The low bytes of a value.
pub(crate) fn low(value: u64, bytes: u8) -> u64 {
    if bytes >= 8 { value } else { value & ((1 << (8 * bytes)) - 1) }
}
