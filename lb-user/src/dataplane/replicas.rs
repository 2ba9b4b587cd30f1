//! Replicas: flows of another box, which stand ready in the table at the ids of their SNAT ports. The data plane translates what
//! comes for one as it does for any flow.
//!
//! Entries change by the rules of the data plane: claim, fields, publish, index, and each word by compare-and-swap. Of two boxes that
//! know a flow the one is right that has forwarded its latest packet.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use anyhow::Result;
use lb_common::{
    addr::{Be16, Be32, Be128},
    conntrack::FlowState,
    maps::{
        flow::{Flow, FlowKey},
        flow_line::NotIndexed,
        snat::slot,
    },
};

use super::{
    counts::CountTable,
    flow_lines::FlowLines,
    flows::{FlowOwners, FlowTable, UsageTable},
    ids::FreeIds,
    mapped::MappedArray,
    maps::Maps,
    splices::{FlowNumbers, SpliceTable},
};

/// A flow as another box has it, with the ids, times and labels of this one.
#[derive(Clone, Debug)]
pub struct Replica {
    /// The word that it has there, of which the generation means nothing here.
    pub word: FlowState,
    /// Its fields, without traffic: each box counts what it has forwarded itself.
    pub flow: Flow,
    /// Its client, if it is a flow of IPv6.
    pub client: Option<Be128>,
    /// What its numbers are translated by, if they are; of which id and generation mean nothing here.
    pub numbers: Option<FlowNumbers>,
    /// The name that its client has requested; or nothing.
    pub name: String,
}

impl Replica {
    fn key(&self) -> FlowKey {
        self.flow.key(self.word.is_udp())
    }
}

/// The client's end of a flow, and the VIP's, as they stand in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientEnd {
    /// The client, or what stands for its IPv6 address.
    pub client: (Be32, Be16),
    /// The VIP, or its label.
    pub vip: (Be32, Be16),
}

impl ClientEnd {
    /// That of a flow.
    pub const fn of(flow: &Flow) -> Self {
        Self {
            client: (flow.client, flow.client_port),
            vip: (flow.vip, flow.vip_port),
        }
    }
}

/// What has become of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// It stands ready.
    Ready,
    /// This box has forwarded a later packet of the port: what it has is right.
    Later,
    /// A flow of the client at another port was seen later: the client's packets are for that one.
    Taken,
    /// A CPU or another thread has changed the entry meanwhile, or the index has no room: it is to come again.
    Busy,
}

/// What a replica means for the entry at its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Merge {
    /// Nothing is there, or what is over.
    Put,
    /// It is there: its numbers may be newer.
    Renew,
    /// Another flow is there, which has ended.
    Replace,
    /// What is there is right.
    Keep,
}

/// What a replica means for an entry with this word and these fields. The entry is right if this box has forwarded a packet of it, and
/// later than the other box.
fn merge(word: FlowState, flow: &Flow, replica: &Replica) -> Merge {
    if !word.has_flow() {
        return Merge::Put;
    }
    if is_right(word, flow, replica.flow.last_seen) {
        return Merge::Keep;
    }
    if word.claimable() {
        return Merge::Put;
    }
    match is_same(word, flow, replica) {
        true => Merge::Renew,
        false => Merge::Replace,
    }
}

/// Whether a replica is of the flow that is there: the same client, service and backend, and numbers that are translated or not.
fn is_same(word: FlowState, flow: &Flow, replica: &Replica) -> bool {
    let to = |flow: &Flow| {
        (
            flow.backend,
            flow.backend_port,
            flow.backend_id,
            flow.service,
        )
    };
    flow.key(word.is_udp()) == replica.key()
        && to(flow) == to(&replica.flow)
        && word.is_spliced() == replica.word.is_spliced()
}

/// Whether an entry is right that another box has seen last at this coarse time: this one has forwarded a later packet, or a socket has
/// it.
fn is_right(word: FlowState, flow: &Flow, last_seen: u32) -> bool {
    word.is_local() || word.is_held() || is_served(flow) && is_later(flow, last_seen)
}

/// Whether a flow was seen after this coarse time.
fn is_later(flow: &Flow, last_seen: u32) -> bool {
    flow.last_seen.wrapping_sub(last_seen).cast_signed() > 0
}

/// Whether there is a flow that is not over.
fn is_live(word: FlowState) -> bool {
    word.has_flow() && !word.claimable()
}

/// Whether this box has forwarded a packet of a flow.
pub fn is_served(flow: &Flow) -> bool {
    flow.request().packets != 0 || flow.reply().packets != 0
}

/// The tables that a replica has something in.
pub struct Replicas {
    flows: FlowTable,
    lines: FlowLines,
    usage: UsageTable,
    splices: SpliceTable,
    clients6: MappedArray<Be128>,
    counts: Option<CountTable>,
    queues: FreeQueues,
}

/// Where ids go that may be given out again.
struct FreeQueues {
    maps: Maps,
    /// By slot, those of this box's own addresses.
    open: HashMap<u16, FreeIds>,
}

impl FreeQueues {
    /// That of the address in this slot, if this box gives out its ids.
    fn of(&mut self, slot: u16) -> Option<&mut FreeIds> {
        if !self.open.contains_key(&slot)
            && let Ok(Some(queue)) = self.maps.free_ids(slot)
        {
            self.open.insert(slot, queue);
        }
        self.open.get_mut(&slot)
    }

    /// Puts an id back, if this box gives it out. What the kernel refuses a start finds.
    fn give_back(&mut self, id: u32) {
        let slot = u16::try_from(slot(id)).ok();
        if let Some(queue) = slot.and_then(|slot| self.of(slot)) {
            let _lost = queue.push(id);
        }
    }
}

impl Replicas {
    /// Opens the maps that are pinned in `folder`, of which `maps` are.
    ///
    /// # Errors
    ///
    /// If a pin is missing or the kernel refuses a mapping.
    pub fn open(folder: &Path, maps: Maps) -> Result<Self> {
        Ok(Self {
            flows: FlowTable::open(folder)?,
            lines: FlowLines::open(folder)?,
            usage: UsageTable::open(folder)?,
            splices: SpliceTable::open(folder)?.with_names()?,
            clients6: MappedArray::open(folder, "CLIENTS6")?,
            counts: CountTable::open(folder)?,
            queues: FreeQueues {
                maps,
                open: HashMap::new(),
            },
        })
    }

    /// Addresses may have got a queue of free ids since, or another one.
    pub fn forget_queues(&mut self) {
        self.queues.open.clear();
    }

    /// Takes the ids of replicas out of the queue of the address in this slot, where a box that was rebooted has all of its ids: they come
    /// back when their flows end, and would be there twice.
    pub fn take_out(&mut self, slot: u16) {
        let Some(queue) = self.queues.of(slot) else {
            return;
        };
        let mut met = HashSet::new();
        while let Ok(id) = queue.pop() {
            let word = self.flows.word(id);
            // The data plane puts ids back meanwhile, which are not lost either.
            if word.is_some_and(FlowState::claimable) {
                let _lost = queue.push(id);
            }
            if !met.insert(id) {
                return;
            }
        }
    }

    /// Has a flow stand ready at an id, unless what is there is [right](Placed::Later).
    pub fn place(&mut self, id: u32, replica: &Replica) -> Placed {
        let (word, flow) = match (self.flows.flow(id), self.flows.word(id)) {
            (Some(found), _) => found,
            (None, Some(word)) => (word, Flow::default()),
            (None, None) => return Placed::Busy,
        };
        match merge(word, &flow, replica) {
            Merge::Keep => Placed::Later,
            Merge::Renew if self.has_other_numbers(id, word, replica) => {
                self.replace(id, (word, &flow), replica)
            }
            Merge::Renew => self.renew(id, (word, &flow), replica),
            Merge::Replace => self.replace(id, (word, &flow), replica),
            Merge::Put => self.put(id, (word, &flow), replica),
        }
    }

    /// Ends the flow of a client at an id, which was over on another box at this coarse time, unless this one has forwarded a later
    /// packet; false if a CPU changes it at this moment. Late segments are still translated.
    pub fn end(&mut self, id: u32, client: &ClientEnd, last_seen: u32) -> bool {
        let Some((word, flow)) = self.flows.flow(id).filter(|(word, _)| is_live(*word)) else {
            return true;
        };
        if ClientEnd::of(&flow) != *client || is_right(word, &flow, last_seen) {
            return true;
        }
        let is_over = self.close(id, (word, &flow));
        if is_over {
            self.queues.give_back(id);
        }
        is_over
    }

    /// Ends the replica at an id that its box has not any more, though it had it after this coarse time; whether it did.
    pub fn end_missing(&mut self, id: u32, since: u32) -> bool {
        let Some((word, flow)) = self.flows.flow(id).filter(|(word, _)| is_live(*word)) else {
            return false;
        };
        let is_known = is_later(&flow, since);
        let is_ours = is_served(&flow) || word.is_local() || word.is_held();
        let is_over = !is_ours && is_known && self.close(id, (word, &flow));
        if is_over {
            self.queues.give_back(id);
        }
        is_over
    }

    /// Whether the numbers of a flow are translated otherwise than those of its replica: it is another connection.
    fn has_other_numbers(&self, id: u32, word: FlowState, replica: &Replica) -> bool {
        let numbers = replica.numbers;
        let numbers = numbers.map(|numbers| numbers.of(id, word.generation()));
        numbers.is_some() && self.splices.numbers(id, word) != numbers
    }

    /// A replica in the place of a flow that has ended elsewhere. The id of that is in no queue.
    fn replace(&mut self, id: u32, (word, flow): (FlowState, &Flow), replica: &Replica) -> Placed {
        if !self.close(id, (word, flow)) {
            return Placed::Busy;
        }
        let placed = self.put(id, (word.close(), flow), replica);
        if placed != Placed::Ready {
            self.queues.give_back(id);
        }
        placed
    }

    fn close(&self, id: u32, (word, flow): (FlowState, &Flow)) -> bool {
        let is_over = self.flows.swap(id, word, word.close());
        if is_over && word.in_use() {
            self.usage.count(id, &FlowOwners::from(flow), -1);
        }
        is_over
    }

    /// Gives a flow that stands ready the numbers of a replica.
    fn renew(&self, id: u32, (word, flow): (FlowState, &Flow), replica: &Replica) -> Placed {
        let next = word.replicate(replica.word);
        if next != word && !self.flows.swap(id, word, next) {
            return Placed::Busy;
        }
        if is_served(flow)
            && let Some(counts) = &self.counts
        {
            counts.hand_in(word, flow);
        }
        self.flows.renew(id, &replica.flow);
        if !word.in_use() {
            self.usage.count(id, &FlowOwners::from(flow), 1);
        }
        Placed::Ready
    }

    fn put(&mut self, id: u32, (before, flow): (FlowState, &Flow), replica: &Replica) -> Placed {
        let claimed = before.claim(replica.word.is_udp());
        if !before.claimable() || !self.flows.swap(id, before, claimed) {
            return Placed::Busy;
        }
        if before.has_flow() {
            self.forget(id, before, flow);
        }
        self.flows.fill(id, &replica.flow);
        if let Some(client) = replica.client {
            self.clients6.write(id, client);
        }
        if let Some(numbers) = &replica.numbers {
            let name = replica.name.as_bytes();
            if self
                .splices
                .set_numbers(id, claimed, numbers, name)
                .is_err()
            {
                // The entry is ours until then.
                let _withdrawn = self.flows.swap(id, claimed, claimed.withdraw());
                return Placed::Busy;
            }
        }
        let word = claimed.replicate(replica.word);
        let owners = FlowOwners::from(&replica.flow);
        // Before a CPU can end it.
        self.usage.count(id, &owners, 1);
        // The entry is ours until then.
        let _published = self.flows.swap(id, claimed, word);
        let Err(why) = self.index(id, replica) else {
            return Placed::Ready;
        };
        if self.flows.swap(id, word, word.forget()) {
            self.usage.count(id, &owners, -1);
        }
        match why {
            NotIndexed::Race => Placed::Taken,
            NotIndexed::Full => Placed::Busy,
        }
    }

    /// Makes a replica findable by its requests. Of two flows of a tuple, at two ports, the one is over whose latest packet is older.
    fn index(&mut self, id: u32, replica: &Replica) -> Result<(), NotIndexed> {
        let key = replica.key();
        let added = self.lines.add(&key, id);
        if added != Err(NotIndexed::Race) {
            return added;
        }
        let other = self.lines.other(&key, id).ok_or(NotIndexed::Race)?;
        let (word, flow) = self.flows.flow(other).ok_or(NotIndexed::Race)?;
        let is_later = is_later(&flow, replica.flow.last_seen);
        if is_later || word.is_local() || word.is_held() || !self.close(other, (word, &flow)) {
            return added;
        }
        self.queues.give_back(other);
        self.lines.add(&key, id)
    }

    /// What an earlier flow of the id has left.
    fn forget(&self, id: u32, word: FlowState, flow: &Flow) {
        if let Some(counts) = &self.counts {
            counts.hand_in(word, flow);
        }
        // A word that is left leads nowhere.
        let _left = self.lines.remove(&flow.key(word.is_udp()), id);
    }
}

#[cfg(test)]
mod tests {
    use lb_common::traffic::Traffic;

    use super::*;

    const NOW: u32 = 5;

    fn flow(client_port: u16, last_seen: u32, is_served: bool) -> Flow {
        Flow {
            client: Be32::new(0x0a00_0001),
            client_port: Be16::new(client_port),
            last_seen,
            traffic_request: match is_served {
                true => Traffic::one(60).raw(),
                false => 0,
            },
            ..Flow::default()
        }
    }

    #[test]
    fn the_box_is_right_that_has_forwarded_the_latest_packet() {
        let live = FlowState::default().claim(false).establish();
        let replica = |client_port| Replica {
            word: live,
            flow: flow(client_port, NOW, false),
            client: None,
            numbers: None,
            name: String::new(),
        };
        // Before now, wrapped around.
        let before = NOW.wrapping_sub(10);
        for (word, other, last_seen, is_served, wanted) in [
            (FlowState::default(), 1, NOW + 1, true, Merge::Put),
            (live, 1, before, false, Merge::Renew),
            (live, 1, before, true, Merge::Renew),
            (live, 1, NOW, true, Merge::Renew),
            (live, 1, NOW + 1, false, Merge::Renew),
            (live, 1, NOW + 1, true, Merge::Keep),
            (live, 2, NOW + 1, true, Merge::Keep),
            (live, 2, NOW + 1, false, Merge::Replace),
            (live, 2, before, true, Merge::Replace),
            (live.close(), 1, NOW + 1, true, Merge::Keep),
            (live.close(), 1, NOW + 1, false, Merge::Put),
            (live.close(), 2, before, true, Merge::Put),
            (live.end(), 1, before, true, Merge::Put),
        ] {
            let here = flow(1, last_seen, is_served);
            let merged = merge(word, &here, &replica(other));
            assert_eq!(merged, wanted, "{word:?} {other} {last_seen} {is_served}");
        }
    }
}
