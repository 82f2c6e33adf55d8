//! What lanes of a warp tell each other.

use super::Trap;
use super::registers::lanes;
use super::warp::Warp;
use crate::ptx::code::{LANES, Op, ShuffleMode, Slot, VoteMode, whole};

impl Warp {
    /// Whether all lanes that a mask names are here, for each lane that is; `false`: some may still come. `last`: none can.
    pub(super) fn gathered(&self, mask: Slot, active: u32, last: bool) -> Result<bool, Trap> {
        // The usual case: a whole warp, and all of it wanted.
        let slot = mask as usize;
        let all = [u32::MAX.into(); LANES];
        if active == u32::MAX
            && self.registers.values[slot] == all
            && self.registers.poison[slot] == [0; LANES]
        {
            return Ok(true);
        }
        for lane in lanes(active) {
            let trap = |what: String| Err(Trap { lane, what });
            let (members, poison) = self.registers.get(mask, lane);
            let members = members as u32;
            if poison != 0 {
                return trap("an uninitialised mask of lanes".into());
            }
            if members >> lane & 1 == 0 {
                return trap(format!("its mask {members:#x} lacks the lane itself"));
            }
            if members & !self.alive() != 0 {
                return trap(format!(
                    "its mask {members:#x} names lanes {:#x} that are not there",
                    members & !self.alive()
                ));
            }
            if members & !active != 0 {
                return if last {
                    trap(format!(
                        "its mask {members:#x} names lanes {:#x} that do not come here",
                        members & !active
                    ))
                } else {
                    Ok(false)
                };
            }
            if let Some(other) = lanes(members).find(|&l| self.registers.get(mask, l).0 as u32 != members) {
                return trap(format!("its mask {members:#x} is not that of lane {other}"));
            }
        }
        Ok(true)
    }

    /// The first poisoned of some operands.
    fn known(&self, slots: &[Slot], active: u32, what: &str) -> Result<(), Trap> {
        match slots.iter().find_map(|&s| self.registers.poisoned(s, active)) {
            Some(lane) => Err(Trap { lane, what: format!("an uninitialised {what}") }),
            None => Ok(()),
        }
    }

    /// `shfl.sync`. (PTX ISA, its pseudo-code.)
    pub(super) fn shuffle(&mut self, op: &Op, active: u32) -> Result<(), Trap> {
        let Op::Shuffle { mode, d, p, a, b, c, mask } = op else { return Ok(()) };
        self.known(&[*b, *c], active, "lane of a shuffle")?;
        let from = self.registers.values[*a as usize];
        let bad = self.registers.poison[*a as usize];
        let mut results = [(0, 0, false); LANES];
        for lane in lanes(active) {
            let (b, c) = (self.registers.get(*b, lane).0 as i32 & 31, self.registers.get(*c, lane).0 as i32);
            let (clamp, segment) = (c & 31, c >> 8 & 31);
            let own = lane as i32;
            let (least, most) = (own & segment, own & segment | clamp & !segment);
            let (source, inside) = match mode {
                ShuffleMode::Up => (own - b, own - b >= most),
                ShuffleMode::Down => (own + b, own + b <= most),
                ShuffleMode::Butterfly => (own ^ b, own ^ b <= most),
                ShuffleMode::Index => (least | b & !segment, least | b & !segment <= most),
            };
            let source = if inside { source as usize } else { lane };
            if self.registers.get(*mask, lane).0 >> source & 1 == 0 {
                return Err(Trap { lane, what: format!("it reads lane {source}, which is not in its mask") });
            }
            results[lane] = (from[source], bad[source], inside);
        }
        for lane in lanes(active) {
            let (value, poison, inside) = results[lane];
            self.registers.set(*d, lane, value, poison);
            if let Some(p) = *p {
                self.registers.set(p, lane, inside.into(), 0);
            }
        }
        Ok(())
    }

    /// `vote.sync`, `redux.sync`, `match.sync`: functions of all members' values.
    pub(super) fn collect(&mut self, op: &Op, active: u32) {
        let mut results = [(0, 0, 0); LANES];
        let (mask, a) = match *op {
            Op::Vote { mask, p, .. } => (mask, p),
            Op::Reduce { mask, a, .. } | Op::Match { mask, a, .. } => (mask, a),
            _ => return,
        };
        for lane in lanes(active) {
            let members = self.registers.get(mask, lane).0 as u32;
            let values = |l: usize| self.registers.get(a, l).0;
            let poison = lanes(members).fold(0, |bad, l| bad | self.registers.get(a, l).1);
            let own = values(lane);
            let (value, second) = match *op {
                Op::Vote { mode, negated, .. } => {
                    let yes =
                        lanes(members).filter(|&l| (values(l) != 0) != negated).fold(0, |m, l| m | 1u32 << l);
                    let value = match mode {
                        VoteMode::All => u32::from(yes == members),
                        VoteMode::Any => u32::from(yes != 0),
                        VoteMode::Uniform => u32::from(yes == 0 || yes == members),
                        VoteMode::Ballot => yes,
                    };
                    (value, 0)
                }
                Op::Reduce { f, .. } => {
                    let joined = lanes(members).map(|l| values(l) as u32).reduce(f);
                    (joined.unwrap_or(0), 0)
                }
                Op::Match { all, .. } => {
                    let same = lanes(members).filter(|&l| values(l) == own).fold(0, |m, l| m | 1u32 << l);
                    let whole = same == members;
                    (if all && !whole { 0 } else { same }, u64::from(whole))
                }
                _ => (0, 0),
            };
            results[lane] = (value.into(), second, poison);
        }
        let (d, p, bytes) = match *op {
            Op::Vote { d, mode, .. } => (d, None, if mode == VoteMode::Ballot { 4 } else { 1 }),
            Op::Match { d, p, .. } => (d, p, 4),
            Op::Reduce { d, .. } => (d, None, 4),
            _ => return,
        };
        for lane in lanes(active) {
            let (value, second, poison) = results[lane];
            self.registers.set(d, lane, value, if poison == 0 { 0 } else { whole(bytes) });
            if let Some(p) = p {
                self.registers.set(p, lane, second, u8::from(poison != 0));
            }
        }
    }
}
