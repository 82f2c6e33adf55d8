//! Messages between stages. A send is posted: it copies the bytes into a slot of the link and goes on; a full link
//! makes the sender wait, an empty one the receiver.

use super::lock;
use crate::layout::{MAIL_SLOTS, Mail};
use crate::machine::Machine;
use crate::memory::Window;
use std::sync::Mutex;

/// State of one (sender, receiver, tag).
#[derive(Default)]
struct MailBox {
    sent: u64,
    received: u64,
    sender_waits: bool,
    receiver_waits: bool,
}

/// The message boxes of all devices.
pub(super) struct Links {
    boxes: Vec<Mutex<MailBox>>,
    stage_devices: usize,
}

/// What came of a send or recv.
pub(super) enum Passed {
    /// It is done; whether the device at the other end waited for it.
    Done { release: bool },
    /// The device has to wait, and will be released.
    Wait,
}

impl Links {
    pub(super) fn new(machine: &Machine) -> Self {
        let stage_devices = machine.layout.stage_devices();
        let most = machine.layout.mails.iter().map(Vec::len).max().unwrap_or(0);
        Self { boxes: (0..most * stage_devices).map(|_| Mutex::default()).collect(), stage_devices }
    }

    pub(super) fn reset(&self) {
        self.boxes.iter().for_each(|b| *lock(b) = MailBox::default());
    }

    /// Sends `from` over mail number `index` for the devices at `position` of their stages.
    pub(super) fn send(
        &self,
        machine: &Machine,
        mail: &Mail,
        index: usize,
        position: usize,
        from: &Window<'_>,
    ) -> Passed {
        let mut state = lock(&self.boxes[index * self.stage_devices + position]);
        if state.sent - state.received == MAIL_SLOTS {
            state.sender_waits = true;
            return Passed::Wait;
        }
        let at = machine.layout.mail(mail, mail.to * self.stage_devices + position, state.sent);
        machine.memory.window(at.offset, at.len).copy_from(from);
        state.sent += 1;
        Passed::Done { release: std::mem::take(&mut state.receiver_waits) }
    }

    /// Receives into `to`.
    pub(super) fn recv(
        &self,
        machine: &Machine,
        mail: &Mail,
        index: usize,
        position: usize,
        to: &Window<'_>,
    ) -> Passed {
        let mut state = lock(&self.boxes[index * self.stage_devices + position]);
        if state.sent == state.received {
            state.receiver_waits = true;
            return Passed::Wait;
        }
        let at = machine.layout.mail(mail, mail.to * self.stage_devices + position, state.received);
        to.copy_from(&machine.memory.window(at.offset, at.len));
        state.received += 1;
        Passed::Done { release: std::mem::take(&mut state.sender_waits) }
    }
}
